"""Random valid problems of every kind, from a seed: for tests, benchmarks and trying a planner out.

What is made here is synthetic and is labelled so in the problem itself.
"""

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from tidegrid.scheduler.problem import Problem

T = TypeVar("T")
Range = tuple[int, int]
KINDS = ("training", "batch_inference", "quantization")


class Chooser(Protocol):
    """Where the choices come from: a seeded generator here, a property test's draw in the tests."""

    def integer(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""

    def pick(self, options: Sequence[T]) -> T:
        """One of ``options``."""

    def chance(self, probability: float) -> bool:
        """True with about this probability."""


class SeededChooser:
    """Choices from a numpy generator."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def integer(self, low: int, high: int) -> int:
        """A whole number from ``low`` to ``high``, both included."""
        return int(self._rng.integers(low, high + 1))

    def pick(self, options: Sequence[T]) -> T:
        """One of ``options``."""
        return options[int(self._rng.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self._rng.random() < probability)


def random_problem(
    seed: int,
    *,
    pools: Range = (1, 3),
    gpus: Range = (1, 16),
    steps: Range = (1, 24),
    jobs: Range = (0, 14),
    apps: Range = (0, 3),
    plain: bool = False,
) -> Problem:
    """Make a random valid problem.

    Parameters
    ----------
    seed
        The same seed and ranges give the same problem.
    pools, gpus, steps, jobs, apps
        Least and most, both included; ``gpus`` counts those of one pool.
    plain
        Leave out what is rare: deadlines, late starts, node sizes, impossible jobs, caps of zero.

    Returns
    -------
    Problem
        With running jobs, held GPUs, swap caps, node sizes, lookahead, deadlines, ``finish_inside`` and
        jobs that fit nowhere, each in some of the problems.
    """
    return Problem.from_dict(
        problem_dict(
            SeededChooser(seed), pools=pools, gpus=gpus, steps=steps, jobs=jobs, apps=apps, plain=plain
        )
    )


def problem_dict(
    choose: Chooser,
    *,
    pools: Range = (1, 3),
    gpus: Range = (1, 16),
    steps: Range = (1, 24),
    jobs: Range = (0, 14),
    apps: Range = (0, 3),
    plain: bool = False,
) -> dict[str, Any]:
    """Make the JSON object of a random valid problem; see `random_problem`."""
    horizon = choose.integer(*steps)
    lookahead = horizon + (choose.integer(1, 8) if choose.chance(0.5) else 0)
    pool_list = [_pool(choose, i, gpus, plain) for i in range(choose.integer(*pools))]
    free = {pool["id"]: set(range(pool["gpus"])) for pool in pool_list}
    equal = choose.integer(1, 10) if choose.chance(0.15) else None
    job_list = [_job(choose, i, pool_list, free, horizon, equal, plain) for i in range(choose.integer(*jobs))]
    app_list = [
        _app(choose, i, pool_list, free, lookahead if choose.chance(0.7) else horizon, plain)
        for i in range(choose.integer(*apps))
    ]
    return {
        "version": 1,
        "start": "2026-03-02T00:00:00+00:00",
        "step_minutes": choose.pick((60, 30, 15)),
        "steps": horizon,
        "decay": choose.pick((0.98, 0.98, 1, 0.9, 0.5)),
        "shortfall_weight": choose.pick((8.0, 5, 10.0, 1.0, 0)),
        "pools": pool_list,
        "jobs": job_list,
        "apps": app_list,
        "source": "synthetic",
    }


def _pool(choose: Chooser, i: int, gpus: Range, plain: bool) -> dict[str, Any]:
    node = None if plain else choose.pick((None, None, 1, 2, 3, 4, 8))
    return {"id": f"pool-{i}", "gpus": choose.integer(*gpus), "node_size": node}


def _sizes(limit: int) -> list[int]:
    return [1 << k for k in range(limit.bit_length()) if 1 << k <= limit]


def _legal(pool: dict[str, Any], first: int, size: int) -> bool:
    node = pool["node_size"]
    if not node:
        return True
    return first // node == (first + size - 1) // node if size <= node else first % node == 0


def _job(
    choose: Chooser,
    i: int,
    pools: list[dict[str, Any]],
    free: dict[str, set[int]],
    horizon: int,
    equal: int | None,
    plain: bool,
) -> dict[str, Any]:
    job: dict[str, Any] = {
        "id": f"job-{i}",
        "kind": choose.pick(KINDS),
        "priority": equal or choose.integer(1, 10),
        "order": i if choose.chance(0.9) else choose.integer(0, 5),
    }
    shapes = []
    work = choose.integer(1, max(1, 2 * horizon))
    for _ in range(choose.integer(1, 3)):
        pool = choose.pick(pools)
        # Now and then a block that the pool cannot hold: valid input that a planner refuses.
        sizes = _sizes(pool["gpus"] * (1 if plain or choose.chance(0.9) else 4))
        size = choose.pick(sizes)
        length = max(1, -(-work // size)) if choose.chance(0.7) else choose.integer(1, horizon + 3)
        shapes.append({"pool": pool["id"], "gpus": size, "steps": length})
    job["shapes"] = shapes
    if choose.chance(0.2):
        running = _running(choose, pools, free, horizon)
        if running:
            job["running"] = running
    if choose.chance(0.2):
        job["requested"] = choose.integer(0, len(shapes) - 1)
    if choose.chance(0.3):
        job["finish_inside"] = choose.chance(0.7)
    if not plain:
        if choose.chance(0.2):
            job["earliest"] = choose.integer(0, horizon + 1)
        if choose.chance(0.2):
            job["deadline"] = choose.integer(0, horizon + 4)
    return job


def _running(
    choose: Chooser, pools: list[dict[str, Any]], free: dict[str, set[int]], horizon: int
) -> dict[str, Any] | None:
    pool = choose.pick(pools)
    size = choose.pick(_sizes(pool["gpus"]))
    left = free[pool["id"]]
    firsts = [
        first
        for first in range(pool["gpus"] - size + 1)
        if _legal(pool, first, size) and left.issuperset(range(first, first + size))
    ]
    if not firsts:
        return None
    first = choose.pick(firsts)
    left.difference_update(range(first, first + size))
    remaining = choose.integer(1, horizon + 3)
    return {"pool": pool["id"], "first_gpu": first, "gpus": size, "remaining": remaining}


def _app(
    choose: Chooser, i: int, pools: list[dict[str, Any]], free: dict[str, set[int]], length: int, plain: bool
) -> dict[str, Any]:
    pool = choose.pick(pools)
    top = max(1, pool["gpus"] // 2 + (0 if plain else choose.integer(0, 2)))
    demand = [choose.integer(0, top)]
    for _ in range(length - 1):
        move = choose.integer(-2, 2) if choose.chance(0.8) else choose.integer(-top, top)
        demand.append(min(top, max(0, demand[-1] + move)))
    app: dict[str, Any] = {"id": f"app-{i}", "pool": pool["id"], "priority": choose.integer(1, 10)}
    app["demand"] = demand
    caps = (None, 1, 2, 3, 5) if plain else (None, None, 0, 1, 2, 3, 5)
    app["swap_cap"] = choose.pick(caps)
    left = sorted(free[pool["id"]])
    if left and choose.chance(0.7):
        held = left[: choose.integer(0, min(len(left), top))]
        if choose.chance(0.3):
            held = [gpu for gpu in left if choose.chance(0.3)]
        free[pool["id"]].difference_update(held)
        app["held"] = held
    return app
