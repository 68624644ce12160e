"""The realtime demand estimator: hourly history of many apps in, quantiles of the coming hours out."""

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd

from tidegrid.calendars import holiday_days
from tidegrid.errors import InputError
from tidegrid.estimators.base import LEVELS, Estimator, Feature, as_levels, named_columns, quantile_frame
from tidegrid.estimators.conformal import ConformalQuantiles
from tidegrid.estimators.realtime.bands import (
    band,
    blended_shape,
    few_origins_factor,
    pooled_shape,
    recent_factor,
    standard_errors,
    young_band,
)
from tidegrid.estimators.realtime.coldstart import pool_of, short_forecast, typical_shape
from tidegrid.estimators.realtime.curve import Curve
from tidegrid.estimators.realtime.engine import BASELINES, GROWN, Learnt, Series, follow, learn, peak_errors
from tidegrid.estimators.realtime.history import History, histories
from tidegrid.estimators.realtime.intervals import at_levels, lead_group
from tidegrid.estimators.realtime.localtime import (
    DAY,
    WEEK,
    hour_of_week,
    local_hours,
    on_holiday,
    utc_hours,
)
from tidegrid.estimators.realtime.members import HORIZON
from tidegrid.estimators.realtime.monitor import width_factors
from tidegrid.estimators.realtime.nexthours import AHEAD
from tidegrid.estimators.realtime.report import report_of
from tidegrid.models import Bundle
from tidegrid.zones import zone_of

STALE_HOURS = 24.0
"""Missing hours at the end of a history that widen its band by the square root of two."""


class RealtimeEstimator(Estimator):
    """Hourly demand of realtime apps: a combination of cheap members, weighed on each series' own past.

    History is one row a series and UTC hour. Hours without a row, and cells without a value, are missing,
    not zero. Rows may come in any order; two rows for one hour are refused. ``observed=False`` marks hours
    in which demand was throttled: what was measured is a lower bound, and the hour counts as missing.

    Hours after the end of a series' history are forecast; past 168 the last week repeats with a wider band.
    Hours inside (or before) it are answered by the weekly curve × level with the band that its errors show:
    an in-sample description, not a forecast, and ``basis`` says so. A series that is not in the history is
    answered from the pool of those that are.

    Parameters
    ----------
    timezone
        IANA zone whose wall clock the demand follows.
    country
        ISO 3166 code of the public holidays to use, from the package ``holidays``; None uses none. The dates
        that were used are stored with the fitted estimator, so that another version of the package changes
        nothing.
    subdivision
        State or province of ``country``, as that package names it.
    prior_demand
        Units an hour expected of an app of which nothing is known and for which there is no pool.
    history_weeks
        Weeks of history, counted from each series' end, that are used; updates let it grow by up to a day more.
    n_jobs
        Processes that learn series side by side, as in joblib.

    Attributes
    ----------
    series_ : dict of str to History
        The history of each series.
    learnt_ : dict of str to Learnt
        What was learnt of each.
    pool_ : Pool
        What they have in common.
    widths_ : dict of str to float
        Factors on the bands of series that :meth:`recalibrate` set.
    holidays_ : frozenset of int
        The public holidays that were used, days since 1970-01-01; two years past the history are there.
    shapes_ : ndarray of shape (lead groups, levels)
        The pooled shape of the band.
    """

    name: ClassVar[str] = "realtime"
    kind: ClassVar[str] = "realtime"
    target: ClassVar[Literal["duration_h", "demand"]] = "demand"
    features: ClassVar[tuple[Feature, ...]] = (
        Feature("unique_id", "text", required=True, doc="the app's traffic series"),
        Feature("ds", "instant", required=True, doc="start of the hour, UTC"),
    )

    def __init__(
        self,
        timezone: str = "UTC",
        country: str | None = None,
        subdivision: str | None = None,
        prior_demand: float = 1.0,
        history_weeks: int = 26,
        n_jobs: int = 1,
    ) -> None:
        self.timezone = timezone
        self.country = country
        self.subdivision = subdivision
        self.prior_demand = prior_demand
        self.history_weeks = history_weeks
        self.n_jobs = n_jobs

    def fit(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        """Learn each series; one whose history is the same as in the fit before is not learnt again.

        Raises
        ------
        InputError
            A column is missing, a time is not the start of an hour, an hour is there twice, a value is
            negative or infinite; the series or row is named.
        """
        self._check_parameters()
        new = histories(X, y, observed, int(self.history_weeks) * WEEK)
        old = getattr(self, "series_", {})
        same_rules = getattr(self, "_rules", None) == self._rule_key()
        kept = getattr(self, "learnt_", {}) if same_rules else {}
        self.series_ = new
        self.holidays_ = self._holidays()
        self._rules = self._rule_key()
        unchanged = {
            key for key, history in new.items() if key in old and key in kept and history.same_as(old[key])
        }
        self.widths_: dict[str, float] = {}
        self._learn({key: kept[key] for key in unchanged})
        return self

    def update(self, X: pd.DataFrame, y: pd.Series) -> Self:
        """Add hours to the history of some series and learn those again; the others, and the pool, stay as
        they are.

        Raises
        ------
        InputError
            As :meth:`fit`; also where an hour is already in the history.
        """
        self._require_fitted("learnt_")
        for key, more in histories(X, y, None, int(self.history_weeks) * WEEK).items():
            whole = (
                self.series_[key].joined(more, int(self.history_weeks) * WEEK)
                if key in self.series_
                else more
            )
            self.series_[key] = whole
            one = self._series(whole)
            old = self.learnt_.get(key)
            self.learnt_[key] = (
                learn(one, self.pool_, keep=True) if old is None else follow(one, old, self.pool_)
            )
        return self

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Predict quantiles of demand, units an hour.

        Raises
        ------
        InputError
            A column is missing, or a time is not the start of an hour; the row is named.
        """
        wanted = as_levels(levels)
        self._require_fitted("learnt_")
        ids, hours = self._rows(X)
        out = np.empty((len(X), len(wanted)))
        for key, rows in _groups(ids):
            out[rows] = self._quantiles(key, hours[rows], wanted)
        return quantile_frame(out, wanted, X.index)

    def basis(self, X: pd.DataFrame) -> pd.Series:
        """Say for each row what its quantiles rest on."""
        self._require_fitted("learnt_")
        ids, hours = self._rows(X)
        out = np.empty(len(X), dtype=object)
        for key, rows in _groups(ids):
            ahead = (
                hours[rows] > self.series_[key].last if self.knows(key) else np.ones(len(rows), dtype=bool)
            )
            out[rows] = np.where(
                ahead, self._basis_of(key), "site history: weekly curve, hour inside the history"
            )
        return pd.Series(out, index=X.index, name="basis", dtype=object)

    def knows(self, unique_id: str) -> bool:
        """Say whether any hour of a series is known.

        Where none is, quantiles are what other apps show, in their units: no need may be read off them, and `basis`
        begins with ``unknown``.
        """
        self._require_fitted("learnt_")
        return unique_id in self.series_ and self.series_[unique_id].known_hours > 0

    def curve(self, unique_id: str) -> Curve:
        """Return the weekly curve of a series: its shape, level and trend."""
        self._require_fitted("learnt_")
        if unique_id not in self.series_:
            raise InputError(
                f"{unique_id!r} is not in the history", field="unique_id", fix="name a series that was fitted"
            )
        return self._series(self.series_[unique_id]).curve()

    def peak_quantiles(
        self, unique_id: str, start: pd.Timestamp, hours: int, levels: Sequence[float] = LEVELS
    ) -> pd.Series:
        """Predict quantiles of the highest hour of a window, units an hour: the peak is what runs out of GPUs.

        The peak of the medians is moved by the conformal quantile of how far past peaks of the same window, seen
        from past origins, lay off; it is never below the highest hourly quantile of the same level.

        Parameters
        ----------
        unique_id
            The series.
        start
            First hour of the window, UTC.
        hours
            Length of the window.
        levels
            Quantile levels.
        """
        wanted = as_levels(levels)
        ds = pd.date_range(start, periods=hours, freq="h")
        X = pd.DataFrame({"unique_id": unique_id, "ds": ds})
        each = self.predict_quantiles(X, (*wanted, 0.5))
        least = each.to_numpy()[:, : len(wanted)].max(axis=0)
        middle = float(each.to_numpy()[:, -1].max())
        offsets = np.zeros(len(wanted))
        if unique_id in self.learnt_:
            lead = int(utc_hours(X["ds"])[0]) - self.series_[unique_id].last - 1
            past = peak_errors(self._series(self.series_[unique_id]), self.learnt_[unique_id], lead, hours)
            offsets = ConformalQuantiles(past).offsets(wanted)
        out = np.maximum(middle + offsets, least)
        order = np.argsort(wanted, kind="stable")
        out[order] = np.maximum.accumulate(out[order])
        return pd.Series(out, index=pd.Index(wanted, name="level"), name="peak")

    def recalibrate(self, record: pd.DataFrame) -> Self:
        """Widen or narrow each series' band until four in five of the recorded hours lie in its 80 % band.

        Parameters
        ----------
        record
            Past forecasts and what came, as in :mod:`tidegrid.estimators.realtime.monitor`. The next ``fit``
            starts afresh.
        """
        self._require_fitted("learnt_")
        self.widths_ = {**self.widths_, **width_factors(record)}
        return self

    def report(self) -> pd.DataFrame:
        """Return what was learnt of each series, as :func:`tidegrid.estimators.realtime.report.report_of` says."""
        self._require_fitted("learnt_")
        basis = {key: self._basis_of(key) for key in self.learnt_}
        return report_of(self.learnt_, {key: one.known_hours for key, one in self.series_.items()}, basis)

    def _check_parameters(self) -> None:
        zone_of(self.timezone)
        if not (np.isfinite(self.prior_demand) and self.prior_demand > 0):
            raise InputError(
                f"{self.prior_demand!r} cannot be used", field="prior_demand", fix="give a positive number"
            )
        if int(self.history_weeks) < 1:
            raise InputError(
                f"{self.history_weeks!r} cannot be used", field="history_weeks", fix="give at least 1"
            )

    def _holidays(self) -> frozenset[int]:
        if self.country is None or not self.series_:
            return frozenset()
        first = min(history.first for history in self.series_.values())
        last = max(history.last for history in self.series_.values())
        years = 1970 + first // (24 * 366), 1972 + last // (24 * 365)
        return holiday_days(self.country, self.subdivision, *years)

    def _rule_key(self) -> tuple[Any, ...]:
        return (self.timezone, self.country, self.subdivision, self.prior_demand, self.history_weeks)

    def _rows(self, X: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        for feature in self.features:
            if feature.name not in named_columns(X).columns:
                raise InputError("the column is missing", field=feature.name, fix=f"add it: {feature.doc}")
        if X["unique_id"].isna().any():
            at = int(np.flatnonzero(X["unique_id"].isna())[0])
            raise InputError("the cell is empty", row=at + 2, field="unique_id", fix="name the series")
        return X["unique_id"].astype(object).astype(str).to_numpy(dtype=object), utc_hours(X["ds"])

    def _series(self, history: History) -> Series:
        hours = history.first + np.arange(len(history.raw) + HORIZON)
        local = local_hours(hours, self.timezone)
        local0, raw = history.on_wall_clock(local)
        free = on_holiday(local0 + np.arange(len(raw) + HORIZON), self.holidays_)
        return Series(local0, raw, free)

    def _learn(self, learnt: dict[str, Learnt]) -> None:
        from joblib import Parallel, delayed

        series = {key: self._series(history) for key, history in self.series_.items()}
        grown = [key for key, one in series.items() if len(one.raw) >= GROWN]
        young = [key for key in series if len(series[key].raw) < GROWN]
        nothing = pool_of([], float(self.prior_demand))
        runner = Parallel(n_jobs=self.n_jobs)
        todo = [key for key in grown if key not in learnt]
        found = runner(delayed(learn)(series[key], nothing) for key in todo)
        learnt = {**learnt, **dict(zip(todo, found, strict=True))}
        self.pool_ = pool_of([series[key].curve() for key in grown], float(self.prior_demand))
        # what young series borrow may have changed although they have not
        found = runner(delayed(learn)(series[key], self.pool_) for key in young)
        learnt.update(zip(young, found, strict=True))
        self.learnt_ = {key: learnt[key] for key in self.series_}
        self.shapes_ = pooled_shape(list(self.learnt_.values()))

    def _quantiles(self, key: str, hours: np.ndarray, levels: tuple[float, ...]) -> np.ndarray:
        local = local_hours(hours, self.timezone)
        if not self.knows(key):
            none = np.zeros(0)
            _, sigma = short_forecast(none, none.astype(bool), 0, 1, self.pool_)
            level, shape = self.pool_.prior, np.ones(WEEK)
            if self.pool_.apps:
                level = float(np.exp(np.mean(np.log(self.pool_.levels))))
                shape = typical_shape(none, none.astype(bool), 0, self.pool_)
            return young_band(level * shape[hour_of_week(local)], np.full(len(hours), sigma), levels)
        history, learnt = self.series_[key], self.learnt_[key]
        ahead = hours - history.last
        end = learnt.local0 + learnt.length
        # past a week the last forecast week repeats, its band widening as a random walk's would
        lead = np.maximum(local - end, 0)
        weeks = np.maximum(lead - HORIZON + WEEK, 0) // WEEK
        lead = lead - weeks * WEEK
        inside = ahead <= 0
        point = learnt.point[lead]
        if inside.any():
            point = np.where(inside, self.curve(key).at(local), point)
        wide = 1.0 + learnt.stale / STALE_HOURS + weeks
        if len(learnt.errors) == 0:
            return young_band(point, learnt.log_sigma * np.sqrt(1.0 + weeks), levels)
        standard = standard_errors(learnt)
        shape = blended_shape(standard, self.shapes_)
        group = lead_group(np.where(inside, 0, lead + learnt.stale))
        width = np.sqrt(wide) * self.widths_.get(key, 1.0) * few_origins_factor(len(learnt.errors))
        width = width * recent_factor(standard, shape)
        spread = learnt.spread[local % DAY] * np.where(inside, 1.0, np.maximum(learnt.lift[lead], 1.0))
        out = band(point, spread, width, shape, group, levels)
        near = ~inside & (lead + learnt.stale < AHEAD) & (weeks == 0)
        if near.any():
            offsets = at_levels(learnt.near, levels)[lead[near] + learnt.stale]
            out[near] = (
                point[near, None] + (np.sqrt(wide[near]) * self.widths_.get(key, 1.0))[:, None] * offsets
            )
        return out

    def _basis_of(self, key: str) -> str:
        if not self.knows(key):
            why = "none of its hours has a value" if key in self.series_ else "no history"
            if self.pool_.apps:
                return f"unknown: {why}; weekly shape and level of {self.pool_.apps} other apps"
            return f"unknown: {why} and no other apps"
        one, history = self.learnt_[key], self.series_[key]
        hours = history.known_hours
        late = f"; the last {one.stale} hours are missing" if one.stale else ""
        if one.scale == 0.0:
            return f"site history: {hours} hours, all zero{late}"
        if len(one.errors) == 0:
            shape = f"shape of {self.pool_.apps} other apps" if self.pool_.apps else "flat shape"
            return f"calibrated prior: {hours} hours of its own, {shape}; uncalibrated band{late}"
        how = f"{one.chosen} (beats the combination)" if one.chosen in BASELINES else "combination of members"
        borrowed = "" if one.length >= GROWN or not self.pool_.apps else ", borrowing a weekly shape"
        moved = f"; level × {one.shift_ratio:.2f} since {one.shift_h} hours" if one.shift_h else ""
        few = "; uncalibrated band" if np.isfinite(one.errors[:, 0]).sum() < 7 else ""
        return f"site history: {hours} hours, {how}{borrowed}{moved}{few}{late}"

    def to_bundle(self) -> Bundle:
        """Return parameters, histories and what was learnt as plain data."""
        from tidegrid.estimators.realtime.store import pack

        self._require_fitted("learnt_")
        return pack(self)

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Rebuild from :meth:`to_bundle`'s data."""
        from tidegrid.estimators.realtime.store import unpack

        return unpack(cls, bundle)


def _groups(ids: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return (series, row positions), in the order of first appearance."""
    codes, names = pd.factorize(ids)
    order = np.argsort(codes, kind="stable")
    cuts = np.searchsorted(codes[order], np.arange(len(names) + 1))
    return [(str(name), order[cuts[i] : cuts[i + 1]]) for i, name in enumerate(names)]
