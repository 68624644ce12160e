"""From what was learnt of a series to its band: own spread, and a shape shared with the pool."""

from collections.abc import Sequence

import numpy as np
from scipy.stats import norm

from tidegrid.estimators.realtime.engine import ORIGINS, PRIOR_ERROR, Learnt, origins
from tidegrid.estimators.realtime.intervals import DAY, at_levels, lead_group, shapes, spread_by_hour
from tidegrid.estimators.realtime.members import HORIZON

OWN_ERRORS = 200.0
"""Own errors at which a series' own shape of the band counts as much as the pool's."""


FEW_ORIGINS = 0.15
"""Part by which a band widens for each time that the full number of origins is short of itself: members were chosen
and the spread was measured on the same few days. Set on the training part of M4 hourly cut to 8 to 13 days."""

WIDEST_FOR_FEW = 2.5


def few_origins_factor(origins_seen: int) -> float:
    """Return the factor on the band of a series judged from ``origins_seen`` past origins: 1 for all of them."""
    return float(min(1.0 + FEW_ORIGINS * (ORIGINS / max(origins_seen, 1) - 1.0), WIDEST_FOR_FEW))


RECENT_STEP = 0.015
RECENT_LIMITS = (0.95, 2.0)
"""How far, in logs, one past hour outside the 80 % band widens the band to come, and the factor's bounds."""


def recent_factor(standard: np.ndarray, shape: np.ndarray) -> float:
    """Return the factor on the band that the last days call for.

    The first day of each past origin, in time order, moves the log width up by 0.8 steps where it lay outside the
    80 % band and down by 0.2 where inside (adaptive conformal inference, Gibbs and Candès 2021), so that a series
    that has become wilder, or calmer, than its past is followed.

    Parameters
    ----------
    standard : ndarray of shape (origins, HORIZON)
        Standardised errors, the oldest origin first.
    shape : ndarray of shape (lead groups, grid levels)
        Quantiles of the standardised error.
    """
    group = lead_group(np.arange(DAY))
    low, middle, high = at_levels(shape, (0.1, 0.5, 0.9))[group].T
    log_width = 0.0
    bounds = np.log(RECENT_LIMITS)
    for day in standard[:, :DAY]:
        seen = np.isfinite(day)
        factor = np.exp(log_width)
        outside = (day > middle + factor * (high - middle)) | (day < middle - factor * (middle - low))
        log_width += RECENT_STEP * float((outside[seen] - 0.2).sum())
        log_width = float(np.clip(log_width, bounds[0], bounds[1]))
    return float(np.exp(log_width))


def standard_errors(learnt: Learnt) -> np.ndarray:
    """Return past errors in units of the spread that the other origins show at their hour of day.

    Leaving an error's own origin out keeps a wild day from shrinking itself, and so the band honest.

    Returns
    -------
    ndarray of shape (origins, HORIZON)
    """
    ends = origins(learnt.judged)[:-1]
    at = (learnt.local0 + ends[:, None] + np.arange(HORIZON)[None, :]) % DAY
    out = np.empty_like(learnt.errors)
    for o in range(len(ends)):
        others = np.arange(len(ends)) != o
        spread = spread_by_hour(
            learnt.errors[others], at[others], floor=1e-9 * learnt.scale, prior=PRIOR_ERROR * learnt.scale
        )
        out[o] = learnt.errors[o] / np.maximum(spread[at[o]], 1e-300)
    return out


def pooled_shape(learnt: Sequence[Learnt]) -> np.ndarray:
    """Return the shape of the errors of all series together, shape (lead groups, grid levels)."""
    rows = [standard_errors(one) for one in learnt if len(one.errors)]
    table, _ = shapes(np.concatenate(rows) if rows else np.full((0, HORIZON), np.nan))
    return table


def blended_shape(standard: np.ndarray, pooled: np.ndarray) -> np.ndarray:
    """Return a series' own shape, by its standardised errors, drawn to the pool's as far as these are few."""
    own, count = shapes(standard)
    share = (count / (count + OWN_ERRORS))[:, None]
    return share * own + (1.0 - share) * pooled


def band(
    point: np.ndarray,
    spread: np.ndarray,
    width: np.ndarray,
    shape: np.ndarray,
    group: np.ndarray,
    levels: Sequence[float],
) -> np.ndarray:
    """Return quantiles, shape (rows, levels), units of demand.

    Parameters
    ----------
    point, spread, width : ndarray of shape (rows,)
        Forecast, usual absolute error, and the factor on the band; the factor leaves the median where it is.
    shape : ndarray of shape (lead groups, grid levels)
        Quantiles of the standardised error.
    group : ndarray of int, shape (rows,)
        Each row's group of leads.
    levels
        Quantile levels.
    """
    table = at_levels(shape, levels)[group]
    middle = at_levels(shape, (0.5,))[group]
    return point[:, None] + spread[:, None] * (middle + width[:, None] * (table - middle))


def young_band(point: np.ndarray, sigma: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """Return lognormal quantiles around medians, shape (rows, levels): the band of a series without own errors.

    Parameters
    ----------
    point, sigma : ndarray of shape (rows,)
        Medians, and standard deviations in logs.
    levels
        Quantile levels.
    """
    return point[:, None] * np.exp(sigma[:, None] * norm.ppf(np.asarray(levels, dtype=float))[None, :])
