"""The loops that every baseline shares: free runs, earliest places, list scheduling, EASY backfill.

Widths need not be powers of two here; that rule is the problem's.
"""

from dataclasses import dataclass

import numba
import numpy as np

_NEVER = np.int64(1) << 40


@dataclass(frozen=True, eq=False)
class Tasks:
    """Jobs with one chosen shape each, in arrays of length J.

    ``pool`` is −1 for a job that is not to be placed; ``latest_end`` is exclusive.
    """

    pool: np.ndarray
    gpus: np.ndarray
    steps: np.ndarray
    earliest: np.ndarray
    latest_end: np.ndarray


class Board:
    """Free GPUs over the horizon, pools side by side on one line.

    Parameters
    ----------
    busy
        (T, G) true where a GPU is taken before any job is placed.
    offset
        (P + 1,) where each pool begins on the line.
    node
        (P,) node sizes, 0 for none.
    """

    def __init__(self, busy: np.ndarray, offset: np.ndarray, node: np.ndarray) -> None:
        self.run, self.free = _free_runs(busy, offset)
        self.offset = offset
        self.node = node

    def place_in_order(
        self, tasks: Tasks, order: np.ndarray, *, keep_order: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Give each job in turn its earliest legal place, on the lowest GPU.

        Parameters
        ----------
        tasks, order
            The jobs, and the indices in the order in which they choose.
        keep_order
            Whether a job may not start before the one that chose before it (first in, first out).

        Returns
        -------
        start, first
            (J,) step and GPU on the line, −1 where a job has no place.
        """
        return _place_in_order(
            self.run, self.free, self.offset, self.node, *_columns(tasks), order, keep_order
        )

    def easy(self, tasks: Tasks, order: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Run EASY backfill step by step: the first blocked job of a pool has a reservation, no other has.

        Parameters
        ----------
        tasks, order
            The jobs, and their indices in the order of the queue.

        Returns
        -------
        start, first
            As `place_in_order`.
        """
        return _easy(self.run, self.free, self.offset, self.node, *_columns(tasks), order)


def _columns(tasks: Tasks) -> tuple[np.ndarray, ...]:
    return tasks.pool, tasks.gpus, tasks.steps, tasks.earliest, tasks.latest_end


@numba.njit(cache=True)
def _free_runs(busy: np.ndarray, offset: np.ndarray) -> tuple:
    """(T, G) steps for which a GPU stays free from a step on, and (T, P) free GPUs."""
    steps, total = busy.shape
    run = np.empty((steps, total), np.int32)
    free = np.zeros((steps, offset.size - 1), np.int64)
    for t in range(steps - 1, -1, -1):
        for g in range(total):
            if busy[t, g]:
                run[t, g] = 0
            else:
                run[t, g] = 1 + (run[t + 1, g] if t + 1 < steps else 0)
        for p in range(offset.size - 1):
            for g in range(offset[p], offset[p + 1]):
                free[t, p] += not busy[t, g]
    return run, free


@numba.njit(cache=True)
def _fit(
    row: np.ndarray,
    low: int,
    high: int,
    node: int,
    gpus: int,
    need: int,
    bar: int,
    bar_low: int,
    bar_high: int,
) -> int:
    """Lowest first GPU of a legal block that is free for ``need`` steps; −1 for none.

    GPUs from ``bar_low`` to ``bar_high`` count as free for ``bar`` steps at most.
    """
    count = 0
    for g in range(low, high):
        if node > 0 and gpus <= node and (g - low) % node == 0:
            count = 0
        if row[g] < need or (bar_low <= g < bar_high and bar < need):
            count = 0
            continue
        count += 1
        first = g - gpus + 1
        if count >= gpus and (node == 0 or gpus <= node or (first - low) % node == 0):
            return first
    return -1


@numba.njit(cache=True)
def _occupy(
    run: np.ndarray, free: np.ndarray, pool: int, first: int, gpus: int, start: int, length: int
) -> None:
    stop = min(start + length, run.shape[0])
    for t in range(start, stop):
        free[t, pool] -= gpus
        for g in range(first, first + gpus):
            run[t, g] = 0
    for g in range(first, first + gpus):
        t = start - 1
        while t >= 0 and run[t, g] > 0:
            run[t, g] = start - t
            t -= 1


@numba.njit(cache=True)
def _earliest(
    run: np.ndarray,
    free: np.ndarray,
    pool: int,
    low: int,
    high: int,
    node: int,
    gpus: int,
    length: int,
    start: int,
    latest_end: int,
) -> tuple:
    """Earliest step and lowest GPU of a legal place from ``start`` on; (−1, −1) for none."""
    steps = run.shape[0]
    for t in range(start, steps):
        if t + length > latest_end:
            break
        if free[t, pool] < gpus:
            continue
        g = _fit(run[t], low, high, node, gpus, min(length, steps - t), 0, 0, 0)
        if g >= 0:
            return t, g
    return -1, -1


@numba.njit(cache=True)
def _place_in_order(
    run: np.ndarray,
    free: np.ndarray,
    offset: np.ndarray,
    node: np.ndarray,
    pool: np.ndarray,
    gpus: np.ndarray,
    length: np.ndarray,
    earliest: np.ndarray,
    latest_end: np.ndarray,
    order: np.ndarray,
    keep_order: bool,
) -> tuple:
    steps = run.shape[0]
    starts = np.full(pool.size, -1, np.int64)
    firsts = np.full(pool.size, -1, np.int64)
    # Earliest places only move later as the board fills: the last one found bounds the next search.
    # By pool, width (its logarithm, rounded up where a search is remembered, down where it is used), length.
    bound = np.zeros((offset.size - 1, 64, steps + 1), np.int32)
    floor = 0
    for j in order:
        p = pool[j]
        if p < 0:
            continue
        need = min(length[j], steps)
        low_log = 0
        while (2 << low_log) <= gpus[j]:
            low_log += 1
        from_step = max(earliest[j], floor if keep_order else 0, bound[p, low_log, need])
        t, g = _earliest(
            run, free, p, offset[p], offset[p + 1], node[p], gpus[j], length[j], from_step, latest_end[j]
        )
        if t < 0:
            continue
        starts[j], firsts[j] = t, g
        floor = t
        _occupy(run, free, p, g, gpus[j], t, length[j])
        if from_step == bound[p, low_log, need] and (1 << low_log) == gpus[j]:
            for k in range(need, steps + 1):
                bound[p, low_log, k] = max(bound[p, low_log, k], t)
    return starts, firsts


@numba.njit(cache=True)
def _easy(
    run: np.ndarray,
    free: np.ndarray,
    offset: np.ndarray,
    node: np.ndarray,
    pool: np.ndarray,
    gpus: np.ndarray,
    length: np.ndarray,
    earliest: np.ndarray,
    latest_end: np.ndarray,
    order: np.ndarray,
) -> tuple:
    steps = run.shape[0]
    pools = offset.size - 1
    starts = np.full(pool.size, -1, np.int64)
    firsts = np.full(pool.size, -1, np.int64)
    # What did not fit in this step: the shortest need that failed, by pool and width's logarithm.
    failed = np.empty((pools, 64), np.int64)
    bar_start = np.empty(pools, np.int64)
    bar_first = np.empty(pools, np.int64)
    bar_gpus = np.empty(pools, np.int64)
    for t in range(steps):
        failed[:] = _NEVER
        bar_start[:] = -1
        for j in order:
            p = pool[j]
            if p < 0 or starts[j] >= 0 or earliest[j] > t or t + length[j] > latest_end[j]:
                continue
            if free[t, p] <= 0 and bar_start[p] != -1:
                continue
            need = min(length[j], steps - t)
            log = 0
            while (2 << log) <= gpus[j]:
                log += 1
            g = -1
            possible = free[t, p] >= gpus[j]
            for k in range(log + 1):
                possible = possible and failed[p, k] > need
            if possible:
                barred = bar_start[p] > 0
                low = bar_first[p] if barred else 0
                g = _fit(
                    run[t], offset[p], offset[p + 1], node[p], gpus[j], need,
                    bar_start[p] - t if barred else 0, low, low + bar_gpus[p] if barred else 0,
                )  # fmt: skip
            if g >= 0:
                starts[j], firsts[j] = t, g
                _occupy(run, free, p, g, gpus[j], t, length[j])
                continue
            if (1 << log) == gpus[j]:
                failed[p, log] = min(failed[p, log], need)
            if bar_start[p] == -1:
                s, g = _earliest(
                    run, free, p, offset[p], offset[p + 1], node[p], gpus[j], length[j], t + 1, latest_end[j]
                )
                if s >= 0:
                    bar_start[p], bar_first[p], bar_gpus[p] = s, g, gpus[j]
    return starts, firsts
