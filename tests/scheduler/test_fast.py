"""Mode fast: legal on every problem, never below a baseline, the same plan for the same input."""

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems, random_problem

from tidegrid.errors import InputError
from tidegrid.scheduler import BASELINES, Plan, Problem, check, solve
from tidegrid.scheduler.fast import rounds_for

POOL = {"id": "pool", "gpus": 8}


def problem(jobs: list[dict[str, Any]], apps: list[dict[str, Any]] | None = None, **other: Any) -> Problem:
    """One pool of 8 GPUs, 24 steps; jobs and apps with their ids and orders filled in."""
    base = {"version": 1, "steps": 24, "decay": 0.98, "shortfall_weight": 8, "pools": [POOL]}
    jobs = [{"id": f"job-{i:02}", "priority": 5, "order": i, **job} for i, job in enumerate(jobs)]
    apps = [
        {"id": f"app-{i}", "pool": "pool", "priority": 5, "held": [], **app}
        for i, app in enumerate(apps or [])
    ]
    return Problem.from_dict({**base, "jobs": jobs, "apps": apps, **other})


def shape(gpus: int, steps: int) -> dict[str, Any]:
    return {"shapes": [{"pool": "pool", "gpus": gpus, "steps": steps}]}


def text(plan: Plan) -> str:
    return json.dumps(plan.to_dict())


@given(problems())
def test_every_plan_is_legal(contract_check: Any, p: Problem) -> None:
    """Both checkers pass every plan and agree on its figures."""
    plan = solve(p, rounds=30)
    violations, figures = contract_check(p.to_dict(), plan.to_dict())
    assert not violations
    assert plan.metrics["objective"] == pytest.approx(figures["objective"])


@pytest.mark.parametrize("first", range(0, 240, 60))
def test_no_plan_is_worth_less_than_a_baseline(first: int) -> None:
    """Nor is one of larger boards, with few rounds or with none."""
    for seed in range(first, first + 60):
        p = random_problem(seed) if seed % 3 else random_problem(seed, gpus=(8, 70), jobs=(10, 40))
        best = max(solve(p, mode).metrics["objective"] for mode in BASELINES)
        for rounds in (0, 20):
            plan = solve(p, rounds=rounds)
            assert plan.metrics["objective"] >= best - 1e-9 * max(1.0, abs(best)), (seed, rounds)


@given(problems(), st.sampled_from((0, 20)))
def test_no_plan_of_any_kind_is_worth_less_than_a_baseline(p: Problem, rounds: int) -> None:
    best = max(solve(p, mode).metrics["objective"] for mode in BASELINES)
    assert solve(p, rounds=rounds).metrics["objective"] >= best - 1e-9 * max(1.0, abs(best))


@given(problems())
def test_the_listed_order_of_jobs_does_not_matter(p: Problem) -> None:
    """Only `order` and the id count."""
    data = p.to_dict()
    random.Random(1).shuffle(data["jobs"])
    plan, other = solve(p, rounds=20), solve(Problem.from_dict(data), rounds=20)
    assert (plan.placements, plan.apps) == (other.placements, other.apps)


def test_two_runs_give_the_same_bytes() -> None:
    for seed in range(10):
        p = random_problem(seed)
        assert text(solve(p)) == text(solve(Problem.from_dict(p.to_dict())))


def test_more_rounds_are_never_worse_than_the_start() -> None:
    """The best board seen is what comes back, however hot the search is."""
    for seed in range(40):
        p = random_problem(seed, gpus=(8, 16), jobs=(8, 16))
        start = solve(p, rounds=0).metrics["objective"]
        assert solve(p, rounds=50).metrics["objective"] >= start - 1e-9 * max(1.0, abs(start))


def test_a_warm_start_is_kept_unless_a_better_plan_is_found() -> None:
    """Yesterday's plan is never lost, and an unchanged problem is a fixed point."""
    for seed in range(30):
        p = random_problem(seed)
        old = solve(p, rounds=150, seed=3)
        new = solve(p, rounds=0, warm_start=old)
        assert new.metrics["objective"] >= old.metrics["objective"] - 1e-9 * abs(old.metrics["objective"])
        again = solve(p, rounds=0, warm_start=new)
        assert (again.placements, again.apps) == (new.placements, new.apps)


def test_a_warm_start_that_is_not_legal_is_ignored() -> None:
    p = random_problem(5)
    plan = solve(p)
    foreign = solve(random_problem(6))
    assert text(solve(p, warm_start=foreign)) == text(plan)


def test_two_threads_give_the_same_bytes_as_one() -> None:
    for seed in range(6):
        p = random_problem(seed, gpus=(8, 16), jobs=(10, 20))
        assert text(solve(p, rounds=1700)) == text(solve(p, rounds=1700, threads=2))


def earlier_starts(p: Problem, plan: Plan) -> list[str]:
    """Jobs that could start earlier in their shape on GPUs that nothing uses, at no loss past the horizon."""
    pools = {pool.id: pool for pool in p.pools}
    jobs = {job.id: job for job in p.jobs}
    grid = plan.grid or {}
    found = []
    for x in plan.placements:
        pool, job = pools[x.pool], jobs[x.job]
        if job.running or job.priority == 0:
            continue
        for start in range(job.earliest, x.start):
            steps = range(start, min(start + x.steps, p.steps))
            for first in range(pool.gpus - x.gpus + 1):
                block = range(first, first + x.gpus)
                if pool.allows(first, x.gpus) and all(
                    grid[x.pool][g][t] in (None, x.job) for g in block for t in steps
                ):
                    found.append(f"{x.job} could start at {start}, not at {x.start}")
    return found


@given(problems())
def test_no_job_waits_for_gpus_that_are_free_earlier(p: Problem) -> None:
    """In its shape, on any block that neither a job nor an app uses (left shift)."""
    assert not earlier_starts(p, solve(p, rounds=10))


def test_a_job_is_moved_to_gpus_that_are_free_earlier_on_a_large_board() -> None:
    for seed in range(30):
        p = random_problem(seed, gpus=(8, 70), jobs=(10, 40))
        assert not earlier_starts(p, solve(p, rounds=0))


def test_a_promised_start_is_kept_where_its_price_is_more_than_the_gain() -> None:
    """Two wide jobs of equal length: the better paid goes first, unless the other was told to."""
    p = problem([{**shape(8, 6), "priority": 5}, {**shape(8, 6), "priority": 6}])

    def starts(**options: Any) -> dict[str, int]:
        return {x.job: x.start for x in solve(p, **options).placements}

    assert starts() == {"job-00": 6, "job-01": 0}
    told = {"job-00": 0, "job-01": 6}
    assert starts(promises=told) == {"job-00": 6, "job-01": 0}
    assert starts(promises=told, promise_price=2.0) == told


def test_a_budget_buys_rounds_from_the_size_alone() -> None:
    small = random_problem(1, pools=(1, 1), gpus=(8, 8), jobs=(14, 14), steps=(24, 24))
    large = random_problem(1, pools=(1, 1), gpus=(64, 64), jobs=(30, 30), steps=(24, 24))
    assert rounds_for(small, 2.0) == pytest.approx(2 * rounds_for(small, 1.0), abs=1)
    assert rounds_for(large, 2.0) < rounds_for(small, 2.0)
    assert rounds_for(small, 0) == 0


@pytest.mark.parametrize("option", [{"rounds": -1}, {"budget_ms": -0.5}, {"budget_ms": float("nan")}])
def test_a_negative_budget_is_refused_by_name(option: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(option))):
        solve(random_problem(1), **option)


def test_no_jobs_and_no_apps_are_fine() -> None:
    assert solve(problem([])).placements == ()
    assert solve(problem([], [{"demand": [3] * 24}])).metrics["shortfall"] == 0


def test_a_tail_pays_for_the_shortfall_that_it_forces() -> None:
    """All GPUs are wanted just past the horizon: no job outruns it, though each would earn a little."""
    app = {"demand": [0] * 24 + [8] * 6, "priority": 10}
    p = problem([shape(4, 10), shape(4, 10)] * 3, [app])
    plan = solve(p)
    assert plan.metrics["shortfall"] == 0
    assert all(placement.end <= 24 for placement in plan.placements)
    free = solve(problem([shape(4, 10), shape(4, 10)] * 3))
    assert any(placement.end > 24 for placement in free.placements)


def test_a_capped_app_makes_way_in_time() -> None:
    """Eight held GPUs and a cap of 2: a job of 8 that pays cannot start before the app has left them all."""
    app = {"demand": [0] * 24, "held": list(range(8)), "swap_cap": 2}
    plan = solve(problem([shape(8, 6)], [app]))
    assert [placement.start for placement in plan.placements] == [3]


def test_an_app_that_may_not_move_keeps_its_gpus() -> None:
    app = {"demand": [1] * 24, "held": [2, 5], "swap_cap": 0}
    plan = solve(problem([shape(4, 6), shape(2, 24), shape(2, 24)], [app]))
    assert all(set(held) == {2, 5} for held in plan.apps[0].cells)


def test_realtime_that_pays_more_is_served_first() -> None:
    """At one GPU for two wants, the dearer app is served; a job that pays more than both displaces both."""
    pools = [{"id": "pool", "gpus": 1}]
    cheap, dear = {"demand": [1] * 24, "priority": 1}, {"demand": [1] * 24, "priority": 3}
    plan = solve(problem([], [cheap, dear], pools=pools))
    assert [sum(map(len, app.cells)) for app in plan.apps] == [0, 24]
    plan = solve(problem([{**shape(1, 24), "priority": 100}], [cheap, dear], pools=pools))
    assert len(plan.placements) == 1


def test_an_app_gives_way_in_one_step_and_comes_first_in_another() -> None:
    """No one order of two apps serves this: the dear one has to leave a GPU to the slow one in step 0 only."""
    dear = {"demand": [4] + [0] * 7 + [4, 4, 4], "priority": 10}
    slow = {"demand": [1, 2, 3, 4, 4, 4, 4, 4, 0, 0, 0], "priority": 5, "swap_cap": 1}
    pools = [{"id": "pool", "gpus": 4}]
    job = {**shape(1, 2), "priority": 1}
    p = problem([job], [dear, slow], pools=pools, steps=11, decay=1, shortfall_weight=1)
    assert solve(p).metrics["penalty"] <= 40


def test_equal_jobs_are_served_in_order_of_arrival() -> None:
    plan = solve(problem([shape(8, 3)] * 5 + [shape(8, 30)]))
    starts = {placement.job: placement.start for placement in plan.placements}
    assert [starts[f"job-{i:02}"] for i in range(5)] == sorted(starts[f"job-{i:02}"] for i in range(5))


@pytest.mark.parametrize("seed", range(3))
def test_a_board_without_waste_is_filled(seed: int) -> None:
    """A 16 × 24 board cut into 24 pieces: at least 98 % of it is filled."""
    rng = random.Random(seed)
    parts = [(16, 24)]
    while len(parts) < 24:
        w, h = parts.pop(max(range(len(parts)), key=lambda i: parts[i][0] * parts[i][1] * rng.random()))
        if w > 1 and (h == 1 or rng.random() < 0.5):
            parts += [(w // 2, h)] * 2
        else:
            cut = rng.randint(1, h - 1)
            parts += [(w, cut), (w, h - cut)]
    rng.shuffle(parts)
    p = problem(
        [{**shape(w, h), "finish_inside": True} for w, h in parts],
        pools=[{"id": "pool", "gpus": 16}],
        decay=1,
    )
    assert solve(p).metrics["utilization"] >= 0.98


def test_large_pools_of_many_words_are_legal(contract_check: Any) -> None:
    """Blocks of 128 GPUs, pools that are no multiple of 64, nodes, caps: sets of several words."""
    for seed in range(4):
        p = random_problem(seed, gpus=(65, 300), jobs=(20, 40), steps=(8, 16), pools=(1, 2))
        assert not contract_check(p.to_dict(), solve(p, rounds=40).to_dict())[0]
    wide = problem(
        [shape(128, 5), shape(64, 7), shape(256, 3)], pools=[{"id": "pool", "gpus": 300, "node_size": 100}]
    )
    plan = solve(wide)
    assert not check(wide, plan)[0]
    assert len(plan.placements) == 3
