"""What a user is told of a job is true of the plan: ways to start sooner are legal beside all that is planned."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegrid.pipeline.outlook import Kept, Outlook
from tidegrid.scheduler import Problem, solve
from tidegrid.scheduler.baselines.board import Board
from tidegrid.scheduler.baselines.places import mask_of
from tidegrid.scheduler.generate import random_problem
from tidegrid.scheduler.generate_clusters import random_cluster

NOW = "2026-03-02T00:00:00+00:00"


def outlook(problem: Problem) -> tuple[Outlook, Any]:
    """The last decision of a store, as if this problem had been planned."""
    plan = solve(problem, "fast", rounds=0)
    waiting = [job.id for job in problem.jobs if job.running is None]
    document = {
        "now": NOW, "timezone": "UTC", "start": [],
        "waiting": [{"job": job, "start": None, "reason": ""} for job in waiting],
    }  # fmt: skip
    return Outlook(Kept(document, problem.to_dict(), plan.to_dict(), {}, ())), plan


def board_without(problem: Problem, plan: Any, job: str) -> Board:
    """All that is planned but for one job."""
    board = Board(problem)
    for p in plan.placements:
        stated = problem.job_by_id[p.job]
        if stated.running is None and p.job != job:
            counted = board.counted(stated, p.pool, p.gpus)
            board.take(p.pool, mask_of(p.ids), p.start, p.start + p.steps, counted)
    pool_of = {app.id: app.pool for app in problem.apps}
    for entry in plan.apps:
        for t, cells in enumerate(entry.cells):
            flat = [gpu for one in cells for gpu in (one if isinstance(one, tuple | list) else [one])]
            if flat:
                board.take(pool_of[entry.app], mask_of(flat), t, t + 1)
    return board


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 10_000), nodes=st.booleans())
def test_every_way_to_start_sooner_is_legal_beside_all_that_is_planned(seed: int, nodes: bool) -> None:
    problem = random_cluster(seed) if nodes else random_problem(seed, steps=(4, 24), jobs=(4, 14))
    told, plan = outlook(problem)
    step_h = problem.step_minutes / 60
    for job in problem.jobs:
        if job.running is not None:
            continue
        (found,) = told.told(job.id)
        placed = plan.placement_by_job.get(job.id)
        for way in found.sooner:
            at = round((way.start - told.now).total_seconds() / 3600 / step_h)
            assert placed is None or at < placed.start
            steps = max(1, math.ceil(way.hours / step_h - 1e-9))
            document = problem.to_dict()
            stated = next(one for one in document["jobs"] if one["id"] == job.id)
            by_node = problem.pool_by_id[way.pool].placement == "node"
            gpus = way.gpus if by_node else 1 << (way.gpus - 1).bit_length()
            stated |= {"shapes": [{"pool": way.pool, "gpus": gpus, "steps": steps}], "deadline": None}
            stated |= {"finish_inside": False}
            for name in ("requested", "work"):
                stated.pop(name, None)
            if by_node:
                stated["shapes"][0]["nodes"] = way.nodes
            other = Problem.from_dict(document)
            board = board_without(other, plan, job.id)
            ask = board.ask(other.job_by_id[job.id], other.job_by_id[job.id].shapes[0])
            assert ask is not None
            # past the horizon nothing is told of who is where
            inside = ask._replace(steps=min(ask.steps, problem.steps - at))
            assert board.at(inside, at) != 0, (seed, job.id, asdict(way))


def limited(limit: int | None) -> Problem:
    """One node of 8 GPUs, of which a tenant's running job holds 4; another job of 4 of the same tenant waits."""
    jobs = [
        {"id": "runs", "kind": "training", "priority": 5, "tenant": "nlp", "order": 0,
         "shapes": [{"pool": "a", "gpus": 4, "steps": 6}],
         "running": {"pool": "a", "gpu_ids": [0, 1, 2, 3], "remaining": 6}},
        {"id": "waits", "kind": "training", "priority": 5, "tenant": "nlp", "order": 0,
         "shapes": [{"pool": "a", "gpus": 8, "steps": 2}]},
    ]  # fmt: skip
    document: dict[str, Any] = {
        "version": 2, "step_minutes": 60, "steps": 12, "decay": 0.98, "start": NOW, "shortfall_weight": 8.0,
        "pools": [{"id": "a", "gpus": 8, "node_size": 8, "placement": "node"}], "jobs": jobs, "apps": [],
    }  # fmt: skip
    if limit is not None:
        document["tenants"] = [{"id": "nlp", "limit": limit}]
    return Problem.from_dict(document)


@pytest.mark.parametrize(("limit", "sizes"), [(None, [1, 2, 4]), (8, [1, 2, 4]), (6, [1, 2]), (4, [])])
def test_fewer_gpus_are_told_as_sooner_only_where_the_tenant_has_room_for_them(
    limit: int | None, sizes: list[int]
) -> None:
    told, _ = outlook(limited(limit))
    (found,) = told.told("waits")
    now = [way.gpus for way in found.sooner if way.start == told.now]
    assert sorted(now) == sizes


def test_a_line_without_a_free_block_has_no_place_for_one() -> None:
    """GPUs 1 to 4 and 6, 7 are free of two nodes of four: two blocks of two, and none of four."""
    from tidegrid.pipeline.outlook import _has_block

    free = np.array([0, 1, 1, 1, 1, 0, 1, 1], dtype=bool)
    assert _has_block(free, 2, 4)
    assert not _has_block(free, 3, 4)
    assert not _has_block(free, 4, 4)
    assert _has_block(free, 4, 8)
    assert not _has_block(free, 8, 4)
