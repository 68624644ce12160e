"""What one plan changed against another, and what each change earned."""

from typing import Any

from tidegrid.scheduler.coverage import past_horizon, tail_use
from tidegrid.scheduler.formal.terms import Column, Terms
from tidegrid.scheduler.plan import Placement, Plan
from tidegrid.scheduler.problem import Problem


def changes(problem: Problem, before: Plan, after: Plan) -> list[dict[str, Any]]:
    """Compare two plans of a problem, job by job and app by app.

    Returns
    -------
    list of dict
        ``job`` with ``from`` and ``to`` (pool, first_gpu, gpus, start, steps; None where it waits) for each
        job whose block moved, and ``app`` for each app whose penalty changed; ``earned`` is what the change
        added to the objective. The sum of ``earned`` is the difference of the objectives.
    """
    terms = Terms(problem)
    found: list[dict[str, Any]] = []
    for job in problem.jobs:
        old, new = before.placement_by_job.get(job.id), after.placement_by_job.get(job.id)
        if old != new:
            rewards = [
                terms.reward(job, Column(p.pool, p.gpus, p.steps, p.start)) if p else 0.0 for p in (old, new)
            ]
            found.append(
                {"job": job.id, "from": _place(old), "to": _place(new), "earned": rewards[1] - rewards[0]}
            )
    penalties = [_penalties(terms, plan) for plan in (before, after)]
    for app in problem.apps:
        earned = penalties[0][app.id] - penalties[1][app.id]
        if abs(earned) > 1e-9 * max(1.0, abs(penalties[0][app.id])):
            found.append({"app": app.id, "earned": earned})
    return found


def _place(p: Placement | None) -> dict[str, Any] | None:
    return None if p is None else {k: v for k, v in p._asdict().items() if k != "job"}


def _penalties(terms: Terms, plan: Plan) -> dict[str, float]:
    """Penalty of each app, what tails take past the horizon included."""
    found = dict.fromkeys((app.id for app in terms.problem.apps), 0.0)
    for name, cells in plan.apps:
        app = terms.problem.app_by_id[name]
        for t, held in enumerate(cells):
            found[name] += terms.charge(app.priority, t) * max(0, app.demand[t] - len(held))
    for name, t, cut in past_horizon(terms.problem, tail_use(terms.problem, plan)):
        found[name] += terms.charge(terms.problem.app_by_id[name].priority, t) * cut
    return found
