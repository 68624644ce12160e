"""From estimates and demand to the allocation problem."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from tidegrid.data import Cluster, block_size, on_down_gpus
from tidegrid.pipeline.demand import Demand
from tidegrid.pipeline.estimates import Estimates, interpolate
from tidegrid.pipeline.policy import Policy
from tidegrid.scheduler import Problem

DOWN = "down: "
"""How the ids of the jobs begin that stand for GPUs that do not work."""


def steps_of(hours: float, step_minutes: int) -> int:
    """Return the whole steps that ``hours`` take: at least one, rounded up."""
    return max(1, math.ceil(hours * 60 / step_minutes - 1e-9))


def build_problem(
    requests: pd.DataFrame,
    running: pd.DataFrame,
    cluster: Cluster,
    estimates: Estimates,
    remaining: pd.DataFrame,
    demand: Demand,
    now: pd.Timestamp,
    policy: Policy,
) -> Problem:
    """State what is to be decided, as the contract's problem.

    Parameters
    ----------
    requests, running
        The queue and what runs, as :mod:`tidegrid.data` reads them.
    estimates
        Hours of each feasible shape; a job without one is left out (it stands in ``estimates.refused``).
    remaining
        Quantiles of the hours that running jobs still need, on the index of ``running``; a job on a GPU that is
        down is lost, and left out.
    demand
        Each app's GPUs a step; the ramped curve is planned.
    """
    minutes = policy.step_minutes
    hours = estimates.at(policy.job_quantile)
    by_job: dict[str, list[dict[str, Any]]] = {}
    for shape, duration in zip(_records(estimates.shapes), hours, strict=True):
        by_job.setdefault(str(shape["job_id"]), []).append(
            {"pool": shape["pool"], "gpus": int(shape["gpus"]), "steps": steps_of(duration, minutes)}
        )
    jobs = []
    load = {pool.id: 0.0 for pool in cluster.pools}
    for order, row in enumerate(_records(_in_order(requests))):
        shapes = by_job.get(str(row["job_id"]))
        if shapes is not None:
            asked = _asked(shapes, block_size(int(row["gpus"])), load, cluster)
            jobs.append(_waiting(row, shapes, asked, order, now, policy))
    rest = interpolate(remaining.to_numpy(dtype=float), policy.job_quantile)
    lost = on_down_gpus(cluster, running)
    jobs += [
        _running(row, steps_of(hours_left, minutes), len(requests) + k)
        for k, (hours_left, row) in enumerate(zip(rest, _records(running), strict=True))
        if not lost[k]
    ]
    jobs += _down(cluster, policy.steps + policy.lookahead_steps, len(requests) + len(running))
    broken = {pool.id: set(pool.down) for pool in cluster.pools}
    return Problem.from_dict(
        {
            "version": 1,
            "start": now.isoformat(),
            "step_minutes": minutes,
            "steps": policy.steps,
            "decay": policy.decay,
            "shortfall_weight": policy.shortfall_weight,
            "pools": [{"id": p.id, "gpus": p.gpus, "node_size": p.node_size} for p in cluster.pools],
            "jobs": jobs,
            "apps": [
                {
                    "id": app.id,
                    "pool": app.pool,
                    "priority": app.priority,
                    "demand": [int(v) for v in demand.ramped[app.id]],
                    "swap_cap": app.swap_cap,
                    "held": [gpu for gpu in app.held if gpu not in broken[app.pool]],
                }
                for app in cluster.apps
            ],
        }
    )


def is_down(job: str) -> bool:
    """Whether a job of a problem only stands for a GPU that does not work."""
    return job.startswith(DOWN)


def _down(cluster: Cluster, steps: int, order: int) -> list[dict[str, Any]]:
    """Return a running job without priority for each GPU that is down, over horizon and lookahead."""
    gpus = [(pool.id, gpu) for pool in cluster.pools for gpu in sorted(pool.down)]
    return [
        {
            "id": f"{DOWN}{pool}/{gpu}",
            "kind": "training",
            "priority": 0,
            "order": order + k,
            "shapes": [{"pool": pool, "gpus": 1, "steps": steps}],
            "running": {"pool": pool, "first_gpu": gpu, "gpus": 1, "remaining": steps},
        }
        for k, (pool, gpu) in enumerate(gpus)
    ]


def _in_order(requests: pd.DataFrame) -> pd.DataFrame:
    return requests.sort_values(["submit_time", "job_id"], kind="stable")


def _asked(shapes: list[dict[str, Any]], block: int, load: dict[str, float], cluster: Cluster) -> int | None:
    """Return which shape the submitter asks for: the size asked for, in the pool with the least work queued.

    Only baselines read it; a submitter who may use several pools is taken to look at their queues.
    """
    sized = [i for i, shape in enumerate(shapes) if shape["gpus"] == block]
    if not sized:
        return None
    best = min(sized, key=lambda i: (load[shapes[i]["pool"]] / cluster.pool(shapes[i]["pool"]).gpus, i))
    load[shapes[best]["pool"]] += block * shapes[best]["steps"]
    return best


def _waiting(
    row: Mapping[str, Any],
    shapes: list[dict[str, Any]],
    asked: int | None,
    order: int,
    now: pd.Timestamp,
    policy: Policy,
) -> dict[str, Any]:
    step = pd.Timedelta(minutes=policy.step_minutes)
    earliest, deadline = row["earliest_time"], row["deadline"]
    job: dict[str, Any] = {
        "id": str(row["job_id"]),
        "kind": row["kind"],
        "priority": _number(row["priority"]),
        "order": order,
        "shapes": shapes,
        "earliest": 0 if pd.isna(earliest) else max(0, math.ceil((earliest - now) / step - 1e-9)),
        "deadline": None if pd.isna(deadline) else max(0, math.floor((deadline - now) / step + 1e-9)),
        "finish_inside": policy.finish_inside,
        "running": None,
    }
    if asked is not None:
        job["requested"] = asked
    return job


def _running(row: Mapping[str, Any], steps: int, order: int) -> dict[str, Any]:
    block = {"pool": row["pool"], "gpus": int(row["gpus"])}
    return {
        "id": str(row["job_id"]),
        "kind": row["kind"],
        "priority": _number(row["priority"]),
        "order": order,
        "shapes": [{**block, "steps": steps}],
        "running": {**block, "first_gpu": int(row["first_gpu"]), "remaining": steps},
    }


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return frame.to_dict("records")  # type: ignore[return-value]


def _number(value: Any) -> int | float:
    number = float(value)
    return int(number) if number.is_integer() else number
