"""A slow and obvious planner of version 2: it tries places at random and keeps what both checkers call legal."""

from typing import Any

from tidegrid.scheduler import AppCells, Placement, Plan, Problem, check


def naive_plan(problem: Problem, choose: Any, tries: int = 4) -> Plan:
    """Return a legal plan: what runs stays, apps keep what they may, and some waiting jobs have a place."""
    placements = [
        Placement.on(job.id, job.running.pool, job.running.ids, 0, job.running.remaining)
        for job in problem.jobs
        if job.running
    ]
    apps = [AppCells(app.id, _kept(problem, app)) for app in problem.apps]
    plan = Plan.of(problem, "naive", placements, apps)
    for job in problem.jobs:
        for _ in range(tries if job.running is None and job.shapes else 0):
            shape = choose.pick(job.shapes)
            pool = problem.pool_by_id[shape.pool]
            start = choose.integer(0, problem.steps - 1)
            ids = _gpus(pool, shape, choose)
            if ids is None:
                continue
            placed = Placement.on(job.id, pool.id, ids, start, shape.steps)
            more = Plan.of(problem, "naive", [*plan.placements, placed], apps)
            if not check(problem, more)[0]:
                plan = more
                break
    return plan.with_metrics(check(problem, plan)[1])


def _gpus(pool: Any, shape: Any, choose: Any) -> list[int] | None:
    if shape.gpus > pool.gpus:
        return None
    if not pool.by_node:
        first = choose.integer(0, pool.gpus - shape.gpus)
        return list(range(first, first + shape.gpus))
    nodes, size = shape.nodes_in(pool), pool.node_size
    there = list(range(pool.gpus // size))
    if not nodes or nodes > len(there):
        return None
    chosen = [there.pop(choose.integer(0, len(there) - 1)) for _ in range(nodes)]
    each = shape.gpus // nodes
    offset = choose.integer(0, size - each)
    return [node * size + offset + k for node in chosen for k in range(each)]


def _kept(problem: Problem, app: Any) -> list[list[Any]]:
    pool = problem.pool_by_id[app.pool]
    held = list(app.held_replicas)
    cells = []
    for t in range(problem.steps):
        down = {
            gpu
            for closed in pool.closed or ()
            if closed.kind == "down" and closed.start <= t < closed.end
            for gpu in range(*closed.gpus)
        }
        held = [one for one in held if not down & set(one)]
        cells.append([one[0] if app.replica == 1 else list(one) for one in held])
    return cells
