"""History that cannot show the future: everything carries the instant at which it became known."""

from collections.abc import Sequence
from typing import Self

import numpy as np
import pandas as pd

from tidegrid.data.instants import as_instant
from tidegrid.data.readers import complete_jobs
from tidegrid.data.schema import blank
from tidegrid.data.tables import CENSORED, JOBS
from tidegrid.data.traffic import regular_hours
from tidegrid.errors import InputError

_HOUR = pd.Timedelta(hours=1)
_LAZY_COPIES = int(pd.__version__.split(".")[0]) >= 3


class History:
    """Finished, censored and running jobs, and hourly traffic.

    Parameters
    ----------
    jobs
        Job history in the documented schema, validated here unless ``checked``.
    traffic
        Traffic in the documented schema.
    checked
        Whether both come from this package's readers and need no second validation.
    instant
        The instant of which this is the view; None for all that the files hold.
    features
        What :func:`request_features` returns of the jobs, on their index, where that is known already.

    Notes
    -----
    Jobs are sorted by submit time and id, so that the order of the files does not matter. Frames that are
    handed out are copies: nothing that a caller does changes the history.
    """

    def __init__(
        self,
        jobs: pd.DataFrame | None = None,
        traffic: pd.DataFrame | None = None,
        *,
        checked: bool = False,
        instant: pd.Timestamp | None = None,
        features: pd.DataFrame | None = None,
    ) -> None:
        if jobs is None:
            jobs = pd.DataFrame({c.name: blank(c, pd.RangeIndex(0)) for c in JOBS.columns if c.always})
        elif not checked:
            jobs = complete_jobs(jobs)
        if traffic is None:
            traffic = pd.DataFrame(
                {
                    "series_id": pd.Series([], dtype=object),
                    "timestamp": pd.Series([], dtype="datetime64[us, UTC]"),
                    "value": pd.Series([], dtype="float64"),
                }
            )
        elif not checked:
            traffic = regular_hours(traffic)
        if len(jobs) > 1:
            jobs = jobs.sort_values(["submit_time", "job_id"], kind="stable")
            features = None if features is None else features.loc[jobs.index]
        self._jobs = jobs.reset_index(drop=True)
        self._features = None if features is None else features.reset_index(drop=True)
        self._traffic = traffic.reset_index(drop=True)
        self._instant = instant

    @property
    def instant(self) -> pd.Timestamp | None:
        """The instant of which this is the view; None for all that the files hold."""
        return self._instant

    @property
    def jobs(self) -> pd.DataFrame:
        """All attempts, sorted by submit time: completed, censored and running."""
        return self._jobs.copy(deep=not _LAZY_COPIES)

    @property
    def traffic(self) -> pd.DataFrame:
        """Hourly traffic: ``series_id, timestamp, value``, NaN for a gap."""
        return self._traffic.copy(deep=not _LAZY_COPIES)

    def __len__(self) -> int:
        """Return how many attempts it holds."""
        return len(self._jobs)

    def __repr__(self) -> str:
        until = "" if self._instant is None else f", as of {self._instant.isoformat()}"
        series = self._traffic["series_id"].nunique()
        return f"History({len(self._jobs):,} jobs, {series:,} series of traffic{until})"

    def as_of(self, instant: object) -> Self:
        """Return what was known at an instant, and nothing else.

        An attempt whose ``known_at`` is later appears as running where it had started (or, where no start is known,
        had been submitted), without its end, its duration, its outcome, or any column that the schema does not call
        known at submit or start; where it had not started it does not appear. An hour of traffic is known when it
        is over.

        Raises
        ------
        InputError
            The instant carries no zone, or lies after the instant of this view.
        """
        now = as_instant(instant)
        if self._instant is not None and now > self._instant:
            raise InputError(
                f"the view ends at {self._instant.isoformat()}",
                field="instant",
                fix="ask the whole history for a later instant",
            )
        jobs = self._jobs
        known = (jobs["known_at"] <= now).to_numpy()
        began = jobs["start_time"].where(jobs["start_time"].notna(), jobs["submit_time"])
        under_way = ~known & (began <= now).to_numpy()
        view = jobs[known | under_way].reset_index(drop=True)
        hidden = ~known[known | under_way]
        if hidden.any():
            view = _without_ends(view, hidden, began[known | under_way].to_numpy())
        traffic = self._traffic
        over = (traffic["timestamp"] + _HOUR <= now).to_numpy()
        return type(self)(view, traffic[over], checked=True, instant=now)

    def finished(self) -> pd.DataFrame:
        """Return the attempts that completed: their durations are what such jobs take."""
        return self._jobs[self._jobs["status"] == "completed"].reset_index(drop=True)

    def censored(self) -> pd.DataFrame:
        """Return the attempts that failed, were cancelled or timed out: their durations are lower bounds."""
        return self._jobs[self._jobs["status"].isin(CENSORED)].reset_index(drop=True)

    def running(self) -> pd.DataFrame:
        """Return the attempts that are under way."""
        return self._jobs[self._jobs["status"] == "running"].reset_index(drop=True)

    def queued(self, instant: object) -> pd.DataFrame:
        """Return the attempts that had been submitted and not started at an instant, without what came later.

        Raises
        ------
        InputError
            The instant carries no zone.
        """
        now = as_instant(instant)
        waiting = (self._jobs["submit_time"] <= now) & (self._jobs["start_time"] > now)
        names = [n for n in self._jobs.columns if n in _KNOWN_AT_SUBMIT]
        return self._jobs.loc[waiting, names].reset_index(drop=True)

    def training_frame(
        self, kind: str | None = None, *, running: bool = False
    ) -> tuple[pd.DataFrame, pd.Series, pd.Series, pd.Series]:
        """Return what an estimator is fitted on.

        Parameters
        ----------
        kind
            The workload kind; None for all.
        running
            Whether jobs under way count, as lower bounds of the time that they have run at this view's instant.

        Returns
        -------
        X : DataFrame
            What was known when each job was submitted, as :func:`request_features` gives it for requests.
        y : Series
            Hours that it ran.
        observed : Series
            Whether ``y`` is the true duration; False for a lower bound.
        known_at : Series
            When the row became known.

        Raises
        ------
        InputError
            Running jobs are asked for, and this is not the view of an instant.
        """
        jobs, features = self._jobs, self._features
        if kind is not None:
            jobs = jobs[jobs["kind"] == kind]
        hours = jobs["duration_s"] / 3600.0
        if running:
            if self._instant is None:
                raise InputError(
                    "running jobs have no age without an instant", fix="take as_of(instant) first"
                )
            began = jobs["start_time"].where(jobs["start_time"].notna(), jobs["submit_time"])
            age = (self._instant - began).dt.total_seconds() / 3600.0
            hours = hours.where(jobs["status"] != "running", age.where(age > 0))
        keep = hours.notna()
        if not keep.all():
            jobs, hours = jobs[keep], hours[keep]
        if features is None:
            X = request_features(jobs)
        elif len(jobs) < len(features):
            X = features.loc[jobs.index]
        else:
            X = features.copy(deep=not _LAZY_COPIES)
        if len(jobs) < len(self._jobs):
            jobs, X = jobs.reset_index(drop=True), X.reset_index(drop=True)
            hours = hours.reset_index(drop=True)
        observed = (jobs["status"] == "completed").rename("observed")
        return X, hours.rename("duration_h"), observed, jobs["known_at"]


_KNOWN_AT_SUBMIT = frozenset(c.name for c in JOBS.columns if c.known == "submit")
_ALWAYS = frozenset(c.name for c in JOBS.columns if c.known == "submit" and c.always)
_KNOWN_AT_START = _KNOWN_AT_SUBMIT | {c.name for c in JOBS.columns if c.known == "start"}


def request_features(table: pd.DataFrame, columns: Sequence[str] = ()) -> pd.DataFrame:
    """Return the columns that estimators read: what is known of a job when it is submitted.

    ``requested_walltime_s`` becomes ``requested_walltime_h``; a feature without a value in any row is left out.

    Parameters
    ----------
    table
        Job history, requests or running jobs.
    columns
        Further columns to keep, such as ``pool``.

    Returns
    -------
    DataFrame
        A new frame on the index of ``table``.
    """
    names = []
    for name in table.columns:
        if name in columns:
            names.append(name)
        elif name not in _KNOWN_AT_SUBMIT or name == "requested_walltime_s":
            continue
        elif name in _ALWAYS or _has_values(table[name]):
            names.append(name)
    out = table[names]
    if "requested_walltime_s" in table.columns:
        return out.assign(requested_walltime_h=table["requested_walltime_s"] / 3600.0)
    return out


def _has_values(column: pd.Series) -> bool:
    if column.dtype.kind in "fM":
        return bool(column.notna().any())
    cells = column.to_numpy(dtype=object)
    return bool((cells[~pd.isna(cells)] != "").any())


def _without_ends(view: pd.DataFrame, hidden: np.ndarray, began: np.ndarray) -> pd.DataFrame:
    """Hide in some rows all that is known only at a job's end; a running row is known since it began."""
    at = pd.Series(hidden, index=view.index)
    columns: dict[str, pd.Series] = {}
    for name in view.columns:
        column = view[name]
        if name == "status":
            column = column.mask(at, "running")
        elif name == "known_at":
            column = column.mask(at, pd.Series(began, index=view.index).astype(column.dtype))
        elif name == "known_at_estimated":
            column = column.mask(at, 0.0)
        elif name not in _KNOWN_AT_START:
            text = column.dtype == object or pd.api.types.is_string_dtype(column.dtype)
            column = column.mask(at, "") if text else column.mask(at)
        columns[str(name)] = column
    return pd.DataFrame(columns, index=view.index)
