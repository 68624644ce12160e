"""What clusters run today: each baseline's rule, on boards small enough to check by eye."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import problem_dicts, problems

from tidegrid.scheduler import BASELINES, Plan, Problem, check, solve


def problem(
    jobs: list[Any], apps: list[Any] | None = None, gpus: int = 8, steps: int = 24, **pool: Any
) -> Problem:
    """Jobs as (GPUs, steps, priority), in arrival order, or as dictionaries."""
    listed = [
        job
        if isinstance(job, dict)
        else {
            "id": f"j{i}",
            "order": i,
            "priority": job[2],
            "shapes": [{"pool": "p", "gpus": job[0], "steps": job[1]}],
        }
        for i, job in enumerate(jobs)
    ]
    return Problem.from_dict(
        {
            "steps": steps,
            "decay": 0.98,
            "shortfall_weight": 8,
            "pools": [{"id": "p", "gpus": gpus, **pool}],
            "jobs": listed,
            "apps": apps or [],
        }
    )


def app(demand: list[int], name: str = "chat", **more: Any) -> dict[str, Any]:
    return {"id": name, "pool": "p", "priority": 5, "demand": demand, **more}


def starts(plan: Plan) -> dict[str, int]:
    return {p.job: p.start for p in plan.placements}


def held(plan: Plan, name: str = "chat") -> list[list[int]]:
    return [sorted(cells) for a, all_cells in plan.apps for cells in all_cells if a == name]


@given(problems(), st.sampled_from(BASELINES))
def test_every_baseline_is_legal(problem: Problem, mode: str) -> None:
    assert check(problem, solve(problem, mode))[0] == []


@given(problem_dicts(jobs=(2, 10)), st.sampled_from(BASELINES), st.randoms(use_true_random=False))
def test_the_listed_order_changes_nothing(data: dict[str, Any], mode: str, random: Any) -> None:
    """Jobs listed in another order with the same ``order`` give the same plan."""
    before = solve(Problem.from_dict(data), mode)
    random.shuffle(data["jobs"])
    after = solve(Problem.from_dict(data), mode)
    assert (after.placements, after.apps) == (before.placements, before.apps)


@given(problems(), st.sampled_from(BASELINES))
def test_two_runs_give_the_same_bytes(problem: Problem, mode: str) -> None:
    fresh = Problem.from_dict(problem.to_dict())
    assert repr(solve(problem, mode).to_dict()) == repr(solve(fresh, mode).to_dict())


@given(problems())
def test_fifo_starts_in_arrival_order_pool_by_pool(problem: Problem) -> None:
    order = {job.id: (job.order, job.id) for job in problem.jobs if not job.running}
    plan = solve(problem, "fifo")
    for pool in problem.pools:
        mine = [p for p in plan.placements if p.pool == pool.id and p.job in order]
        begun = [p.start for p in sorted(mine, key=lambda p: order[p.job])]
        assert begun == sorted(begun)


def test_the_head_of_one_pool_holds_up_no_other() -> None:
    """A job waits for pool p until step 16; the one behind it has the empty pool q at once."""
    board = problem([running("r", 0, 8, 16), (8, 2, 1)]).to_dict()
    board["pools"].append({"id": "q", "gpus": 4})
    shapes = [{"pool": "q", "gpus": 4, "steps": 1}]
    board["jobs"].append({"id": "other", "order": 9, "priority": 1, "shapes": shapes})
    assert starts(solve(Problem.from_dict(board), "fifo")) == {"r": 0, "j1": 16, "other": 0}


def test_fifo_lets_nobody_pass() -> None:
    """A wide job waits, and a narrow one behind it waits with it; with backfill it goes first."""
    board = problem([(4, 3, 1), (8, 2, 1), (1, 1, 9)])
    assert starts(solve(board, "fifo")) == {"j0": 0, "j1": 3, "j2": 5}
    assert starts(solve(board, "fifo_backfill")) == {"j0": 0, "j1": 3, "j2": 0}


def test_a_job_without_a_place_holds_up_nobody() -> None:
    """FIFO passes over what can never start: here a job wider than what the reservation leaves."""
    board = problem([(8, 1, 1), (2, 1, 1)], [app([0, 1] * 12)])
    assert starts(solve(board, "fifo")) == {"j1": 0}


@pytest.mark.parametrize("mode", ["fifo_backfill", "easy"])
def test_the_simplest_backfill(mode: str) -> None:
    """32 GPUs, widths 1, 32 and 31: the last runs beside the first, before the second (case P2)."""
    board = {**problem([(1, 10, 10), (32, 10, 5), (1, 5, 1)], gpus=32).to_dict(), "version": 2}
    board["pools"] = [{"id": "p", "gpus": 32, "node_size": 32, "placement": "node"}]
    board["jobs"][2]["shapes"][0]["gpus"] = 31
    assert starts(solve(Problem.from_dict(board), mode)) == {"j0": 0, "j1": 10, "j2": 0}


def running(name: str, first: int, gpus: int, remaining: int) -> dict[str, Any]:
    block = {"pool": "p", "first_gpu": first, "gpus": gpus, "remaining": remaining}
    return {"id": name, "order": 0, "priority": 1, "running": block}


def test_easy_keeps_only_the_first_waiting_jobs_place() -> None:
    """A narrow job passes the second waiting one under EASY, and no one under conservative backfill."""
    jobs = [running("r1", 0, 2, 6), running("r2", 4, 2, 4), (4, 2, 1), (8, 2, 1), (2, 10, 1)]
    both = {"r1": 0, "r2": 0, "j2": 4}
    assert starts(solve(problem(jobs), "fifo_backfill")) == {**both, "j3": 6, "j4": 8}
    assert starts(solve(problem(jobs), "easy")) == {**both, "j3": 10, "j4": 0}


def test_easy_never_delays_the_first_waiting_job() -> None:
    """A long narrow job would push the reserved block later, so it waits."""
    board = problem([(4, 4, 1), (8, 2, 1), (1, 5, 9)])
    assert starts(solve(board, "easy")) == {"j0": 0, "j1": 4, "j2": 6}


def test_priority_and_shortest_first_sort_the_queue() -> None:
    board = problem([(8, 5, 1), (8, 3, 9), (8, 1, 5)])
    assert starts(solve(board, "priority")) == {"j1": 0, "j2": 3, "j0": 4}
    assert starts(solve(board, "sjf")) == {"j2": 0, "j1": 1, "j0": 4}
    assert starts(solve(board, "easy_priority")) == {"j1": 0, "j2": 3, "j0": 4}


def test_age_outweighs_a_small_step_of_priority() -> None:
    """With a day to wait, a seventh of the weight of age meets a tenth of that of priority."""
    shapes = [{"pool": "p", "gpus": 8, "steps": 2}]
    late = {"id": "late", "order": 1, "priority": 10, "earliest": 24, "shapes": shapes}
    early = {"id": "early", "order": 0, "priority": 9, "shapes": shapes}
    board = problem([late, early, running("r", 0, 1, 26)], steps=40)
    assert starts(solve(board, "easy_priority"))["early"] == 26
    assert starts(solve(board, "priority"))["late"] == 26


def test_the_requested_size_is_used() -> None:
    shapes = [{"pool": "p", "gpus": 1, "steps": 8}, {"pool": "p", "gpus": 2, "steps": 4}]
    asked = {"id": "a", "order": 0, "priority": 1, "shapes": shapes, "requested": 0}
    silent = {"id": "b", "order": 1, "priority": 1, "shapes": shapes}
    sizes = {p.job: p.gpus for p in solve(problem([asked, silent]), "fifo").placements}
    assert sizes == {"a": 1, "b": 2}


def test_realtime_reserves_its_peak_all_day() -> None:
    plan = solve(problem([], [app([2, 1, 4, 0])], steps=4), "fifo")
    assert held(plan) == [[4, 5, 6, 7]] * 4
    assert plan.metrics["utilization"] == pytest.approx(7 / 32)


def test_the_reservation_climbs_under_its_cap() -> None:
    """What is held comes first, the cap is kept in every step, and jobs keep clear of GPUs to come."""
    board = problem([(4, 4, 1)], [app([3] * 6, swap_cap=1, held=[7])], steps=6)
    plan = solve(board, "fifo")
    assert held(plan) == [[6, 7], [5, 6, 7], [5, 6, 7], [5, 6, 7], [5, 6, 7], [5, 6, 7]]
    frozen = solve(problem([], [app([3] * 6, swap_cap=0, held=[2])], steps=6), "fifo")
    assert held(frozen) == [[2]] * 6


def test_the_reservation_waits_for_running_jobs() -> None:
    board = problem([running("r", 0, 8, 2)], [app([2] * 4)], steps=4)
    assert held(solve(board, "fifo")) == [[], [], [6, 7], [6, 7]]


def test_two_apps_never_hold_more_than_there_is() -> None:
    """8 GPUs, two apps need 6 and 6: at most 8 in every step, during the swap too (case R4)."""
    apps = [app([6] * 8, "first", held=[0, 1, 2, 3, 4, 5], swap_cap=2), app([6] * 8, "second", swap_cap=2)]
    board = problem([], apps, steps=8)
    for mode in BASELINES:
        plan = solve(board, mode)
        for one, other in zip(held(plan, "first"), held(plan, "second"), strict=True):
            assert len(one) + len(other) == 8
        assert plan.metrics["shortfall"] == 8 * 4


def test_the_elastic_baseline_follows_demand() -> None:
    """The same order with realtime as a curve: GPUs come back in the valley, and rise in time under the cap."""
    board = problem([(8, 2, 1)], [app([0, 0, 1, 4, 0, 0], swap_cap=2)], steps=6)
    plan = solve(board, "fifo_elastic")
    assert [len(cells) for cells in held(plan)] == [0, 0, 2, 4, 2, 0]
    assert starts(plan) == {"j0": 0}
    assert starts(solve(board, "fifo")) == {}


def test_first_in_first_out_keeps_deadlines_and_late_starts() -> None:
    jobs = [
        {
            "id": "late",
            "order": 0,
            "priority": 1,
            "earliest": 3,
            "shapes": [{"pool": "p", "gpus": 1, "steps": 1}],
        },
        {
            "id": "due",
            "order": 1,
            "priority": 1,
            "deadline": 3,
            "shapes": [{"pool": "p", "gpus": 1, "steps": 1}],
        },
    ]
    assert starts(solve(problem(jobs), "fifo")) == {"late": 3}
    assert starts(solve(problem(jobs), "fifo_backfill")) == {"late": 3, "due": 0}


@pytest.mark.parametrize(("size", "first"), [(2, 4), (4, 4), (8, 8)])
def test_blocks_keep_to_nodes(size: int, first: int) -> None:
    """Nodes of 4, GPUs 0–2 taken: a pair does not straddle, a block of 8 starts at a node."""
    taken = [running("r", 0, 2, 9), running("s", 2, 1, 9)] + [running("t", 4, 1, 9)] * (size == 8)
    plan = solve(problem([*taken, (size, 1, 1)], gpus=16, node_size=4), "fifo")
    assert plan.placement_by_job[f"j{len(taken)}"].first_gpu == first


@pytest.mark.parametrize("mode", BASELINES)
def test_a_block_is_the_tightest(mode: str) -> None:
    """Two free stretches, of 4 and of 2: a pair takes the smaller one, so that four neighbours stay free."""
    taken = [running("r", 4, 1, 9), running("s", 7, 1, 9)]
    plan = solve(problem([*taken, (2, 3, 1), (4, 3, 1)]), mode)
    assert plan.placement_by_job["j2"].first_gpu == 5
    assert plan.placement_by_job["j3"].first_gpu == 0


@pytest.mark.parametrize("mode", BASELINES)
def test_a_job_whose_first_place_lies_past_the_horizon_keeps_it(mode: str) -> None:
    """R holds 4 of 8 GPUs until step 40 of a horizon of 24, BIG wants 8: nothing long starts beside R before it."""
    stream = [(4, 80, 1)] * 3
    board = problem([running("r", 0, 4, 40), (8, 4, 9), *stream])
    plan = solve(board, mode)
    if mode == "sjf":
        board = problem([running("r", 0, 4, 40), (8, 4, 9), (4, 5, 1), (4, 80, 1)])
        plan = solve(board, mode)
    assert plan.extra["expected"][0] == {"job": "j1", "pool": "p", "gpus": 8, "start": 40, "steps": 4}
    assert not [p for p in plan.placements if p.steps == 80]


@pytest.mark.parametrize("mode", BASELINES)
def test_every_job_that_fits_has_a_place_or_an_expected_start(mode: str) -> None:
    """1,000 equal jobs: 16 start inside the horizon, and the last one 1,000 / 2 · 3 steps after the first."""
    plan = solve(problem([(4, 3, 1)] * 1000), mode)
    assert plan.metrics["placed"] == 16
    assert len(plan.extra["expected"]) == 984
    assert plan.extra["expected"][-1]["start"] == 499 * 3
