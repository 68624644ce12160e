"""The problem as arrays for the compiled search, in an order that does not depend on how it was listed."""

from typing import Any, NamedTuple

import numpy as np

from tidegrid.scheduler.fast.bits import entry
from tidegrid.scheduler.problem import Problem

NO_CAP = 1 << 40
# Two plans of equal objective differ by these: earlier arrivals first, earlier starts first.
ORDER_TILT = 1e-9
TIME_TILT = 1e-9


POOL = np.dtype(
    [
        ("gpus", np.int64),
        ("words", np.int64),  # words of a set
        ("row", np.int64),  # first word of step 0
        ("legal", np.int64),  # where its sets of legal first GPUs begin, one for each power of two
        ("app_first", np.int64),
        ("app_last", np.int64),  # exclusive
        ("capped", np.int64),  # whether any of its apps has a cap
        ("high", np.int64),  # whether jobs are packed from the last GPU down
    ]
)
APP = np.dtype([("price", np.float64), ("cap", np.int64), ("held_count", np.int64)])
JOB = np.dtype(
    [
        ("value", np.float64),  # tilted priority
        ("earliest", np.int64),
        ("shape_first", np.int64),
        ("shape_last", np.int64),  # exclusive
    ]
)
SHAPE = np.dtype(
    [
        ("pool", np.int64),
        ("gpus", np.int64),
        ("log", np.int64),  # of gpus, base 2
        ("steps", np.int64),
        ("latest", np.int64),  # last step at which it may start
    ]
)
STEP = np.dtype(
    [
        ("wanted", np.int64),  # demand of all apps
        ("base_used", np.int64),  # GPUs that running jobs use
        ("cost_at", np.int64),  # where the penalties for 0, 1, 2 … GPUs short begin
    ]
)


class Board(NamedTuple):
    """What does not change while the search runs.

    Sets of GPUs are words of 64 bits; ``pool.row + t * pool.words`` is where a pool's set of step t begins.
    Jobs are sorted by (order, id), pools by id, apps by pool and falling priority.
    """

    steps: int
    width: int  # steps with the lookahead
    pool: np.ndarray  # (P) POOL
    app: np.ndarray  # (A) APP
    job: np.ndarray  # (N) JOB
    shape: np.ndarray  # SHAPE
    step: np.ndarray  # (P, width) STEP
    base: np.ndarray  # flat sets: GPUs that are free of what cannot move
    legal: np.ndarray  # flat sets: first GPUs that rule 3 allows, by pool and size
    held: np.ndarray  # (A, most words) sets
    demand: np.ndarray  # (A, width)
    before: np.ndarray  # (steps + 1) sum of tilted weights before a step
    weight: np.ndarray  # (width) decay ** t
    cost: np.ndarray  # flat: penalty of a pool and step by GPUs short


class Names(NamedTuple):
    """Which job, pool, app and shape of the problem each index of the board stands for."""

    pools: list[Any]
    apps: list[Any]
    jobs: list[Any]
    running: list[Any]


@entry
def fill_costs(pool: Any, app: Any, step: Any, demand: Any, weight: Any, cost: Any) -> None:
    """Penalty of each pool and step for 0, 1, 2 … GPUs short, lowest priority first (contract, Figures)."""
    for p in range(len(pool)):
        for t in range(len(weight)):
            at = step[p, t].cost_at
            for a in range(pool[p].app_last - 1, pool[p].app_first - 1, -1):
                for _ in range(demand[a, t]):
                    cost[at + 1] = cost[at] + app[a].price * weight[t]
                    at += 1


def board(problem: Problem) -> tuple[Board, Names]:
    """Turn a problem into arrays; jobs that can run nowhere keep their place without shapes."""
    steps, width = problem.steps, problem.lookahead
    pools = sorted(problem.pools, key=lambda p: p.id)
    number = {pool.id: i for i, pool in enumerate(pools)}
    apps = sorted(problem.apps, key=lambda a: (number[a.pool], -a.priority, a.id))
    ordered = sorted(problem.jobs, key=lambda j: (j.order, j.id))
    names = Names(
        pools, apps, [j for j in ordered if j.running is None], [j for j in ordered if j.running is not None]
    )
    pool = np.zeros(len(pools), POOL)
    pool["gpus"] = [p.gpus for p in pools]
    pool["words"] = (pool["gpus"] + 63) // 64
    pool["row"][1:] = np.cumsum(pool["words"] * steps)[:-1]
    legal = _legal(pools, pool)
    step = np.zeros((len(pools), width), STEP)
    app, demand, held, app_pool = _apps(problem, names, pool, number)
    pool["app_first"] = np.searchsorted(app_pool, np.arange(len(pools)))
    pool["app_last"] = np.searchsorted(app_pool, np.arange(len(pools)), side="right")
    pool["capped"][app_pool[app["cap"] < NO_CAP]] = 1
    np.add.at(step["wanted"], app_pool, demand)
    step["cost_at"].flat[1:] = np.cumsum(step["wanted"] + 1)[:-1]
    cost = np.zeros(int((step["wanted"] + 1).sum()), np.float64)
    weight = float(problem.decay) ** np.arange(width)
    fill_costs(pool, app, step, demand, weight, cost)
    tilted = weight[:steps] * (1 - TIME_TILT * np.arange(steps) / steps)
    job, shape = _jobs(problem, names, number)
    return Board(
        steps=steps,
        width=width,
        pool=pool,
        app=app,
        job=job,
        shape=shape,
        step=step,
        base=_base(steps, names, pool, step, app, held, app_pool, number),
        legal=legal,
        held=held,
        demand=demand,
        before=np.concatenate([[0.0], np.cumsum(tilted)]),
        weight=weight,
        cost=cost,
    ), names


def _base(
    steps: int,
    names: Names,
    pool: np.ndarray,
    step: np.ndarray,
    app: np.ndarray,
    held: np.ndarray,
    app_pool: np.ndarray,
    number: dict[str, int],
) -> np.ndarray:
    """GPUs that are free of running jobs and of apps that may never move; also counts what runs."""
    rows = []
    for p in pool:
        rows.append(np.tile(_pack(np.ones(int(p["gpus"]), bool), int(p["words"])), (steps, 1)))
    for job in names.running:
        r = job.running
        p = number[r.pool]
        step["base_used"][p, : r.remaining] += r.gpus
        mask = np.zeros(r.first_gpu + r.gpus, bool)
        mask[r.first_gpu :] = True
        rows[p][: r.remaining] &= ~_pack(mask, int(pool["words"][p]))
    for i in np.flatnonzero(app["cap"] == 0):
        p = app_pool[i]
        rows[p] &= ~held[i, : pool["words"][p]]
    return np.concatenate([one.ravel() for one in rows])


def _apps(
    problem: Problem, names: Names, pool: np.ndarray, number: dict[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    apps = names.apps
    app = np.zeros(len(apps), APP)
    app_pool = np.array([number[a.pool] for a in apps], np.int64)
    demand = np.zeros((len(apps), problem.lookahead), np.int64)
    held = np.zeros((len(apps), int(pool["words"].max())), np.uint64)
    for i, one in enumerate(apps):
        p = number[one.pool]
        gpus = one.held_gpus
        cap = NO_CAP if one.swap_cap is None else one.swap_cap
        app[i] = (problem.shortfall_weight * one.priority, cap, len(gpus))
        # What is wanted beyond the whole pool is short whatever the jobs do, so it decides nothing.
        demand[i, : len(one.demand)] = np.minimum(one.demand, pool["gpus"][p])
        if one.swap_cap is not None:
            # Nor is what no app under this cap could hold so soon.
            reach = np.minimum(len(gpus) + one.swap_cap * np.arange(1, problem.steps + 1), pool["gpus"][p])
            np.minimum(demand[i, : problem.steps], reach, out=demand[i, : problem.steps])
        if gpus:
            mask = np.zeros(held.shape[1] * 64, bool)
            mask[list(gpus)] = True
            held[i] = _pack(mask, held.shape[1])
            if sum(gpus) < (pool["gpus"][p] - 1) / 2 * len(gpus):
                pool["high"][p] = 1
    return app, demand, held, app_pool


def _jobs(problem: Problem, names: Names, number: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    jobs, steps = names.jobs, problem.steps
    job = np.zeros(len(jobs), JOB)
    priority = np.array([j.priority for j in jobs], np.float64)
    top = float(priority.max(initial=0.0)) or 1.0
    job["value"] = priority + top * ORDER_TILT * (1 + np.arange(len(jobs), 0, -1) / max(1, len(jobs)))
    job["earliest"] = [j.earliest for j in jobs]
    first, shapes = [0], []
    gpus = [pool.gpus for pool in names.pools]
    for j in jobs:
        limit = steps if j.finish_inside else NO_CAP
        if j.deadline is not None:
            limit = min(limit, j.deadline)
        for p, size, length in sorted({(number[s.pool], s.gpus, s.steps) for s in j.shapes}):
            latest = min(steps - 1, limit - length)
            if latest >= j.earliest and size <= gpus[p]:
                shapes.append((p, size, size.bit_length() - 1, length, latest))
        first.append(len(shapes))
    job["shape_first"], job["shape_last"] = first[:-1], first[1:]
    return job, np.array(shapes, SHAPE)


def _pack(mask: np.ndarray, words: int) -> np.ndarray:
    padded = np.zeros(words * 64, bool)
    padded[: len(mask)] = mask
    return np.packbits(padded, bitorder="little").view(np.uint64)


def _legal(pools: list[Any], pool: np.ndarray) -> np.ndarray:
    """Sets of first GPUs that rule 3 allows, for each pool and each power of two that is not larger."""
    parts = []
    place = 0
    for p, one in enumerate(pools):
        gpu = np.arange(one.gpus)
        node = one.node_size
        pool["legal"][p] = place
        for k in range(one.gpus.bit_length()):
            size = 1 << k
            mask = gpu + size <= one.gpus
            if node:
                mask &= (gpu // node == (gpu + size - 1) // node) if size <= node else gpu % node == 0
            parts.append(_pack(mask, int(pool["words"][p])))
            place += int(pool["words"][p])
    return np.concatenate(parts)
