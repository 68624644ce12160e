"""Mode ``fast``: the problem in, a legal plan out, in milliseconds."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from tidegrid.errors import InputError
from tidegrid.scheduler.checker import check
from tidegrid.scheduler.fast.board import NO_CAP, Board, Names, board
from tidegrid.scheduler.fast.cache import drop_stale
from tidegrid.scheduler.fast.queue_starts import queue_starts
from tidegrid.scheduler.fast.search import begin, finish, improve
from tidegrid.scheduler.fast.state import Knobs, State, new_state
from tidegrid.scheduler.plan import AppCells, Placement, Plan
from tidegrid.scheduler.problem import App, Job, Pool, Problem, Shape

# Milliseconds of search by default. At 8 GPUs and 14 jobs the whole answer is to come in 2 ms; what is a little larger
# has many more ways to be filled, and gets up to so many milliseconds a job, less where GPUs are many, more where no
# app has to be served.
LEAST_MS, SMALL_BOARD = 0.72, 8 * 14
MS_PER_JOB, MS_PER_JOB_ALONE, MOST_MS, FEW_GPUS = 0.27, 0.55, 14.0, 16
# From so many jobs on greedy starts are near the bound, and their own time counts.
MANY_JOBS, MS_PER_FURTHER_JOB = 100, 0.05
# Up to ``HOT_JOBS`` jobs the temperature starts at `Knobs.heat`, with more it starts lower. From ``HOT_JOBS`` to
# ``MANY_PLACES`` jobs the chance rises to ``MOST_EJECT`` that a round displaces others for a waiting job.
HOT_JOBS, MANY_PLACES, MOST_EJECT = 20, 60, 0.5

drop_stale(improve.stats.cache_path, Path(__file__).parent)  # type: ignore[attr-defined]  # numba adds it


def plan(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    rounds: int | None = None,
    budget_ms: float | None = None,
    warm_start: Plan | None = None,
    knobs: Mapping[str, Any] | None = None,
    **_: Any,
) -> Plan:
    """Plan a problem: greedy starts, then ruin and recreate for a number of rounds.

    Parameters
    ----------
    problem
        The input.
    time_limit
        Passed over: the budget is counted in rounds, so that the same input gives the same plan anywhere.
    seed
        The same input, seed and budget give the same plan.
    rounds
        Rounds of search; None for as many as ``budget_ms`` buys.
    budget_ms
        Milliseconds of search on an ordinary core, turned into rounds from the problem's size; None for
        `default_budget`.
    warm_start
        A plan, such as yesterday's. Where it is legal for this problem, the result is never worth less, and
        it is the same plan unless a better one was found.
    knobs
        Settings of the search in place of `Knobs`.

    Returns
    -------
    Plan
        Legal, without metrics.

    Raises
    ------
    InputError
        ``rounds`` or ``budget_ms`` is negative.
    """
    for name, value in (("rounds", rounds), ("budget_ms", budget_ms)):
        if value is not None and not value >= 0:
            raise InputError(f"{value} is out of range", field=name, fix="write a number of 0 or more")
    b, names = board(problem)
    state = new_state(b, seed)
    jobs = len(b.job)
    usual = Knobs()
    crowd = min(1.0, max(0.0, (jobs - HOT_JOBS) / (MANY_PLACES - HOT_JOBS)))
    settings = usual._replace(
        heat=usual.heat * min(1.0, HOT_JOBS / max(1, jobs)),
        eject=usual.eject + (MOST_EJECT - usual.eject) * crowd,
    )._replace(**(knobs or {}))
    starts = queue_starts(problem, b, names)
    spots, charged = starts.spots, starts.penalty
    kept = None
    if warm_start is not None:
        warm, kept = _spots_of(problem, b, names, warm_start)
        if kept is not None:
            spots = np.concatenate([spots, warm[None]])
            charged = np.append(charged, np.inf)  # what its own apps are worth is looked at in the end
    owner_at = np.zeros(len(b.pool) + 1, np.int64)
    np.cumsum(b.pool["gpus"] * b.steps, out=owner_at[1:])
    owners = np.full(int(owner_at[-1]) if len(b.app) else 1, -1, np.int32)
    own, own_worth = begin(b, state, _orders(b), spots, charged)
    rounds = rounds_for(b, budget_ms) if rounds is None else int(rounds)
    if rounds > 0 and jobs > 0:
        improve(b, state, rounds, settings)
    worth = finish(b, state, owners, owner_at)
    if own_worth > worth + 1e-9 * abs(worth):
        state.spot[:] = spots[own]
        for p, pool in enumerate(names.pools):
            low = int(starts.offset[problem.pools.index(pool)])
            line = starts.owners[own][:, low : low + pool.gpus].T
            owners[owner_at[p] : owner_at[p + 1]] = starts.own_app[line].ravel()
    found = _plan(problem, b, names, state, owners, owner_at)
    if kept is not None and warm_start is not None:
        better = check(problem, found)[1]["objective"] - kept
        if better <= 1e-9 * max(1.0, abs(kept)):
            return Plan.of(problem, "fast", warm_start.placements, warm_start.apps)
    return found


def default_budget(b: Board) -> float:
    """Milliseconds of search that a problem gets."""
    jobs, gpus = len(b.job), int(b.pool["gpus"].sum())
    per_job = MS_PER_JOB if len(b.app) else MS_PER_JOB_ALONE
    most = min(MOST_MS, per_job * jobs * (FEW_GPUS / max(FEW_GPUS, gpus)) ** 0.8)
    wanted = LEAST_MS * (jobs * gpus / SMALL_BOARD) ** 3
    return max(LEAST_MS, min(most, wanted)) + MS_PER_FURTHER_JOB * max(0, jobs - MANY_JOBS)


def rounds_for(b: Board, budget_ms: float | None = None) -> int:
    """Rounds that a budget buys, from the problem's size alone (microseconds a round, fitted on one core)."""
    jobs = len(b.job)
    if budget_ms is None:
        budget_ms = default_budget(b)
    shapes = len(b.shape) / max(1, jobs)
    words = float(b.pool["words"].max())
    capped = int((b.app["cap"] < NO_CAP).sum())
    naming = capped * (0.08 + 0.016 * float(b.pool["gpus"].max()) / 16)
    micros = 0.1 + b.steps * (0.14 + 0.012 * words * shapes + naming) + 0.024 * jobs
    return int(1000 * budget_ms / micros)


def warm_up() -> None:
    """Compile the kernels, or load them from disk, so that the first request does not wait for it."""
    plan(
        Problem(
            steps=2,
            decay=0.98,
            shortfall_weight=8.0,
            pools=(Pool(id="pool", gpus=2),),
            jobs=(Job(id="job", priority=1, order=0, shapes=(Shape(pool="pool", gpus=1, steps=1),)),),
            apps=(App(id="app", pool="pool", priority=1, demand=(1, 1), swap_cap=1),),
        ),
        rounds=1,
    )


def _orders(b: Board) -> np.ndarray:
    """Orders in which greedy starts insert the jobs."""
    jobs = np.arange(len(b.job))
    value = b.job["value"]
    area = np.zeros(len(jobs))
    owner = np.repeat(jobs, b.job["shape_last"] - b.job["shape_first"])
    np.maximum.at(area, owner, b.shape["gpus"] * b.shape["steps"])
    return np.stack([np.lexsort((jobs, -area, -value)), np.lexsort((jobs, -value * area))])


def _spots_of(problem: Problem, b: Board, names: Names, plan: Plan) -> tuple[np.ndarray, float | None]:
    """Return a plan's placements on the board, and its objective, or None where it is not legal."""
    spots = np.full((len(b.job), 3), -1, np.int64)
    bad, figures = check(problem, plan.with_metrics({}))
    if bad:
        return spots, None
    number = {job.id: i for i, job in enumerate(names.jobs)}
    pools = {pool.id: i for i, pool in enumerate(names.pools)}
    for p in plan.placements:
        i = number.get(p.job)
        if i is None:
            continue
        for k in range(int(b.job["shape_first"][i]), int(b.job["shape_last"][i])):
            shape = b.shape[k]
            if (shape["pool"], shape["gpus"], shape["steps"]) == (pools[p.pool], p.gpus, p.steps):
                spots[i] = (k, p.start, p.first_gpu)
    return spots, figures["objective"]


def _plan(
    problem: Problem, b: Board, names: Names, state: State, owners: np.ndarray, owner_at: np.ndarray
) -> Plan:
    placements = []
    for job in names.running:
        r = job.running
        placements.append(Placement(job.id, r.pool, r.first_gpu, r.gpus, 0, r.remaining))
    ids = [pool.id for pool in names.pools]
    shapes = b.shape.tolist()
    spots = _first_come(b, names, shapes, state.spot.tolist())
    for job, (k, start, first) in zip(names.jobs, spots, strict=True):
        if k >= 0:
            p, gpus, _, steps, _ = shapes[k]
            placements.append(Placement(job.id, ids[p], first, gpus, start, steps))
    placements.sort(key=lambda p: (p.start, p.pool, p.first_gpu, p.job))
    apps = []
    for p in range(len(ids)):
        low, high = int(b.pool["app_first"][p]), int(b.pool["app_last"][p])
        if low == high:
            continue
        by_step = np.ascontiguousarray(owners[owner_at[p] : owner_at[p + 1]].reshape(-1, b.steps).T)
        for a in range(low, high):
            step, gpu = np.nonzero(by_step == a)
            cut = np.searchsorted(step, np.arange(b.steps + 1)).tolist()
            gpus = gpu.tolist()
            cells = tuple(tuple(gpus[i:j]) for i, j in pairwise(cut))
            apps.append(AppCells(names.apps[a].id, cells))
    return Plan.of(problem, "fast", placements, sorted(apps, key=lambda a: a.app))


def _first_come(b: Board, names: Names, shapes: list[Any], spots: list[list[int]]) -> list[list[int]]:
    """Give equal jobs their places in order of arrival: the earliest start to the first, none to the last."""
    firsts, lasts = b.job["shape_first"].tolist(), b.job["shape_last"].tolist()
    groups: dict[Any, list[int]] = {}
    for i, job in enumerate(names.jobs):
        if firsts[i] < lasts[i]:
            key = (job.priority, job.earliest, *shapes[firsts[i] : lasts[i]])
            groups.setdefault(key, []).append(i)
    result = list(spots)
    for group in groups.values():
        if len(group) == 1:
            continue
        own = [(k < 0, start, first, k - firsts[i]) for i in group for k, start, first in (spots[i],)]
        for i, (waits, start, first, k) in zip(group, sorted(own), strict=True):
            result[i] = [-1 if waits else firsts[i] + k, start, first]
    return result
