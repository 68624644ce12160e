"""From estimates and demand to the allocation problem."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tidegrid.data.nodelist import nodes_of
from tidegrid.data.running import gpu_ids
from tidegrid.pipeline.aging import raised
from tidegrid.pipeline.estimates import Estimates, interpolate
from tidegrid.pipeline.forecast import Forecast
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.state import State
from tidegrid.scheduler import Problem


def steps_of(hours: float, step_minutes: int) -> int:
    """Return the whole steps that ``hours`` take: at least one, rounded up."""
    return max(1, math.ceil(hours * 60 / step_minutes - 1e-9))


def _steps(hours: np.ndarray, step_minutes: int) -> list[int]:
    """Return `steps_of` of each."""
    return np.maximum(1, np.ceil(hours * 60 / step_minutes - 1e-9)).astype(int).tolist()


def build_problem(state: State, forecast: Forecast, policy: Policy, candidates: int | None = None) -> Problem:
    """State what is to be decided, as the contract's problem of version 2: the one way to turn facts into one.

    Parameters
    ----------
    state, forecast
        The facts, and what is expected; a job without a possible shape is left out (it stands in
        ``forecast.estimates.refused``), and so is one that comes after a job that is left out.
    policy
        Durations are planned at its ``job_quantile``, and priorities are raised by waiting and by shortness.
    candidates
        At most so many waiting jobs are looked at, the first by their raised priorities; all where None.
    """
    waiting = _waiting(state, forecast, policy, candidates)
    document: dict[str, Any] = {
        "version": 2,
        "start": state.now.isoformat(),
        "step_minutes": policy.step_minutes,
        "steps": policy.steps,
        "decay": policy.decay,
        "shortfall_weight": policy.shortfall_weight,
        "floor_weight": policy.floor_weight,
        "gpu_cost": policy.gpu_cost,
        "swap_cost": policy.swap_cost,
        "pools": _pools(state, policy),
        "jobs": [*waiting, *_running(state, forecast, policy)],
        "apps": [_app(state, forecast, app) for app in state.cluster.apps],
    }
    if state.cluster.tenants:
        document["tenants"] = [
            {"id": one.id, "limit": one.limit if isinstance(one.limit, int) else dict(one.limit)}
            for one in state.cluster.tenants
        ]
    if groups := _groups(state):
        document["groups"] = groups
    return Problem.from_dict(document)


def _pools(state: State, policy: Policy) -> list[dict[str, Any]]:
    steps = policy.steps + policy.lookahead_steps
    closed = state.cluster.closed_steps(state.now, policy.step_minutes, steps)
    out = []
    for pool in state.cluster.pools:
        one: dict[str, Any] = {"id": pool.id, "gpus": pool.gpus, "node_size": pool.node_size}
        if pool.placement == "node":
            one["placement"] = "node"
        if pool.nodes:
            # no planner reads them: pictures and texts show them
            one["nodes"] = list(pool.nodes)
        if pool.id in closed:
            one["closed"] = closed[pool.id]
        out.append(one)
    return out


def _app(state: State, forecast: Forecast, app: Any) -> dict[str, Any]:
    size, held = app.capacity.gpus_per_replica, state.working(app)
    out = {
        "id": app.id,
        "pool": app.pool,
        "priority": app.priority,
        "demand": forecast.demand.gpus[app.id].tolist(),
        "swap_cap": app.swap_cap,
        "held": [list(one) for one in held] if size > 1 else [gpu for one in held for gpu in one],
    }
    if size > 1:
        out["replica"] = size
    if app.capacity.floor:
        out["floor"] = app.capacity.floor
    return out


def _column(frame: pd.DataFrame, name: str) -> Sequence[Any]:
    """Return a column's cells, empty text for none; a column that is absent has none."""
    if name not in frame:
        return [""] * len(frame)
    return [cell if isinstance(cell, str) else "" if pd.isna(cell) else cell for cell in frame[name].tolist()]


def _groups(state: State) -> list[dict[str, Any]]:
    """Return the arrays of jobs that have a limit."""
    limits: dict[str, int] = {}
    for array, most in zip(
        _column(state.requests, "array"), _column(state.requests, "array_limit"), strict=True
    ):
        if array and most:
            limits[str(array)] = min(int(most), limits.get(str(array), int(most)))
    return [{"id": name, "most": most} for name, most in sorted(limits.items())]


def predecessors(requests: pd.DataFrame) -> dict[str, list[str]]:
    """Return the jobs that each waiting job comes after, by id; those that come after none are left out."""
    cells = _column(requests, "after")
    if not any(cells):
        return {}
    ids = requests["job_id"].astype(str)
    return {job: str(cell).split() for job, cell in zip(ids, cells, strict=True) if str(cell).strip()}


def held_back(state: State, planned: Iterable[str]) -> dict[str, str]:
    """Return waiting jobs that cannot be planned for the job that they come after is not, and which that is.

    Parameters
    ----------
    planned
        The jobs that can be planned, what runs included.
    """
    after = predecessors(state.requests)
    if not after:
        return {}
    lost = set(state.lost["job_id"].astype(str)) if len(state.lost) else set()
    out: dict[str, str] = {}
    missing = ({*state.waiting_ids} | lost) - {*planned}
    while True:
        more = {
            job: next(name for name in names if name in missing)
            for job, names in after.items()
            if job not in out and any(name in missing for name in names)
        }
        if not more:
            return out
        out |= more
        missing |= set(more)


class _Asking(NamedTuple):
    """A waiting job that can run: its row in the queue, its place in the order, its rows of estimates.

    ``asked`` says which of its shapes the submitter asks for; None for none of them.
    """

    row: int
    order: int
    rows: list[int]
    asked: int | None


def _queue(state: State, estimates: Estimates, steps: Sequence[int]) -> list[_Asking]:
    """Return the waiting jobs that can run, in order of submission.

    Baselines read which shape is asked for, and the length that a job is weighed by: the size asked for, in the pool
    with the least work queued; a submitter who may use several pools is taken to look at their queues.
    """
    ids, submitted = state.waiting_ids, state.requests["submit_time"].to_numpy("datetime64[ns]")
    order: Sequence[int] = range(len(ids))
    if len(ids) > 1 and not (np.diff(submitted) > np.timedelta64(0)).all():
        instants = submitted.tolist()
        order = sorted(order, key=lambda k: (instants[k], ids[k]))
    pools, gpus = estimates.columns["pool"].tolist(), estimates.columns["gpus"].tolist()
    asks = estimates.columns["asked"].tolist()
    load, size = dict.fromkeys(pools, 0), {pool.id: pool.gpus for pool in state.cluster.pools}
    left_out = held_back(state, {*estimates.rows, *state.running_ids})
    out = []
    for place, k in enumerate(order):
        rows = estimates.rows.get(ids[k])
        if rows is None or ids[k] in left_out:
            continue
        sized = [i for i, row in enumerate(rows) if asks[row]]
        asked = sized[0] if sized else None
        if len(sized) > 1:
            asked = min(sized, key=lambda i: (load[pools[rows[i]]] / size[pools[rows[i]]], i))
        if asked is not None:
            row = rows[asked]
            load[pools[row]] += gpus[row] * steps[row]
        out.append(_Asking(k, place, rows, asked))
    return out


def _waiting(
    state: State, forecast: Forecast, policy: Policy, candidates: int | None
) -> list[dict[str, Any]]:
    """Return the waiting jobs that can run, in order of submission."""
    ids, waited, estimates = state.waiting_ids, state.waited_days(), forecast.estimates
    hours = interpolate(estimates.quantiles, policy.job_quantile)
    lengths = _steps(hours, policy.step_minutes)
    queue = _queue(state, estimates, lengths)
    if not queue:
        return []
    at = [one.row for one in queue]
    plain = state.requests["priority"].to_numpy(dtype=float)[at]
    asked_h = hours[[one.rows[one.asked or 0] for one in queue]]
    weight = raised(plain, waited[at], asked_h, policy)
    left_out: Collection[str] = ()
    if candidates is not None and len(queue) > candidates:
        chosen = np.sort(np.lexsort((np.arange(len(queue)), -weight))[:candidates])
        queue, plain, weight = [queue[n] for n in chosen.tolist()], plain[chosen], weight[chosen]
        left_out = held_back(state, {*(ids[one.row] for one in queue), *state.running_ids})
    columns = ("kind", "earliest_time", "deadline")
    kinds, earliest, deadlines = (state.requests[name].tolist() for name in columns)
    shaped = _Shapes(state, estimates, policy)
    rules = _Rules(state, state.requests)
    out: list[dict[str, Any]] = []
    for one, mine, raised_to in zip(queue, plain.tolist(), weight.tolist(), strict=True):
        row = one.row
        if ids[row] in left_out:
            continue
        steps, due, wait = [lengths[k] for k in one.rows], None, 0.0
        if not pd.isna(deadlines[row]):
            left = (deadlines[row] - state.now).total_seconds() / 3600
            steps, due = _due(left, hours[one.rows].tolist(), steps, policy.step_minutes)
        if not pd.isna(earliest[row]):
            wait = (earliest[row] - state.now).total_seconds() / 60 / policy.step_minutes
        job: dict[str, Any] = {
            "id": ids[row],
            "kind": kinds[row],
            "priority": _number(mine) if raised_to == mine else raised_to,
            "order": one.order,
            "shapes": [shaped.of(k, row, n) for k, n in zip(one.rows, steps, strict=True)],
            "earliest": max(0, math.ceil(wait - 1e-9)),
            "deadline": due,
            "finish_inside": policy.finish_inside,
            "running": None,
            "work": min(map(shaped.work_of, one.rows)),
            **rules.of(row),
        }
        if one.asked is not None:
            job["requested"] = one.asked
        out.append(job)
    return out


class _Shapes:
    """Shapes of waiting jobs, as the contract states them, from rows of the estimates."""

    def __init__(self, state: State, estimates: Estimates, policy: Policy) -> None:
        self.pools = {pool.id: pool for pool in state.cluster.pools}
        self.pool = estimates.columns["pool"].tolist()
        self.gpus, self.nodes = estimates.columns["gpus"].tolist(), estimates.columns["nodes"].tolist()
        self.success = estimates.success.tolist()
        self.steps = _steps(interpolate(estimates.work, policy.job_quantile), policy.step_minutes)
        self.on = _column(state.requests, "allowed_nodes")

    def of(self, row: int, request: int, steps: int) -> dict[str, Any]:
        """Return a shape; ``request`` is the row of its job in the queue."""
        pool, gpus = self.pools[self.pool[row]], self.gpus[row]
        shape: dict[str, Any] = {"pool": pool.id, "gpus": gpus, "steps": steps}
        if pool.placement == "node" and self.nodes[row] != -(-gpus // (pool.node_size or gpus)):
            shape["nodes"] = self.nodes[row]
        if self.on[request]:
            shape["within"] = [list(one) for one in pool.within(nodes_of(str(self.on[request])))]
        if self.success[row] < 1.0:
            shape["success"] = round(self.success[row], 6)
        return shape

    def work_of(self, row: int) -> int:
        """Return the GPU-steps that the job's work takes at this shape, whatever its time limit."""
        return int(self.gpus[row] * self.steps[row])


class _Rules:
    """What jobs count in and come after: tenant, array, order."""

    def __init__(self, state: State, jobs: pd.DataFrame) -> None:
        self.tenants = _column(jobs, "tenant") if state.cluster.tenants else [""] * len(jobs)
        self.groups = _column(jobs, "group") if state.cluster.tenants else [""] * len(jobs)
        self.arrays, self.known = _column(jobs, "array"), {one["id"] for one in _groups(state)}
        self.after = _column(jobs, "after")

    def of(self, row: int) -> dict[str, Any]:
        """Return the fields of a job's row; what it does not have is left out."""
        out: dict[str, Any] = {}
        if tenant := str(self.tenants[row] or self.groups[row]):
            out["tenant"] = tenant
        if str(self.arrays[row]) in self.known:
            out["group"] = str(self.arrays[row])
        if names := str(self.after[row]).split():
            out["after"] = names
        return out


def _due(
    hours_left: float, hours: Sequence[float], steps: list[int], step_minutes: int
) -> tuple[list[int], int]:
    """Return steps and a deadline in steps that allow exactly the starts from which each way ends in time.

    Steps are rounded up and a deadline down; together they would refuse a job of 10 minutes that is due in 20. A
    way that ends sooner after its last step than another is given that step more.
    """
    step_h = step_minutes / 60
    latest = [math.floor((hours_left - long) / step_h + 1e-9) for long in hours]
    due = max(0, *(start + n for start, n in zip(latest, steps, strict=True)))
    return [max(n, due - start) if start >= 0 else n for start, n in zip(latest, steps, strict=True)], due


def _running(state: State, forecast: Forecast, policy: Policy) -> list[dict[str, Any]]:
    if not len(state.running):
        return []
    left = interpolate(forecast.remaining, policy.job_quantile).tolist()
    columns = ("job_id", "kind", "priority", "pool", "gpus", "first_gpu")
    by_node = {pool.id for pool in state.cluster.pools if pool.placement == "node"}
    ids: Sequence[Sequence[int]] = gpu_ids(state.running) if by_node else ()
    rules = _Rules(state, state.running)
    out = []
    for k, (job, kind, priority, pool, gpus, first) in enumerate(
        zip(*(state.running[name].tolist() for name in columns), strict=True)
    ):
        steps = steps_of(left[k], policy.step_minutes)
        held: dict[str, Any] = {"pool": pool}
        held |= {"gpu_ids": list(ids[k])} if pool in by_node else {"first_gpu": int(first), "gpus": int(gpus)}
        out.append(
            {
                "id": str(job),
                "kind": kind,
                "priority": _number(priority),
                "order": len(state.requests) + k,
                "shapes": [{"pool": pool, "gpus": int(gpus), "steps": steps}],
                "running": {**held, "remaining": steps},
                **{name: value for name, value in rules.of(k).items() if name != "after"},
            }
        )
    return out


def _number(value: Any) -> int | float:
    number = float(value)
    return int(number) if number.is_integer() else number
