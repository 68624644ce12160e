"""What clusters run today, on the same problem: realtime from a fixed reservation, batch from a queue.

Each baseline gives a job the size that its submitter asked for (``requested``), or the largest of its shapes
that fits its pool. Running jobs, held GPUs, swap caps, nodes and deadlines are kept: every plan is legal.
"""

from functools import partial
from typing import Any

import numpy as np

from tidegrid.scheduler.arrays import Arrays, arrays_of
from tidegrid.scheduler.baselines.engine import Board, Tasks
from tidegrid.scheduler.baselines.reservation import curve_levels, hold, peak_levels
from tidegrid.scheduler.plan import AppCells, Placement, Plan
from tidegrid.scheduler.problem import Problem
from tidegrid.scheduler.solve import BASELINES

__all__ = [
    "BASELINES",
    "chosen_shapes",
    "chosen_tasks",
    "fits_pool",
    "in_file_order",
    "plan_baseline",
    "queue_order",
]

# Slurm's multifactor plugin: a job's age counts in full at PriorityMaxAge, seven days where a site sets none.
MAX_AGE_MINUTES = 7 * 24 * 60


def fits_pool(arrays: Arrays, pool: int, gpus: int) -> bool:
    """Whether the empty pool has any legal block of this size."""
    node = int(arrays.pool_node[pool])
    size = int(arrays.pool_gpus[pool])
    return gpus <= (min(node, size) if 0 < gpus <= node else size)


def chosen_shapes(arrays: Arrays) -> np.ndarray:
    """Return for each job the index of the shape that a baseline uses; −1 where it runs or none fits."""
    chosen = np.full(len(arrays.priority), -1, np.int64)
    for j in range(len(chosen)):
        low, high = int(arrays.shape_start[j]), int(arrays.shape_start[j + 1])
        candidates = [low + int(arrays.requested[j])] if arrays.requested[j] >= 0 else range(low, high)
        usable = [
            s
            for s in candidates
            if s < high and fits_pool(arrays, arrays.shape_pool[s], arrays.shape_gpus[s])
        ]
        if usable:
            chosen[j] = max(usable, key=lambda s: (arrays.shape_gpus[s], -arrays.shape_steps[s], -s))
    return chosen


def chosen_tasks(arrays: Arrays) -> Tasks:
    """Jobs with the shapes that a baseline uses."""
    shape = chosen_shapes(arrays)
    return Tasks(
        pool=np.where(shape >= 0, arrays.shape_pool[shape], -1) if len(arrays.shape_pool) else shape,
        gpus=arrays.shape_gpus[shape] if len(arrays.shape_gpus) else shape,
        steps=arrays.shape_steps[shape] if len(arrays.shape_steps) else shape,
        earliest=arrays.earliest,
        latest_end=arrays.latest_end,
    )


def plan_baseline(problem: Problem, mode: str, **_: Any) -> Plan:
    """Plan with one of the `BASELINES`.

    Parameters
    ----------
    problem
        The input.
    mode
        ``fifo``: jobs start in arrival order, none before its predecessor. ``fifo_backfill``: each at the
        earliest legal place, in arrival order (conservative backfill). ``easy``: only the first blocked job
        has a reservation (EASY backfill). ``priority``: conservative backfill in order of priority.
        ``easy_priority``: EASY, sorted by priority (over the highest) plus age (over seven days). ``sjf``:
        conservative backfill, shortest first. ``fifo_elastic``: ``fifo`` with realtime as a curve in place of
        the reservation.
    """
    arrays = arrays_of(problem)
    offset = np.concatenate([[0], np.cumsum(arrays.pool_gpus)])
    levels = curve_levels(arrays) if mode == "fifo_elastic" else peak_levels(arrays)
    owner = hold(arrays, offset, levels)
    busy = owner >= 0
    for j in np.flatnonzero(arrays.run_pool >= 0):
        first = offset[arrays.run_pool[j]] + arrays.run_first[j]
        busy[: arrays.run_steps[j], first : first + arrays.run_gpus[j]] = True
    board = Board(busy, offset, arrays.pool_node)
    tasks = chosen_tasks(arrays)
    order = queue_order(problem, arrays, tasks, mode)
    if mode in ("easy", "easy_priority"):
        start, first = board.easy(tasks, order)
    else:
        start, first = board.place_in_order(tasks, order, keep_order=mode in ("fifo", "fifo_elastic"))
    return Plan.of(
        problem,
        mode,
        _placements(problem, arrays, tasks, offset, start, first),
        _cells(problem, arrays, offset, owner),
    )


fifo = partial(plan_baseline, mode="fifo")
fifo_backfill = partial(plan_baseline, mode="fifo_backfill")
easy = partial(plan_baseline, mode="easy")
priority = partial(plan_baseline, mode="priority")
easy_priority = partial(plan_baseline, mode="easy_priority")
sjf = partial(plan_baseline, mode="sjf")
fifo_elastic = partial(plan_baseline, mode="fifo_elastic")


def queue_order(problem: Problem, arrays: Arrays, tasks: Tasks, mode: str) -> np.ndarray:
    """Indices of the jobs in the order in which a baseline serves them."""
    if mode == "priority":
        return np.lexsort((arrays.rank, -arrays.priority))
    if mode == "sjf":
        return np.lexsort((arrays.rank, tasks.steps))
    if mode == "easy_priority":
        highest = max(1.0, float(arrays.priority.max(initial=0.0)))
        # All who wait age alike, so what tells them apart is when they came: the order never changes.
        aging = problem.step_minutes / MAX_AGE_MINUTES
        return np.lexsort((arrays.rank, aging * arrays.earliest - arrays.priority / highest))
    return np.argsort(arrays.rank)


def _placements(
    problem: Problem, arrays: Arrays, tasks: Tasks, offset: np.ndarray, start: np.ndarray, first: np.ndarray
) -> list[Placement]:
    placements = []
    for j, job in enumerate(problem.jobs):
        if job.running:
            r = job.running
            placements.append(Placement(job.id, r.pool, r.first_gpu, r.gpus, 0, r.remaining))
        elif start[j] >= 0:
            pool = int(tasks.pool[j])
            gpu = int(first[j] - offset[pool])
            placements.append(
                Placement(
                    job.id,
                    problem.pools[pool].id,
                    gpu,
                    int(tasks.gpus[j]),
                    int(start[j]),
                    int(tasks.steps[j]),
                )
            )
    return in_file_order(placements)


def in_file_order(placements: list[Placement]) -> list[Placement]:
    """Sort placements by start, pool, GPU and id, so that a plan's bytes never hang on the listed order."""
    return sorted(placements, key=lambda p: (p.start, p.pool, p.first_gpu, p.job))


def _cells(problem: Problem, arrays: Arrays, offset: np.ndarray, owner: np.ndarray) -> list[AppCells]:
    result = []
    for a, app in enumerate(problem.apps):
        low, high = offset[arrays.app_pool[a]], offset[arrays.app_pool[a] + 1]
        mine = owner[:, low:high] == a
        result.append(AppCells(app.id, tuple(tuple(np.flatnonzero(row).tolist()) for row in mine)))
    return result
