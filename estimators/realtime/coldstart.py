"""Forecasts for apps with little or no history: a weekly shape borrowed from similar apps, and an honest
band."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidegrid.estimators.realtime.curve import Curve
from tidegrid.estimators.realtime.localtime import DAY, WEEK, hour_of_week

UNKNOWN_SIGMA = 1.8
"""Log standard deviation of the demand of an app of which nothing is known: a factor of ten each way at 80
%."""

FIRST_HOUR_SIGMA = 0.8
SETTLED_SIGMA = 0.25
SIGMA_HOURS = 12.0
"""The band narrows from FIRST_HOUR_SIGMA towards SETTLED_SIGMA as the square root of history over
SIGMA_HOURS."""

RECENT = 0.9
"""Weight of an hour one hour older in a young app's level."""

NEAREST = 10
"""Apps whose shapes are averaged once a young app's own hours tell which are similar."""


@dataclass(frozen=True)
class Pool:
    """What the apps with enough history have in common.

    Parameters
    ----------
    shapes : ndarray of shape (apps, 168)
        Weekly shapes relative to the level, mean 1.
    levels : ndarray of shape (apps,)
        Their levels, units an hour.
    prior : float
        Demand an hour that is expected where the pool is empty.
    """

    shapes: np.ndarray
    levels: np.ndarray
    prior: float = 1.0

    @property
    def apps(self) -> int:
        """How many apps there are in it."""
        return len(self.levels)


def pool_of(curves: Sequence[Curve], prior: float) -> Pool:
    """Return the pool of the curves that have any demand."""
    live = [curve for curve in curves if curve.level > 0]
    if not live:
        return Pool(np.ones((0, WEEK)), np.zeros(0), prior)
    return Pool(np.stack([curve.shape for curve in live]), np.array([curve.level for curve in live]), prior)


def typical_shape(values: np.ndarray, known: np.ndarray, local0: int, pool: Pool) -> np.ndarray:
    """Return a weekly shape for a young app, mean 1: the mean over the pool, or over the apps most like
    it."""
    if pool.apps == 0:
        return np.ones(WEEK)
    shapes = pool.shapes
    at = np.flatnonzero(known)
    if len(at) >= DAY // 2 and pool.apps > NEAREST:
        seen = values[at]
        like = shapes[:, hour_of_week(local0 + at)]
        fitted = like * (seen.sum() / np.maximum(like.sum(axis=1), 1e-12))[:, None]
        far = np.abs(fitted - seen[None, :]).sum(axis=1)
        shapes = shapes[np.argsort(far, kind="stable")[:NEAREST]]
    mean = shapes.mean(axis=0)
    return mean / mean.mean()


def short_forecast(
    values: np.ndarray, known: np.ndarray, local0: int, horizon: int, pool: Pool
) -> tuple[np.ndarray, float]:
    """Forecast a series of less than three days, or one without any demand.

    Returns
    -------
    ndarray of shape (horizon,)
        Medians, units of demand.
    float
        Log standard deviation of the band around them; 0 says that the demand is zero.
    """
    n = len(values)
    seen = int(known.sum())
    local = local0 + n + np.arange(horizon)
    if seen == 0:
        shape = typical_shape(values, known, local0, pool)
        if pool.apps == 0:
            return np.full(horizon, pool.prior), UNKNOWN_SIGMA
        level = float(np.exp(np.mean(np.log(pool.levels))))
        apart = float(np.std(np.log(pool.levels))) if pool.apps > 1 else 0.0
        # as many pseudo-apps as one that is a factor of ten away keep a small pool from being trusted
        sigma = float(np.sqrt((apart**2 * pool.apps + UNKNOWN_SIGMA**2) / (pool.apps + 1)))
        return level * shape[hour_of_week(local)], max(sigma, 1.0)
    sigma = FIRST_HOUR_SIGMA / np.sqrt(1.0 + seen / SIGMA_HOURS) + SETTLED_SIGMA
    if not values[known].any():
        return np.zeros(horizon), 0.0
    shape = typical_shape(values, known, local0, pool)
    slots = shape[hour_of_week(local0 + np.arange(n))]
    weight = RECENT ** np.arange(n)[::-1] * known
    level = float((weight * values).sum() / max((weight * slots).sum(), 1e-12))
    point = level * shape[hour_of_week(local)]
    if n >= DAY:
        # its own last day joins in as days go by
        own = values[n - DAY :][np.arange(horizon) % DAY]
        share = 0.5 * min(1.0, (n - DAY / 2) / (2.0 * DAY))
        point = (1.0 - share) * point + share * own
    return np.maximum(point, 0.0), float(sigma)


def borrowed_paths(x: np.ndarray, ends: np.ndarray, local0: int, horizon: int, pool: Pool) -> np.ndarray:
    """Return the forecasts of the borrowed weekly curve × own level from each origin, shape (1, origins,
    horizon)."""
    out = np.full((1, len(ends), horizon), np.nan)
    if pool.apps == 0:
        return out
    for o, end in enumerate(ends):
        shape = typical_shape(x[:end], np.ones(end, dtype=bool), local0, pool)
        slots = shape[hour_of_week(local0 + np.arange(end))]
        last = slice(max(0, end - DAY), end)
        level = x[last].sum() / max(slots[last].sum(), 1e-12)
        out[0, o] = level * shape[hour_of_week(local0 + end + np.arange(horizon))]
    return out
