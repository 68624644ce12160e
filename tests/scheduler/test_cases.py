"""Small boards with a right answer, for every mode that answers in milliseconds."""

from typing import Any

import pytest

from tidegrid.scheduler import Problem, modes, solve
from tidegrid.scheduler.generate import random_problem

MODES = [mode for mode in modes() if mode != "full"]


def board(jobs: list[tuple[int, int, int]], gpus: int = 8, steps: int = 24, **more: Any) -> Problem:
    """Waiting jobs as (GPUs, steps, priority), in arrival order."""
    return Problem.from_dict(
        {
            "steps": steps,
            "decay": 0.98,
            "shortfall_weight": 8,
            "pools": [{"id": "p", "gpus": gpus}],
            "jobs": [
                {"id": f"j{i}", "priority": p, "order": i, "shapes": [{"pool": "p", "gpus": w, "steps": d}]}
                for i, (w, d, p) in enumerate(jobs)
            ],
            "apps": [],
            **more,
        }
    )


@pytest.mark.parametrize("mode", MODES)
def test_singles_leave_room_for_pairs(mode: str) -> None:
    """Four singles, then two pairs: all six start at step 0 (case P8)."""
    plan = solve(board([(1, 4, 1)] * 4 + [(2, 4, 1)] * 2), mode)
    assert [p.start for p in plan.placements] == [0] * 6


@pytest.mark.parametrize("mode", MODES)
def test_an_unchanged_input_has_one_plan(mode: str) -> None:
    """A second run gives the same bytes (case P10)."""
    for seed in range(20):
        one, two = (solve(random_problem(seed), mode) for _ in range(2))
        assert repr(one.to_dict()) == repr(two.to_dict())


@pytest.mark.parametrize("mode", MODES)
def test_a_plan_does_not_hang_on_the_listed_order(mode: str) -> None:
    for seed in range(20):
        data = random_problem(seed, jobs=(2, 12)).to_dict()
        one = solve(Problem.from_dict(data), mode)
        data["jobs"] = data["jobs"][::-1]
        two = solve(Problem.from_dict(data), mode)
        assert sorted(one.placements) == sorted(two.placements)
        assert one.metrics["objective"] == pytest.approx(two.metrics["objective"], rel=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_two_apps_share_what_there_is(mode: str) -> None:
    """8 GPUs, two apps need 6 and 6: never more than 8, and each app's shortfall is counted (case R4)."""
    apps = [
        {"id": name, "pool": "p", "priority": 5, "demand": [6] * 6, "swap_cap": 2, "held": held}
        for name, held in (("first", [0, 1, 2, 3, 4, 5]), ("second", [6]))
    ]
    plan = solve(board([(1, 2, 1)] * 3, steps=6, apps=apps), mode)
    for t in range(6):
        taken = [gpu for _, cells in plan.apps for gpu in cells[t]]
        assert len(taken) == len(set(taken)) <= 8
    assert plan.metrics["shortfall"] >= 4 * 6


@pytest.mark.parametrize("mode", MODES)
def test_a_long_job_is_not_starved_by_short_ones(mode: str) -> None:
    """48 steps, one job of 60: it starts at once though newcomers of its priority would fit (case P7)."""
    plan = solve(board([(1, 60, 5), *[(1, 6, 5)] * 6], gpus=2, steps=48), mode)
    assert plan.placement_by_job["j0"].start == 0 or mode == "sjf"
