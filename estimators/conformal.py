"""Split-conformal quantiles: from residuals on data that the point prediction never saw to honest bands."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


def needed(level: float) -> int:
    """Return how many residuals a one-sided quantile at ``level`` needs to be attainable at all.

    The split-conformal quantile is the ceil((n + 1) · level)-th smallest of n residuals (Vovk, Gammerman and Shafer
    2005; Romano, Patterson and Candès 2019); below this n that rank lies outside the sample.
    """
    tail = min(level, 1.0 - level)
    return int(np.ceil(1.0 / tail - 1e-9)) - 1


@dataclass(frozen=True)
class ConformalQuantiles:
    """Asymmetric split-conformal offsets from a pool of residuals.

    Parameters
    ----------
    residuals : ndarray of shape (n,)
        Actual minus predicted on the scale of the offsets (log hours), from rows the prediction never saw.
    """

    residuals: np.ndarray

    def calibrated(self, levels: Sequence[float]) -> bool:
        """Say whether there are enough residuals for every level."""
        return all(len(self.residuals) >= needed(level) for level in levels)

    def offset(self, level: float) -> float:
        """Return the offset at ``level``: conservative on its own side, the median for 0.5.

        Where the sample is too small for the level, the offset lies outside the extreme residual by the distance
        that a normal tail of the same spread would add, so that a small sample is never quietly narrow. Without any
        residual it is a standard normal's quantile: a spread of one, as for a single residual.
        """
        r = np.sort(self.residuals[np.isfinite(self.residuals)])
        n = len(r)
        if n == 0:
            return 0.0 if level == 0.5 else _unknown(level)
        if level == 0.5:
            return float(np.median(r))
        if level > 0.5:
            rank = int(np.ceil((n + 1) * level - 1e-9))
            return float(r[rank - 1]) if rank <= n else float(r[-1] + _beyond(r, level))
        rank = int(np.floor((n + 1) * level + 1e-9))
        return float(r[rank - 1]) if rank >= 1 else float(r[0] - _beyond(r, 1.0 - level))

    def offsets(self, levels: Sequence[float]) -> np.ndarray:
        """Return the offsets of all levels, shape (levels,), non-decreasing in the level."""
        out = np.array([self.offset(level) for level in levels])
        order = np.argsort(levels, kind="stable")
        out[order] = np.maximum.accumulate(out[order])
        return out


def _unknown(level: float) -> float:
    from scipy.stats import norm

    return float(norm.ppf(level))


def _beyond(sorted_residuals: np.ndarray, level: float) -> float:
    from scipy.stats import norm, t

    n = len(sorted_residuals)
    if n == 1:
        return 1.0
    spread = float(sorted_residuals.std(ddof=1))
    reach = float(t.ppf(level, n - 1)) * np.sqrt(1 + 1 / n)
    return max(0.0, spread * (reach - float(norm.ppf(n / (n + 1)))))
