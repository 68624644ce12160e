"""The optimum of a tiny problem with at most one app, by trying everything; written from the contract alone."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from tidegrid.scheduler import App, Job, Pool, Problem


class Place(NamedTuple):
    """A job on its GPUs."""

    pool: str
    gpus: tuple[int, ...]
    start: int
    end: int
    earns: float


def best(problem: Problem) -> float:
    """Return the largest objective of a legal plan."""
    options: list[list[Place | None]] = [
        [_running(problem, job)] if job.running else [None, *_places(problem, job)] for job in problem.jobs
    ]
    hope = [0.0]
    for mine in reversed(options):
        hope.append(hope[-1] + max(0.0 if p is None else p.earns for p in mine))
    hope.reverse()
    found = -float("inf")

    def go_on(
        i: int, chosen: list[Place | None], owned: frozenset[tuple[str, int, int]], earned: float
    ) -> None:
        nonlocal found
        if earned + hope[i] <= found:
            return
        if i == len(options):
            if _is_allowed(problem, chosen):
                found = max(found, earned - _least_loss(problem, owned))
            return
        for place in sorted(options[i], key=lambda p: 0.0 if p is None else -p.earns):
            if place is None:
                go_on(i + 1, [*chosen, None], owned, earned)
                continue
            cells = {(place.pool, g, t) for g in place.gpus for t in range(place.start, place.end)}
            if not cells & owned:
                go_on(i + 1, [*chosen, place], owned | cells, earned + place.earns)

    go_on(0, [], frozenset(), 0.0)
    return found


def _weight(problem: Problem, start: int, end: int) -> float:
    return sum(float(problem.decay) ** t for t in range(start, min(end, problem.steps)))


def _running(problem: Problem, job: Job) -> Place:
    r = job.running
    assert r
    earns = (job.priority - problem.gpu_cost) * r.gpus * _weight(problem, 0, r.remaining)
    return Place(r.pool, tuple(r.ids), 0, r.remaining, earns)


def _is_closed(pool: Pool, kind: str, gpu: int, t: int) -> bool:
    return any(
        c.kind == kind and c.gpus[0] <= gpu < c.gpus[1] and c.start <= t < c.end for c in pool.closed or ()
    )


def _places(problem: Problem, job: Job) -> Iterator[Place]:
    work = job.work if job.work is not None else min((s.gpus * s.steps for s in job.shapes), default=0)
    for s in job.shapes:
        pool = problem.pool_by_id[s.pool]
        likely = max(o.success for o in job.shapes if (o.pool, o.gpus, o.steps) == (s.pool, s.gpus, s.steps))
        rate = work / s.steps * likely if problem.version >= 2 else s.gpus
        for start in range(job.earliest, problem.steps):
            end = start + s.steps
            if (job.deadline is not None and end > job.deadline) or (
                job.finish_inside and end > problem.steps
            ):
                continue
            earns = (job.priority * rate - problem.gpu_cost * s.gpus) * _weight(problem, start, end)
            for gpus in itertools.combinations(range(pool.gpus), s.gpus):
                inside = s.within is None or all(
                    any(first <= g < first + many for first, many in s.within) for g in gpus
                )
                closed = any(_is_closed(pool, "drain", g, start) for g in gpus) or any(
                    _is_closed(pool, "down", g, t) for g in gpus for t in range(start, end)
                )
                if inside and not closed and _fits(pool, s.nodes, gpus):
                    yield Place(s.pool, gpus, start, end, earns)


def _fits(pool: Pool, nodes: int | None, gpus: tuple[int, ...]) -> bool:
    node = pool.node_size
    if pool.placement == "node":
        assert node
        counts = [sum(g // node == n for g in gpus) for n in sorted({g // node for g in gpus})]
        return len(set(counts)) == 1 and len(counts) == (nodes or -(-len(gpus) // node))
    if gpus[-1] - gpus[0] + 1 != len(gpus):
        return False
    if not node:
        return True
    return gpus[0] // node == gpus[-1] // node if len(gpus) <= node else gpus[0] % node == 0


def _is_allowed(problem: Problem, chosen: list[Place | None]) -> bool:
    placed = {job.id: p for job, p in zip(problem.jobs, chosen, strict=True)}
    for job in problem.jobs:
        mine = placed[job.id]
        for name in job.after or () if mine and not job.running else ():
            if name in placed:
                other = placed[name]
                if other is None or mine is None or other.end > mine.start:
                    return False
    rules: list[tuple[str, str, str | None, int]] = [
        ("group", g.id, None, g.most) for g in problem.groups or ()
    ]
    for tenant in problem.tenants or ():
        limits: dict[Any, int] = tenant.limit if isinstance(tenant.limit, dict) else {None: tenant.limit}  # type: ignore[assignment]
        rules += [("tenant", tenant.id, pool, most) for pool, most in limits.items()]
    for key, owner, pool, most in rules:
        for t in range(problem.steps):
            on = [
                (job, p)
                for job in problem.jobs
                if (p := placed[job.id])
                and getattr(job, key) == owner
                and pool in (None, p.pool)
                and p.start <= t < p.end
            ]
            used = len(on) if key == "group" else sum(len(p.gpus) for _, p in on)
            if used > most and any(job.running is None for job, _ in on):
                return False
    return True


Replicas = frozenset[frozenset[int]]


def _least_loss(problem: Problem, owned: frozenset[tuple[str, int, int]]) -> float:
    """Least penalty and cost of the app over what it may hold step by step."""
    total = 0.0
    for app in problem.apps:
        pool = problem.pool_by_id[app.pool]
        losses: dict[Replicas, float] = {frozenset(frozenset(one) for one in app.held_replicas): 0.0}
        for t in range(problem.steps):
            free = [
                g
                for g in range(pool.gpus)
                if (pool.id, g, t) not in owned and not _is_closed(pool, "down", g, t)
            ]
            after: dict[Replicas, float] = {}
            for now in _sets(pool, app, free):
                cheapest = min(
                    (
                        loss + _entering(problem, app, before, now, t)
                        for before, loss in losses.items()
                        if _may_follow(pool, app, before, now, t)
                    ),
                    default=None,
                )
                if cheapest is not None:
                    after[now] = cheapest + _penalty(problem, app, app.replica * len(now), t)
            losses = after
        total += min(losses.values(), default=float("inf"))
        for t in range(problem.steps, len(app.demand)):
            open_ = sum(
                (pool.id, g, t) not in owned and not _is_closed(pool, "down", g, t) for g in range(pool.gpus)
            )
            short = max(0, app.demand[t] - open_)
            total += problem.shortfall_weight * app.priority * float(problem.decay) ** t * short
    return total


def _sets(pool: Pool, app: App, free: list[int]) -> list[Replicas]:
    node = pool.node_size or pool.gpus
    ones = [
        frozenset(one)
        for one in itertools.combinations(free, app.replica)
        if len({g // node for g in one}) == max(1, app.replica // node)
    ]
    found: list[Replicas] = [frozenset()]
    for one in ones:
        found += [held | {one} for held in found if not any(one & other for other in held)]
    return found


def _may_follow(pool: Pool, app: App, before: Replicas, now: Replicas, t: int) -> bool:
    if any(_is_closed(pool, "drain", g, t) for one in now - before for g in one):
        return False
    leaving = [one for one in before - now if not any(_is_closed(pool, "down", g, t) for g in one)]
    moved = app.replica * (len(now - before) + len(leaving))
    return app.swap_cap is None or moved <= app.swap_cap


def _entering(problem: Problem, app: App, before: Replicas, now: Replicas, t: int) -> float:
    return problem.swap_cost * app.priority * float(problem.decay) ** t * app.replica * len(now - before)


def _penalty(problem: Problem, app: App, held: int, t: int) -> float:
    short = max(0, app.demand[t] - held)
    below = max(0, min(app.demand[t], app.floor) - held)
    charged = short + (problem.floor_weight - 1.0) * below
    return problem.shortfall_weight * app.priority * float(problem.decay) ** t * charged
