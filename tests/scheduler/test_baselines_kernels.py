"""The baselines' compiled queues against the plain ones."""

import pytest
from queue_model import model_plan

from tidegrid.scheduler import BASELINES
from tidegrid.scheduler.baselines import plan_baseline
from tidegrid.scheduler.generate import random_problem
from tidegrid.scheduler.generate_clusters import FAMILIES, random_cluster


@pytest.mark.parametrize("family", [*FAMILIES, "version 1"])
def test_compiled_queues_do_what_the_plain_ones_do(family: str) -> None:
    """The same shapes, starts, GPUs and replicas, past the horizon too."""
    for seed in range(12):
        problem = (
            random_problem(seed) if family == "version 1" else random_cluster(seed, family, jobs=(2, 20))
        )
        for mode in BASELINES:
            plan = plan_baseline(problem, mode)
            jobs, cells = model_plan(problem, mode)
            inside = {job: place for job, place in jobs.items() if place[1] < problem.steps}
            waiting = [p for p in plan.placements if problem.job_by_id[p.job].running is None]
            assert {p.job: (p.pool, p.start, p.steps, list(p.ids)) for p in waiting} == inside
            assert {
                one["job"]: (one["pool"], one["start"], one["steps"]) for one in plan.extra["expected"]
            } == {job: place[:3] for job, place in jobs.items() if job not in inside}
            held = {
                a.app: [[[g] if isinstance(g, int) else [*g] for g in one] for one in a.cells]
                for a in plan.apps
            }
            assert held == cells
