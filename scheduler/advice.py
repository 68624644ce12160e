"""Which of the tasks that are in a job's way would let it start sooner if they were not there: by planning again."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tidegrid.scheduler.plan import Plan
from tidegrid.scheduler.problem import Problem
from tidegrid.scheduler.solve import solve

MOST_TRIED = 40
"""The tasks without which a problem is planned again, those first that most jobs wait for."""

SEEDS = (0, 1, 2)
"""A job starts sooner where it does so in a plan of each of these: a planner's luck is no reason."""


def replanned(
    problem: Problem, plan: Plan, explanations: Iterable[Mapping[str, Any]], mode: str = "fast"
) -> list[dict[str, Any]]:
    """Return explanations with, for each blocker, whether the job starts sooner when all is planned without it.

    That a blocker's GPUs would be enough (``alone``) is not all: a plan without it may give them to another job.

    Parameters
    ----------
    problem, plan
        What was planned, and how.
    explanations
        As :func:`tidegrid.scheduler.explain` makes them.
    mode
        The planner that plans again.

    Returns
    -------
    list of dict
        Each ``blockers`` entry has a further key ``sooner``: true or false; None for one that was not tried, which is
        one that is in the way only jointly with others, or one past the first ``MOST_TRIED`` tasks.
    """
    told = [dict(one) for one in explanations]
    named = Counter(b["task"] for one in told for b in one["blockers"] if b["alone"])
    starts: dict[str, dict[str, int]] = {}
    for task, _ in sorted(named.items(), key=lambda item: (-item[1], item[0]))[:MOST_TRIED]:
        rest = _without(problem, task)
        plans = [{p.job: p.start for p in solve(rest, mode, seed=seed).placements} for seed in SEEDS]
        starts[task] = {job: max(plan_.get(job, problem.steps) for plan_ in plans) for job in rest.job_by_id}
    for one in told:
        placed = plan.placement_by_job.get(one["job"])
        before = problem.steps if placed is None else placed.start
        one["blockers"] = [
            {
                **b,
                "sooner": starts[b["task"]].get(one["job"], before) < before
                if b["alone"] and b["task"] in starts
                else None,
            }
            for b in one["blockers"]
        ]
    return told


def _without(problem: Problem, task: str) -> Problem:
    """Return the problem without a job or an app; who comes after the job need not wait for it."""
    document = problem.to_dict()
    for kind in ("jobs", "apps"):
        document[kind] = [one for one in document[kind] if one["id"] != task]
    for job in document["jobs"]:
        if task in (job.get("after") or ()):
            job["after"] = [name for name in job["after"] if name != task]
    return Problem.from_dict(document)
