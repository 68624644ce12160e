"""Recalibrated levels: which level of the predictive distribution to read for a wanted coverage."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import norm

from tidegrid.estimators.conformal import needed
from tidegrid.estimators.recurring.ladder import GRID

RECENT = 1000
"""How many of the newest outcomes a class keeps: enough for the 1 % tails, few enough to follow a change."""

ENOUGH = 100
"""Outcomes from which a class answers for itself; below, all classes answer together."""

TARGET, PACE, STRETCH = 0.8, 0.02, (0.0, 1.5)
"""The band that is followed outcome by outcome, how fast, and how far levels may be stretched by it."""

EDGES = (0.3, 1.2)
"""Where the classes part: the spread between the quartiles, in decades of time."""


@dataclass
class LevelCalibration:
    """Distributional conformal calibration (Chernozhukov, Wüthrich and Zhu 2021), by class.

    The probability integral transforms u = F(y) of past outcomes, each under the distribution predicted before it,
    say which level of F must be read so that a share ``level`` of outcomes falls below.

    Attributes
    ----------
    ranks : list of ndarray
        The newest transforms of each class, oldest first.
    stretch : float
        How much further out than the sample says levels are read, in normal deviates: it grows with each outcome
        outside the 80 % band and falls with each inside it (adaptive conformal inference, Gibbs and Candès 2021), so
        that the band keeps its promise where the future is not like the past.
    """

    ranks: list[np.ndarray] = field(default_factory=lambda: [np.empty(0) for _ in range(len(EDGES) + 1)])
    stretch: float = 0.0

    def add(self, classes: np.ndarray, u: np.ndarray) -> None:
        """Take in outcomes in the order in which they became known."""
        for c in np.unique(classes):
            self.ranks[c] = np.concatenate([self.ranks[c], u[classes == c]])[-RECENT:]

    def follow(self, classes: np.ndarray, u: np.ndarray) -> None:
        """Stretch or relax the levels by outcomes, in the order in which they became known."""
        tails = ((1 - TARGET) / 2, (1 + TARGET) / 2)
        bands = {int(c): norm.ppf(self._sample_levels(int(c), tails)) for c in np.unique(classes)}
        z = norm.ppf(np.clip(u, GRID[0], GRID[-1]))
        for c, at in zip(classes, z, strict=True):
            low, high = bands[int(c)] * (1.0 + self.stretch)
            miss = 0.0 if low <= at <= high else 1.0
            self.stretch = float(np.clip(self.stretch + PACE * (miss - (1 - TARGET)), *STRETCH))

    def pool(self, c: int) -> np.ndarray:
        """Return the transforms that answer for class ``c``: its own where enough, else everybody's."""
        return self.ranks[c] if len(self.ranks[c]) >= ENOUGH else np.concatenate(self.ranks)

    def calibrated(self, c: int, levels: Sequence[float]) -> bool:
        """Say whether class ``c`` has enough outcomes for every level."""
        return all(len(self.pool(c)) >= needed(level) for level in levels)

    def levels(self, c: int, levels: Sequence[float]) -> np.ndarray:
        """Return the level of F to read for each wanted level."""
        z = norm.ppf(self._sample_levels(c, levels)) * (1.0 + self.stretch)
        return np.clip(norm.cdf(z), GRID[0], GRID[-1])

    def _sample_levels(self, c: int, levels: Sequence[float]) -> np.ndarray:
        """Return the levels that the sample asks for.

        Below the sample that split-conformal prediction needs for a level, the level read is the more cautious of
        the wanted one and the sample's extreme; without a sample it is the wanted one.
        """
        u = np.sort(self.pool(c))
        n = len(u)
        out = np.empty(len(levels))
        for i, level in enumerate(levels):
            up = level >= 0.5
            rank = np.ceil((n + 1) * level - 1e-9) if up else np.floor((n + 1) * level + 1e-9)
            if n == 0:
                out[i] = level
            elif level == 0.5:
                # the centre stays: half of what lies ahead falls below it, not half of what lay behind
                out[i] = level
            elif 1 <= rank <= n:
                out[i] = u[int(rank) - 1]
            else:
                out[i] = max(level, u[-1]) if up else min(level, u[0])
        return np.clip(out, GRID[0], GRID[-1])


def spread_class(quantiles: np.ndarray) -> np.ndarray:
    """Return each row's class from its quantiles at ``GRID``: how far its quartiles lie apart."""
    low, high = np.searchsorted(GRID, 0.25), np.searchsorted(GRID, 0.75)
    return np.searchsorted(EDGES, (quantiles[:, high] - quantiles[:, low]) / np.log(10.0), side="right")


def transform(quantiles: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return F(y) of each row from its quantiles at ``GRID``; outside them 0 or 1, within a tie the middle."""
    above = (quantiles <= y[:, None]).sum(axis=1)
    below = (quantiles < y[:, None]).sum(axis=1)
    rows = np.arange(len(y))
    last = len(GRID) - 1
    lo, hi = np.clip(below - 1, 0, last), np.clip(below, 0, last)
    x0, x1 = quantiles[rows, lo], quantiles[rows, hi]
    share = np.divide(y - x0, x1 - x0, out=np.zeros(len(y)), where=x1 > x0)
    inside = GRID[lo] + np.clip(share, 0.0, 1.0) * (GRID[hi] - GRID[lo])
    tie = 0.5 * (GRID[np.clip(below, 0, last)] + GRID[np.clip(above - 1, 0, last)])
    out = np.where(above > below, tie, inside)
    return np.where(above == 0, 0.0, np.where(below == len(GRID), 1.0, out))


def read(quantiles: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Read quantiles at ``levels`` (one for each row and column) from those at ``GRID``, linearly in log time.

    Parameters
    ----------
    quantiles : ndarray of shape (rows, len(GRID))
    levels : ndarray of shape (rows, wanted)
    """
    hi = np.clip(np.searchsorted(GRID, levels), 1, len(GRID) - 1)
    share = (levels - GRID[hi - 1]) / (GRID[hi] - GRID[hi - 1])
    rows = np.arange(len(quantiles))[:, None]
    return quantiles[rows, hi - 1] * (1 - share) + quantiles[rows, hi] * share
