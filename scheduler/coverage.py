"""Where realtime is short of GPUs, and which GPUs stay idle, before it happens."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from tidegrid.scheduler.clock import Clock, gpu_count
from tidegrid.scheduler.plan import Plan
from tidegrid.scheduler.problem import Problem


def coverage_risks(problem: Problem, plan: Plan, clock: Clock | None = None) -> list[dict[str, Any]]:
    """Return where apps are short: one record for each app and unbroken stretch of equal shortfall."""
    clock = clock or Clock(problem)
    short = {app.id: np.zeros(problem.lookahead, np.int64) for app in problem.apps}
    for name, cells in plan.apps:
        demand = problem.app_by_id[name].demand
        short[name][: problem.steps] = [
            max(0, want - len(held)) for want, held in zip(demand, cells, strict=False)
        ]
    for app_id, t, cut in past_horizon(problem, tail_use(problem, plan)):
        short[app_id][t] = cut
    risks = []
    for name, row in short.items():
        for start, stop, gpus in _stretches(row, problem.steps):
            past = ", past the horizon" if start >= problem.steps else ""
            text = f"{name} is {gpu_count(gpus)} short {clock.during(start, stop)}{past}"
            risks.append({"app": name, "from": start, "to": stop, "short": gpus, "text": text})
    return sorted(risks, key=lambda risk: (risk["from"], risk["app"]))


def tail_use(problem: Problem, plan: Plan) -> dict[str, list[int]]:
    """Return by pool the GPUs that jobs hold in each lookahead step."""
    past = problem.lookahead - problem.steps
    used = {pool.id: [0] * past for pool in problem.pools}
    for p in plan.placements:
        for t in range(min(p.end - problem.steps, past)):
            used[p.pool][t] += p.gpus
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
        extra = np.array([max(0, len(held) - want) for held, want in zip(cells, demand, strict=False)])
        for start, stop, gpus in _stretches(extra, -1):
            text = f"{name} holds {gpu_count(gpus)} beyond its demand {clock.during(start, stop)}"
            found.append({"app": name, "from": start, "to": stop, "gpus": gpus, "text": text})
    return sorted(found, key=lambda item: (item["from"], item["app"]))


def idle_windows(problem: Problem, plan: Plan, clock: Clock | None = None) -> list[dict[str, Any]]:
    """Return free cells as rectangles: equal stretches of neighbouring GPUs are one window."""
    clock = clock or Clock(problem)
    windows = []
    for pool in problem.pools:
        free = np.ones((pool.gpus, problem.steps), np.int64)
        for p in plan.placements:
            if p.pool == pool.id:
                free[p.first_gpu : p.first_gpu + p.gpus, p.start : p.end] = 0
        for name, cells in plan.apps:
            if problem.app_by_id[name].pool == pool.id:
                for t, held in enumerate(cells):
                    free[np.array(held, np.int64), t] = 0
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
