"""Recalibrated levels: which level of the predictive distribution to read for a wanted coverage."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

import numpy as np

from tidegrid.estimators.conformal import needed
from tidegrid.estimators.recurring.ladder import GRID

RECENT = 1000
"""How many of the newest outcomes count: enough for the 1 % tails, few enough to follow a change."""


class LevelCalibration:
    """Distributional conformal calibration (Chernozhukov, Wüthrich and Zhu 2021).

    The probability integral transforms u = F(y) of past outcomes, each under the distribution predicted before it,
    say which level of F must be read so that a share ``level`` of outcomes falls below.

    Parameters
    ----------
    newest
        Transforms of past outcomes, oldest first.
    """

    def __init__(self, newest: Iterable[float] = ()) -> None:
        self.newest = list(newest)
        self._ordered = sorted(self.newest)

    def add(self, u: float) -> None:
        """Take in the outcome that became known next."""
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
        u, n, out = self._ordered, len(self._ordered), []
        for level in levels:
            if n == 0 or level == 0.5:
                out.append(level)
            elif level > 0.5:
                rank = int(np.ceil((n + 1) * level - 1e-9))
                out.append(u[rank - 1] if rank <= n else max(level, u[-1]))
            else:
                rank = int(np.floor((n + 1) * level + 1e-9))
                out.append(u[rank - 1] if rank >= 1 else min(level, u[0]))
        return [min(max(level, GRID[0]), GRID[-1]) for level in out]
