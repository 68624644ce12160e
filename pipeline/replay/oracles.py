"""What a policy is told in a replay: durations and demand, from perfect knowledge, our forecasts, or medians."""

from typing import Protocol

import numpy as np
import pandas as pd
from numba import njit

from tidegrid.data import request_features
from tidegrid.pipeline.estimates import LEVELS
from tidegrid.pipeline.replay.world import HOUR, WARM_UP_HOURS, World

LOOKAHEAD_HOURS = 48
"""Hours of demand that are forecast at each tick: the horizon and a day past it."""
REFIT_S = 24 * HOUR
"""How old a fit of durations may grow; between fits, memory and calibration move with every job that ends."""


class Durations(Protocol):
    """Tells how long jobs take.

    Attributes
    ----------
    hours : ndarray of shape (jobs, len(LEVELS))
        Quantiles of each job's hours at :data:`tidegrid.pipeline.estimates.LEVELS`, filled in as jobs arrive.
    """

    hours: np.ndarray

    def arrived(self, jobs: np.ndarray, now: float) -> None:
        """Estimate jobs that have just been submitted."""

    def ended(self, jobs: np.ndarray, now: float) -> None:
        """Learn from jobs that have just ended."""

    def renew(self, waiting: np.ndarray, now: float) -> None:
        """Estimate waiting jobs again, with what has been learnt since."""


class PerfectDurations:
    """Knows every true duration."""

    def __init__(self, world: World) -> None:
        self.hours = np.repeat(world.duration_s[:, None] / HOUR, len(LEVELS), axis=1)

    def arrived(self, jobs: np.ndarray, now: float) -> None:
        """Do nothing: all is known."""

    def ended(self, jobs: np.ndarray, now: float) -> None:
        """Do nothing: all is known."""

    def renew(self, waiting: np.ndarray, now: float) -> None:
        """Do nothing: all is known."""


class ForecastDurations:
    """Asks the recurring-job estimator: it takes in each job that ended before it answers, and is refitted each day."""

    def __init__(self, world: World) -> None:
        from tidegrid.estimators.recurring import RecurringJobEstimator

        self.world = world
        # GPUs fall free when a job ends, however it ends
        self.estimator = RecurringJobEstimator(outcome="occupancy")
        self.features = request_features(world.jobs)
        self.hours = np.full((len(world.jobs), len(LEVELS)), np.nan)
        self.known = np.full(len(world.jobs), np.nan)
        self.pending: list[int] = []
        self.fitted = 0.0

    def arrived(self, jobs: np.ndarray, now: float) -> None:
        """Estimate jobs that have just been submitted; a requested limit caps every quantile."""
        if self.pending:
            X, y, known_at = self._past(np.array(self.pending))
            self.estimator.update(X, y, known_at=known_at)
            self.pending = []
        told = self.estimator.predict_quantiles(self.features.iloc[jobs], LEVELS).to_numpy()
        self.hours[jobs] = np.fmin(told, self.world.limit_s[jobs, None] / HOUR)

    def ended(self, jobs: np.ndarray, now: float) -> None:
        """Remember the hours that they held their GPUs."""
        self.known[jobs] = now
        self.pending += jobs.tolist()

    def renew(self, waiting: np.ndarray, now: float) -> None:
        """Estimate waiting jobs again, after a refit where the last one is ``REFIT_S`` old."""
        if now - self.fitted >= REFIT_S:
            past = np.flatnonzero(~np.isnan(self.known))
            if len(past):
                X, y, known_at = self._past(past[np.argsort(self.known[past], kind="stable")])
                self.estimator.fit(X, y, known_at=known_at)
                self.pending = []
            self.fitted = now
        if len(waiting):
            self.arrived(waiting, now)

    def _past(self, jobs: np.ndarray) -> tuple[pd.DataFrame, pd.Series, pd.Series]:
        rows = self.features.iloc[jobs]
        hours = pd.Series(self.world.duration_s[jobs] / HOUR, index=rows.index)
        known = pd.Series(self.world.start + pd.to_timedelta(self.known[jobs], unit="s"), index=rows.index)
        return rows, hours, known


class MedianDurations:
    """The median of past jobs of the same user and size, else of the user, else of all; an hour before any."""

    def __init__(self, world: World) -> None:
        self.world = world
        user = world.jobs["user"].where(world.jobs["user"] != "", world.jobs["group"]).to_numpy()
        self.keys = [(("us", u, int(b)), ("u", u), ("all",)) for u, b in zip(user, world.block, strict=True)]
        self.past: dict[tuple[object, ...], list[float]] = {}
        self.hours = np.full((len(world.jobs), len(LEVELS)), np.nan)

    def arrived(self, jobs: np.ndarray, now: float) -> None:
        """Estimate by the finest key that has a past."""
        for j in jobs:
            past = next((self.past[key] for key in self.keys[j] if key in self.past), [1.0])
            self.hours[j] = np.fmin(float(np.median(past[-100:])), self.world.limit_s[j] / HOUR)

    def ended(self, jobs: np.ndarray, now: float) -> None:
        """Remember their hours."""
        for j in jobs:
            for key in self.keys[j]:
                self.past.setdefault(key, []).append(self.world.duration_s[j] / HOUR)

    def renew(self, waiting: np.ndarray, now: float) -> None:
        """Estimate waiting jobs again."""
        self.arrived(waiting, now)


class Demand(Protocol):
    """Tells how many GPUs each app needs.

    ``gpus(hour)`` is an array of shape (apps, LOOKAHEAD_HOURS) from that hour on.
    """

    def gpus(self, hour: int) -> np.ndarray:
        """Return GPUs an hour from ``hour`` on, known at its start."""


class PerfectDemand:
    """Knows the true demand; past the replay's end the last day repeats."""

    def __init__(self, world: World) -> None:
        true = world.demand()
        day = true[:, -24:] if true.shape[1] >= 24 else true
        repeats = -(-LOOKAHEAD_HOURS // max(1, day.shape[1]))
        self.true = np.concatenate([true, np.tile(day, repeats)], axis=1)

    def gpus(self, hour: int) -> np.ndarray:
        """Return the truth."""
        return self.true[:, hour : hour + LOOKAHEAD_HOURS]


class ForecastDemand:
    """Asks the realtime estimator, which takes in each hour of traffic once it is over.

    Parameters
    ----------
    quantile
        The demand quantile that is planned with.
    """

    def __init__(self, world: World, quantile: float) -> None:
        from tidegrid.estimators.realtime import RealtimeEstimator

        self.world, self.quantile = world, quantile
        self.estimator = RealtimeEstimator()
        self.known = 0
        rows, values = self._rows(-WARM_UP_HOURS, 0)
        self.estimator.fit(rows, values)

    def _rows(self, first: int, last: int) -> tuple[pd.DataFrame, pd.Series]:
        hours = np.arange(first, last)
        ds = self.world.start + pd.to_timedelta(hours, unit="h")
        parts = [pd.DataFrame({"unique_id": app.id, "ds": ds}) for app in self.world.apps]
        values = [app.traffic[WARM_UP_HOURS + first : WARM_UP_HOURS + last] for app in self.world.apps]
        return pd.concat(parts, ignore_index=True), pd.Series(np.concatenate(values))

    def gpus(self, hour: int) -> np.ndarray:
        """Return the forecast at the quantile, in GPUs."""
        if hour > self.known:
            self.estimator.update(*self._rows(self.known, hour))
            self.known = hour
        ds = self.world.start + pd.to_timedelta(np.arange(hour, hour + LOOKAHEAD_HOURS), unit="h")
        rows = pd.concat(
            [pd.DataFrame({"unique_id": a.id, "ds": ds}) for a in self.world.apps], ignore_index=True
        )
        told = (
            self.estimator.predict_quantiles(rows, (self.quantile,)).to_numpy().reshape(-1, LOOKAHEAD_HOURS)
        )
        each = np.array([app.units_per_gpu for app in self.world.apps])
        return np.ceil(told / each[:, None] - 1e-9).astype(np.int64)


class PeakDemand:
    """The peak of the whole replay at every hour: what a fixed reservation holds."""

    def __init__(self, world: World) -> None:
        self.peak = world.demand().max(axis=1)

    def gpus(self, hour: int) -> np.ndarray:
        """Return the peak at every hour."""
        return np.repeat(self.peak[:, None], LOOKAHEAD_HOURS, axis=1)


@njit(cache=True)
def remaining_hours(quantiles, levels, elapsed, level):  # type: ignore[no-untyped-def]
    """Return each running job's remaining hours at one level, given that it has run ``elapsed`` hours.

    The compiled counterpart of :func:`tidegrid.estimators.conditional.remaining_quantiles` for the levels that an
    estimate carries: log-linear between them, and past the last a Pareto tail with the slope of the upper tenth.

    Parameters
    ----------
    quantiles : ndarray of shape (jobs, len(levels))
        Hours.
    levels : ndarray
        Increasing.
    elapsed : ndarray of shape (jobs,)
        Hours.
    level
        The level wanted.
    """
    out = np.empty(len(quantiles))
    last = len(levels) - 1
    for i in range(len(quantiles)):
        x = np.log(np.maximum(quantiles[i], 1e-6))
        for k in range(1, last + 1):
            x[k] = max(x[k], x[k - 1] + 1e-9)
        e = np.log(max(elapsed[i], 1e-6))
        slope = np.log((1 - levels[last - 2]) / (1 - levels[last])) / max(x[last] - x[last - 2], 1e-6)
        alpha = min(max(slope, 0.25), 20.0)
        # survival is kept as its logarithm: of a job that has run far past its estimate it underflows
        if e >= x[last]:
            log_tail = np.log(1 - levels[last]) - alpha * (e - x[last])
        elif e <= x[0]:
            log_tail = 0.0
        else:
            log_tail = np.log1p(-np.interp(e, x, levels))
        log_tail += np.log1p(-level)
        target = -np.expm1(log_tail)
        if target > levels[last]:
            end = np.exp(x[last] + (np.log(1 - levels[last]) - log_tail) / alpha)
        else:
            end = np.exp(np.interp(target, levels, x))
        out[i] = max(end - elapsed[i], 1.0 / 120.0)
    return out
