"""Remaining time of a job given that it has run this long."""

from collections.abc import Sequence

import numpy as np

GRID = np.concatenate([[0.001, 0.005], np.linspace(0.01, 0.99, 99), [0.995, 0.999]])
"""The levels at which a duration's quantile function is sampled to condition it."""


def remaining_quantiles(
    quantiles: np.ndarray, grid: Sequence[float], elapsed: np.ndarray, levels: Sequence[float]
) -> np.ndarray:
    """Return quantiles of the remaining time, given survival up to ``elapsed``.

    With F the distribution of the duration T, the remaining time R = T - e given T > e has
    P(R <= r) = (F(e + r) - F(e)) / (1 - F(e)). F is interpolated in log time between the sampled quantiles; past
    the last one the tail is Pareto with the slope of the upper tenth, so an overrun job is never "done".

    Parameters
    ----------
    quantiles : ndarray of shape (rows, len(grid))
        Quantiles of the whole duration, in any unit, sorted along the grid.
    grid
        Their levels, increasing.
    elapsed : ndarray of shape (rows,)
        How long each job has run, in the same unit.
    levels
        The levels wanted.

    Returns
    -------
    ndarray of shape (rows, len(levels))
        Positive, non-decreasing in the level.
    """
    levels_at = np.asarray(grid, dtype=float)
    wanted = np.asarray(levels, dtype=float)
    out = np.empty((len(quantiles), len(wanted)))
    tiny = 1e-9
    anchor = int(np.searchsorted(levels_at, 0.9))
    for i, (row, e) in enumerate(zip(np.maximum(quantiles, tiny), elapsed, strict=True)):
        x = np.maximum.accumulate(np.log(row)) + np.arange(len(row)) * 1e-12
        log_e = np.log(max(float(e), tiny))
        reach = np.log((1 - levels_at[anchor]) / (1 - levels_at[-1]))
        # the tail index: how fast log survival falls with log time; 0.25 to 20 keeps it a tail
        alpha = float(np.clip(reach / max(x[-1] - x[anchor], 1e-6), 0.25, 20.0))
        # survival is kept as its logarithm: of a job that has run far past its estimate it underflows
        if log_e >= x[-1]:
            log_survive = np.log(1 - levels_at[-1]) - alpha * (log_e - x[-1])
        else:
            log_survive = np.log1p(-float(np.interp(log_e, x, levels_at, left=0.0)))
        log_tail = log_survive + np.log1p(-wanted)
        target = -np.expm1(log_tail)
        inside = np.interp(target, levels_at, x, left=float(x[0]))
        beyond = x[-1] + (np.log(1 - levels_at[-1]) - log_tail) / alpha
        ends = np.exp(np.where(target > levels_at[-1], beyond, inside))
        out[i] = np.maximum(ends - max(float(e), 0.0), 1e-3 * max(float(e), float(row[0])))
    return np.maximum.accumulate(out, axis=1) if np.all(np.diff(wanted) >= 0) else out
