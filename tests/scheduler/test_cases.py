"""Small boards with a right answer, for every mode that answers in milliseconds, and by node for mode full too."""

from typing import Any

import pytest

from tidegrid.scheduler import BASELINES, Plan, Problem, explain, modes, solve
from tidegrid.scheduler.generate import random_problem

MODES = [mode for mode in modes() if mode != "full"]


def planned(problem: Problem, mode: str) -> Plan:
    """The plan of a mode; mode full in a time that is the same on every machine."""
    return solve(problem, mode, **({"deterministic_time": 0.3} if mode == "full" else {}))  # type: ignore[arg-type]


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


# --- the same by node ---


def nodes(jobs: list[Any], many: int = 1, size: int = 8, steps: int = 24, **more: Any) -> Problem:
    """A pool by node; waiting jobs as (GPUs, steps, priority), in arrival order, or as dictionaries."""
    waiting = [
        job
        if isinstance(job, dict)
        else {
            "id": f"j{i}", "priority": job[2], "order": i,
            "shapes": [{"pool": "p", "gpus": job[0], "steps": job[1]}],
        }
        for i, job in enumerate(jobs)
    ]  # fmt: skip
    pool = {"id": "p", "gpus": many * size, "node_size": size, "placement": "node"}
    return Problem.from_dict(
        {
            "version": 2, "steps": steps, "decay": 0.98, "shortfall_weight": 8, "pools": [pool], "jobs": waiting,
            "apps": [], **more,
        }
    )  # fmt: skip


def runs(name: str, gpus: list[int], remaining: int) -> dict[str, Any]:
    block = {"pool": "p", "gpu_ids": gpus, "remaining": remaining}
    return {"id": name, "priority": 5, "order": 0, "running": block}


@pytest.mark.parametrize("mode", [*MODES, "full"])
def test_by_node_any_free_gpus_of_one_node_will_do(mode: str) -> None:
    """GPUs 0, 1, 4 and 5 of one node are free: four start at once; on nodes of four none has room (case P6)."""
    jobs = [runs("r1", [2, 3], 5), runs("r2", [6, 7], 9), (4, 2, 5)]
    plan = planned(nodes(jobs), mode)
    assert (plan.placement_by_job["j2"].start, list(plan.placement_by_job["j2"].ids)) == (0, [0, 1, 4, 5])
    board = nodes(jobs, many=2, size=4)
    (told,) = [
        one for one in explain(board, planned(board, mode)).extra["explanations"] if one["job"] == "j2"
    ]
    assert told["reason"] == ("4 GPUs free, at most 2 on one node; first place for 4 GPUs at step 5 (0–3)")
    assert [b["text"] for b in told["blockers"]] == ["r1 holds GPU 2–3 until step 5 (running)"]


@pytest.mark.parametrize("mode", [*MODES, "full"])
def test_by_node_every_job_of_a_long_queue_has_a_start_or_a_state(mode: str) -> None:
    """1,000 equal jobs: none is passed over in silence (case P3)."""
    board = nodes([(3, 3, 5)] * 1000, many=2, size=4)
    records = explain(board, planned(board, mode)).extra["explanations"]
    assert len(records) == 1000
    begun = [record for record in records if record["start"] is not None]
    assert len(begun) == 16
    assert {record["state"] for record in records if record["start"] is None} == {"not in this horizon"}
    if mode in BASELINES:
        assert all(record["expected"] is not None for record in records if record["start"] is None)


@pytest.mark.parametrize("mode", [*(mode for mode in MODES if mode != "fifo_elastic"), "full"])
@pytest.mark.parametrize("replica", [1, 2])
def test_by_node_realtime_does_not_thrash(mode: str, replica: int) -> None:
    """Demand flutters between 8 and 9: it steps down at most once on the way and stays (case R1)."""
    held = [[gpu, gpu + 1] if replica == 2 else gpu for gpu in range(0, 10, replica)]
    app = {"id": "chat", "pool": "p", "priority": 8, "swap_cap": 2, "replica": replica, "held": held}
    demand = [10, 9, 8, 9, 9, 8, 9, 8, 9, 8]
    board = nodes([(3, 3, 1)] * 4, many=4, steps=10, apps=[{**app, "demand": demand}])
    plan = planned(board, mode)
    counts = plan.apps[0].counts()
    assert plan.metrics["shortfall"] == 0
    assert counts == sorted(counts, reverse=True)
    assert plan.metrics["swaps"] == 10 - counts[-1]


@pytest.mark.parametrize("mode", [*MODES, "full"])
def test_by_node_two_apps_share_what_there_is(mode: str) -> None:
    """Two nodes of 4, two apps with replicas of 2 need 6 each: never more than 8 (case R4)."""
    apps = [
        {"id": name, "pool": "p", "priority": 5, "replica": 2, "demand": [6] * 6, "swap_cap": 2, "held": held}
        for name, held in (("first", [[0, 1], [2, 3], [4, 5]]), ("second", [[6, 7]]))
    ]
    plan = planned(nodes([(1, 2, 1)] * 3, many=2, size=4, steps=6, apps=apps), mode)
    for t in range(6):
        taken = [gpu for entry in plan.apps for gpu in entry.gpus(t)]
        assert len(taken) == len(set(taken)) <= 8
    assert plan.metrics["shortfall"] == 4 * 6
