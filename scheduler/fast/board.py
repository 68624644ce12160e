"""The problem as arrays for the compiled search, in an order that does not depend on how it was listed."""

from typing import Any, NamedTuple

import numpy as np

from tidegrid.scheduler.fast.bits import kernel
from tidegrid.scheduler.problem import Problem

NO_CAP = 1 << 40
# Two plans of equal objective differ by these: earlier arrivals first, earlier starts first.
ORDER_TILT = 1e-9
TIME_TILT = 1e-9


class Board(NamedTuple):
    """What does not change while the search runs.

    Sets of GPUs are words of 64 bits; ``row[p] + t * words[p]`` is where pool p's set of step t begins.
    Jobs are sorted by (order, id), pools by id, apps by pool and falling priority.
    """

    steps: int
    width: int  # steps with the lookahead
    gpus: np.ndarray  # (P) GPUs of each pool
    words: np.ndarray  # (P) words of a set
    row: np.ndarray  # (P + 1) first word of step 0
    legal: np.ndarray  # flat: first GPUs that rule 3 allows, by pool and size
    legal_at: np.ndarray  # (P, 32)
    base: np.ndarray  # flat: GPUs that are free of what cannot move
    base_used: np.ndarray  # (P, width) GPUs that running jobs use
    before: np.ndarray  # (steps + 1) sum of tilted weights before a step
    weight: np.ndarray  # (width) decay ** t
    demand: np.ndarray  # (A, width)
    price: np.ndarray  # (A) shortfall weight times priority
    cap: np.ndarray  # (A)
    held: np.ndarray  # (A, most words) sets
    held_count: np.ndarray  # (A)
    app_first: np.ndarray  # (P + 1)
    capped: np.ndarray  # (P) whether any app of the pool has a cap
    wanted: np.ndarray  # (P, width) demand of all apps
    cost: np.ndarray  # flat: penalty of a pool and step by GPUs short
    cost_at: np.ndarray  # (P, width)
    high: np.ndarray  # (P) whether jobs are packed from the last GPU down
    value: np.ndarray  # (N) tilted priority
    earliest: np.ndarray  # (N)
    shape_first: np.ndarray  # (N + 1)
    shape_pool: np.ndarray
    shape_gpus: np.ndarray
    shape_log: np.ndarray
    shape_steps: np.ndarray
    shape_latest: np.ndarray  # last step at which the shape may start


class Names(NamedTuple):
    """Which job, pool, app and shape of the problem each index of the board stands for."""

    pools: list[Any]
    apps: list[Any]
    jobs: list[Any]
    running: list[Any]


@kernel
def fill_costs(app_first: Any, demand: Any, price: Any, weight: Any, cost_at: Any, cost: Any) -> None:
    """Penalty of each pool and step for 0, 1, 2 … GPUs short, lowest priority first (contract, Figures)."""
    width = len(weight)
    for p in range(len(app_first) - 1):
        for t in range(width):
            at = cost_at[p * width + t]
            for a in range(app_first[p + 1] - 1, app_first[p] - 1, -1):
                for _ in range(demand[a, t]):
                    cost[at + 1] = cost[at] + price[a] * weight[t]
                    at += 1


def board(problem: Problem) -> tuple[Board, Names]:
    """Turn a problem into arrays; jobs that can run nowhere keep their place without shapes."""
    steps = problem.steps
    pools = sorted(problem.pools, key=lambda p: p.id)
    number = {pool.id: i for i, pool in enumerate(pools)}
    apps = sorted(problem.apps, key=lambda a: (number[a.pool], -a.priority, a.id))
    ordered = sorted(problem.jobs, key=lambda j: (j.order, j.id))
    jobs = [job for job in ordered if job.running is None]
    running = [job for job in ordered if job.running is not None]
    width = problem.lookahead

    gpus = np.array([pool.gpus for pool in pools], np.int64)
    words = (gpus + 63) // 64
    row = np.concatenate([[0], np.cumsum(words * steps)]).astype(np.int64)
    legal, legal_at = _legal(pools, words)
    full = [_pack(np.ones(pool.gpus, bool), int(n)) for pool, n in zip(pools, words, strict=True)]
    base = np.concatenate([np.tile(one, steps) for one in full])
    base_used = np.zeros((len(pools), width), np.int64)

    tilted = float(problem.decay) ** np.arange(steps) * (1 - TIME_TILT * np.arange(steps) / steps)
    weight = float(problem.decay) ** np.arange(width)

    held = np.zeros((len(apps), int(words.max())), np.uint64)
    for i, app in enumerate(apps):
        mask = np.zeros(int(words.max()) * 64, bool)
        mask[list(app.held_gpus)] = True
        held[i] = _pack(mask, held.shape[1])
    cap = np.array([NO_CAP if a.swap_cap is None else a.swap_cap for a in apps], np.int64)
    app_pool = np.array([number[a.pool] for a in apps], np.int64)
    demand = np.zeros((len(apps), width), np.int64)
    for i, app in enumerate(apps):
        # What is wanted beyond the whole pool is short whatever the jobs do, so it decides nothing.
        demand[i, : len(app.demand)] = np.minimum(app.demand, gpus[app_pool[i]])
    price = np.array([problem.shortfall_weight * a.priority for a in apps], np.float64)
    held_count = np.array([len(a.held_gpus) for a in apps], np.int64)

    for job in running:
        r = job.running
        p = number[r.pool]
        base_used[p, : r.remaining] += r.gpus
        mask = np.zeros(int(words[p]) * 64, bool)
        mask[r.first_gpu : r.first_gpu + r.gpus] = True
        rows = base[row[p] : row[p + 1]].reshape(steps, int(words[p]))
        rows[: r.remaining] &= ~_pack(mask, int(words[p]))
    for i in np.flatnonzero(cap == 0):  # an app that may never move keeps its GPUs from every job
        p = int(app_pool[i])
        rows = base[row[p] : row[p + 1]].reshape(steps, int(words[p]))
        rows &= ~held[i, : words[p]]

    wanted = np.zeros((len(pools), width), np.int64)
    np.add.at(wanted, app_pool, demand)
    cost_at = np.concatenate([[0], np.cumsum(wanted.ravel() + 1)]).astype(np.int64)
    cost = np.zeros(int(cost_at[-1]), np.float64)
    app_first = np.searchsorted(app_pool, np.arange(len(pools) + 1)).astype(np.int64)
    fill_costs(app_first, demand, price, weight, cost_at, cost)
    capped = np.zeros(len(pools), np.bool_)
    capped[app_pool[cap < NO_CAP]] = True
    high = np.array([_jobs_from_above(pool, apps) for pool in pools], np.bool_)

    priority = np.array([job.priority for job in jobs], np.float64)
    top = float(priority.max(initial=0.0)) or 1.0
    rank = np.arange(len(jobs))
    value = priority + top * ORDER_TILT * (1 + (len(jobs) - rank) / max(1, len(jobs)))
    first, shapes = [0], []
    for job in jobs:
        limit = min(steps if job.finish_inside else NO_CAP, NO_CAP if job.deadline is None else job.deadline)
        for s in sorted({(number[s.pool], s.gpus, s.steps) for s in job.shapes}):
            latest = min(steps - 1, limit - s[2])
            if latest >= job.earliest and _fits(pools[s[0]], s[1]):
                shapes.append((*s, latest))
        first.append(len(shapes))
    shape = np.array(shapes, np.int64).reshape(len(shapes), 4)
    shape_gpus = np.ascontiguousarray(shape[:, 1])
    return Board(
        steps=steps,
        width=width,
        gpus=gpus,
        words=words,
        row=row,
        legal=legal,
        legal_at=legal_at,
        base=base,
        base_used=base_used,
        before=np.concatenate([[0.0], np.cumsum(tilted)]),
        weight=weight,
        demand=demand,
        price=price,
        cap=cap,
        held=held,
        held_count=held_count,
        app_first=app_first,
        capped=capped,
        wanted=wanted,
        cost=cost,
        cost_at=cost_at[:-1].reshape(len(pools), width),
        high=high,
        value=value,
        earliest=np.array([job.earliest for job in jobs], np.int64),
        shape_first=np.array(first, np.int64),
        shape_pool=np.ascontiguousarray(shape[:, 0]),
        shape_gpus=shape_gpus,
        shape_log=np.array([int(g).bit_length() - 1 for g in shape_gpus], np.int64),
        shape_steps=np.ascontiguousarray(shape[:, 2]),
        shape_latest=np.ascontiguousarray(shape[:, 3]),
    ), Names(pools, apps, jobs, running)


def _pack(mask: np.ndarray, words: int) -> np.ndarray:
    padded = np.zeros(words * 64, bool)
    padded[: min(len(mask), words * 64)] = mask[: words * 64]
    return np.packbits(padded, bitorder="little").view(np.uint64)


def _fits(pool: Any, size: int) -> bool:
    if size > pool.gpus:
        return False
    node = pool.node_size
    # A block of at most a node needs a node that is whole or an end piece as long as the block.
    return not node or size > node or size <= min(node, pool.gpus)


def _legal(pools: list[Any], words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sets of first GPUs that rule 3 allows, for each pool and size."""
    parts, at = [], np.zeros((len(pools), 32), np.int64)
    place = 0
    for p, pool in enumerate(pools):
        gpu = np.arange(pool.gpus)
        node = pool.node_size
        for k in range(pool.gpus.bit_length()):
            size = 1 << k
            mask = gpu + size <= pool.gpus
            if node:
                mask &= (gpu // node == (gpu + size - 1) // node) if size <= node else gpu % node == 0
            at[p, k] = place
            parts.append(_pack(mask, int(words[p])))
            place += int(words[p])
    return np.concatenate(parts), at


def _jobs_from_above(pool: Any, apps: list[Any]) -> bool:
    """Jobs are packed from the end of the line that is farther from the GPUs that apps hold."""
    held = [gpu for app in apps if app.pool == pool.id for gpu in app.held_gpus]
    return bool(held) and sum(held) < (pool.gpus - 1) / 2 * len(held)
