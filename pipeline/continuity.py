"""From decision to decision: while nothing but time has passed, what was told keeps its time."""

import math
from dataclasses import dataclass
from typing import Any

import pandas as pd

from tidegrid.scheduler import AppCells, Placement, Plan, Problem, check, solve
from tidegrid.scheduler.problem import flat

TOLD_FIRST = 1000.0
"""By how much a place that was told outweighs a new one: more than any priorities differ."""


@dataclass(frozen=True)
class Kept:
    """An earlier decision: its instant, its problem and its plan."""

    now: pd.Timestamp
    problem: Problem
    plan: Plan


def promised(last: Kept, now: pd.Timestamp, problem: Problem) -> dict[str, int]:
    """Return the step in which each waiting job was told to start, by id: no step before the one that begins now."""
    step = pd.Timedelta(minutes=problem.step_minutes)
    passed = (now - last.now) / step
    of_old = last.problem.step_minutes / problem.step_minutes
    out = {}
    for placed in last.plan.placements:
        job = problem.job_by_id.get(placed.job)
        if job is not None and job.running is None:
            out[placed.job] = max(0, math.ceil(placed.start * of_old - passed - 1e-9))
    return out


def continued(
    last: Kept, now: pd.Timestamp, problem: Problem, seed: int, options: dict[str, Any]
) -> Plan | None:
    """Return the last plan moved on by the steps that have passed, with what can be placed beside it.

    None where anything but time has passed: a job came, went, started or ended otherwise than planned, or its expected
    length or an app's demand changed. The planner is then free.
    """
    passed = (now - last.now) / pd.Timedelta(minutes=problem.step_minutes)
    if passed != int(passed) or passed < 0 or last.problem.step_minutes != problem.step_minutes:
        return None
    k = int(passed)
    spots = {p.job: p._replace(start=p.start - k) for p in last.plan.placements}
    if not _unchanged(last, problem, spots, k):
        return None
    document = problem.to_dict()
    placed = []
    for job in document["jobs"]:
        spot = spots.get(job["id"])
        if spot is None:
            continue
        if job["running"] is not None:
            placed.append(spot._replace(start=0, steps=job["running"]["remaining"]))
            continue
        placed.append(spot)
        job["shapes"] = [_pinned(shape, spot) for shape in job["shapes"] if _is_of(shape, spot)][:1]
        job["earliest"], job["deadline"] = spot.start, spot.start + spot.steps
        job.pop("requested", None)
        # what was told comes before all that is new
        job["priority"] *= TOLD_FIRST
    pinned = Problem.from_dict(document)
    warm = Plan.of(pinned, "fast", placed, _cells(last, problem, placed, k))
    found = solve(pinned, "fast", seed=seed, warm_start=warm, **options)
    plan = Plan.of(problem, "fast", found.placements, found.apps, **found.extra)
    violations, figures = check(problem, plan)
    kept = {p.job: p.start for p in plan.placements}
    if violations or any(kept.get(p.job) != p.start for p in placed):
        return None
    return plan.with_metrics(figures)


def _is_of(shape: dict[str, Any], spot: Placement) -> bool:
    return (shape["pool"], shape["gpus"], shape["steps"]) == (spot.pool, spot.gpus, spot.steps)


def _pinned(shape: dict[str, Any], spot: Placement) -> dict[str, Any]:
    """Return a shape that can lie nowhere but on the GPUs of its spot."""
    runs: list[list[int]] = []
    for gpu in spot.ids:
        if runs and sum(runs[-1]) == gpu:
            runs[-1][1] += 1
        else:
            runs.append([gpu, 1])
    return {**shape, "within": runs}


def _unchanged(last: Kept, problem: Problem, spots: dict[str, Placement], k: int) -> bool:
    for job in problem.jobs:
        before, spot = last.problem.job_by_id.get(job.id), spots.get(job.id)
        if before is None:
            return False
        if job.running is not None:
            if spot is None or (spot.pool, tuple(spot.ids)) != (job.running.pool, tuple(job.running.ids)):
                return False
            if (
                max(1, spot.start + spot.steps) != job.running.remaining
                and spot.steps != job.running.remaining
            ):
                return False
        elif (before.shapes, before.after, before.work) != (job.shapes, job.after, job.work) or (
            spot is not None and spot.start < 0
        ):
            return False
    if last.problem.tenants != problem.tenants or last.problem.groups != problem.groups:
        return False
    here = {job.id for job in problem.jobs}
    # a job that is gone must have ended when it was planned to
    if any(job not in here and spot.start + spot.steps > 0 for job, spot in spots.items()):
        return False
    if any(job.id not in here and job.id not in spots for job in last.problem.jobs):
        return False
    for app in problem.apps:
        old = last.problem.app_by_id.get(app.id)
        if old is None or list(old.demand[k : problem.steps]) != list(app.demand[: problem.steps - k]):
            return False
    return True


def _cells(last: Kept, problem: Problem, placed: list[Placement], k: int) -> list[AppCells]:
    """Return the apps' GPUs moved on by ``k`` steps; steps that are new hold what the last one did, beside jobs."""
    pools = {app.id: app.pool for app in problem.apps}
    out = []
    for name, cells in last.plan.apps:
        moved = [list(held) for held in cells[k:]]
        while len(moved) < problem.steps:
            t = len(moved)
            taken = {gpu for p in placed if p.pool == pools[name] and p.start <= t < p.end for gpu in p.ids}
            moved.append([one for one in (moved[-1] if moved else []) if taken.isdisjoint(flat([one]))])
        out.append(AppCells(name, moved))
    return out
