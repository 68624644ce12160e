"""The bound: valid whatever happens, and equal to the optimum where the relaxation is attained."""

from typing import Any

import pytest
from brute_force import best
from hypothesis import given, settings
from strategies import clusters, problems

from tidegrid.scheduler import Problem, modes, solve
from tidegrid.scheduler.formal import Bound, bound, relative_gap
from tidegrid.scheduler.formal import lagrange as lagrange_module
from tidegrid.scheduler.formal.lagrange import price_bound
from tidegrid.scheduler.formal.model import CountModel
from tidegrid.scheduler.formal.named import NamedModel
from tidegrid.scheduler.formal.places import fitting
from tidegrid.scheduler.formal.run import Budget, Run
from tidegrid.scheduler.formal.terms import Terms
from tidegrid.scheduler.generate import random_problem
from tidegrid.scheduler.problem import Pool

SMALL = {"pools": (1, 2), "gpus": (1, 5), "steps": (1, 6), "jobs": (0, 5), "apps": (0, 2)}


def job(name: str, *shapes: tuple[int, int], **more: Any) -> dict[str, Any]:
    listed = [{"pool": "p", "gpus": gpus, "steps": steps} for gpus, steps in shapes]
    return {"id": name, "kind": "training", "priority": 5, "order": 0, "shapes": listed, **more}


def problem(gpus: int, steps: int, jobs: list[dict[str, Any]], **more: Any) -> Problem:
    pool = {"id": "p", "gpus": gpus, "node_size": more.pop("node_size", None)}
    body = {"steps": steps, "decay": 1, "shortfall_weight": 8.0, "pools": [pool], "jobs": jobs, "apps": []}
    return Problem.from_dict({**body, **more})


def whole(it: Problem) -> float:
    """The optimum of the whole model."""
    terms = Terms(it)
    answer = Run(NamedModel(terms).cp, Budget(60, 10), 10, named=True).answer()
    assert answer.optimal
    assert answer.value is not None
    return answer.value / terms.scale


def is_tiny(it: Problem) -> bool:
    return sum(pool.gpus for pool in it.pools) <= 4


TINY = {"pools": (1, 1), "steps": (1, 3), "jobs": (0, 3), "apps": (0, 1)}


@settings(max_examples=60)
@given(problems(gpus=(1, 3), **TINY) | clusters(nodes=(1, 2), **TINY).filter(is_tiny))
def test_the_whole_model_finds_what_trying_everything_finds(it: Problem) -> None:
    """The model in CP-SAT is the contract: its optimum is that of enumeration, and no bound is below."""
    expected = best(it)
    assert whole(it) == pytest.approx(expected, rel=1e-5, abs=1e-5)
    found = bound(it, deterministic_time=1)
    assert found.value >= expected - 1e-9 * max(1, abs(expected))
    assert price_bound(Terms(it)) >= expected - 1e-9 * max(1, abs(expected))


@settings(max_examples=12)
@given(problems(**SMALL) | clusters(nodes=(1, 2), steps=(2, 6), jobs=(0, 5), apps=(0, 2)))
def test_no_mode_beats_the_bound(it: Problem) -> None:
    """Whatever the limit: none at all, too little, enough."""
    limits: list[dict[str, float]] = [
        {"time_limit": 0},
        {"deterministic_time": 0.01},
        {"deterministic_time": 1},
    ]
    bounds = [bound(it, **limit).value for limit in limits]
    for mode in modes():
        options = {"deterministic_time": 0.1} if mode == "full" else {}
        objective = solve(it, mode=mode, **options).metrics["objective"]
        assert all(objective <= value + 1e-9 * max(1, abs(value)) for value in bounds), mode


def test_a_relaxation_that_is_attained_gives_the_optimum() -> None:
    """Four jobs fill two GPUs for four steps."""
    it = problem(2, 4, [job(f"j{i}", (1, 2)) for i in range(4)])
    found = bound(it, deterministic_time=1)
    assert found.proven
    assert found.status == "optimal"
    assert found.value == pytest.approx(5 * 8)
    assert found.gap(solve(it).metrics["objective"]) == 0.0


def test_blocks_that_running_jobs_split_are_counted() -> None:
    """GPUs 2 to 5 run on, so two pairs are free and no block of four: 4 free GPUs alone would allow one."""
    held = {"pool": "p", "first_gpu": 2, "gpus": 4, "remaining": 9}
    it = problem(8, 4, [job("runs", (4, 9), running=held), job("wide", (4, 4))])
    assert bound(it, deterministic_time=1).value == pytest.approx(5 * 4 * 4)


@pytest.mark.parametrize(
    ("node", "size", "free", "count"),
    [
        (None, 4, "11111111", 2),
        (None, 4, "01111110", 1),
        (4, 4, "01111110", 0),
        (3, 2, "111111", 2),
        (3, 4, "11111111", 1),
        (2, 4, "11111111", 2),
        (None, 2, "1101101", 2),
    ],
)
def test_blocks_are_fitted_as_the_rules_of_nodes_say(
    node: int | None, size: int, free: str, count: int
) -> None:
    pool = Pool(id="p", gpus=len(free), node_size=node)
    assert fitting(pool, size, [c == "1" for c in free]) == count


def test_prices_come_near_the_relaxation_and_never_below() -> None:
    for seed in range(3):
        terms = Terms(random_problem(seed, pools=(1, 2), gpus=(8, 8), jobs=(8, 12), plain=True))
        model = CountModel(terms)
        answer = Run(model.cp, Budget(60, 0.5), 0.5, slack=terms.rounding).answer()
        assert answer.value is not None
        counted = answer.value / terms.scale
        # Coefficients are rounded up for the solver, and not for the prices.
        assert price_bound(terms) >= counted - 1e-5 * max(1, abs(counted))


def test_a_problem_too_large_for_the_solver_is_bounded_by_prices() -> None:
    """1,000 jobs on 1,024 GPUs over 48 steps."""
    jobs = [job(f"j{i}", (1 << i % 6, 3 + i % 9), (2 << i % 6, 2 + i % 5), order=i) for i in range(1000)]
    it = problem(1024, 48, jobs, decay=0.98)
    found = bound(it, time_limit=30)
    assert found.status == "prices"
    assert not found.proven
    assert found.value >= solve(it, mode="fifo").metrics["objective"]


@pytest.mark.parametrize("error", [RuntimeError("no licence"), MemoryError()])
def test_a_solver_that_fails_leaves_a_valid_bound(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(self: Run) -> None:
        raise error

    it = random_problem(1, gpus=(4, 8), jobs=(4, 8))
    monkeypatch.setattr(Run, "answer", fail)
    found = bound(it, deterministic_time=1)
    assert found.status.startswith("failed: ")
    assert found.value >= solve(it).metrics["objective"]


def test_a_price_search_that_fails_leaves_the_trivial_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> float:
        raise FloatingPointError

    it = random_problem(1, gpus=(4, 8), jobs=(4, 8))
    monkeypatch.setattr(lagrange_module, "price_bound", fail)
    found = bound(it, time_limit=1)
    assert found.status.startswith("failed: ")
    assert found.value >= solve(it).metrics["objective"]


def test_the_gap_is_a_share_of_the_bound() -> None:
    assert relative_gap(100.0, 97.0) == pytest.approx(0.03)
    assert relative_gap(-100.0, -110.0) == pytest.approx(0.1)
    assert relative_gap(0.0, 0.0) == 0.0
    assert Bound(50.0, True, "optimal", 1).gap(50.0) == 0.0


def test_an_empty_problem_is_worth_nothing() -> None:
    assert bound(problem(1, 1, []), time_limit=1).value == pytest.approx(0.0, abs=1e-6)
