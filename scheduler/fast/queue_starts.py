"""The plans of the baselines as starts of the search, so that no plan of ``fast`` is worth less than theirs."""

from typing import NamedTuple

import numpy as np

from tidegrid.scheduler.arrays import arrays_of
from tidegrid.scheduler.baselines import BASELINES, chosen_tasks, queue_order
from tidegrid.scheduler.baselines.engine import Board as Line
from tidegrid.scheduler.baselines.engine import Tasks
from tidegrid.scheduler.baselines.reservation import curve_levels, hold, peak_levels
from tidegrid.scheduler.fast.board import Board, Names
from tidegrid.scheduler.problem import Problem


class Starts(NamedTuple):
    """What the baselines do, in the terms of the board."""

    spots: np.ndarray  # (K, N, 3) shape, start, first GPU
    penalty: np.ndarray  # (K) of their apps within the horizon
    owners: list[np.ndarray]  # (T, G) app of the problem on each GPU of the line, by baseline
    own_app: np.ndarray  # (A + 1) the board's app for each app of the problem, and -1 for none
    offset: np.ndarray  # (P + 1) where the problem's pools begin on the line


def queue_starts(problem: Problem, b: Board, names: Names) -> Starts:
    """Run the baselines' loops on a problem."""
    arrays = arrays_of(problem)
    offset = np.concatenate([[0], np.cumsum(arrays.pool_gpus)])
    pool_at = {pool.id: i for i, pool in enumerate(problem.pools)}
    job_at = {job.id: j for j, job in enumerate(problem.jobs)}
    app_at = {app.id: a for a, app in enumerate(problem.apps)}
    to_pool = np.array([pool_at[pool.id] for pool in names.pools], np.int64)
    from_job = np.array([job_at[job.id] for job in names.jobs], np.int64)
    tasks = chosen_tasks(arrays)
    own = _own_shapes(b, to_pool, tasks, from_job)
    running = np.flatnonzero(arrays.run_pool >= 0)
    lines, owners, penalties = [], [], []
    for levels in (peak_levels(arrays), curve_levels(arrays)):
        owner = hold(arrays, offset, levels)
        busy = owner >= 0
        for j in running:
            first = offset[arrays.run_pool[j]] + arrays.run_first[j]
            busy[: arrays.run_steps[j], first : first + arrays.run_gpus[j]] = True
        lines.append(Line(busy, offset, arrays.pool_node))
        owners.append(owner)
        penalty = 0.0
        for i, app in enumerate(names.apps):
            a = app_at[app.id]
            low, high = offset[arrays.app_pool[a]], offset[arrays.app_pool[a] + 1]
            held = np.count_nonzero(owner[:, low:high] == a, axis=1)
            short = np.maximum(0, b.demand[i, : b.steps] - held)
            penalty += float(b.app["price"][i] * (b.weight[: b.steps] * short).sum())
        penalties.append(penalty)

    empty = [(line.run.copy(), line.free.copy()) for line in lines]
    starts, firsts = np.full((2, len(BASELINES), len(arrays.rank)), -1, np.int64)
    for i, mode in enumerate(BASELINES):
        elastic = mode == "fifo_elastic"
        line, (run, free) = lines[elastic], empty[elastic]
        line.run[...], line.free[...] = run, free
        order = queue_order(problem, arrays, tasks, mode)
        if mode in ("easy", "easy_priority"):
            starts[i], firsts[i] = line.easy(tasks, order)
        else:
            starts[i], firsts[i] = line.place_in_order(
                tasks, order, keep_order=mode in ("fifo", "fifo_elastic")
            )
    by_mode = [mode == "fifo_elastic" for mode in BASELINES]
    starts, firsts = starts[:, from_job], firsts[:, from_job]
    firsts = firsts - offset[tasks.pool[from_job]]
    spots = np.stack([np.where(starts >= 0, own, -1), starts, firsts], axis=2)
    own_app = np.full(len(names.apps) + 1, -1, np.int32)
    for i, app in enumerate(names.apps):
        own_app[app_at[app.id]] = i
    return Starts(
        spots, np.array([penalties[e] for e in by_mode]), [owners[e] for e in by_mode], own_app, offset
    )


def _own_shapes(b: Board, to_pool: np.ndarray, tasks: Tasks, from_job: np.ndarray) -> np.ndarray:
    """The board's shape that is the chosen one of each job; −1 where the job has none that can run."""
    own = np.full(len(from_job), -1, np.int64)
    owner = np.repeat(np.arange(len(from_job)), b.job["shape_last"] - b.job["shape_first"])
    j = from_job[owner]
    same = (
        (to_pool[b.shape["pool"]] == tasks.pool[j])
        & (b.shape["gpus"] == tasks.gpus[j])
        & (b.shape["steps"] == tasks.steps[j])
    )
    own[owner[same]] = np.flatnonzero(same)
    return own
