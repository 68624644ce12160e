"""Our checker and the contract's own give one verdict and one set of figures, on good plans and broken ones."""

import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from naive_planner import naive_plan
from strategies import break_plan, broken_plans, problems

from tidegrid.scheduler import BASELINES, AppCells, Placement, Plan, Problem, check, is_legal, modes, solve
from tidegrid.scheduler.generate import SeededChooser, random_problem
from tidegrid.scheduler.generate_clusters import FAMILIES, random_cluster

PLANS = 2_500 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 60
"""Random plans of each family that both checkers judge."""

QUICK = [mode for mode in modes() if mode != "full"]
"""Every registered mode that answers in milliseconds; ``full`` has tests of its own."""


def same_judgement(problem: Problem, plan: dict[str, Any], contract_check: Any) -> bool:
    """Assert that both checkers agree; return whether the plan is legal."""
    ours, found = check(problem, Plan.from_dict(plan))
    try:
        theirs, figures = contract_check(problem.to_dict(), plan)
    except (ValueError, IndexError, ZeroDivisionError):
        # of no GPUs, or of no steps: the contract's checker calls such a plan unreadable
        assert ours
        return False
    assert bool(ours) == bool(theirs), (ours, theirs)
    assert found == pytest.approx(figures, rel=1e-9, abs=1e-9)
    return not ours


@given(problems(), st.sampled_from(QUICK))
def test_both_checkers_call_every_mode_legal(contract_check: Any, problem: Problem, mode: str) -> None:
    plan = solve(problem, mode)
    assert same_judgement(problem, json.loads(json.dumps(plan.to_dict())), contract_check)


@given(st.data(), problems(jobs=(1, 8), gpus=(1, 8), steps=(1, 10), apps=(0, 2)))
def test_both_checkers_agree_on_broken_plans(
    contract_check: Any, data: st.DataObject, problem: Problem
) -> None:
    plan = solve(problem, data.draw(st.sampled_from(BASELINES))).to_dict()
    same_judgement(problem, data.draw(broken_plans(plan)), contract_check)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_checkers_agree_on_plans_of_version_2(contract_check: Any, family: str) -> None:
    for seed in range(PLANS):
        choose = SeededChooser(seed)
        problem = random_cluster(seed, family, jobs=(1, 8), steps=(4, 10), nodes=(1, 3))
        plan = json.loads(json.dumps(naive_plan(problem, choose, 2).to_dict()))
        assert same_judgement(problem, plan, contract_check)
        same_judgement(problem, break_plan(plan, choose), contract_check)


@pytest.mark.parametrize("family", FAMILIES)
def test_random_clusters_are_valid_and_their_plans_come_back_from_files(family: str) -> None:
    for seed in range(40):
        problem = random_cluster(seed, family)
        assert Problem.from_dict(problem.to_dict()).sha256 == problem.sha256
        plan = naive_plan(problem, SeededChooser(seed))
        again = Plan.from_dict(json.loads(json.dumps(plan.to_dict())))
        assert again.placements == plan.placements and again.version == 2
        assert check(problem, again)[1] == check(problem, plan)[1]


def test_every_kind_of_break_is_met_by_some_broken_plan(contract_check: Any) -> None:
    """The breaks of the property test do break plans, so that its agreement means something."""
    from strategies import BREAKS, break_plan

    from tidegrid.scheduler.generate import SeededChooser

    class One(SeededChooser):
        def __init__(self, seed: int, how: str) -> None:
            super().__init__(seed)
            self.how = how

        def pick(self, options: Any) -> Any:
            return self.how if options is BREAKS else super().pick(options)

    broken = dict.fromkeys(BREAKS, 0)
    for seed in range(25):
        problem = random_problem(seed, jobs=(3, 8), apps=(1, 2), steps=(4, 12))
        plan = solve(problem, "easy").to_dict()
        for how in BREAKS:
            broken[how] += not same_judgement(problem, break_plan(plan, One(seed, how)), contract_check)
    assert min(broken.values()) > 0, broken


def tiny(**changes: Any) -> Problem:
    data: dict[str, Any] = {
        "steps": 3,
        "decay": 0.5,
        "shortfall_weight": 10,
        "pools": [{"id": "p", "gpus": 4, "node_size": None}],
        "jobs": [
            {"id": "a", "priority": 2, "order": 0, "shapes": [{"pool": "p", "gpus": 2, "steps": 5}]},
            {"id": "b", "priority": 1, "order": 1, "shapes": [{"pool": "p", "gpus": 1, "steps": 1}]},
        ],
        "apps": [
            {"id": "chat", "pool": "p", "priority": 3, "demand": [1, 2, 1, 3, 1], "held": [3], "swap_cap": 1}
        ],
    }
    return Problem.from_dict({**data, **changes})


def test_figures_follow_the_contract_by_hand() -> None:
    """One job outruns the horizon, the app is short once inside it and once past it."""
    problem = tiny()
    cells = (AppCells("chat", ((3,), (3,), (3, 2))),)
    plan = Plan.of(problem, "hand", [Placement("a", "p", 0, 2, 0, 5), Placement("b", "p", 2, 1, 0, 1)], cells)
    violations, figures = check(problem, plan)
    assert violations == []
    assert figures == {
        # 2 GPUs × 3 steps + 1, and the app's 1 + 1 + 1 of demand, of 12 cells
        "utilization": (7 + 3) / 12,
        "value": 2 * 2 * (1 + 0.5 + 0.25) + 1,
        # step 1 lacks 1 GPU; at step 3 demand 3 meets 2 GPUs that the tail leaves free
        "penalty": 10 * 3 * (0.5 * 1 + 0.125 * 1),
        "objective": 8.0 - 18.75,
        "shortfall": 2,
        "swaps": 1,
        "placed": 2,
        "jobs": 2,
    }


@pytest.mark.parametrize(
    ("placements", "cells", "message"),
    [
        (
            [("a", "p", 0, 2, 0, 5), ("b", "p", 1, 1, 0, 1)],
            [[3]] * 3,
            "rule 1: p GPU 1 step 0 serves both a and b",
        ),
        ([("a", "p", 2, 2, 0, 5)], [[3]] * 3, "rule 1: p GPU 3 step 0 serves both a and chat"),
        ([("a", "p", 0, 2, 0, 4)], [[3]] * 3, "rule 2: a has no shape of 2 GPUs for 4 steps in p"),
        ([("a", "p", 0, 2, 3, 5)], [[3]] * 3, "rule 2: a starts at 3"),
        ([("b", "p", 4, 1, 0, 1)], [[3]] * 3, "rule 3: b lies outside p"),
        ([("a", "p", 0, 2, 0, 5)] * 2, [[3]] * 3, "rule 2: a is placed twice"),
        ([("x", "p", 0, 2, 0, 5)], [[3]] * 3, "unknown job x"),
        ([], [[3], [1, 2], [1, 2]], "rule 4: app chat swaps 3 GPUs at step 1, over its cap 1"),
        ([], [[3], [3]], "app chat has 2 steps, not 3"),
        ([], [[3], [3, 3], [3]], "app chat step 1 lists a GPU twice"),
    ],
)
def test_each_breach_is_named(placements: list[Any], cells: list[list[int]], message: str) -> None:
    problem = tiny()
    plan = Plan.of(problem, "hand", [Placement(*p) for p in placements], [AppCells("chat", cells)])
    assert message in check(problem, plan)[0]
    assert not is_legal(problem, plan)


def test_a_dropped_running_job_and_a_missing_app_are_named() -> None:
    running = {"pool": "p", "first_gpu": 0, "gpus": 1, "remaining": 2}
    problem = tiny(jobs=[{"id": "a", "priority": 2, "order": 0, "running": running}])
    violations, _ = check(problem, Plan.of(problem, "hand", [], []))
    assert violations == ["rule 2: running job a is dropped", "app chat is missing from the plan"]


def test_a_false_figure_and_a_false_picture_are_named() -> None:
    problem = tiny()
    plan = Plan.of(problem, "hand", [], [AppCells("chat", [[3]] * 3)])
    data = plan.to_dict()
    data["metrics"] = {"value": 7}
    data["grid"]["p"][0][1] = "a"
    assert check(problem, Plan.from_dict(data))[0] == [
        "grid p GPU 0 step 1 says a, the plan None",
        "metric value is stated as 7, recomputed as 0.0",
    ]
