"""Which jobs no plan can ever place, and why: valid input that every planner refuses."""

from collections.abc import Sequence

from tidegrid.scheduler.baselines.places import layouts
from tidegrid.scheduler.clock import Clock, gpu_count, step_count
from tidegrid.scheduler.limits import limits_of
from tidegrid.scheduler.problem import Job, Problem, Shape

#: Shapes of one pool that a reason lists one by one.
MOST_SHAPES = 4


def refusals(problem: Problem, timezone: str | None = None) -> dict[str, str]:
    """Return the jobs that no plan over a horizon of this length can place, with the reason of each.

    Times in a reason are those of an IANA zone; UTC where ``timezone`` is None.
    """
    clock = Clock(problem, timezone)
    found = {job.id: refusal(problem, job, clock) for job in problem.jobs if job.running is None}
    return {name: reason for name, reason in found.items() if reason}


def refusal(problem: Problem, job: Job, clock: Clock | None = None) -> str | None:
    """Return why no plan can ever place a waiting job; None where one might.

    A reason that several shapes share is told once, with the shapes that it holds for.
    """
    if not job.shapes:
        return "it has no shape"
    if all(_rule_broken(problem, job, shape) for shape in job.shapes):
        return _reason(problem, job, job.shapes, clock or Clock(problem))
    group = next((group for group in problem.groups or () if group.id == job.group), None)
    if group is not None and group.most == 0:
        return f"of {group.id} none may run"
    return _predecessor(problem, job)


def _predecessor(problem: Problem, job: Job) -> str | None:
    """Return which of the jobs that a job comes after keeps it from ever starting."""
    known = problem.job_by_id
    for name in job.after or ():
        other = known.get(name)
        if other is None or other.running is not None:
            continue
        if not other.shapes or all(_rule_broken(problem, other, shape) for shape in other.shapes):
            return f"it waits for {name}, which can never run"
    seen: set[str] = set()
    todo = list(job.after or ())
    while todo:
        name = todo.pop()
        if name == job.id:
            return (
                "it waits for itself"
                if job.id in (job.after or ())
                else "it and jobs before it wait for each other"
            )
        if name in known and known[name].running is None and name not in seen:
            seen.add(name)
            todo += known[name].after or ()
    return None


def shape_refusal(problem: Problem, job: Job, shape: Shape, clock: Clock | None = None) -> str | None:
    """Return why one shape can never be placed; None where it might."""
    if _rule_broken(problem, job, shape) is None:
        return None
    return _reason(problem, job, [shape], clock or Clock(problem))


def _rule_broken(problem: Problem, job: Job, shape: Shape) -> str | None:
    pool = problem.pool_by_id[shape.pool]
    if shape.gpus > pool.gpus:
        return "size"
    layout = layouts(problem)[pool.id]
    nodes = layout.nodes_of(shape)
    if not nodes or not layout.fits(layout.every, shape.gpus, nodes):
        return "nodes" if pool.by_node else "block"
    if shape.within is not None and not layout.fits(layout.within(shape), shape.gpus, nodes):
        return "within"
    if _limit(problem, job, shape) is not None:
        return "limit"
    if job.deadline is not None and job.earliest + shape.steps > job.deadline:
        return "deadline"
    if job.finish_inside and shape.steps > problem.steps:
        return "horizon"
    return None


def _limit(problem: Problem, job: Job, shape: Shape) -> str | None:
    """Return the limit of its tenant that a shape alone is over, in words."""
    for limit in limits_of(problem) if job.tenant is not None else ():
        mine = limit.key == "tenant" and limit.owner == job.tenant and limit.pool in (None, shape.pool)
        if mine and shape.gpus > limit.most:
            of = "" if limit.pool is None else f" of {limit.pool}"
            return f"{limit.owner} may hold {gpu_count(limit.most)}{of}"
    return None


def _reason(problem: Problem, job: Job, shapes: Sequence[Shape], clock: Clock) -> str:
    parts = []
    rules = [(shape, str(_rule_broken(problem, job, shape))) for shape in shapes]
    for rule in dict.fromkeys(rule for _, rule in rules):
        broken = [shape for shape, other in rules if other == rule]
        pools = [problem.pool_by_id[name] for name in dict.fromkeys(shape.pool for shape in broken)]
        sizes = {pool.id: [s.gpus for s in broken if s.pool == pool.id] for pool in pools}
        fewest = gpu_count(min(shape.gpus for shape in broken))
        least = "at least " if len({shape.gpus for shape in broken}) > 1 else ""
        if rule == "size":
            parts.append(f"it needs {least}{fewest}, " + ", ".join(f"{p.id} has {p.gpus}" for p in pools))
        elif rule == "limit":
            told = dict.fromkeys(str(_limit(problem, job, shape)) for shape in broken)
            parts.append(f"it needs {least}{fewest}, its tenant {', '.join(told)}")
        elif rule == "block":
            parts += [
                f"{pool.id} has no legal block of {_listed(sizes[pool.id])} with nodes of {pool.node_size}"
                for pool in pools
            ]
        elif rule == "nodes":
            parts += list(dict.fromkeys(_nodes(problem, shape) for shape in broken))
        elif rule == "within":
            nowhere = {shape.pool for shape in broken if not layouts(problem)[shape.pool].within(shape)}
            parts += [
                f"it may use no GPU of {pool.id}"
                if pool.id in nowhere
                else f"the GPUs of {pool.id} that it may use have no place for {_listed(sizes[pool.id])}"
                for pool in pools
            ]
        elif rule == "deadline":
            may = "now" if job.earliest == 0 else f"at {clock.step(job.earliest)}"
            parts.append(
                f"it may start {may} and must end before {clock.step(job.deadline or 0)}, "
                f"but it takes {_lengths(broken)}"
            )
        else:
            parts.append(
                f"it must end inside the horizon of {step_count(problem.steps)}, but it takes {_lengths(broken)}"
            )
    return "; ".join(parts)


def _nodes(problem: Problem, shape: Shape) -> str:
    pool = problem.pool_by_id[shape.pool]
    size = pool.node_size or pool.gpus
    nodes = shape.nodes or -(-shape.gpus // size)
    on = f"{gpu_count(shape.gpus)} on {nodes} node{'' if nodes == 1 else 's'}"
    if shape.gpus % nodes:
        return f"{on} are not the same number on each"
    if shape.gpus // nodes > size:
        return f"{on} are {shape.gpus // nodes} on each, those of {pool.id} have {size}"
    have = sum(min(size, pool.gpus - first) >= shape.gpus // nodes for first in range(0, pool.gpus, size))
    return f"{on} of {shape.gpus // nodes} GPUs do not fit: {pool.id} has {have} such"


def _listed(sizes: Sequence[int]) -> str:
    *most, last = sorted(set(sizes))
    return f"{', '.join(map(str, most))} or {gpu_count(last)}" if most else gpu_count(last)


def _lengths(shapes: Sequence[Shape]) -> str:
    """Return "6 steps on 1 GPU or 4 on 2 of h100", pool by pool; the quickest alone where there are many."""
    by_pool: dict[str, dict[int, int]] = {}
    for shape in shapes:
        of_pool = by_pool.setdefault(shape.pool, {})
        of_pool[shape.gpus] = min(shape.steps, of_pool.get(shape.gpus, shape.steps))
    told = []
    for pool, lengths in by_pool.items():
        if len(lengths) > MOST_SHAPES:
            gpus, steps = min(lengths.items(), key=lambda item: (item[1], item[0]))
            told.append(
                f"at least {step_count(steps)} ({gpu_count(gpus)}; {len(lengths)} sizes on offer) on {pool}"
            )
            continue
        ways = [
            f"{step_count(steps)} on {gpu_count(gpus)}" if k == 0 else f"{steps} on {gpus}"
            for k, (gpus, steps) in enumerate(sorted(lengths.items()))
        ]
        told.append(f"{' or '.join(ways)} of {pool}")
    return ", ".join(told)
