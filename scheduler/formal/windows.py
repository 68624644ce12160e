"""Windows of a large problem: some neighbouring GPUs of a pool, over all steps, as a problem of their own.

The jobs that lie inside a window are free, with some that wait; all else that holds its GPUs is pinned where it is. A
better plan of a window, put back, is a better plan of the whole. Demand past the horizon is told to the window as
what is left of it once the other jobs' tails are counted, so that tails cost there what they cost in the whole; with
several apps they are charged to the lowest priority alone, and the whole plan is judged anew in any case.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegrid.scheduler.coverage import tail_use
from tidegrid.scheduler.plan import AppCells, Placement, Plan
from tidegrid.scheduler.problem import Pool, Problem

#: GPUs of a window, in turn: narrow ones are soon solved, wide ones see more.
WIDTHS = (16, 32)
#: Waiting jobs that a window may take in: the first by priority, and as many others in turn.
FIRST_WAITING, OTHER_WAITING = 3, 3
_PINNED, _TAILS = "pinned ", "tails"


@dataclass(frozen=True)
class Window:
    """GPUs ``low`` up to ``high`` (exclusive) of a pool as a problem with a plan, and what must stay in place.

    Attributes
    ----------
    names
        Ids in the whole problem of the jobs that are free, which come first among the jobs of ``problem``.
    pinned
        By index of a job of ``problem``, the GPU that it keeps.
    """

    pool: str
    low: int
    high: int
    problem: Problem
    plan: Plan
    names: tuple[str, ...]
    pinned: dict[int, int]


def segments(pool: Pool, width: int, shift: int) -> Iterator[tuple[int, int]]:
    """Yield (first GPU, first GPU after) of windows that cut no node which a legal block could span."""
    node = pool.node_size or pool.gpus
    if node < width:
        width, shift = width // node * node, shift // node * node
        node = pool.gpus
    for begin in range(0, pool.gpus, node):
        end = min(begin + node, pool.gpus)
        for low in range(begin + (shift if end - begin > width else 0), end, width):
            yield low, min(low + width, end)


def in_turn(problem: Problem, plan: Plan, sweep: int) -> list[tuple[str, int, int]]:
    """Return the windows of a sweep as (pool, low, high), those with the most idle weight first."""
    width = WIDTHS[sweep % len(WIDTHS)]
    shift = width // 2 * (sweep // len(WIDTHS) % 2)
    weight = np.array([float(problem.decay) ** t for t in range(problem.steps)])
    scored = []
    for pool in problem.pools:
        idle = ~_taken(problem, plan, pool, frozenset())
        earned = np.concatenate([[0.0], (idle * weight[:, None]).sum(axis=0).cumsum()])
        for low, high in segments(pool, width, shift):
            scored.append((-round(float(earned[high] - earned[low]), 6), pool.id, low, high))
    return [(pool, low, high) for _, pool, low, high in sorted(scored)]


def _taken(problem: Problem, plan: Plan, pool: Pool, but: frozenset[str]) -> np.ndarray:
    """(T, GPUs) cells of a pool that jobs other than ``but``, and apps, hold."""
    taken = np.zeros((problem.steps, pool.gpus), bool)
    for p in plan.placements:
        if p.pool == pool.id and p.job not in but:
            taken[p.start : p.end, p.first_gpu : p.first_gpu + p.gpus] = True
    for name, cells in plan.apps:
        if problem.app_by_id[name].pool == pool.id:
            for t, held in enumerate(cells):
                taken[t, list(held)] = True
    return taken


def window(problem: Problem, plan: Plan, where: tuple[str, int, int], turn: int) -> Window | None:
    """Make a window of a plan; None where nothing in it could be placed anew.

    ``turn`` decides which of the waiting jobs it takes in beside the first ones.
    """
    name, low, high = where
    pool, width = problem.pool_by_id[name], high - low
    inside = [
        p
        for p in plan.placements
        if p.pool == name
        and p.first_gpu >= low
        and p.first_gpu + p.gpus <= high
        and not problem.job_by_id[p.job].running
    ]
    free = {p.job for p in inside}
    names = [p.job for p in inside]
    names += [job for job in _waiting(problem, plan, turn) if _shapes(problem, job, name, width)]
    if not names:
        return None
    # Ids of the window's own, so that no job is called like a pinned cell.
    jobs = [_job(problem, job, str(k), name, width) for k, job in enumerate(names)]
    pinned: list[Placement] = []
    taken = _taken(problem, plan, pool, frozenset(free))[:, low:high]
    for gpu in range(width):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], taken[:, gpu].astype(np.int8), [0]])))
        for start, stop in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            pinned.append(Placement(f"{_PINNED}{gpu}/{start}", name, gpu, 1, start, stop - start))
    tails = _tails(problem, plan, pool, free, width)
    part = Problem.from_dict(
        {
            "steps": problem.steps,
            "decay": problem.decay,
            "shortfall_weight": problem.shortfall_weight,
            "pools": [{"id": name, "gpus": width, "node_size": _node(pool, width)}],
            "jobs": jobs + [_pin(p) for p in pinned],
            "apps": [tails] if tails else [],
        }
    )
    apps = [AppCells(tails["id"], ((),) * problem.steps)] if tails else []
    moved = [
        Placement(str(k), name, p.first_gpu - low, p.gpus, p.start, p.steps) for k, p in enumerate(inside)
    ]
    fixed = {len(jobs) + k: p.first_gpu for k, p in enumerate(pinned)}
    start = Plan.of(part, "full", [*moved, *pinned], apps)
    return Window(name, low, high, part, start, tuple(names), fixed)


def put_back(problem: Problem, plan: Plan, part: Window, found: Plan) -> Plan:
    """Return the plan with what was found for a window in place of what was there."""
    kept = [p for p in plan.placements if p.job not in part.names]
    moved = [
        Placement(part.names[int(p.job)], part.pool, p.first_gpu + part.low, p.gpus, p.start, p.steps)
        for p in found.placements
        if not p.job.startswith(_PINNED)
    ]
    return Plan.of(problem, "full", [*kept, *moved], plan.apps)


def _waiting(problem: Problem, plan: Plan, turn: int) -> list[str]:
    waiting = [job for job in problem.jobs if not job.running and job.id not in plan.placement_by_job]
    waiting.sort(key=lambda job: (-job.priority, min((s.gpus * s.steps for s in job.shapes), default=0)))
    names = [job.id for job in waiting]
    first, others = names[:FIRST_WAITING], names[FIRST_WAITING:]
    at = turn * OTHER_WAITING % len(others) if others else 0
    return first + (others[at:] + others[:at])[:OTHER_WAITING]


def _node(pool: Pool, width: int) -> int | None:
    return pool.node_size if pool.node_size and pool.node_size < width else None


def _shapes(problem: Problem, name: str, pool: str, width: int) -> list[tuple[int, int]]:
    shapes = problem.job_by_id[name].shapes
    return list(dict.fromkeys((s.gpus, s.steps) for s in shapes if s.pool == pool and s.gpus <= width))


def _job(problem: Problem, name: str, called: str, pool: str, width: int) -> dict[str, Any]:
    job, shapes = problem.job_by_id[name], _shapes(problem, name, pool, width)
    return {
        "id": called,
        "priority": job.priority,
        "order": job.order,
        "shapes": [{"pool": pool, "gpus": gpus, "steps": steps} for gpus, steps in shapes],
        "earliest": job.earliest,
        "deadline": job.deadline,
        "finish_inside": job.finish_inside,
    }


def _pin(p: Placement) -> dict[str, Any]:
    return {
        "id": p.job,
        "priority": 0,
        "order": 0,
        "shapes": [{"pool": p.pool, "gpus": 1, "steps": p.steps}],
        "earliest": p.start,
        "deadline": p.end,
    }


def _tails(problem: Problem, plan: Plan, pool: Pool, free: set[str], width: int) -> dict[str, Any] | None:
    """Return an app without demand in the horizon, and past it with what makes tails of the window cost the same."""
    apps = [app for app in problem.apps if app.pool == pool.id]
    past = problem.lookahead - problem.steps
    if not apps or not past:
        return None
    others = [p for p in plan.placements if p.job not in free]
    used = tail_use(problem, Plan.of(problem, "full", others, plan.apps))[pool.id]
    demand = []
    for k in range(past):
        t = problem.steps + k
        wanted = sum(app.demand[t] for app in apps if t < len(app.demand))
        demand.append(min(width, max(0, wanted + used[k] - pool.gpus + width)))
    return {
        "id": _TAILS,
        "pool": pool.id,
        "priority": min(app.priority for app in apps),
        "demand": [0] * problem.steps + demand,
    }
