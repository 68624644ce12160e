"""Bands: conformal quantiles of the errors made at past origins, by lead and by hour of day.

An error is measured in units of its series' usual error at that hour of day, so that the shape of the
distribution can be shared between leads and between series while its width stays the series' own. Where few
errors were seen, the shape leans on a prior and the width on the spread of the members; the basis then says
"uncalibrated".
"""

from collections.abc import Sequence

import numpy as np
from scipy.stats import norm

DAY = 24

LEADS = (6, 12, 24, 48, 96, 169)
"""Upper ends of the groups of leads, hours, that share one shape."""

GRID = np.array(
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.975, 0.99, 0.995]
)
"""Levels at which a shape is kept; between them it is linear in the normal score, beyond them its ends go
on."""

PRIOR_SHAPE = np.array(
    [-4.6, -3.8, -2.8, -2.1, -1.45, -0.8, -0.45, -0.2, 0.0, 0.2, 0.45, 0.8, 1.45, 2.1, 2.8, 3.8, 4.6]
)
"""Shape of the standardised error before any was seen: a Laplace-like law with mean absolute error 1."""

PRIOR_ERRORS = 60.0
"""Errors that the prior shape counts for."""


def lead_group(leads: np.ndarray) -> np.ndarray:
    """Return the index in LEADS of each lead (0 is the first hour)."""
    return np.searchsorted(np.array(LEADS), leads, side="right").clip(0, len(LEADS) - 1)


def spread_by_hour(errors: np.ndarray, hours: np.ndarray, floor: float, prior: float) -> np.ndarray:
    """Return the usual absolute error at each local hour of day, shape (24,).

    Each hour's mean is drawn to that of the whole series as if six more errors had been seen, and the whole
    series' to ``prior`` as if one more origin had.

    Parameters
    ----------
    errors : ndarray of shape (origins, horizon)
        Past errors, NaN where unknown.
    hours : ndarray of int, shape (origins, horizon)
        Local hour of day of each.
    floor : float
        The least that is returned.
    prior : float
        The error expected before any was seen.
    """
    near = np.abs(errors[:, : 2 * DAY])
    seen = np.isfinite(near)
    at = hours[:, : 2 * DAY][seen]
    gone = near[seen]
    mean = (gone.sum() + DAY * prior * 0.5) / (len(gone) + DAY * 0.5)
    total = np.bincount(at, weights=gone, minlength=DAY)
    count = np.bincount(at, minlength=DAY)
    raw = (total + 6.0 * mean) / (count + 6.0)
    # neighbouring hours err alike
    smooth = 0.5 * raw + 0.25 * np.roll(raw, 1) + 0.25 * np.roll(raw, -1)
    return np.maximum(smooth, floor)


def shapes(standard: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the quantiles at GRID of standardised errors for each group of leads, and how many each rests
    on.

    Parameters
    ----------
    standard : ndarray of shape (rows, horizon)
        Standardised errors, NaN where unknown, of one series or of a pool.
    """
    group = lead_group(np.arange(standard.shape[1]))
    table = np.empty((len(LEADS), len(GRID)))
    count = np.zeros(len(LEADS))
    before = PRIOR_SHAPE
    for g in range(len(LEADS)):
        part = standard[:, group == g]
        part = part[np.isfinite(part)]
        count[g] = len(part)
        if len(part):
            # ranks (n + 1) p: the split-conformal quantile, conservative in both tails
            own = np.quantile(part, np.clip((GRID * (len(part) + 1) - 0.5) / len(part), 0, 1), method="hazen")
            share = len(part) / (len(part) + PRIOR_ERRORS)
            table[g] = share * own + (1 - share) * before
        else:
            table[g] = before
        before = np.where(np.abs(table[g]) > np.abs(before), table[g], before)
    return np.maximum.accumulate(table, axis=1), count


def at_levels(table: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """Return shape quantiles at any levels, shape (groups, levels), linear in the normal score of the
    level."""
    z = norm.ppf(GRID)
    want = norm.ppf(np.asarray(levels, dtype=float))
    out = np.empty((len(table), len(want)))
    for g, row in enumerate(table):
        inner = np.interp(want, z, row)
        low = row[0] + (want - z[0]) * max((row[2] - row[0]) / (z[2] - z[0]), 0.0)
        high = row[-1] + (want - z[-1]) * max((row[-1] - row[-3]) / (z[-1] - z[-3]), 0.0)
        out[g] = np.where(want < z[0], low, np.where(want > z[-1], high, inner))
    return out
