"""Remaining time of a job given that it has run this long."""

from collections.abc import Sequence

import numpy as np

GRID = np.concatenate([[0.001, 0.005], np.linspace(0.01, 0.99, 99), [0.995, 0.999]])
"""The levels at which a duration's quantile function is sampled to condition it."""


_TINY = 1e-9


def remaining_quantiles(
    quantiles: np.ndarray,
    grid: Sequence[float],
    elapsed: np.ndarray,
    levels: Sequence[float],
    most: np.ndarray | None = None,
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
    most : ndarray of shape (rows,), optional
        The longest that each job can run in all, such as its time limit; infinite for none. One that has run longer
        has none.

    Returns
    -------
    ndarray of shape (rows, len(levels))
        Positive, non-decreasing in the level.
    """
    levels_at = np.asarray(grid, dtype=float)
    top = int(np.searchsorted(levels_at, 0.9))
    wanted = np.asarray(levels, dtype=float)
    whole = np.maximum(np.asarray(quantiles, dtype=float), _TINY)
    ran = np.maximum(np.asarray(elapsed, dtype=float), 0.0)
    x = np.maximum.accumulate(np.log(whole), axis=1) + np.arange(whole.shape[1]) * 1e-12
    log_ran = np.log(np.maximum(ran, _TINY))
    last, anchor = x[:, -1], x[:, top]
    reach = np.log((1 - levels_at[top]) / (1 - levels_at[-1]))
    # the tail index: how fast log survival falls with log time; 0.25 to 20 keeps it a tail
    alpha = np.clip(reach / np.maximum(last - anchor, 1e-6), 0.25, 20.0)
    # survival is kept as its logarithm: of a job that has run far past its estimate it underflows
    past = np.log(1 - levels_at[-1]) - alpha * (log_ran - last)
    log_survive = np.where(log_ran >= last, past, np.log1p(-_level_at(x, levels_at, log_ran)))
    log_tail = log_survive[:, None] + np.log1p(-wanted)
    target = -np.expm1(log_tail)
    beyond = last[:, None] + (np.log(1 - levels_at[-1]) - log_tail) / alpha[:, None]
    ends = np.exp(np.where(target > levels_at[-1], beyond, _time_at(x, levels_at, target)))
    if most is not None:
        ends = np.where((ran < most)[:, None], np.minimum(ends, most[:, None]), ends)
    out = np.maximum(ends - ran[:, None], 1e-3 * np.maximum(ran, whole[:, 0])[:, None])
    return np.maximum.accumulate(out, axis=1) if np.all(np.diff(wanted) >= 0) else out


def _level_at(x: np.ndarray, levels: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the level of each row's distribution at a log time; 0 before its first quantile. Shape (rows,)."""
    rows = np.arange(len(x))
    right = np.clip((x <= at[:, None]).sum(axis=1), 1, x.shape[1] - 1)
    low, high = x[rows, right - 1], x[rows, right]
    inside = levels[right - 1] + (levels[right] - levels[right - 1]) * (at - low) / (high - low)
    return np.where(at < x[:, 0], 0.0, np.minimum(inside, levels[-1]))


def _time_at(x: np.ndarray, levels: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the log time of each row's distribution at levels, held between its ends. Shape (rows, wanted)."""
    right = np.clip(np.searchsorted(levels, wanted), 1, len(levels) - 1)
    rows = np.arange(len(x))[:, None]
    low, high = x[rows, right - 1], x[rows, right]
    share = np.clip((wanted - levels[right - 1]) / (levels[right] - levels[right - 1]), 0.0, 1.0)
    return low + (high - low) * share
