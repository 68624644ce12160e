"""Realtime without a planner: each app holds a level that is fixed beforehand, step by step, legally.

A level is the app's peak all day (what a first-in-first-out cluster must reserve, since it cannot free a
GPU in a valley and get it back for the next peak), or its demand curve.
"""

import numba
import numpy as np

from tidegrid.scheduler.arrays import Arrays


def peak_levels(arrays: Arrays) -> np.ndarray:
    """Return the (A, T) level that holds each app's peak of the horizon in every step."""
    demand = arrays.demand[:, : arrays.steps]
    return np.repeat(demand.max(axis=1, initial=0)[:, None], arrays.steps, axis=1)


def curve_levels(arrays: Arrays) -> np.ndarray:
    """Return the (A, T) level that follows demand, risen early where the swap cap is too slow for a climb."""
    levels = arrays.demand[:, : arrays.steps].copy()
    for level, cap in zip(levels, arrays.app_cap, strict=True):
        if cap >= 0:
            for t in range(arrays.steps - 2, -1, -1):
                level[t] = max(level[t], level[t + 1] - cap)
    return levels


def hold(arrays: Arrays, offset: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Name the GPUs that bring each app as near to its level as held GPUs, running jobs and caps allow.

    Parameters
    ----------
    arrays
        The problem.
    offset
        (P + 1,) where each pool's GPUs begin on one common line.
    levels
        (A, T) GPUs wanted.

    Returns
    -------
    numpy.ndarray
        (T, G) int32: the app on each GPU, −1 for none. Apps of higher priority are served first; an app
        takes the highest free index and gives back its lowest, so that its set grows and shrinks by nesting.
    """
    count = len(arrays.app_pool)
    total = int(offset[-1])
    now = np.full(total, -1, np.int32)
    for a in range(count):
        now[offset[arrays.app_pool[a]] + arrays.held[a]] = a
    busy_until = np.zeros(total, np.int64)
    for j in np.flatnonzero(arrays.run_pool >= 0):
        first = offset[arrays.run_pool[j]] + arrays.run_first[j]
        busy_until[first : first + arrays.run_gpus[j]] = arrays.run_steps[j]
    turn = np.lexsort((np.arange(count), -arrays.app_priority))
    return _hold(now, busy_until, levels, arrays.app_cap, arrays.app_pool, offset, turn)


@numba.njit(cache=True)
def _hold(
    now: np.ndarray,
    busy_until: np.ndarray,
    levels: np.ndarray,
    cap: np.ndarray,
    app_pool: np.ndarray,
    offset: np.ndarray,
    turn: np.ndarray,
) -> np.ndarray:
    count, steps = levels.shape
    total = now.size
    out = np.empty((steps, total), np.int32)
    size = np.zeros(count, np.int64)
    for g in range(total):
        if now[g] >= 0:
            size[now[g]] += 1
    for t in range(steps):
        for a in turn:  # give back first: what one app frees another may take in the same step
            extra = size[a] - levels[a, t]
            if cap[a] >= 0:
                extra = min(extra, cap[a])
            g = offset[app_pool[a]]
            while extra > 0:
                if now[g] == a:
                    now[g] = -1
                    size[a] -= 1
                    extra -= 1
                g += 1
        for a in turn:
            lack = levels[a, t] - size[a]
            if cap[a] >= 0:
                lack = min(lack, cap[a])
            g = offset[app_pool[a] + 1] - 1
            while lack > 0 and g >= offset[app_pool[a]]:
                if now[g] < 0 and busy_until[g] <= t:
                    now[g] = a
                    size[a] += 1
                    lack -= 1
                g -= 1
        out[t] = now
    return out
