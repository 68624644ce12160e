"""From estimates and demand to the allocation problem."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tidegrid.data import Cluster, block_size
from tidegrid.pipeline.aging import raised
from tidegrid.pipeline.demand import planned_gpus
from tidegrid.pipeline.estimates import interpolate
from tidegrid.pipeline.forecast import Forecast
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.state import State
from tidegrid.scheduler import Problem

DOWN = "down: "
"""How the ids of the jobs begin that stand for GPUs that do not work."""


def steps_of(hours: float, step_minutes: int) -> int:
    """Return the whole steps that ``hours`` take: at least one, rounded up."""
    return max(1, math.ceil(hours * 60 / step_minutes - 1e-9))


def build_problem(state: State, forecast: Forecast, policy: Policy, candidates: int | None = None) -> Problem:
    """State what is to be decided, as the contract's problem: the one way to turn facts into one.

    Parameters
    ----------
    state, forecast
        The facts, and what is expected; a job without a possible shape is left out (it stands in
        ``forecast.estimates.refused``).
    policy
        Durations are planned at its ``job_quantile``, priorities are raised by waiting and by shortness, and an app's
        need is planned under its swap cap.
    candidates
        At most so many waiting jobs are looked at, the first by their raised priorities; all where None.
    """
    minutes = policy.step_minutes
    return Problem.from_dict(
        {
            "version": 1,
            "start": state.now.isoformat(),
            "step_minutes": minutes,
            "steps": policy.steps,
            "decay": policy.decay,
            "shortfall_weight": policy.shortfall_weight,
            "pools": [{"id": p.id, "gpus": p.gpus, "node_size": p.node_size} for p in state.cluster.pools],
            "jobs": [
                *_waiting(state, forecast, policy, candidates),
                *_running(state, forecast, policy),
                *_down(
                    state.cluster,
                    policy.steps + policy.lookahead_steps,
                    len(state.requests) + len(state.running),
                ),
            ],
            "apps": [
                {
                    "id": app.id,
                    "pool": app.pool,
                    "priority": app.priority,
                    "demand": planned_gpus(
                        forecast.demand.gpus[app.id].tolist(), app.swap_cap, len(held), state.may_swap(app)
                    ),
                    "swap_cap": app.swap_cap,
                    "held": list(held),
                }
                for app in state.cluster.apps
                for held in [state.holds(app)]
            ],
        }
    )


class _Way(NamedTuple):
    """How a waiting job could run: its row in the queue, its place in the order of submission, its shapes."""

    row: int
    order: int
    ways: list[tuple[str, int, float]]
    steps: list[int]
    due: int | None
    asked: int | None


def not_stated(state: State) -> list[str]:
    """Return what the facts say that a problem of version 1 does not: nothing is planned by it."""
    cluster, now = state.cluster, state.now
    windows = sum(window.end is None or window.end > now for window in cluster.maintenance)
    nodes = [pool.id for pool in cluster.pools if pool.placement == "node"]
    out = [f"{windows} window{'s' if windows > 1 else ''} of maintenance"] if windows else []
    out += ["the limits of tenants"] if cluster.tenants else []
    out += [f"placement by node in {', '.join(nodes)} (blocks are powers of two in a line)"] if nodes else []
    for column, what in _UNSTATED.items():
        cells = state.requests.get(column, ())
        count = sum(not (cell != cell or cell is None or cell == "") for cell in cells)
        out += [f"{what} of {count} request{'s' if count > 1 else ''}"] if count else []
    return out


_UNSTATED = {
    "allowed_nodes": "the allowed nodes",
    "after": "the order (after)",
    "array_limit": "the array limit",
}
"""Columns of requests that a problem of version 1 has no place for, and what they say."""


def _waiting(
    state: State, forecast: Forecast, policy: Policy, candidates: int | None
) -> list[dict[str, Any]]:
    """Return the waiting jobs that can run, in order of submission."""
    columns = ("kind", "priority", "gpus", "submit_time", "earliest_time", "deadline")
    kinds, priorities, gpus, submitted, earliest, deadlines = (
        state.requests[name].tolist() for name in columns
    )
    ids, waited = state.waiting_ids, state.waited_days()
    estimates = forecast.estimates
    hours = interpolate(estimates.quantiles, policy.job_quantile).tolist()
    pools, blocks = estimates.columns["pool"].tolist(), estimates.columns["gpus"].tolist()
    load = {pool.id: 0.0 for pool in state.cluster.pools}
    found: list[_Way] = []
    for order, k in enumerate(sorted(range(len(ids)), key=lambda k: (submitted[k], ids[k]))):
        rows = estimates.rows.get(ids[k])
        if rows is None:
            continue
        ways = [(pools[row], blocks[row], hours[row]) for row in rows]
        steps = [steps_of(way[2], policy.step_minutes) for way in ways]
        due = None
        if not pd.isna(deadlines[k]):
            left = (deadlines[k] - state.now).total_seconds() / 3600
            steps, due = _due(left, ways, steps, policy.step_minutes)
        asked = _asked(ways, steps, block_size(int(gpus[k])), load, state.cluster)
        found.append(_Way(k, order, ways, steps, due, asked))
    if not found:
        return []
    plain = np.array([float(priorities[one.row]) for one in found])
    lengths = np.array([one.ways[one.asked or 0][2] for one in found])
    weight = raised(plain, waited[[one.row for one in found]], lengths, policy)
    chosen: Sequence[int] = range(len(found))
    if candidates is not None and len(found) > candidates:
        chosen = sorted(np.lexsort((np.arange(len(found)), -weight))[:candidates].tolist())
    out: list[dict[str, Any]] = []
    for n in chosen:
        one = found[n]
        wait = 0.0
        if not pd.isna(earliest[one.row]):
            wait = (earliest[one.row] - state.now).total_seconds() / 60 / policy.step_minutes
        job: dict[str, Any] = {
            "id": ids[one.row],
            "kind": kinds[one.row],
            "priority": _number(priorities[one.row]) if weight[n] == plain[n] else float(weight[n]),
            "order": one.order,
            "shapes": [
                {"pool": way[0], "gpus": way[1], "steps": steps}
                for way, steps in zip(one.ways, one.steps, strict=True)
            ],
            "earliest": max(0, math.ceil(wait - 1e-9)),
            "deadline": one.due,
            "finish_inside": policy.finish_inside,
            "running": None,
        }
        if one.asked is not None:
            job["requested"] = one.asked
        out.append(job)
    return out


def _due(
    hours_left: float, ways: Sequence[tuple[str, int, float]], steps: list[int], step_minutes: int
) -> tuple[list[int], int]:
    """Return steps and a deadline in steps that allow exactly the starts from which each way ends in time.

    Steps are rounded up and a deadline down; together they would refuse a job of 10 minutes that is due in 20. A
    way that ends sooner after its last step than another is given that step more.
    """
    step_h = step_minutes / 60
    latest = [math.floor((hours_left - long) / step_h + 1e-9) for _, _, long in ways]
    due = max(0, *(start + n for start, n in zip(latest, steps, strict=True)))
    return [max(n, due - start) if start >= 0 else n for start, n in zip(latest, steps, strict=True)], due


def _running(state: State, forecast: Forecast, policy: Policy) -> list[dict[str, Any]]:
    left = interpolate(forecast.remaining, policy.job_quantile).tolist() if len(state.running) else []
    columns = ("job_id", "kind", "priority", "pool", "gpus", "first_gpu")
    out = []
    for k, (job, kind, priority, pool, gpus, first) in enumerate(
        zip(*(state.running[name].tolist() for name in columns), strict=True)
    ):
        steps = steps_of(left[k], policy.step_minutes)
        block = {"pool": pool, "gpus": int(gpus)}
        out.append(
            {
                "id": str(job),
                "kind": kind,
                "priority": _number(priority),
                "order": len(state.requests) + k,
                "shapes": [{**block, "steps": steps}],
                "running": {**block, "first_gpu": int(first), "remaining": steps},
            }
        )
    return out


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


def _asked(
    ways: Sequence[tuple[str, int, float]],
    steps: Sequence[int],
    block: int,
    load: dict[str, float],
    cluster: Cluster,
) -> int | None:
    """Return which shape the submitter asks for: the size asked for, in the pool with the least work queued.

    Baselines read it, and the length that a job is weighed by; a submitter who may use several pools is taken to look
    at their queues.
    """
    sized = [i for i, way in enumerate(ways) if way[1] == block]
    if not sized:
        return None
    best = min(sized, key=lambda i: (load[ways[i][0]] / cluster.pool(ways[i][0]).gpus, i))
    load[ways[best][0]] += block * steps[best]
    return best


def _number(value: Any) -> int | float:
    number = float(value)
    return int(number) if number.is_integer() else number
