"""What clusters run today, on the same problem: realtime from a fixed reservation, batch from a queue.

Each baseline gives a job the size that its submitter asked for (``requested``), or the largest of its shapes
that fits its pool. Running jobs, held GPUs, swap caps, nodes, closed GPUs, limits, order and deadlines are kept:
every plan is legal. All of them place by one rule (`places`). The loops are C++: queue.hpp is where to start reading.
"""

import ctypes
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from tidegrid import native
from tidegrid.scheduler.baselines.board import Board
from tidegrid.scheduler.fast.interface import input_of
from tidegrid.scheduler.plan import AppCells, Placement, Plan
from tidegrid.scheduler.problem import App, Job, Problem, Shape
from tidegrid.scheduler.solve import BASELINES

__all__ = ["BASELINES", "chosen_shape", "in_file_order", "plan_baseline"]

_queue_plan = native.function("tg_queue_plan", native.POINTER, native.INT, *[native.INTS_OUT] * 6)


def chosen_shape(board: Board, job: Job) -> Shape | None:
    """Return the shape that a baseline gives a job: the one asked for, or the largest; None where none fits."""
    candidates = job.shapes if job.requested is None else job.shapes[job.requested : job.requested + 1]
    usable = [shape for shape in candidates if board.ask(job, shape)]
    return max(usable, key=lambda shape: (shape.gpus, -shape.steps), default=None)


def plan_baseline(problem: Problem, mode: str, **_: Any) -> Plan:
    """Plan with one of the `BASELINES`.

    Parameters
    ----------
    problem
        The input.
    mode
        ``fifo``: the jobs of a pool start in arrival order; who is held back by a limit or by a job that it comes after
        alone holds up nobody. ``fifo_backfill``: each at the earliest legal place, in arrival order (conservative
        backfill). ``easy``: in each pool only the first job that waits for GPUs has a reservation (EASY backfill).
        ``priority``: conservative backfill in order of priority. ``easy_priority``: EASY, sorted by priority (over the
        highest) plus age (over seven days). ``sjf``: conservative backfill, shortest first. ``fifo_elastic``: ``fifo``
        with realtime as a curve in place of the reservation.

    Returns
    -------
    Plan
        Its key ``expected`` lists the places past the horizon, where apps are taken to keep what they hold at its
        end: ``job``, ``pool``, ``gpus``, ``start`` and ``steps``.
    """
    given = input_of(problem)
    shape, start = np.empty(given.jobs, np.int64), np.empty(given.jobs, np.int64)
    gpus_start, gpus = np.empty(given.jobs + 1, np.int64), np.empty(given.gpus_room, np.int64)
    cells_start = np.empty(given.apps * given.steps + 1, np.int64)
    cells = np.empty(given.cells_room, np.int64)
    mode_index = BASELINES.index(mode)
    _queue_plan(ctypes.byref(given), mode_index, shape, start, gpus_start, gpus, cells_start, cells)
    shapes = [one for job in problem.jobs if job.running is None for one in job.shapes]
    ids = gpus.tolist()
    placements, expected = [], []
    found = zip(shape.tolist(), start.tolist(), pairwise(gpus_start.tolist()), strict=True)
    for job, (chosen, begin, (low, high)) in zip(problem.jobs, found, strict=True):
        if job.running is not None:
            r = job.running
            placements.append(Placement.on(job.id, r.pool, r.ids, 0, r.remaining))
        elif begin >= problem.steps:
            s = shapes[chosen]
            expected.append({"job": job.id, "pool": s.pool, "gpus": s.gpus, "start": begin, "steps": s.steps})
        elif begin >= 0:
            s = shapes[chosen]
            placements.append(Placement.on(job.id, s.pool, ids[low:high], begin, s.steps))
    expected.sort(key=lambda one: (one["start"], one["job"]))
    bounds, held = cells_start.tolist(), cells.tolist()
    apps = [
        _cells(app, held, bounds[a * problem.steps : (a + 1) * problem.steps + 1])
        for a, app in enumerate(problem.apps)
    ]
    return Plan.of(problem, mode, in_file_order(placements), apps, expected=expected)


fifo = partial(plan_baseline, mode="fifo")
fifo_backfill = partial(plan_baseline, mode="fifo_backfill")
easy = partial(plan_baseline, mode="easy")
priority = partial(plan_baseline, mode="priority")
easy_priority = partial(plan_baseline, mode="easy_priority")
sjf = partial(plan_baseline, mode="sjf")
fifo_elastic = partial(plan_baseline, mode="fifo_elastic")


def in_file_order(placements: list[Placement]) -> list[Placement]:
    """Sort placements by start, pool, GPU and id, so that a plan's bytes never hang on the listed order."""
    return sorted(placements, key=lambda p: (p.start, p.pool, p.first_gpu, p.job))


def _cells(app: App, held: list[int], bounds: list[int]) -> AppCells:
    """The GPUs of an app step by step; a step in which nothing changes shares the list of the one before."""
    cells: list[tuple[Any, ...]] = []
    before: list[int] | None = None
    for low, high in pairwise(bounds):
        now = held[low:high]
        if now != before:
            size = app.replica
            cells.append(
                tuple(now) if size == 1 else tuple(tuple(now[i : i + size]) for i in range(0, len(now), size))
            )
        else:
            cells.append(cells[-1])
        before = now
    return AppCells(app.id, tuple(cells))
