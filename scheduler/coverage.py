"""Where realtime is short of GPUs, and which GPUs stay idle, before it happens."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from tidegrid.scheduler.baselines.board import Board
from tidegrid.scheduler.baselines.places import mask_of, room
from tidegrid.scheduler.clock import Clock, gpu_count
from tidegrid.scheduler.plan import Placement, Plan
from tidegrid.scheduler.problem import App, Closed, Pool, Problem, flat

#: Jobs that a risk names.
MOST_NAMES = 3
#: The causes of a risk, each as a word of its record.
SMALL, DOWN, CAP, TAKEN, SPLIT, LEFT, LIMIT = (
    "pool too small", "nodes down", "swap cap", "taken", "no whole replica", "left free", "time limit",
)  # fmt: skip


class _Stretch(NamedTuple):
    """What stays the same over a stretch of steps: GPUs short of demand, GPUs below the floor, and the cause."""

    short: int
    below: int
    cause: str


def coverage_risks(problem: Problem, plan: Plan, clock: Clock | None = None) -> list[dict[str, Any]]:
    """Return where realtime is short of its demand or below its floor, and which jobs may not survive.

    Returns
    -------
    list of dict
        One record for each app and unbroken stretch of one shortage with one cause: ``app``, ``from``, ``to``
        (exclusive), ``short`` GPUs of the demand, ``below`` GPUs under the floor, ``cause`` (pool too small, nodes
        down, swap cap, taken, no whole replica, left free) and ``text``; ``job`` is empty. And one for each job that
        runs on GPUs that go down, or that its time limit likely kills: ``job`` in place of ``app``.
    """
    clock = clock or Clock(problem)
    board = Board(problem)
    for p in plan.placements:
        if problem.job_by_id[p.job].running is None:
            board.take(p.pool, mask_of(p.ids), p.start, p.end)
    for name, cells in plan.apps:
        board.hold(problem.app_by_id[name].pool, [mask_of(flat(held)) for held in cells], for_ever=False)
    rows: dict[str, list[_Stretch]] = {
        name: [_shortage(board, problem.app_by_id[name], cells, t) for t in range(len(cells))]
        for name, cells in plan.apps
    }
    none = _Stretch(0, 0, "")
    used = tail_use(problem, plan)
    for row in rows.values():
        row += [none] * (problem.lookahead - len(row))
    for app_id, t, cut in past_horizon(problem, used):
        pool = problem.pool_by_id[problem.app_by_id[app_id].pool]
        tails = sum(p.gpus for p in plan.placements if p.pool == pool.id and p.start <= t < p.end)
        wanted = sum(a.demand[t] for a in problem.apps if a.pool == pool.id and t < len(a.demand))
        down = used[pool.id][t - problem.steps] - tails
        cause = SMALL if wanted > pool.gpus else DOWN if wanted > pool.gpus - down else TAKEN
        rows[app_id][t] = _Stretch(cut, 0, cause)
    risks = []
    for name, row in rows.items():
        for start, stop in _equal(row, problem.steps):
            one = row[start]
            if one.short or one.below:
                app = problem.app_by_id[name]
                risks.append(_risk(problem, plan, clock, app, start, stop, one))
    risks += _jobs_at_risk(problem, plan, clock)
    return sorted(risks, key=lambda risk: (risk["from"], risk["app"], risk["job"]))


def _equal(row: Sequence[_Stretch], split: int) -> Iterable[tuple[int, int]]:
    """Yield the stretches of one value as (from, to exclusive); none crosses ``split``."""
    start = 0
    for t in range(1, len(row) + 1):
        if t == len(row) or row[t] != row[start] or t == split:
            yield start, t
            start = t


def _shortage(board: Board, app: App, cells: Sequence[Sequence[Any]], t: int) -> _Stretch:
    """How short an app is at step t of the horizon, and why."""
    held = len(flat(cells[t]))
    short, below = max(0, app.demand[t] - held), max(0, app.floor - held)
    if not short and not below:
        return _Stretch(0, 0, "")
    problem = board.problem
    pool = problem.pool_by_id[app.pool]
    wanted = sum(max(a.demand[t], a.floor) for a in problem.apps if a.pool == pool.id)
    down = board.shut(pool.id, t, t + 1, starting=False)
    now = {frozenset(flat([one])) for one in cells[t]}
    before = {frozenset(one) for one in app.held_replicas} if t == 0 else {
        frozenset(flat([one])) for one in cells[t - 1]
    }  # fmt: skip
    left = sum(not mask_of(sorted(one)) & down for one in before - now)
    moved = app.replica * (len(now - before) + left)
    free = board.free(pool.id, t, t + 1)
    if wanted > pool.gpus:
        cause = SMALL
    elif wanted > pool.gpus - down.bit_count():
        cause = DOWN
    elif app.swap_cap is not None and moved + app.replica > app.swap_cap:
        cause = CAP
    elif free.bit_count() < app.replica:
        cause = TAKEN
    else:
        cause = LEFT if room(board.layout[pool.id], free, app.replica) else SPLIT
    return _Stretch(short, below, cause)


def _risk(
    problem: Problem, plan: Plan, clock: Clock, app: App, start: int, stop: int, one: _Stretch
) -> dict[str, Any]:
    pool = problem.pool_by_id[app.pool]
    hours = clock.gpu_hours(max(one.short, one.below) * (stop - start))
    what = []
    if one.short:
        what.append(f"{gpu_count(one.short)} short")
    if one.below:
        what.append(f"{gpu_count(one.below)} below its floor of {app.floor}")
    past = ", past the horizon" if start >= problem.steps else ""
    if one.cause == SMALL:
        floor = 0 if past else 1
        most = max(
            sum(
                max(a.demand[t] if t < len(a.demand) else 0, floor * a.floor)
                for a in problem.apps
                if a.pool == pool.id
            )
            for t in range(start, stop)
        )
        why = f"{pool.id} has {gpu_count(pool.gpus)}, its apps need {most}"
    elif one.cause == DOWN:
        why = ", ".join(closed_text(pool, clock, start, stop))
    elif one.cause == CAP:
        why = f"its swap cap is {gpu_count(app.swap_cap or 0)} a step"
        if app.replica > 1:
            why += f", its replicas have {app.replica}"
    elif one.cause == TAKEN:
        why = _holders(problem, plan, app, start, stop)
    elif one.cause == SPLIT:
        why = f"no node has room for a replica of {gpu_count(app.replica)}"
    else:
        why = "the plan leaves GPUs free"
    text = f"{app.id} is {' and '.join(what)} {clock.during(start, stop)}{past} ({hours}): {why}"
    return {
        "app": app.id, "job": "", "from": start, "to": stop, "short": one.short, "below": one.below,
        "cause": one.cause, "text": text,
    }  # fmt: skip


def _holders(problem: Problem, plan: Plan, app: App, start: int, stop: int) -> str:
    """Return who else holds GPUs of an app's pool, the most important first."""
    found: list[tuple[float, str, str]] = []
    for p in plan.placements:
        if p.pool == app.pool and p.start < stop and start < p.end:
            job = problem.job_by_id[p.job]
            how = "running" if job.running else f"priority {round(job.priority, 1):g}"
            found.append((-job.priority, p.job, how))
    for name, cells in plan.apps:
        other = problem.app_by_id[name]
        if name != app.id and other.pool == app.pool and any(cells[start:stop]):
            found.append((-other.priority, name, f"realtime, priority {round(other.priority, 1):g}"))
    told = [f"{name} ({how})" for _, name, how in sorted(found)]
    if not told:
        return f"its GPUs of {app.pool} are closed"
    rest = len(told) - MOST_NAMES
    return f"{app.pool} is held by {', '.join(told[:MOST_NAMES])}" + (f" and {rest} more" if rest > 0 else "")


def _jobs_at_risk(problem: Problem, plan: Plan, clock: Clock) -> Iterable[dict[str, Any]]:
    for p in plan.placements:
        job, pool = problem.job_by_id[p.job], problem.pool_by_id[p.pool]
        why = ""
        if job.running is not None:
            hit = [
                c
                for c in pool.closed or ()
                if c.kind == "down" and c.start < p.end and p.start < c.end
                if any(c.gpus[0] <= gpu < c.gpus[1] for gpu in p.ids)
            ]
            cause = DOWN
            if hit:
                why = f"{p.job} runs on GPUs that go down: " + ", ".join(
                    closing_text(pool, clock, c) for c in hit
                )
        else:
            cause = LIMIT
            fitting = [s for s in job.shapes if (s.pool, s.gpus, s.steps) == (p.pool, p.gpus, p.steps)]
            success = max((s.success for s in fitting), default=1.0)
            if success < 0.5:
                why = f"{p.job} on {gpu_count(p.gpus)} of {p.pool} is {killed_text(success)}"
        if why:
            yield {
                "app": "", "job": p.job, "from": p.start, "to": min(p.end, problem.lookahead), "short": 0,
                "below": 0, "cause": cause, "text": why,
            }  # fmt: skip


def killed_text(success: float) -> str:
    """Return "killed by its time limit in 9 of 10 cases"."""
    of_ten = min(10, math.floor(10 * (1 - success) + 0.5))
    if of_ten == 10 and success > 0:
        return "killed by its time limit in more than 19 of 20 cases"
    return f"killed by its time limit in {of_ten} of 10 cases"


def closed_text(pool: Pool, clock: Clock, start: int, stop: int) -> list[str]:
    """Return the GPUs of a pool that are down between two steps, each with its time."""
    return [
        closing_text(pool, clock, c)
        for c in pool.closed or ()
        if c.kind == "down" and c.start < stop and start < c.end
    ]


def closing_text(pool: Pool, clock: Clock, closed: Closed) -> str:
    """Return "node 2 (GPUs 8–15) is down from step 6 to step 10", or "GPUs 3–4 drain …"."""
    first, last = closed.gpus
    node = pool.node_size
    gpus = f"GPU {first}" if last == first + 1 else f"GPUs {span(first, last - first)}"
    one = last == first + 1
    if node and first % node == 0 and (last % node == 0 or last == pool.gpus):
        one = last - first <= node
        nodes = span(first // node, -(-(last - first) // node))
        gpus = f"node{'' if one else 's'} {nodes} ({gpus})"
    verb = ("is down" if one else "are down") if closed.kind == "down" else ("drains" if one else "drain")
    return f"{gpus} {verb} {clock.between(closed.start, closed.end)}"


def tail_use(problem: Problem, plan: Plan) -> dict[str, list[int]]:
    """Return by pool the GPUs that no app can have in each lookahead step: held by jobs, or down."""
    past = problem.lookahead - problem.steps
    used = {pool.id: [0] * past for pool in problem.pools}
    tails: dict[str, list[Placement]] = {}
    for p in plan.placements:
        if p.end > problem.steps:
            tails.setdefault(p.pool, []).append(p)
        for t in range(min(p.end - problem.steps, past)):
            used[p.pool][t] += p.gpus
    for pool in problem.pools:
        for t in range(past if pool.closed else 0):
            at = problem.steps + t
            down: set[int] = set()
            for c in pool.closed or ():
                if c.kind == "down" and c.start <= at < c.end:
                    down.update(range(*c.gpus))
            for p in tails.get(pool.id, ()) if down else ():
                if at < p.end:
                    down.difference_update(p.ids)
            used[pool.id][t] += len(down)
    return used


def past_horizon(problem: Problem, used: dict[str, list[int]]) -> Iterable[tuple[str, int, int]]:
    """Yield (app, step, GPUs short) past the horizon, charged to a pool's lowest priority first."""
    for pool in problem.pools:
        apps = sorted((a for a in problem.apps if a.pool == pool.id), key=lambda a: a.priority)
        for t in range(problem.steps, max((len(a.demand) for a in apps), default=0)):
            wanted = [a.demand[t] if t < len(a.demand) else 0 for a in apps]
            short = sum(wanted) - pool.gpus + used[pool.id][t - problem.steps]
            for app, want in zip(apps, wanted, strict=True):
                cut = max(0, min(short, want))
                short -= cut
                if cut:
                    yield app.id, t, cut


def _stretches(row: np.ndarray, split: int) -> Iterable[tuple[int, int, int]]:
    """Unbroken stretches of one value above 0, as (from, to exclusive, value); none crosses ``split``."""
    start = 0
    for t in range(1, len(row) + 1):
        if t == len(row) or row[t] != row[start] or t == split:
            if row[start] > 0:
                yield start, t, int(row[start])
            start = t


def surplus(problem: Problem, plan: Plan, clock: Clock | None = None) -> list[dict[str, Any]]:
    """Return where apps hold GPUs beyond their demand, which are idle: app, from, to, gpus, text."""
    clock = clock or Clock(problem)
    found = []
    for name, cells in plan.apps:
        demand = problem.app_by_id[name].demand
        extra = np.array([max(0, len(flat(held)) - want) for held, want in zip(cells, demand, strict=False)])
        for start, stop, gpus in _stretches(extra, -1):
            text = f"{name} holds {gpu_count(gpus)} beyond its demand {clock.during(start, stop)}"
            found.append({"app": name, "from": start, "to": stop, "gpus": gpus, "text": text})
    return sorted(found, key=lambda item: (item["from"], item["app"]))


def idle_windows(problem: Problem, plan: Plan, clock: Clock | None = None) -> list[dict[str, Any]]:
    """Return cells that are free and not down as rectangles: equal stretches of neighbouring GPUs are one window."""
    clock = clock or Clock(problem)
    windows = []
    for pool in problem.pools:
        free = np.ones((pool.gpus, problem.steps), np.int64)
        for p in plan.placements:
            if p.pool == pool.id:
                free[list(p.ids), p.start : p.end] = 0
        for name, cells in plan.apps:
            if problem.app_by_id[name].pool == pool.id:
                for t, held in enumerate(cells):
                    free[np.array(flat(held), np.int64), t] = 0
        for c in pool.closed or ():
            if c.kind == "down":
                free[slice(*c.gpus), c.start : c.end] = 0
        open_windows: dict[tuple[int, int], int] = {}
        for gpu in range(pool.gpus + 1):
            now = {(a, b) for a, b, _ in _stretches(free[gpu], -1)} if gpu < pool.gpus else set()
            for key in [key for key in open_windows if key not in now]:
                windows.append(_window(clock, pool.id, open_windows.pop(key), gpu - 1, *key))
            for key in now:
                open_windows.setdefault(key, gpu)
    return sorted(windows, key=lambda w: (w["pool"], w["from"], w["first_gpu"], w["to"]))


def _window(clock: Clock, pool: str, first: int, last: int, start: int, stop: int) -> dict[str, Any]:
    text = f"{pool} GPU {span(first, last - first + 1)} idle {clock.during(start, stop)}"
    return {"pool": pool, "first_gpu": first, "last_gpu": last, "from": start, "to": stop, "text": text}


def span(first: int, count: int) -> str:
    """Return "3" or "3–6": GPUs from ``first`` on."""
    return str(first) if count == 1 else f"{first}–{first + count - 1}"
