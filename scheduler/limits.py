"""Rules between jobs: what may run at once (tenants, groups), and what must have ended (order)."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tidegrid.scheduler.problem import Problem


class Span(NamedTuple):
    """When a job is on, from ``start`` to ``end`` (exclusive), on how many GPUs of which pool."""

    start: int
    end: int
    gpus: int
    running: bool
    pool: str


class Limit(NamedTuple):
    """A limit on the jobs of one tenant or group: ``most`` GPUs (``counts_gpus``) or jobs, in one pool or in all."""

    key: str
    owner: str
    most: int
    pool: str | None
    counts_gpus: bool


def limits_of(problem: Problem) -> Iterator[Limit]:
    """Yield every limit of a problem."""
    for tenant in problem.tenants or ():
        if isinstance(tenant.limit, dict):
            for pool, most in tenant.limit.items():
                yield Limit("tenant", tenant.id, most, pool, True)
        else:
            yield Limit("tenant", tenant.id, tenant.limit, None, True)
    for group in problem.groups or ():
        yield Limit("group", group.id, group.most, None, False)


def broken_limits(problem: Problem, spans: Mapping[str, Span]) -> list[str]:
    """Return a message for each limit that placed jobs break (rule 7): what runs counts, and is never cut."""
    members: dict[tuple[str, str], list[Span]] = {}
    for name, span in spans.items():
        job = problem.job_by_id[name]
        for key, owner in (("tenant", job.tenant), ("group", job.group)):
            if owner is not None:
                members.setdefault((key, owner), []).append(span)
    bad = []
    for limit in limits_of(problem):
        mine = [
            s for s in members.get((limit.key, limit.owner), ()) if limit.pool is None or s.pool == limit.pool
        ]
        # what is on grows only where a job starts, and matters only where one is on that the plan starts
        for t in sorted({max(0, s.start) for s in mine}):
            on = [s for s in mine if s.start <= t < s.end]
            used = sum(s.gpus if limit.counts_gpus else 1 for s in on)
            if used > limit.most and any(not s.running for s in on):
                bad.append(f"rule 7: {limit.key} {limit.owner} has {used} at step {t}, over {limit.most}")
                break
    return bad


def broken_order(problem: Problem, spans: Mapping[str, Span]) -> list[str]:
    """Return a message for each job that starts before one that it comes after has ended (rule 8)."""
    known = problem.job_by_id
    return [
        f"rule 8: {name} starts before {other} has ended"
        for name, span in spans.items()
        if not span.running
        for other in known[name].after or ()
        if other in known and (other not in spans or spans[other].end > span.start)
    ]
