"""Which jobs no plan can ever place, and why: valid input that every planner refuses."""

from tidegrid.scheduler.problem import Job, Pool, Problem, Shape


def refusals(problem: Problem) -> dict[str, str]:
    """Return the jobs that no plan over a horizon of this length can place, with the reason of each."""
    found = {job.id: refusal(problem, job) for job in problem.jobs if job.running is None}
    return {name: reason for name, reason in found.items() if reason}


def refusal(problem: Problem, job: Job) -> str | None:
    """Return why no plan can ever place a waiting job; None where one might."""
    if not job.shapes:
        return "it has no shape"
    reasons = [shape_refusal(problem, job, shape) for shape in job.shapes]
    if None in reasons:
        return None
    return "; ".join(dict.fromkeys(str(reason) for reason in reasons))


def shape_refusal(problem: Problem, job: Job, shape: Shape) -> str | None:
    """Return why one shape can never be placed; None where it might."""
    pool = problem.pool_by_id[shape.pool]
    size = "1 GPU" if shape.gpus == 1 else f"{shape.gpus} GPUs"
    takes = f"on {size} of {pool.id} it takes {shape.steps} steps"
    if shape.gpus > pool.gpus:
        return f"it needs {size}, {pool.id} has {pool.gpus}"
    if not has_block(pool, shape.gpus):
        return f"{pool.id} has no legal block of {size} with nodes of {pool.node_size}"
    if job.deadline is not None and job.earliest + shape.steps > job.deadline:
        return f"{takes} and may start at step {job.earliest}, past its deadline {job.deadline}"
    if job.finish_inside and shape.steps > problem.steps:
        return f"{takes} and must end inside the horizon of {problem.steps}"
    return None


def has_block(pool: Pool, gpus: int) -> bool:
    """Whether the empty pool has any legal block of this size."""
    return pool.allows(0, gpus)
