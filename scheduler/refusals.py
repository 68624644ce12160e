"""Which jobs no plan can ever place, and why: valid input that every planner refuses."""

from collections.abc import Sequence

from tidegrid.scheduler.clock import Clock, gpu_count, step_count
from tidegrid.scheduler.problem import Job, Pool, Problem, Shape

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
    if any(_rule_broken(problem, job, shape) is None for shape in job.shapes):
        return None
    return _reason(problem, job, job.shapes, clock or Clock(problem))


def shape_refusal(problem: Problem, job: Job, shape: Shape, clock: Clock | None = None) -> str | None:
    """Return why one shape can never be placed; None where it might."""
    if _rule_broken(problem, job, shape) is None:
        return None
    return _reason(problem, job, [shape], clock or Clock(problem))


def has_block(pool: Pool, gpus: int) -> bool:
    """Whether the empty pool has any legal block of this size."""
    return pool.allows(0, gpus)


def _rule_broken(problem: Problem, job: Job, shape: Shape) -> str | None:
    pool = problem.pool_by_id[shape.pool]
    if shape.gpus > pool.gpus:
        return "size"
    if not has_block(pool, shape.gpus):
        return "block"
    if job.deadline is not None and job.earliest + shape.steps > job.deadline:
        return "deadline"
    if job.finish_inside and shape.steps > problem.steps:
        return "horizon"
    return None


def _reason(problem: Problem, job: Job, shapes: Sequence[Shape], clock: Clock) -> str:
    parts = []
    rules = {shape: str(_rule_broken(problem, job, shape)) for shape in shapes}
    for rule in dict.fromkeys(rules.values()):
        broken = [shape for shape in rules if rules[shape] == rule]
        pools = [problem.pool_by_id[name] for name in dict.fromkeys(shape.pool for shape in broken)]
        sizes = {pool.id: [s.gpus for s in broken if s.pool == pool.id] for pool in pools}
        if rule == "size":
            fewest = gpu_count(min(shape.gpus for shape in broken))
            least = "at least " if len({shape.gpus for shape in broken}) > 1 else ""
            parts.append(f"it needs {least}{fewest}, " + ", ".join(f"{p.id} has {p.gpus}" for p in pools))
        elif rule == "block":
            parts += [
                f"{pool.id} has no legal block of {_listed(sizes[pool.id])} with nodes of {pool.node_size}"
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
