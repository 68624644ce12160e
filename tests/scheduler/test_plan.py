"""The plan file, the version that ties a plan to its input, and the one front for planners."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems, random_problem

from tidegrid.errors import InputError
from tidegrid.scheduler import (
    BASELINES,
    AppCells,
    IllegalPlanError,
    Placement,
    Plan,
    Problem,
    StalePlanError,
    explain,
    modes,
    register_mode,
    require_current,
    solve,
)
from tidegrid.scheduler.generate_clusters import random_cluster
from tidegrid.scheduler.solve import _MODES


@given(problems(), st.sampled_from(BASELINES))
def test_a_plan_survives_its_json(problem: Problem, mode: str) -> None:
    plan = solve(problem, mode).with_extra(note={"kept": [1, None]})
    data = json.loads(json.dumps(plan.to_dict()))
    again = Plan.from_dict(data)
    assert again.to_dict() == data
    assert (again.placements, again.metrics, again.extra) == (plan.placements, plan.metrics, plan.extra)


def test_a_plan_survives_its_file_with_explanations(tmp_path: Path) -> None:
    problem = random_problem(7, jobs=(6, 6), apps=(1, 1))
    explain(problem, solve(problem, "fifo")).write(tmp_path / "plan.json")
    plan = Plan.read(tmp_path / "plan.json")
    assert {told["job"] for told in plan.extra["explanations"]} == {job.id for job in problem.jobs}
    plan.write(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plan.json").read_bytes()


def test_the_grid_is_the_same_facts_as_a_picture() -> None:
    problem = Problem.from_dict(
        {
            "steps": 2, "decay": 1, "shortfall_weight": 1,
            "pools": [{"id": "p", "gpus": 3}],
            "jobs": [{"id": "a", "priority": 1, "order": 0, "shapes": [{"pool": "p", "gpus": 2, "steps": 1}]}],
            "apps": [{"id": "chat", "pool": "p", "priority": 1, "demand": [1, 2]}],
        }
    )  # fmt: skip
    plan = Plan.of(problem, "hand", [Placement("a", "p", 0, 2, 0, 1)], [AppCells("chat", [[2], [1, 2]])])
    assert plan.grid == {"p": [["a", None], ["a", "chat"], ["chat", "chat"]]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"placements": None}, "placements"),
        ({"placements": [{"job": "a"}]}, "placements[0].pool: is missing"),
        (
            {"placements": [{"job": "a", "pool": "p", "first_gpu": 0.5, "gpus": 1, "start": 0, "steps": 1}]},
            "placements[0].first_gpu",
        ),
        ({"apps": [{"app": "chat", "cells": [["x"]]}]}, "apps[0].cells[0]: is not a list of GPU indices"),
        ({"apps": [7]}, "apps[0]: is not a JSON object"),
        ({"metrics": {"value": "high"}}, "metrics.value: is not a number"),
        ({"grid": {"p": 3}}, "grid: is not lists of lists by pool"),
        ({"version": 9}, "version: 9 is not known"),
        ({"problem_sha256": 5}, "problem_sha256: is not text"),
    ],
)
def test_a_file_that_is_no_plan_names_the_field(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"version": 1, "mode": "x", "placements": [], "apps": [], **change}))
    with pytest.raises(InputError, match=r"plan\.json") as caught:
        Plan.read(path)
    assert message in str(caught.value)


def test_a_plan_over_a_newer_input_is_refused() -> None:
    """A plan carries its input's version; the input changed while the planner ran (case P11)."""
    before = random_problem(1, jobs=(3, 3))
    plan = solve(before, "fifo")
    require_current(plan, before)
    data = before.to_dict()
    data["jobs"][0]["priority"] += 1
    with pytest.raises(StalePlanError, match="plan again"):
        require_current(plan, Problem.from_dict(data))
    with pytest.raises(StalePlanError, match="no stated input"):
        require_current(Plan("hand", (), ()), before)


def test_an_unknown_mode_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="'magic' is not a mode; write one of fast, full, fifo"):
        solve(random_problem(1), "magic")


def test_a_mode_that_cannot_plan_a_version_says_so() -> None:
    register_mode("old", lambda problem, **_: Plan.of(problem, "old", [], []), version=1)
    try:
        with pytest.raises(
            InputError, match=r"mode old cannot plan a problem of version 2; write one of fast, .*fifo"
        ):
            solve(random_cluster(1), "old")
    finally:
        _MODES.pop("old")


def test_an_illegal_plan_never_leaves() -> None:
    """A planner with a defect is stopped at the front."""
    register_mode("careless", lambda problem, **_: Plan.of(problem, "careless", [], []))
    try:
        with pytest.raises(IllegalPlanError, match="app app-0 is missing"):
            solve(random_problem(3, apps=(1, 1)), "careless")
    finally:
        _MODES.pop("careless")
    assert "careless" not in modes()


@pytest.mark.parametrize(
    "options", [{"time_limit": -1.0}, {"time_limit": float("nan")}, {"seed": -1}, {"seed": 1 << 40}]
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"time_limit|seed"):
        solve(random_problem(1), "fifo", **options)


def test_numbers_beyond_any_index_are_refused() -> None:
    """A plan from elsewhere cannot make the checker overflow."""
    far = {"job": "a", "pool": "p", "first_gpu": 0, "gpus": -(10**400), "start": 0, "steps": 1}
    with pytest.raises(InputError, match=r"placements\[0\].gpus: is out of range"):
        Plan.from_dict({"placements": [far], "apps": []})
    with pytest.raises(InputError, match=r"apps\[0\].cells\[0\]: is out of range"):
        Plan.from_dict({"placements": [], "apps": [{"app": "chat", "cells": [[10**30]]}]})
    with pytest.raises(InputError, match=r"metrics\.value: is not a number"):
        Plan.from_dict({"placements": [], "apps": [], "metrics": {"value": 10**400}})
