"""Recalibrated levels: which level of the predictive distribution to read for a wanted coverage."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from statistics import NormalDist

import numpy as np

from tidegrid.estimators.conformal import needed
from tidegrid.estimators.recurring.ladder import GRID

RECENT = 1000
"""How many of the newest outcomes count: enough for the 1 % tails, few enough to follow a change."""

TARGET, PACE = 0.8, 0.02
"""The band that is followed outcome by outcome, and how fast."""

NARROWEST, WIDEST = -0.05, 1.5
"""How far levels may be stretched by it: hardly inwards, since a cluster's next burst is often unlike the last."""

LOWEST, HIGHEST = float(GRID[0]), float(GRID[-1])

_NORMAL = NormalDist()


class LevelCalibration:
    """Distributional conformal calibration (Chernozhukov, Wüthrich and Zhu 2021).

    The probability integral transforms u = F(y) of past outcomes, each under the distribution predicted before it,
    say which level of F must be read so that a share ``level`` of outcomes falls below.

    Parameters
    ----------
    newest
        Transforms of past outcomes, oldest first.
    stretch
        How much further out than the sample says levels are read, in normal deviates: it grows with each outcome
        outside the 80 % band and falls with each inside it (adaptive conformal inference, Gibbs and Candès 2021), so
        that the band keeps its promise where the future is not like the past; down to ``NARROWEST``.
    """

    def __init__(self, newest: Iterable[float] = (), stretch: float = 0.0) -> None:
        self.newest, self.stretch = list(newest), stretch
        self._ordered = sorted(self.newest)

    def add(self, u: float, counts: bool = True) -> None:
        """Take in the outcome that became known next; one that does not count moves the stretch only."""
        low, high = self.levels(((1 - TARGET) / 2, (1 + TARGET) / 2))
        miss = 0.0 if low <= u <= high else 1.0
        self.stretch = min(max(self.stretch + PACE * (miss - (1 - TARGET)), NARROWEST), WIDEST)
        if counts:
            self.newest.append(u)
            insort(self._ordered, u)
        if len(self.newest) > RECENT:
            del self._ordered[bisect_left(self._ordered, self.newest.pop(0))]

    def calibrated(self, levels: Sequence[float]) -> bool:
        """Say whether there are enough outcomes for every level."""
        return all(len(self.newest) >= needed(level) for level in levels)

    def levels(self, levels: Sequence[float]) -> list[float]:
        """Return the level of F to read for each wanted level.

        The median is read as it is: half of what lies ahead falls below it, not half of what lay behind. Below the
        sample that split-conformal prediction needs for a level, the level read is the more cautious of the wanted
        one and the sample's extreme; without a sample it is the wanted one.
        """
        return [level if level == 0.5 else self._level(level) for level in levels]

    def _level(self, level: float) -> float:
        u, n = self._ordered, len(self._ordered)
        if n and level > 0.5:
            rank = int(np.ceil((n + 1) * level - 1e-9))
            level = u[rank - 1] if rank <= n else max(level, u[-1])
        elif n:
            rank = int(np.floor((n + 1) * level + 1e-9))
            level = u[rank - 1] if rank >= 1 else min(level, u[0])
        z = _NORMAL.inv_cdf(min(max(level, LOWEST), HIGHEST)) * (1.0 + self.stretch)
        return min(max(_NORMAL.cdf(z), LOWEST), HIGHEST)
