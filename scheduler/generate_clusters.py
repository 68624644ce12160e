"""Random valid problems of version 2, by family: what live clusters have, one thing at a time and all together.

What is made here is synthetic and is labelled so in the problem itself.
"""

from typing import Any

from tidegrid.scheduler.generate import KINDS, Chooser, Range, SeededChooser
from tidegrid.scheduler.problem import Problem

FAMILIES = ("nodes", "odd", "replicas", "windows", "tenants", "order", "success", "everything")
"""nodes: placement by node; odd: any GPU count; replicas: of several GPUs, with floors; windows: closed GPUs;
tenants: limits; order: arrays and predecessors; success: shapes that the limit may kill, work, costs."""


def random_cluster(
    seed: int,
    family: str = "everything",
    *,
    pools: Range = (1, 2),
    nodes: Range = (1, 4),
    steps: Range = (4, 24),
    jobs: Range = (0, 14),
    apps: Range = (0, 3),
) -> Problem:
    """Make a random valid problem of version 2.

    Parameters
    ----------
    seed
        The same seed, family and ranges give the same problem.
    family
        One of ``FAMILIES``.
    pools, nodes, steps, jobs, apps
        Least and most, both included; ``nodes`` counts those of one pool.
    """
    made = cluster_dict(
        SeededChooser(seed), family, pools=pools, nodes=nodes, steps=steps, jobs=jobs, apps=apps
    )
    return Problem.from_dict(made)


def cluster_dict(
    choose: Chooser,
    family: str = "everything",
    *,
    pools: Range = (1, 2),
    nodes: Range = (1, 4),
    steps: Range = (4, 24),
    jobs: Range = (0, 14),
    apps: Range = (0, 3),
) -> dict[str, Any]:
    """Make the JSON object of a random valid problem of version 2; see `random_cluster`."""

    def has(name: str) -> bool:
        return family in (name, "everything")

    horizon = choose.integer(*steps)
    lookahead = horizon + (choose.integer(1, 8) if choose.chance(0.5) else 0)
    pool_list = []
    for i in range(choose.integer(*pools)):
        size = choose.pick((1, 2, 4, 4, 8))
        pool: dict[str, Any] = {
            "id": f"pool-{i}",
            "gpus": size * choose.integer(*nodes),
            "node_size": size,
            "placement": "node",
        }
        if family == "everything" and choose.chance(0.2):
            pool["placement"] = "line"
        if has("windows") and choose.chance(0.7):
            pool["closed"] = [_closed(choose, pool, horizon) for _ in range(choose.integer(1, 2))]
        pool_list.append(pool)
    free = {pool["id"]: set(range(pool["gpus"])) for pool in pool_list}
    job_list = [_job(choose, i, pool_list, free, horizon, has) for i in range(choose.integer(*jobs))]
    out: dict[str, Any] = {
        "version": 2,
        "start": "2026-03-02T00:00:00+00:00",
        "step_minutes": choose.pick((60, 30)),
        "steps": horizon,
        "decay": choose.pick((0.98, 0.98, 1, 0.9)),
        "shortfall_weight": choose.pick((8.0, 5, 10.0)),
        "pools": pool_list,
        "jobs": job_list,
        "apps": [_app(choose, i, pool_list, free, lookahead, has) for i in range(choose.integer(*apps))],
        "source": "synthetic",
    }
    if has("tenants"):
        total = sum(pool["gpus"] for pool in pool_list)
        limits: list[Any] = [
            choose.integer(0, total),
            {pool_list[0]["id"]: choose.integer(0, pool_list[0]["gpus"])},
        ]
        out["tenants"] = [{"id": f"tenant-{k}", "limit": choose.pick(limits)} for k in range(2)]
    if has("order"):
        out["groups"] = [{"id": f"array-{k}", "most": choose.integer(1, 2)} for k in range(2)]
    if has("success"):
        out["gpu_cost"], out["swap_cost"] = choose.pick((0.0, 0.1, 1.0)), choose.pick((0.0, 0.2))
    if has("replicas"):
        out["floor_weight"] = choose.pick((10.0, 2.0, 1))
    return out


def _closed(choose: Chooser, pool: dict[str, Any], horizon: int) -> dict[str, Any]:
    size, gpus = pool["node_size"], pool["gpus"]
    first = size * choose.integer(0, gpus // size - 1)
    last = min(gpus, first + size * choose.integer(1, 2))
    if choose.chance(0.2):  # a part of a node
        last = max(first + 1, last - choose.integer(0, size - 1))
    start = choose.integer(0, horizon - 1)
    end = start + choose.integer(1, horizon + 6)
    return {"gpus": [first, last], "from": start, "to": end, "kind": choose.pick(("down", "drain"))}


def _job(
    choose: Chooser, i: int, pools: list[dict[str, Any]], free: dict[str, set[int]], horizon: int, has: Any
) -> dict[str, Any]:
    job: dict[str, Any] = {
        "id": f"job-{i}", "kind": choose.pick(KINDS), "priority": choose.integer(1, 10),
        "order": i if choose.chance(0.9) else choose.integer(0, 5),
    }  # fmt: skip
    work = choose.integer(1, 3 * horizon)
    job["shapes"] = [
        _shape(choose, choose.pick(pools), work, horizon, has) for _ in range(choose.integer(1, 3))
    ]
    if choose.chance(0.2):
        pool = choose.pick(pools)
        held = _held(choose, pool, free[pool["id"]])
        if held:
            free[pool["id"]].difference_update(held)
            job["running"] = {
                "pool": pool["id"],
                "gpu_ids": held,
                "remaining": choose.integer(1, horizon + 3),
            }
    if choose.chance(0.3):
        job["requested"] = choose.integer(0, len(job["shapes"]) - 1)
    if choose.chance(0.2):
        job["finish_inside"] = True
    if choose.chance(0.15):
        job["earliest"] = choose.integer(0, horizon)
    if choose.chance(0.15):
        job["deadline"] = choose.integer(1, horizon + 4)
    if has("tenants") and choose.chance(0.7):
        job["tenant"] = f"tenant-{choose.integer(0, 1)}"
    if has("order"):
        if choose.chance(0.5):
            job["group"] = f"array-{choose.integer(0, 1)}"
        if i and choose.chance(0.3):
            job["after"] = [
                choose.pick((f"job-{choose.integer(0, i - 1)}", f"job-{i - 1}", "ended-long-ago"))
            ]
    if has("success") and choose.chance(0.3):
        job["work"] = choose.integer(1, 3 * horizon)
    return job


def _shape(choose: Chooser, pool: dict[str, Any], work: int, horizon: int, has: Any) -> dict[str, Any]:
    size, gpus = pool["node_size"], pool["gpus"]
    if pool["placement"] == "line":
        wanted = 1 << choose.integer(0, max(0, gpus.bit_length() - 1))
    elif has("odd") and choose.chance(0.7):
        wanted = choose.integer(1, gpus)
    else:
        wanted = choose.pick((1, 2, size, size * choose.integer(1, gpus // size)))
    length = max(1, -(-work // wanted)) if choose.chance(0.7) else choose.integer(1, horizon + 3)
    shape: dict[str, Any] = {"pool": pool["id"], "gpus": wanted, "steps": length}
    if pool["placement"] == "node" and has("odd") and choose.chance(0.3):
        evenly = [n for n in range(1, gpus // size + 1) if wanted % n == 0 and wanted // n <= size]
        shape["nodes"] = choose.pick(evenly or [1])
    if has("nodes") and choose.chance(0.2):
        first = size * choose.integer(0, gpus // size - 1)
        shape["within"] = [[first, choose.pick((size, gpus - first))]]
    if has("success") and choose.chance(0.5):
        shape["success"] = choose.pick((0, 0.1, 0.5, 0.9, 1))
    return shape


def _held(choose: Chooser, pool: dict[str, Any], left: set[int]) -> list[int]:
    if pool["placement"] == "line":
        size = pool["node_size"]
        many = 1 << choose.integer(0, size.bit_length() - 1)
        firsts = [
            g
            for g in sorted(left)
            if g // size == (g + many - 1) // size and left.issuperset(range(g, g + many))
        ]
        return list(range(first := choose.pick(firsts), first + many)) if firsts else []
    ordered = sorted(left)
    return sorted({choose.pick(ordered) for _ in range(choose.integer(1, 5))}) if ordered else []


def _app(
    choose: Chooser, i: int, pools: list[dict[str, Any]], free: dict[str, set[int]], length: int, has: Any
) -> dict[str, Any]:
    pool = choose.pick(pools)
    size, gpus = pool["node_size"], pool["gpus"]
    replica = 1
    if has("replicas") and choose.chance(0.7):
        replica = choose.pick([n for n in (1, 2, 3, 4, size, 2 * size) if n <= size or n % size == 0])
    top = max(1, gpus // 2)
    demand = [choose.integer(0, top)]
    for _ in range(length - 1):
        demand.append(min(top, max(0, demand[-1] + choose.integer(-2, 2))))
    app: dict[str, Any] = {
        "id": f"app-{i}", "pool": pool["id"], "priority": choose.integer(1, 10), "demand": demand,
        "swap_cap": choose.pick((None, None, 0, 2, 4, 8)),
    }  # fmt: skip
    left = free[pool["id"]]
    held: list[Any] = []
    for _ in range(choose.integer(0, 2)):
        one = _replica(choose, replica, size, gpus, left)
        if one:
            left.difference_update(one)
            held.append(one[0] if replica == 1 else one)
    app["held"] = held
    if replica > 1:
        app["replica"] = replica
    if has("replicas") and choose.chance(0.5):
        app["floor"] = replica * choose.integer(0, 2)
    return app


def _replica(choose: Chooser, replica: int, size: int, gpus: int, left: set[int]) -> list[int]:
    nodes = [[g for g in range(first, first + size) if g in left] for first in range(0, gpus, size)]
    if replica <= size:
        roomy = [node for node in nodes if len(node) >= replica]
        return sorted(choose.pick(roomy)[:replica]) if roomy else []
    whole = [node for node in nodes if len(node) == size]
    return [g for node in whole[: replica // size] for g in node] if len(whole) >= replica // size else []
