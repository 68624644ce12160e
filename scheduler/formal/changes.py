"""What one plan changed against another, and what each change earned."""

from typing import Any

from tidegrid.scheduler.coverage import past_horizon, tail_use
from tidegrid.scheduler.formal.terms import Terms
from tidegrid.scheduler.plan import Placement, Plan
from tidegrid.scheduler.problem import Problem


def changes(problem: Problem, before: Plan, after: Plan) -> list[dict[str, Any]]:
    """Compare two plans of a problem, job by job and app by app.

    Returns
    -------
    list of dict
        ``job`` with ``from`` and ``to`` (pool, first_gpu, gpus, start, steps; None where it waits) for each
        job whose place moved, and ``app`` for each app whose penalty or cost changed; ``earned`` is what the change
        added to the objective, costs counted. The sum of ``earned`` is the difference of the objectives.
    """
    terms = Terms(problem)
    found: list[dict[str, Any]] = []
    for job in problem.jobs:
        old, new = before.placement_by_job.get(job.id), after.placement_by_job.get(job.id)
        if _where(problem, old) != _where(problem, new):
            rewards = [terms.reward(job, terms.column_at(job, p)) if p else 0.0 for p in (old, new)]
            found.append(
                {"job": job.id, "from": _place(old), "to": _place(new), "earned": rewards[1] - rewards[0]}
            )
    losses = [_losses(terms, plan) for plan in (before, after)]
    for app in problem.apps:
        earned = losses[0][app.id] - losses[1][app.id]
        if abs(earned) > 1e-9 * max(1.0, abs(losses[0][app.id])):
            found.append({"app": app.id, "earned": earned})
    return found


def _where(problem: Problem, p: Placement | None) -> tuple[Any, ...] | None:
    """What tells a place from another: GPUs of a node are alike where placement is by node."""
    if p is None:
        return None
    pool = problem.pool_by_id[p.pool]
    node = (pool.node_size or 1) if pool.by_node else 1
    return p.pool, p.start, p.steps, tuple(sorted(gpu // node for gpu in p.ids))


def _place(p: Placement | None) -> dict[str, Any] | None:
    if p is None:
        return None
    place = {k: v for k, v in p._asdict().items() if k != "job"}
    if p.gpu_ids is None:
        del place["gpu_ids"]
    return place


def _losses(terms: Terms, plan: Plan) -> dict[str, float]:
    """Penalty of each app, what tails take past the horizon included, and what entering costs it."""
    found = dict.fromkeys((app.id for app in terms.problem.apps), 0.0)
    for name, cells in plan.apps:
        app = terms.problem.app_by_id[name]
        before = {tuple(sorted(one)) for one in app.held_replicas}
        for t, held in enumerate(cells):
            now = {(one,) if isinstance(one, int) else tuple(sorted(one)) for one in held}
            gpus = app.replica * len(now)
            found[name] += terms.charge(app, t) * max(0, app.demand[t] - gpus)
            found[name] += terms.below(app, t) * max(0, min(app.demand[t], app.floor) - gpus)
            found[name] += terms.entry(app, t) * app.replica * len(now - before)
            before = now
    for name, t, cut in past_horizon(terms.problem, tail_use(terms.problem, plan)):
        found[name] += terms.charge(terms.problem.app_by_id[name], t) * cut
    return found
