"""Backtests that never see the future: fit on what was known at a cutoff, predict what was submitted after it."""

import hashlib
import inspect
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone

from tidegrid.data import History, as_instant
from tidegrid.errors import InputError, TidegridError
from tidegrid.estimators import Estimator
from tidegrid.estimators.base import lacking
from tidegrid.models import Scores
from tidegrid.pipeline.naive import FLOOR_H, NaiveDemand, NaiveDurations, who

LEVELS = tuple(round(0.05 * k, 2) for k in range(1, 20))
"""The quantile levels that are scored: the mean pinball loss over them is half the discretised CRPS."""

BAND = (0.1, 0.9)
"""The band whose coverage is told: nominally 80 %."""

OCCUPANCY = "occupancy"
"""What a duration means in plans: the hours that a job holds its GPUs, whether it completes or not."""

HOUR = pd.Timedelta(hours=1)

NO_JOBS = "no job of this kind has ended"
NO_TRAFFIC = "no hour of traffic is known"


@dataclass(frozen=True)
class Rows:
    """What an estimator is fitted on or asked, as frames on one index.

    ``at`` is where its rows stand in the rows that they were taken from.
    """

    X: pd.DataFrame
    y: pd.Series
    observed: pd.Series
    known_at: pd.Series
    at: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=int))

    def __len__(self) -> int:
        return len(self.X)

    def take(self, keep: np.ndarray) -> "Rows":
        """Return the rows where ``keep``, on a fresh index."""
        at = np.flatnonzero(keep)
        if len(at) == len(self.X) and self.X.index.equals(pd.RangeIndex(len(at))):
            return replace(self, at=at)
        return Rows(
            self.X.iloc[at].reset_index(drop=True),
            self.y.iloc[at].reset_index(drop=True),
            self.observed.iloc[at].reset_index(drop=True),
            self.known_at.iloc[at].reset_index(drop=True),
            at,
        )

    def sha256(self) -> str:
        """Return the hash of exactly these rows."""
        total = hashlib.sha256()
        parts = {**{f"X.{name}": self.X[name] for name in sorted(self.X.columns)}, "y": self.y}
        for name, column in {**parts, "observed": self.observed, "known_at": self.known_at}.items():
            if isinstance(column.dtype, pd.DatetimeTZDtype):
                plain = (
                    column.dt.tz_convert("UTC")
                    .dt.tz_localize(None)
                    .to_numpy(dtype="datetime64[us]")
                    .view("int64")
                )
            elif column.dtype == object or pd.api.types.is_string_dtype(column.dtype):
                plain = column.astype(object).fillna("").astype(str).astype(object).to_numpy()
            else:
                plain = column.to_numpy()
            total.update(name.encode())
            total.update(pd.util.hash_array(plain).tobytes())
        return total.hexdigest()


def one_thread() -> Any:
    """Return a context in which linear algebra runs on one thread.

    The order in which threads add up moves the last bits, and the same history must give the same bytes however
    many fits run side by side; one thread is also the faster on a busy machine.
    """
    return _thread_pools("scipy.linalg" in sys.modules, "lightgbm" in sys.modules).limit(limits=1)


@lru_cache(maxsize=4)
def _thread_pools(*loaded: bool) -> Any:
    """Return the libraries that have threads; finding them is slow, and they change only as these are loaded."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@dataclass(frozen=True)
class Calendar:
    """What people at a site live by: the IANA zone, and ISO 3166 codes of the public holidays, None for none."""

    timezone: str = "UTC"
    country: str | None = None
    subdivision: str | None = None

    def holds_for(self, estimator: Estimator) -> bool:
        """Whether an estimator follows these public holidays, where it follows any and a country is stated."""
        told = {"country": self.country, "subdivision": self.subdivision}
        asks = inspect.signature(type(estimator).__init__).parameters
        return self.country is None or all(
            getattr(estimator, name) == value for name, value in told.items() if name in asks
        )


def make(kind: type[Estimator], calendar: Calendar | None = None) -> Estimator:
    """Return an unfitted estimator, told the calendar and what planning wants to know, where it asks for them.

    GPUs fall free when a job ends, however it ends: where an estimator can say how long a job holds them
    (``outcome="occupancy"``), that is what plans rest on.
    """
    told = asdict(calendar or Calendar()) | {"outcome": OCCUPANCY}
    takes = inspect.signature(kind.__init__).parameters
    return kind(**{name: value for name, value in told.items() if name in takes})


def rows_of(estimator: Estimator, history: History) -> Rows:
    """Return the rows of a history that an estimator can be fitted on.

    Jobs of another kind, and jobs without a feature that it requires, are left out; hours of traffic without a
    value stay, as missing ones. For an estimator of occupancy every end is an outcome, not a lower bound.
    """
    if estimator.target == "demand":
        traffic = history.traffic
        X = pd.DataFrame({"unique_id": traffic["series_id"], "ds": traffic["timestamp"]})
        seen = pd.Series(True, index=X.index, name="observed")
        return Rows(
            X, traffic["value"].rename("demand"), seen, (traffic["timestamp"] + HOUR).rename("known_at")
        )
    kind = None if estimator.kind == "any" else estimator.kind
    rows = Rows(*history.training_frame(kind))
    if getattr(estimator, "outcome", "") == OCCUPANCY:
        rows = replace(rows, observed=pd.Series(True, index=rows.X.index, name="observed"))
    return rows.take(lacking(rows.X, estimator.features) == "")


def what_lacks(estimator: Estimator, history: History) -> str:
    """Return what an estimator that finds no row in a history lacks there, as a clause."""
    if estimator.target == "demand":
        return NO_TRAFFIC
    rows = Rows(*history.training_frame(None if estimator.kind == "any" else estimator.kind))
    if not len(rows):
        return NO_JOBS
    names = [feature.name for feature in estimator.features if feature.required]
    absent = [
        name for name in names if name not in rows.X or (rows.X[name].isna() | (rows.X[name] == "")).all()
    ]
    return f"no job that has ended tells {', '.join(absent) or ' and '.join(names)}"


def asked(rows: Rows, after: pd.Timestamp, until: pd.Timestamp | None = None) -> Rows:
    """Return the rows submitted (or, for traffic, begun) at ``after`` or later and before ``until``.

    Jobs that did not complete have no true duration to compare with and are left out, as are missing hours.
    """
    column = "ds" if "ds" in rows.X.columns else "submit_time"
    when = pd.to_datetime(rows.X[column], utc=True)
    keep = (when >= after) & rows.observed & rows.y.notna()
    if until is not None:
        keep &= when < until
    return rows.take(keep.to_numpy(dtype=bool))


def fitted_as_of(estimator: Estimator, history: History, cutoff: pd.Timestamp) -> tuple[Estimator, Rows]:
    """Return a copy of the estimator fitted on what was known at ``cutoff``, and those rows.

    One that answers from its prior stays unfitted where there is no row.
    """
    rows = rows_of(estimator, history.as_of(cutoff))
    fresh: Estimator = clone(estimator)
    if len(rows) or not estimator.predicts_unfitted:
        fresh.fit(rows.X, rows.y, observed=rows.observed, known_at=rows.known_at)
    return fresh, rows


def answers(
    fitted: Estimator, rows: Rows, since: pd.Timestamp, test: Rows, levels: Sequence[float] = LEVELS
) -> np.ndarray:
    """Return quantiles of test rows, shape (rows, levels), finite, as a planner would have got them.

    An estimator that can ``replay`` answers each job from what was known at its submission; one that can only
    ``update`` is given, at the start of each stretch of a day or more, those of ``rows`` that became known between
    ``since`` and then; others answer as they are.

    Parameters
    ----------
    fitted
        The estimator; it stays as it is.
    rows
        All rows.
    since
        Until when it has learnt.
    test
        The rows to answer, as :func:`asked` takes them from ``rows``.
    levels
        The quantile levels.

    Raises
    ------
    InputError
        The estimator's answer is no frame of finite quantiles.
    """
    out = _answers(fitted, rows, since, test, levels)
    if out.shape != (len(test), len(levels)) or not np.isfinite(out).all():
        raise InputError(
            f"its answer to {len(test)} rows is not one finite quantile for each row and level",
            fix=f"see tidegrid estimators check {fitted.name}",
        )
    return out


def _answers(
    fitted: Estimator, rows: Rows, since: pd.Timestamp, test: Rows, levels: Sequence[float]
) -> np.ndarray:
    if hasattr(fitted, "replay") and fitted.target == "duration_h":
        return _replayed(fitted, rows, since, test, levels)
    if not hasattr(fitted, "update"):
        return fitted.predict_quantiles(test.X, levels).to_numpy(dtype=float)
    out = np.full((len(test), len(levels)), np.nan)
    walker = type(fitted).from_bundle(fitted.to_bundle())
    known_at = pd.to_datetime(rows.known_at, utc=True)
    for start, at in _stretches(test):
        new = rows.take(((known_at > since) & (known_at <= start)).to_numpy(dtype=bool))
        if len(new):
            updated(walker, new)
            since = start
        out[at] = walker.predict_quantiles(test.X.iloc[at], levels).to_numpy(dtype=float)
    return out


def _replayed(
    fitted: Estimator, rows: Rows, since: pd.Timestamp, test: Rows, levels: Sequence[float]
) -> np.ndarray:
    known_at = pd.to_datetime(rows.known_at, utc=True)
    last = pd.to_datetime(test.X["submit_time"], utc=True).max()
    new = ((known_at > since) & (known_at <= last)).to_numpy(dtype=bool, copy=True)
    new[test.at] = True
    given = rows.take(new)
    walker: Any = type(fitted).from_bundle(fitted.to_bundle())
    out = walker.replay(given.X, given.y, tuple(levels), observed=given.observed, known_at=given.known_at)
    return out.to_numpy(dtype=float)[np.searchsorted(given.at, test.at)]


def updated(estimator: Estimator, new: Rows) -> None:
    """Let an estimator that has ``update`` take in new rows."""
    update: Any = getattr(estimator, "update")  # noqa: B009
    if estimator.target == "demand":
        update(new.X, new.y)
    else:
        update(new.X, new.y, observed=new.observed, known_at=new.known_at)


def naive_answers(estimator: Estimator, rows: Rows, test: Rows) -> np.ndarray:
    """Return the naive forecast's quantiles at ``LEVELS``, given at each stretch what was known at its start."""
    out = np.full((len(test), len(LEVELS)), np.nan)
    known_at = pd.to_datetime(rows.known_at, utc=True)
    for start, at in _stretches(test):
        past, X = rows.take((known_at <= start).to_numpy(dtype=bool)), test.X.iloc[at].reset_index(drop=True)
        if estimator.target == "demand":
            out[at] = NaiveDemand().fit(past.X, past.y).quantiles(X, LEVELS)
        else:
            naive = NaiveDurations().fit(past.X, past.y, past.observed, set(who(X)))
            out[at] = naive.quantiles(X, LEVELS)
    return out


def _stretches(test: Rows, most: int = 14) -> list[tuple[pd.Timestamp, np.ndarray]]:
    """Cut test rows by time into at most ``most`` stretches of whole days: (start, positions)."""
    when = pd.to_datetime(test.X["ds" if "ds" in test.X.columns else "submit_time"], utc=True)
    if not len(when):
        return []
    first = when.min()
    days = int((when.max() - first) / pd.Timedelta(days=1)) + 1
    length = pd.Timedelta(days=-(-days // most))
    number = ((when - first) // length).to_numpy()
    return [(first + int(n) * length, np.flatnonzero(number == n)) for n in np.unique(number)]


def losses(estimator: Estimator, past: Rows, test: Rows, quantiles: np.ndarray) -> np.ndarray:
    """Return the mean pinball loss of each row over ``LEVELS``.

    Durations are compared by their log10, so that a loss of 0.1 is the same factor for short and long jobs;
    demand in units of the seasonal naive forecast's mean absolute error in the history of the series.
    """
    actual = test.y.to_numpy(dtype=float)
    if estimator.target == "demand":
        naive = NaiveDemand().fit(past.X, past.y)
        unit = test.X["unique_id"].astype(str).map({n: naive.scale(n) for n in naive.series_}).fillna(1.0)
        scale = unit.to_numpy(dtype=float)
        return pinball(actual / scale, quantiles / scale[:, None], LEVELS)
    with np.errstate(invalid="ignore"):
        return pinball(
            np.log10(np.maximum(actual, FLOOR_H)), np.log10(np.maximum(quantiles, FLOOR_H)), LEVELS
        )


def pinball(actual: np.ndarray, quantiles: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """Return the pinball loss, averaged over the levels, shape (rows,)."""
    over = actual[:, None] - quantiles
    at = np.asarray(levels)[None, :]
    return np.maximum(at * over, (at - 1.0) * over).mean(axis=1)


def blocks(estimator: Estimator, test: Rows) -> np.ndarray:
    """Return which rows depend on one another: a user's jobs of a day, a series' hours of a day."""
    if estimator.target == "demand":
        day = pd.to_datetime(test.X["ds"], utc=True).dt.strftime("%Y-%m-%d")
        return (test.X["unique_id"].astype(str) + " " + day).to_numpy(dtype=object)
    day = pd.to_datetime(test.X["submit_time"], utc=True).dt.strftime("%Y-%m-%d")
    return (day + " " + who(test.X)).to_numpy(dtype=object)


def scores(fitted: Estimator, rows: Rows, since: pd.Timestamp, past: Rows, test: Rows) -> Scores:
    """Return a fitted estimator's scores on rows that it never saw; a failure becomes their ``problem``.

    Parameters
    ----------
    fitted
        The estimator.
    rows
        All rows, of which it may take in those that became known after ``since`` and before a test row.
    since
        Until when it has learnt.
    past
        The rows known at the cutoff, which give the losses their unit.
    test
        The rows to answer.
    """
    try:
        quantiles = answers(fitted, rows, since, test)
    except TidegridError as error:
        return Scores(problem=str(error))
    except Exception as error:  # a plugin may raise anything; it must not stop the others
        return Scores(problem=f"{type(error).__name__}: {error}")
    return scored(fitted, past, test, quantiles)


def scored(estimator: Estimator, past: Rows, test: Rows, quantiles: np.ndarray) -> Scores:
    """Return the scores of given quantiles."""
    low, high = LEVELS.index(BAND[0]), LEVELS.index(BAND[1])
    actual = test.y.to_numpy(dtype=float)
    inside = (actual >= quantiles[:, low]) & (actual <= quantiles[:, high])
    return Scores(
        losses(estimator, past, test, quantiles),
        blocks(estimator, test),
        (float(inside.mean()) if len(inside) else float("nan"), BAND[1] - BAND[0]),
    )


def cutoffs(estimator: Estimator, history: History, folds: int, share: float = 0.5) -> list[pd.Timestamp]:
    """Return the cutoffs of a rolling-origin backtest over the last ``share`` of what can be scored.

    Jobs are cut at equal numbers of submissions, traffic at whole days.
    """
    rows = rows_of(estimator, history)
    when = pd.to_datetime(rows.X["ds" if estimator.target == "demand" else "submit_time"], utc=True)
    if not len(rows):
        return []
    ordered = when.sort_values().reset_index(drop=True)
    if estimator.target == "demand":
        first, last = ordered.iloc[0], ordered.iloc[-1] + HOUR
        days = int((last - first) / pd.Timedelta(days=1) * share)
        count = min(folds, days)
        ends = [last - pd.Timedelta(days=round(days * (count - k) / count)) for k in range(count)]
        return [as_instant(end) for end in ends]
    at = [int(len(ordered) * (1 - share + share * k / folds)) for k in range(folds)]
    return sorted({as_instant(ordered.iloc[min(i, len(ordered) - 1)]) for i in at})
