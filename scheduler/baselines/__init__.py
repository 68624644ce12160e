"""What clusters run today, on the same problem: realtime from a fixed reservation, batch from a queue.

Each baseline gives a job the size that its submitter asked for (``requested``), or the largest of its shapes
that fits its pool. Running jobs, held GPUs, swap caps, nodes, closed GPUs, limits, order and deadlines are kept:
every plan is legal. All of them place by one rule (`places`).
"""

from functools import partial
from typing import Any

from tidegrid.scheduler.baselines.board import Ask, Board, Place
from tidegrid.scheduler.baselines.places import gpus_of
from tidegrid.scheduler.baselines.queue import easy as _easy
from tidegrid.scheduler.baselines.queue import in_order
from tidegrid.scheduler.baselines.reservation import curve_levels, hold, peak_levels
from tidegrid.scheduler.plan import AppCells, Placement, Plan
from tidegrid.scheduler.problem import App, Job, Problem, Shape
from tidegrid.scheduler.solve import BASELINES

__all__ = ["BASELINES", "asks_of", "chosen_shape", "in_file_order", "plan_baseline", "queue_order"]

# Slurm's multifactor plugin: a job's age counts in full at PriorityMaxAge, seven days where a site sets none.
MAX_AGE_MINUTES = 7 * 24 * 60


def chosen_shape(board: Board, job: Job) -> Shape | None:
    """Return the shape that a baseline gives a job: the one asked for, or the largest; None where none fits."""
    candidates = job.shapes if job.requested is None else job.shapes[job.requested : job.requested + 1]
    usable = [shape for shape in candidates if board.ask(job, shape)]
    return max(usable, key=lambda shape: (shape.gpus, -shape.steps), default=None)


def asks_of(board: Board) -> dict[str, Ask]:
    """Return what the waiting jobs ask for, by id, in the shapes that a baseline gives them."""
    asks = {}
    for job in board.problem.jobs:
        shape = chosen_shape(board, job) if job.running is None else None
        ask = board.ask(job, shape) if shape is not None else None
        if ask is not None:
            asks[job.id] = ask
    return asks


def plan_baseline(problem: Problem, mode: str, **_: Any) -> Plan:
    """Plan with one of the `BASELINES`.

    Parameters
    ----------
    problem
        The input.
    mode
        ``fifo``: the jobs of a pool start in arrival order, none before its predecessor. ``fifo_backfill``: each at
        the earliest legal place, in arrival order (conservative backfill). ``easy``: only a pool's first blocked job
        has a reservation (EASY backfill). ``priority``: conservative backfill in order of priority.
        ``easy_priority``: EASY, sorted by priority (over the highest) plus age (over seven days). ``sjf``:
        conservative backfill, shortest first. ``fifo_elastic``: ``fifo`` with realtime as a curve in place of
        the reservation.

    Returns
    -------
    Plan
        Its key ``expected`` lists the places past the horizon, where apps are taken to keep what they hold at its
        end: ``job``, ``pool``, ``gpus``, ``start`` and ``steps``.
    """
    board = Board(problem)
    cells = hold(board, curve_levels(problem) if mode == "fifo_elastic" else peak_levels(problem))
    for app in problem.apps:
        board.hold(app.pool, map(sum, cells[app.id]), for_ever=True)
    asks = asks_of(board)
    queue = queue_order(problem, asks, mode)
    if mode in ("easy", "easy_priority"):
        places = _easy(board, asks, queue)
    else:
        places = in_order(board, asks, queue, passing=mode not in ("fifo", "fifo_elastic"))
    placements, expected = _placements(problem, asks, places)
    return Plan.of(
        problem, mode, placements, [_cells(app, cells[app.id]) for app in problem.apps], expected=expected
    )


fifo = partial(plan_baseline, mode="fifo")
fifo_backfill = partial(plan_baseline, mode="fifo_backfill")
easy = partial(plan_baseline, mode="easy")
priority = partial(plan_baseline, mode="priority")
easy_priority = partial(plan_baseline, mode="easy_priority")
sjf = partial(plan_baseline, mode="sjf")
fifo_elastic = partial(plan_baseline, mode="fifo_elastic")


def queue_order(problem: Problem, asks: dict[str, Ask], mode: str) -> list[str]:
    """Ids of the jobs in the order in which a baseline serves them."""
    waiting = sorted((job for job in problem.jobs if job.id in asks), key=lambda job: (job.order, job.id))
    if mode == "priority":
        waiting.sort(key=lambda job: -job.priority)
    elif mode == "sjf":
        waiting.sort(key=lambda job: asks[job.id].steps)
    elif mode == "easy_priority":
        highest = max([1.0, *(float(job.priority) for job in problem.jobs)])
        # All who wait age alike, so what tells them apart is when they came: the order never changes.
        aging = problem.step_minutes / MAX_AGE_MINUTES
        waiting.sort(key=lambda job: aging * job.earliest - job.priority / highest)
    return [job.id for job in waiting]


def _placements(
    problem: Problem, asks: dict[str, Ask], places: dict[str, Place]
) -> tuple[list[Placement], list[dict[str, Any]]]:
    placements = [
        Placement.on(job.id, job.running.pool, job.running.ids, 0, job.running.remaining)
        for job in problem.jobs
        if job.running is not None
    ]
    expected = []
    for job, place in places.items():
        ask = asks[job]
        if place.start < problem.steps:
            placements.append(Placement.on(job, ask.pool, gpus_of(place.mask), place.start, ask.steps))
        else:
            expected.append(
                {"job": job, "pool": ask.pool, "gpus": ask.gpus, "start": place.start, "steps": ask.steps}
            )
    expected.sort(key=lambda one: (one["start"], one["job"]))
    return in_file_order(placements), expected


def in_file_order(placements: list[Placement]) -> list[Placement]:
    """Sort placements by start, pool, GPU and id, so that a plan's bytes never hang on the listed order."""
    return sorted(placements, key=lambda p: (p.start, p.pool, p.first_gpu, p.job))


def _cells(app: App, replicas: list[tuple[int, ...]]) -> AppCells:
    """The GPUs of an app step by step; a step in which nothing changes shares the list of the one before."""
    cells: list[tuple[Any, ...]] = []
    for t, masks in enumerate(replicas):
        if t and masks == replicas[t - 1]:
            cells.append(cells[-1])
        elif app.replica == 1:
            cells.append(tuple(gpus_of(sum(masks))))
        else:
            cells.append(tuple(tuple(gpus_of(mask)) for mask in masks))
    return AppCells(app.id, tuple(cells))
