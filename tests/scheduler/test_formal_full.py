"""Full mode: never below the fast plan, legal, reproducible, and honest about what it did."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import clusters, problems

from tidegrid.errors import InputError
from tidegrid.scheduler import Placement, Plan, Pool, Problem, check, solve
from tidegrid.scheduler.formal import changes, parts, time_to_objective
from tidegrid.scheduler.formal import full as full_module
from tidegrid.scheduler.formal import search as search_module
from tidegrid.scheduler.formal.model import Facts
from tidegrid.scheduler.formal.run import Answer, Run
from tidegrid.scheduler.generate import random_problem
from tidegrid.scheduler.generate_clusters import FAMILIES, random_cluster

SMALL = {"pools": (1, 2), "gpus": (1, 8), "steps": (1, 8), "jobs": (0, 8), "apps": (0, 2)}


def full(problem: Problem, deterministic_time: float = 0.3, **options: Any) -> Plan:
    return solve(problem, mode="full", deterministic_time=deterministic_time, **options)


def waves(horizon: int) -> Problem:
    """Case P4: 19 jobs of equal priority that leave one of 384 cells empty."""
    sizes = [(4, 16)] + [(2, 16)] * 6 + [(1, 16)] * 2 + [(1, steps) for steps in range(14, 4, -1)]
    jobs = [
        {"id": f"j{i}", "kind": "training", "priority": 5, "order": i, "finish_inside": True,
         "shapes": [{"pool": "p", "gpus": gpus, "steps": steps}]}
        for i, (gpus, steps) in enumerate(sizes)
    ]  # fmt: skip
    return Problem.from_dict(
        {"steps": horizon, "decay": 0.98, "shortfall_weight": 8, "pools": [{"id": "p", "gpus": 4}], "jobs": jobs,
         "apps": []}
    )  # fmt: skip


def contended(seed: int = 3) -> Problem:
    return random_problem(
        seed, pools=(1, 1), gpus=(8, 8), steps=(16, 16), jobs=(12, 12), apps=(1, 1), plain=True
    )


def by_node() -> Problem:
    return random_cluster(7, "nodes", pools=(1, 1), nodes=(2, 3), steps=(12, 12), jobs=(12, 12), apps=(1, 1))


@pytest.fixture
def no_longer_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the whole way from the fast plan up to the models."""
    monkeypatch.setattr(search_module, "LONGER_ROUNDS", 0)


CLUSTERS = clusters(nodes=(1, 3), steps=(2, 8), jobs=(0, 8), apps=(0, 2))


@settings(max_examples=20)
@given(problems(**SMALL) | CLUSTERS)
def test_full_is_legal_never_below_fast_and_never_above_its_bound(problem: Problem) -> None:
    fast = solve(problem)
    plan = full(problem, 0.2)
    violations, found = check(problem, plan)
    assert not violations
    assert found["objective"] >= fast.metrics["objective"] - 1e-9 * max(1, abs(fast.metrics["objective"]))
    solver = plan.extra["solver"]
    assert found["objective"] <= solver["bound"]
    assert solver["trouble"] is None
    json.dumps(plan.to_dict(), allow_nan=False)


@settings(max_examples=20)
@given(problems(**SMALL) | CLUSTERS)
def test_what_the_changes_earned_adds_up_to_the_gain(problem: Problem) -> None:
    """`earned` of moved jobs and of apps accounts for the whole difference of the objectives."""
    before, after = solve(problem, mode="fifo"), full(problem, 0.2)
    earned = sum(change["earned"] for change in changes(problem, before, after))
    gain = after.metrics["objective"] - before.metrics["objective"]
    assert earned == pytest.approx(gain, abs=1e-6 * max(1, abs(before.metrics["objective"])))


def test_the_contracts_checker_agrees(contract_check: Callable[..., Any]) -> None:
    for seed in range(4):
        problem = random_problem(seed)
        violations, _ = contract_check(problem.to_dict(), full(problem, 0.2).to_dict())
        assert violations == []


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_planned_legally(contract_check: Callable[..., Any], family: str) -> None:
    for seed in range(3):
        problem = random_cluster(seed, family, nodes=(1, 3), steps=(4, 10), jobs=(2, 9))
        plan = full(problem, 0.3)
        assert plan.extra["solver"]["trouble"] is None
        assert contract_check(problem.to_dict(), plan.to_dict())[0] == [], seed


@pytest.mark.usefixtures("no_longer_search")
def test_full_improves_on_a_poor_start_and_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    """From first-in-first-out as the start, so that the test does not hang on how good fast is."""
    problem = contended()
    monkeypatch.setattr(full_module, "solve", lambda problem, mode, seed: solve(problem, mode="fifo"))
    plan = full(problem, 2.0)
    solver = plan.extra["solver"]
    assert solver["gain"] > 0
    assert plan.metrics["objective"] == pytest.approx(solver["fast_objective"] + solver["gain"])
    assert sum(change["earned"] for change in solver["changes"]) == pytest.approx(solver["gain"])
    moved = [change for change in solver["changes"] if "job" in change]
    assert moved
    assert all(change["from"] != change["to"] for change in moved)


def test_the_same_input_and_seed_give_the_same_bytes() -> None:
    problem = contended(5)
    one, two = (json.dumps(full(problem, 0.5, seed=7).to_dict()) for _ in range(2))
    assert one == two


def test_two_workers_give_a_plan_as_good_and_the_same_one_again() -> None:
    problem = by_node()
    one, two = (full(problem, 0.5, workers=2) for _ in range(2))
    assert json.dumps(one.to_dict()) == json.dumps(two.to_dict())
    assert one.metrics["objective"] >= solve(problem).metrics["objective"]


def test_the_course_of_bound_and_objective_is_told() -> None:
    """The bound falls, the objective rises, and both end at what the plan states."""
    plan = full(contended(), 1.0)
    solver = plan.extra["solver"]
    bounds, objectives = ([step[key] for step in solver["course"]] for key in ("bound", "objective"))
    assert bounds == sorted(bounds, reverse=True) and objectives == sorted(objectives)
    assert (bounds[-1], objectives[-1]) == (solver["bound"], pytest.approx(plan.metrics["objective"]))


def test_optimal_is_said_only_within_the_tolerance() -> None:
    """A wide tolerance ends the search at once; the default one is a small share of the value."""
    problem = contended()
    usual = full(problem, 0.2).extra["solver"]
    wide = full(problem, 0.2, tolerance=1e9).extra["solver"]
    assert wide["status"] == "optimal" and wide["tolerance"] == 1e9
    assert (usual["status"] == "optimal") == (
        usual["bound"] - usual["fast_objective"] - usual["gain"] <= usual["tolerance"]
    )
    assert usual["tolerance"] < 0.01


@pytest.mark.parametrize("options", [{"tolerance": -1.0}, {"workers": 0}, {"deterministic_time": -1.0}])
def test_what_cannot_be_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        solve(by_node(), mode="full", **options)  # type: ignore[arg-type]


def test_waves_all_fit() -> None:
    """Case P4: all 19 jobs inside 96 steps, where one cell is to spare."""
    plan = full(waves(96), 20.0)
    assert len(plan.placements) == 19


def test_apps_hold_no_more_than_they_serve_where_no_cap_asks_for_it() -> None:
    """A cap of 4 over a demand that moves by 1: no GPU is held beyond the demand, and no swap is wasted."""
    app = {"id": "a", "pool": "p", "priority": 8, "demand": [1, 2, 3, 2, 1, 1], "swap_cap": 4, "held": [7]}
    shapes = [{"pool": "p", "gpus": 4, "steps": 3}]
    jobs = [
        {"id": f"j{i}", "kind": "training", "priority": 3, "order": i, "shapes": shapes} for i in range(4)
    ]
    problem = Problem.from_dict(
        {"steps": 6, "decay": 0.98, "shortfall_weight": 8, "pools": [{"id": "p", "gpus": 8}], "jobs": jobs,
         "apps": [app]}
    )  # fmt: skip
    plan = full(problem, 2.0)
    assert [len(held) for held in plan.apps[0].cells] == app["demand"]
    assert plan.metrics["swaps"] == 4


@pytest.mark.usefixtures("no_longer_search")
@pytest.mark.parametrize("problem", [contended(9), by_node()], ids=["in a line", "by node"])
class TestTrouble:
    """Case P12: whatever the solver does, the fast plan comes back, flagged."""

    @staticmethod
    def assert_fast(problem: Problem, plan: Plan, trouble: str) -> None:
        fast = solve(problem)
        assert plan.placements == fast.placements
        assert plan.apps == fast.apps
        assert plan.mode == "full"
        solver = plan.extra["solver"]
        # bounds that were proven before the trouble hold, and the fast plan may meet them
        proven = solver["bound"] - plan.metrics["objective"] <= solver["tolerance"]
        assert solver["status"] == ("optimal" if proven else "fallback")
        assert trouble in solver["trouble"]
        assert solver["gain"] == 0
        assert solver["changes"] == []
        assert solver["bound"] >= plan.metrics["objective"]

    @pytest.mark.parametrize("limit", [{"time_limit": 0}, {"deterministic_time": 0.0}])
    def test_no_time(self, problem: Problem, limit: dict[str, float]) -> None:
        self.assert_fast(problem, solve(problem, mode="full", **limit), "the limit is 0")  # type: ignore[arg-type]

    @pytest.mark.parametrize("error", [RuntimeError("crashed"), MemoryError("none left"), OSError("gone")])
    def test_a_crash(self, problem: Problem, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise error

        monkeypatch.setattr(search_module, "Run", fail)
        self.assert_fast(problem, full(problem), f"{type(error).__name__}: {error}")

    def test_a_solver_that_cannot_be_loaded(self, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise ImportError("no module named ortools")

        monkeypatch.setattr(search_module, "CountModel", fail)
        self.assert_fast(problem, full(problem), "ImportError")

    @pytest.mark.parametrize("status", ["UNKNOWN", "INFEASIBLE", "MODEL_INVALID"])
    def test_no_answer(self, problem: Problem, monkeypatch: pytest.MonkeyPatch, status: str) -> None:
        monkeypatch.setattr(Run, "answer", lambda self: Answer(status, None, None, None))
        self.assert_fast(problem, full(problem), status)

    def test_an_illegal_plan_is_dropped(self, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every job is stacked on GPU 0; no such plan may get past the checker."""
        made = search_module.as_plan

        def stacked(*arguments: Any) -> Plan:
            plan = made(*arguments)
            return replace(plan, placements=tuple(Placement(*p[:2], 0, *p[3:6]) for p in plan.placements))

        monkeypatch.setattr(search_module, "as_plan", stacked)
        self.assert_fast(problem, full(problem), "breaks a rule")

    def test_an_infeasible_hint_does_no_harm(self, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
        read = Facts.of

        def wrong(*arguments: Any) -> Facts:
            facts = read(*arguments)
            return replace(facts, counts=dict.fromkeys(facts.counts, 10**6))

        monkeypatch.setattr(Facts, "of", wrong)
        plan = full(problem)
        assert check(problem, plan)[0] == []
        assert plan.metrics["objective"] >= solve(problem).metrics["objective"]


def test_an_interrupt_returns_the_best_so_far() -> None:
    """Ctrl-C arrives while the progress line is written."""
    problem = contended()
    lines: list[str] = []

    def interrupt(line: str) -> None:
        lines.append(line)
        raise KeyboardInterrupt

    plan = full(problem, 5.0, progress=interrupt)
    assert lines
    assert check(problem, plan)[0] == []
    assert plan.extra["solver"]["status"] in ("interrupted", "optimal")
    assert plan.metrics["objective"] >= solve(problem).metrics["objective"]


def test_the_fast_search_goes_on_before_the_first_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the solver gives nothing, what the longer search found is kept, and the trouble is told."""

    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no solver")

    monkeypatch.setattr(search_module, "Run", broken)
    better = 0
    for seed in range(20, 26):
        problem = random_problem(
            seed, pools=(1, 1), gpus=(16, 16), steps=(24, 24), jobs=(24, 24), apps=(1, 1), plain=True
        )
        plan = full(problem, 0.3)
        assert check(problem, plan)[0] == []
        solver = plan.extra["solver"]
        assert solver["gain"] >= 0
        assert solver["status"] in ("fallback", "optimal")
        better += solver["gain"] > 0
    assert better > 0


def test_progress_names_objective_bound_and_gap() -> None:
    lines: list[str] = []
    full(contended(), 1.0, progress=lines.append)
    assert lines
    assert all("objective" in line and "bound" in line and "gap" in line for line in lines)


def test_a_wall_clock_limit_gives_a_legal_plan() -> None:
    problem = contended()
    plan = solve(problem, mode="full", time_limit=1.0)
    assert check(problem, plan)[0] == []
    assert plan.metrics["objective"] >= solve(problem).metrics["objective"]


def test_a_problem_too_large_for_the_model_as_a_whole_is_searched_in_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search_module, "MAX_COLUMNS", 1000)
    jobs = [
        {"id": f"j{i}", "kind": "training", "priority": 1 + i % 9, "order": i,
         "shapes": [{"pool": "p", "gpus": 1 << i % 4, "steps": 2 + i % 7}]}
        for i in range(200)
    ]  # fmt: skip
    problem = Problem.from_dict(
        {"steps": 24, "decay": 0.98, "shortfall_weight": 8, "pools": [{"id": "p", "gpus": 64}], "jobs": jobs,
         "apps": []}
    )  # fmt: skip
    plan = full(problem, 0.3)
    assert plan.extra["solver"]["status"] == "feasible"
    assert plan.extra["solver"]["gap"] >= 0
    assert plan.metrics["objective"] >= solve(problem).metrics["objective"]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(problems(**{**SMALL, "gpus": (1, 16)}) | CLUSTERS, st.sampled_from([(4, 8), (2, 3)]))
def test_windows_keep_every_rule_and_never_lose(
    monkeypatch: pytest.MonkeyPatch, problem: Problem, widths: tuple[int, int]
) -> None:
    """What is pinned stays, and what is put back is legal: nodes, tails, late starts, running jobs and apps."""
    monkeypatch.setattr(search_module, "MAX_COLUMNS", -1)
    monkeypatch.setattr(parts, "WIDTHS", widths)
    fast, plan = solve(problem), full(problem, 0.5)
    assert check(problem, plan)[0] == []
    assert plan.metrics["objective"] >= fast.metrics["objective"] - 1e-9 * max(
        1, abs(fast.metrics["objective"])
    )
    assert plan.metrics["objective"] <= plan.extra["solver"]["bound"]
    assert plan.extra["solver"]["trouble"] is None
    assert plan.apps == fast.apps


def test_windows_find_better_plans_and_the_same_ones_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a plan of first in, first out, which leaves something to find whatever mode fast can do."""
    monkeypatch.setattr(search_module, "MAX_COLUMNS", -1)
    monkeypatch.setattr(full_module, "solve", lambda problem, **_: solve(problem, mode="fifo"))
    monkeypatch.setattr(parts, "WIDTHS", (8, 16))
    problem = random_problem(
        7, pools=(1, 1), gpus=(16, 16), steps=(16, 16), jobs=(24, 24), apps=(1, 1), plain=True
    )
    plan = full(problem, 0.6)
    assert check(problem, plan)[0] == []
    assert plan.extra["solver"]["gain"] > 0
    assert json.dumps(plan.to_dict()) == json.dumps(full(problem, 0.6).to_dict())


@pytest.mark.parametrize(
    ("pool", "width", "shift", "expected"),
    [
        (Pool(id="p", gpus=20), 8, 0, [(0, 8), (8, 16), (16, 20)]),
        (Pool(id="p", gpus=20), 8, 4, [(4, 12), (12, 20)]),
        (Pool(id="p", gpus=24, node_size=6), 16, 8, [(6, 18), (18, 24)]),
        (Pool(id="p", gpus=40, node_size=32), 16, 8, [(8, 24), (24, 32), (32, 40)]),
        (Pool(id="p", gpus=4), 16, 8, [(0, 4)]),
    ],
)
def test_windows_keep_to_nodes(pool: Pool, width: int, shift: int, expected: list[tuple[int, int]]) -> None:
    """A window holds whole nodes, or lies inside one."""
    assert list(parts.segments(pool, width, shift)) == expected


def test_the_race_reaches_a_target_or_says_that_it_did_not() -> None:
    problem = contended()
    objective = full(problem, 2.0).metrics["objective"]
    assert time_to_objective(problem, objective - 0.1 * abs(objective), 20) is not None
    assert time_to_objective(problem, 2 * abs(objective) + 1000, 20) is None
