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


def _steps(hours: np.ndarray, step_minutes: int) -> np.ndarray:
    """Return `steps_of` of each."""
    return np.maximum(1, np.ceil(hours * 60 / step_minutes - 1e-9)).astype(np.int64)


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
    unknown = frame[name].isna()
    cells = frame[name].tolist()
    if not unknown.any():
        return cells
    return ["" if gone else cell for cell, gone in zip(cells, unknown.tolist(), strict=True)]


def _groups(state: State) -> list[dict[str, Any]]:
    """Return the arrays of jobs that have a limit."""
    limits: dict[str, int] = {}
    if "array" not in state.requests or "array_limit" not in state.requests:
        return []
    for array, most in zip(
        _column(state.requests, "array"), _column(state.requests, "array_limit"), strict=True
    ):
        if array and most:
            limits[str(array)] = min(int(most), limits.get(str(array), int(most)))
    return [{"id": name, "most": most} for name, most in sorted(limits.items())]


def predecessors(requests: pd.DataFrame) -> dict[str, list[str]]:
    """Return the jobs that each waiting job comes after, by id; those that come after none are left out."""
    cells = _column(requests, "after") if "after" in requests else ()
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


class _Queue(NamedTuple):
    """The waiting jobs that can run, in order of submission.

    Attributes
    ----------
    row, order
        Their rows in the queue, and their places in the order.
    first
        Where the estimates of each begin.
    asked
        Which of its shapes the submitter asks for; -1 for none of them.
    """

    row: np.ndarray
    order: np.ndarray
    first: np.ndarray
    asked: np.ndarray

    def take(self, at: np.ndarray) -> "_Queue":
        """Return some of them."""
        return _Queue(*(column[at] for column in self))


def _queue(state: State, estimates: Estimates, lengths: np.ndarray) -> _Queue:
    """Return the waiting jobs that can run, in order of submission.

    Baselines read which shape is asked for, and the length that a job is weighed by: the size asked for, in the pool
    with the least work queued; a submitter who may use several pools is taken to look at their queues.
    """
    ids, submitted = state.waiting_ids, state.requests["submit_time"].to_numpy("datetime64[ns]")
    row, later = np.arange(len(ids)), np.diff(submitted).astype(np.int64)
    if (later < 0).any() or any(ids[k] > ids[k + 1] for k in np.flatnonzero(later == 0).tolist()):
        instants = submitted.tolist()
        row = np.array(sorted(row.tolist(), key=lambda k: (instants[k], ids[k])))
    left_out = held_back(state, {*estimates.rows, *state.running_ids})
    found = [None if ids[k] in left_out else estimates.rows.get(ids[k]) for k in row.tolist()]
    order = np.array([place for place, mine in enumerate(found) if mine is not None], np.int64)
    spans = np.array([(mine.start, mine.stop) for mine in found if mine is not None], np.int64)
    first, after = spans.reshape(-1, 2).T
    return _Queue(row[order], order, first, _asked(state, estimates, first, after, lengths))


def _asked(
    state: State, estimates: Estimates, first: np.ndarray, after: np.ndarray, lengths: np.ndarray
) -> np.ndarray:
    """Return which of its shapes each job's submitter asks for, -1 for none.

    Parameters
    ----------
    first, after
        Where the estimates of each job begin and end, in order of submission.
    lengths
        The steps that each entry of the estimates is planned at.
    """
    asks = estimates.columns["asked"]
    upto = np.concatenate([[0], np.cumsum(asks)])
    count = upto[after] - upto[first]
    # the first entry at or after each job's first that is asked for
    following = np.append(np.flatnonzero(asks), len(asks))[upto[first]]
    out = np.where(count > 0, following - first, -1)
    if not (count > 1).any():
        return out
    pools, gpus = estimates.columns["pool"].tolist(), estimates.columns["gpus"].tolist()
    load, size = dict.fromkeys(pools, 0), {pool.id: pool.gpus for pool in state.cluster.pools}
    for k, mine in enumerate(map(range, first.tolist(), after.tolist())):
        if count[k] > 1:
            sized = [i for i, entry in enumerate(mine) if asks[entry]]
            out[k] = min(sized, key=lambda i: (load[pools[mine[i]]] / size[pools[mine[i]]], i))
        if out[k] >= 0:
            entry = mine[out[k]]
            load[pools[entry]] += gpus[entry] * int(lengths[entry])
    return out


def _waiting(
    state: State, forecast: Forecast, policy: Policy, candidates: int | None
) -> list[dict[str, Any]]:
    """Return the waiting jobs that can run, in order of submission."""
    ids, waited, estimates = state.waiting_ids, state.waited_days(), forecast.estimates
    hours = interpolate(estimates.quantiles, policy.job_quantile)
    queue = _queue(state, estimates, _steps(hours, policy.step_minutes))
    if not len(queue.row):
        return []
    plain = state.requests["priority"].to_numpy(dtype=float)[queue.row]
    weight = raised(plain, waited[queue.row], hours[queue.first + np.maximum(queue.asked, 0)], policy)
    left_out: Collection[str] = ()
    if candidates is not None and len(weight) > candidates:
        chosen = np.sort(np.lexsort((np.arange(len(weight)), -weight))[:candidates])
        queue, plain, weight = queue.take(chosen), plain[chosen], weight[chosen]
        left_out = held_back(state, {*(ids[row] for row in queue.row.tolist()), *state.running_ids})
    jobs = state.requests.take(queue.row)
    names = [ids[row] for row in queue.row.tolist()]
    shaped, rules = _Shapes(state, jobs, estimates.of(names), policy), _Rules(state, jobs)
    kinds, earliest, deadlines = (jobs[name].tolist() for name in ("kind", "earliest_time", "deadline"))
    waits, hurries = (jobs[name].notna().tolist() for name in ("earliest_time", "deadline"))
    out: list[dict[str, Any]] = []
    for k, (name, mine, raised_to, order, asked) in enumerate(
        zip(names, plain.tolist(), weight.tolist(), queue.order.tolist(), queue.asked.tolist(), strict=True)
    ):
        if name in left_out:
            continue
        due, wait = None, 0.0
        steps = shaped.steps_of(name)
        if hurries[k]:
            left = (deadlines[k] - state.now).total_seconds() / 3600
            steps, due = _due(left, shaped.hours_of(name), steps, policy.step_minutes)
        if waits[k]:
            wait = (earliest[k] - state.now).total_seconds() / 60 / policy.step_minutes
        job: dict[str, Any] = {
            "id": name,
            "kind": kinds[k],
            "priority": _number(mine) if raised_to == mine else raised_to,
            "order": order,
            "shapes": shaped.of(name, k, steps),
            "earliest": max(0, math.ceil(wait - 1e-9)),
            "deadline": due,
            "finish_inside": policy.finish_inside,
            "running": None,
            "work": shaped.work_of(name),
            **rules.of(k),
        }
        if asked >= 0:
            job["requested"] = asked
        out.append(job)
    return out


class _Shapes:
    """Shapes of waiting jobs, as the contract states them, from their estimates."""

    def __init__(self, state: State, jobs: pd.DataFrame, estimates: Estimates, policy: Policy) -> None:
        self.pools = {pool.id: pool for pool in state.cluster.pools}
        self.rows, columns = estimates.rows, estimates.columns
        self.pool, self.gpus, self.nodes = (columns[name].tolist() for name in ("pool", "gpus", "nodes"))
        self.success = estimates.success.tolist()
        hours = interpolate(estimates.quantiles, policy.job_quantile)
        self.hours, self.steps = hours.tolist(), _steps(hours, policy.step_minutes).tolist()
        work = _steps(interpolate(estimates.work, policy.job_quantile), policy.step_minutes)
        self.work = (columns["gpus"] * work).tolist()
        self.on = _column(jobs, "allowed_nodes")

    def hours_of(self, job: str) -> list[float]:
        """Return the hours that each of a job's shapes is planned at."""
        return self.hours[self._at(job)]

    def steps_of(self, job: str) -> list[int]:
        """Return the steps that each of a job's shapes is planned at."""
        return self.steps[self._at(job)]

    def work_of(self, job: str) -> int:
        """Return the fewest GPU-steps that the job's work takes, whatever its time limit."""
        return min(self.work[self._at(job)])

    def of(self, job: str, request: int, steps: Sequence[int]) -> list[dict[str, Any]]:
        """Return a job's shapes; ``request`` is its row among the jobs."""
        on = nodes_of(str(self.on[request])) if self.on[request] else None
        return [self._shape(row, n, on) for row, n in zip(self.rows[job], steps, strict=True)]

    def _at(self, job: str) -> slice:
        rows = self.rows[job]
        return slice(rows.start, rows.stop)

    def _shape(self, row: int, steps: int, on: Any) -> dict[str, Any]:
        pool, gpus = self.pools[self.pool[row]], self.gpus[row]
        shape: dict[str, Any] = {"pool": pool.id, "gpus": gpus, "steps": steps}
        if pool.placement == "node" and self.nodes[row] != -(-gpus // (pool.node_size or gpus)):
            shape["nodes"] = self.nodes[row]
        if on is not None:
            shape["within"] = [list(one) for one in pool.within(on)]
        if self.success[row] < 1.0:
            shape["success"] = round(self.success[row], 6)
        return shape


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
