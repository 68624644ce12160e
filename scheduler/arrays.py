"""A problem as numpy arrays, made once for each problem: what every planner's loops run on."""

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from tidegrid.scheduler.limits import limits_of
from tidegrid.scheduler.problem import Problem, Shape

#: Stands for "no limit" in integer arrays; larger than any step, small enough to add to.
FAR = 1 << 40


@dataclass(frozen=True, eq=False)
class Arrays:
    """A problem in arrays, read-only: J jobs as listed, S shapes, P pools, A apps, L steps with lookahead.

    Parameters
    ----------
    steps, width
        Horizon, and horizon with lookahead (``width ≥ steps``).
    weight
        (L,) w(t) = decay**t, also past the horizon.
    weight_before
        (L + 1,) Σ of w(u) for u < t within the horizon: a GPU's batch reward over [s, e) is priority ·
        (weight_before[e] − weight_before[s]); constant past the horizon, where cells earn nothing.
    pool_gpus, pool_node
        (P,) sizes; node 0 stands for none.
    priority, order, rank
        (J,) priority, arrival order, and the place in arrival order with ties broken by id.
    id_rank
        (J,) place in the order of ids: breaks ties so that the listed order never matters.
    earliest, latest_end
        (J,) first step allowed, and the last step allowed exclusive (deadline and ``finish_inside``
        together), `FAR` where there is none.
    shape_start, shape_pool, shape_gpus, shape_steps
        (J + 1,), (S,): job j has shapes ``shape_start[j] … shape_start[j + 1] − 1``; none where it runs.
    requested
        (J,) index of the requested shape within the job's own, −1 where none is stated.
    run_pool, run_first, run_gpus, run_steps
        (J,) the running block; pool −1 where the job waits.
    run_start, run_gpu
        (J + 1,), flat: the GPUs of running jobs, job after job.
    after_start, after
        (J + 1,), flat: jobs that must have ended, by index; those that the problem does not know have.
    limit_most, limit_pool, limit_gpus
        (K,) limits of tenants and groups: the most, the pool where it counts (−1: all), whether GPUs count or jobs.
    limit_start, limit
        (J + 1,), flat: the limits that a job counts in.
    shape_nodes
        (S,) nodes that its GPUs lie on, evenly; 0 where they cannot. 1 in a line.
    shape_rate
        (S,) what a step earns, before the job's priority: GPUs in version 1, in version 2 work ÷ steps · success.
    within_start, within
        (S + 1,), (…, 2): ranges (first GPU, GPUs) that a shape must lie in; none: anywhere; (0, 0): nowhere.
    closed_at
        (C, 6) closed GPUs: pool, first, last + 1, from, to, and 1 where they are down, 0 where they drain.
    pool_by_node
        (P,) whether jobs take GPUs of any nodes.
    app_pool, app_priority, app_cap, demand
        (A,), cap −1 for none; demand (A, L), 0 past the end of a curve.
    app_floor, app_replica
        (A,) GPUs that are always up, and GPUs of a replica.
    held
        For each app its GPUs before step 0, sorted.
    held_start, held_gpu
        (A + 1,), flat: the same replica after replica.
    floor_weight, gpu_cost, swap_cost
        Prices of version 2.
    """

    steps: int
    width: int
    weight: np.ndarray
    weight_before: np.ndarray
    pool_gpus: np.ndarray
    pool_node: np.ndarray
    priority: np.ndarray
    order: np.ndarray
    rank: np.ndarray
    id_rank: np.ndarray
    earliest: np.ndarray
    latest_end: np.ndarray
    shape_start: np.ndarray
    shape_pool: np.ndarray
    shape_gpus: np.ndarray
    shape_steps: np.ndarray
    requested: np.ndarray
    run_pool: np.ndarray
    run_first: np.ndarray
    run_gpus: np.ndarray
    run_steps: np.ndarray
    app_pool: np.ndarray
    app_priority: np.ndarray
    app_cap: np.ndarray
    demand: np.ndarray
    held: tuple[np.ndarray, ...]
    run_start: np.ndarray
    run_gpu: np.ndarray
    after_start: np.ndarray
    after: np.ndarray
    limit_most: np.ndarray
    limit_pool: np.ndarray
    limit_gpus: np.ndarray
    limit_start: np.ndarray
    limit: np.ndarray
    shape_nodes: np.ndarray
    shape_rate: np.ndarray
    within_start: np.ndarray
    within: np.ndarray
    closed_at: np.ndarray
    pool_by_node: np.ndarray
    app_floor: np.ndarray
    app_replica: np.ndarray
    held_start: np.ndarray
    held_gpu: np.ndarray
    floor_weight: float
    gpu_cost: float
    swap_cost: float


def arrays_of(problem: Problem) -> Arrays:
    """Return the problem's arrays; they are made at the first call and kept with the problem."""
    cached = problem.__dict__.get("_arrays")
    if cached is None:
        cached = problem.__dict__["_arrays"] = _build(problem)
    return cached


def _ints(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def _build(problem: Problem) -> Arrays:
    steps, width = problem.steps, problem.lookahead
    pool_index = {pool.id: i for i, pool in enumerate(problem.pools)}
    jobs, apps = problem.jobs, problem.apps
    count = len(jobs)
    weight = float(problem.decay) ** np.arange(width)
    weight_before = np.zeros(width + 1)
    np.cumsum(weight[:steps], out=weight_before[1 : steps + 1])
    weight_before[steps + 1 :] = weight_before[steps]

    shape_start = [0] * (count + 1)
    shape_pool: list[int] = []
    shape_gpus: list[int] = []
    shape_steps: list[int] = []
    latest_end = [FAR] * count
    requested = [-1] * count
    run = [(-1, 0, 0, 0)] * count
    for j, job in enumerate(jobs):
        if job.running is not None:
            r = job.running
            run[j] = (pool_index[r.pool], r.first_gpu, r.gpus, r.remaining)
        else:
            for shape in job.shapes:
                shape_pool.append(pool_index[shape.pool])
                shape_gpus.append(shape.gpus)
                shape_steps.append(shape.steps)
            if job.requested is not None:
                requested[j] = job.requested
        shape_start[j + 1] = len(shape_pool)
        if job.deadline is not None:
            latest_end[j] = job.deadline
        if job.finish_inside and latest_end[j] > steps:
            latest_end[j] = steps
    runs = np.array(run, np.int64).reshape(count, 4)

    demand = np.zeros((len(apps), width), np.int64)
    for i, app in enumerate(apps):
        demand[i, : len(app.demand)] = app.demand
    by_id = sorted(range(count), key=lambda j: jobs[j].id)
    id_rank = np.empty(count, np.int64)
    id_rank[by_id] = np.arange(count)
    order = _ints([job.order for job in jobs])
    rank = np.empty(count, np.int64)
    rank[np.lexsort((id_rank, order))] = np.arange(count)
    result = Arrays(
        steps=steps,
        width=width,
        weight=weight,
        weight_before=weight_before,
        pool_gpus=_ints([pool.gpus for pool in problem.pools]),
        pool_node=_ints([pool.node_size or 0 for pool in problem.pools]),
        priority=np.array([job.priority for job in jobs], np.float64),
        order=order,
        rank=rank,
        id_rank=id_rank,
        earliest=_ints([job.earliest for job in jobs]),
        latest_end=_ints(latest_end),
        shape_start=_ints(shape_start),
        shape_pool=_ints(shape_pool),
        shape_gpus=_ints(shape_gpus),
        shape_steps=_ints(shape_steps),
        requested=_ints(requested),
        run_pool=np.ascontiguousarray(runs[:, 0]),
        run_first=np.ascontiguousarray(runs[:, 1]),
        run_gpus=np.ascontiguousarray(runs[:, 2]),
        run_steps=np.ascontiguousarray(runs[:, 3]),
        app_pool=_ints([pool_index[app.pool] for app in apps]),
        app_priority=np.array([app.priority for app in apps], np.float64),
        app_cap=_ints([-1 if app.swap_cap is None else app.swap_cap for app in apps]),
        demand=demand,
        held=tuple(_ints(sorted(app.held_gpus)) for app in apps),
        **_second(problem, pool_index),
    )
    for value in vars(result).values():
        for array in value if isinstance(value, tuple) else (value,):
            if isinstance(array, np.ndarray):
                array.flags.writeable = False
    return result


def _second(problem: Problem, pool_index: dict[str, int]) -> dict[str, Any]:
    """Return the arrays of what version 2 adds."""
    jobs, apps = problem.jobs, problem.apps
    job_index = {job.id: j for j, job in enumerate(jobs)}
    limits = list(limits_of(problem))
    by_owner: dict[tuple[str, str], list[int]] = {}
    for k, limit in enumerate(limits):
        by_owner.setdefault((limit.key, limit.owner), []).append(k)
    counted: list[list[int]] = (
        [
            [
                k
                for key, owner in (("tenant", job.tenant), ("group", job.group))
                if owner
                for k in by_owner.get((key, owner), ())
            ]
            for job in jobs
        ]
        if limits
        else [[]] * len(jobs)
    )
    waiting = [(job, shape) for job in jobs if job.running is None for shape in job.shapes]
    rates = [
        job.least_work / shape.steps * shape.success if problem.pays_for_work else float(shape.gpus)
        for job, shape in waiting
    ]
    run_start, run_gpu = _ragged([list(job.running.ids) if job.running else [] for job in jobs])
    after_start, after = _ragged(
        [[job_index[name] for name in job.after or () if name in job_index] for job in jobs]
    )
    limit_start, limit_of = _ragged(counted)
    within_start, within = _ragged([_ranges(shape) for _, shape in waiting])
    held_start, held_gpu = _ragged([list(app.held_gpus) for app in apps])
    closed = [
        (p, c.gpus[0], c.gpus[1], c.start, c.end, c.kind == "down")
        for p, pool in enumerate(problem.pools)
        for c in pool.closed or ()
    ]
    nodes = [
        shape.nodes_in(pool) if (pool := problem.pool_by_id[shape.pool]).by_node else 1
        for _, shape in waiting
    ]
    return {
        "run_start": run_start,
        "run_gpu": run_gpu,
        "after_start": after_start,
        "after": after,
        "limit_most": _ints([limit.most for limit in limits]),
        "limit_pool": _ints([-1 if limit.pool is None else pool_index[limit.pool] for limit in limits]),
        "limit_gpus": _ints([int(limit.counts_gpus) for limit in limits]),
        "limit_start": limit_start,
        "limit": limit_of,
        "shape_nodes": _ints(nodes),
        "shape_rate": np.array(rates, np.float64),
        "within_start": within_start // 2,
        "within": within.reshape(-1, 2),
        "closed_at": np.array(closed, np.int64).reshape(len(closed), 6),
        "pool_by_node": _ints([int(pool.by_node) for pool in problem.pools]),
        "app_floor": _ints([app.floor for app in apps]),
        "app_replica": _ints([app.replica for app in apps]),
        "held_start": held_start,
        "held_gpu": held_gpu,
        "floor_weight": float(problem.floor_weight),
        "gpu_cost": float(problem.gpu_cost),
        "swap_cost": float(problem.swap_cost),
    }


def _ranges(shape: Shape) -> list[int]:
    if shape.within is None:
        return []
    return list(chain.from_iterable(shape.within or [(0, 0)]))


def _ragged(lists: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return lists as (where each begins, all of them one after the other)."""
    start = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(one) for one in lists], out=start[1:])
    return start, _ints(list(chain.from_iterable(lists)))
