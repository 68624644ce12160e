"""Explanations say what is true of the board, whoever planned it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import problems

from tidegrid.errors import InputError
from tidegrid.scheduler import (
    BASELINES,
    AppCells,
    Placement,
    Plan,
    Problem,
    coverage_risks,
    explain,
    explain_job,
    idle_windows,
    refusals,
    solve,
)

STATES = {"running", "now", "later", "not in this horizon", "refused"}


def problem(
    jobs: list[Any], apps: list[Any] | None = None, gpus: int = 8, steps: int = 24, **pool: Any
) -> Problem:
    return Problem.from_dict(
        {
            "steps": steps,
            "decay": 0.98,
            "shortfall_weight": 8,
            "pools": [{"id": "h100", "gpus": gpus, **pool}],
            "jobs": jobs,
            "apps": apps or [],
        }
    )


def waiting(name: str, gpus: int, steps: int, order: int = 0, **more: Any) -> dict[str, Any]:
    shapes = [{"pool": "h100", "gpus": gpus, "steps": steps}]
    return {"id": name, "priority": 5, "order": order, "shapes": shapes, **more}


def running(name: str, first: int, gpus: int, remaining: int) -> dict[str, Any]:
    block = {"pool": "h100", "first_gpu": first, "gpus": gpus, "remaining": remaining}
    return {"id": name, "priority": 5, "order": 0, "running": block}


def told(problem: Problem, job: str, mode: str = "fifo_backfill") -> dict[str, Any]:
    return explain_job(problem, solve(problem, mode), job)


@pytest.mark.parametrize("mode", ["fast", "fifo", "easy"])
def test_the_true_reason(mode: str) -> None:
    """Four GPUs are free and no block of four is (case P6)."""
    board = problem([running("r1", 2, 2, 5), running("r2", 6, 2, 9), waiting("w", 4, 2)])
    record = told(board, "w", mode)
    assert record["reason"] == "4 GPUs free, largest block 2; first block of 4 at step 5 (0–3)"
    assert (record["state"], record["start"], record["end"]) == ("later", 5, 7)
    assert [(b["task"], b["to"]) for b in record["blockers"]] == [("r1", 5)]


@pytest.mark.parametrize("mode", ["fast", "fifo"])
def test_blocks_are_contiguous_not_aligned(mode: str) -> None:
    """With GPUs 2–5 free a job of four starts now; with nodes of four it does not (case P6)."""
    jobs = [running("r1", 0, 2, 5), running("r2", 6, 2, 9), waiting("w", 4, 2)]
    assert told(problem(jobs), "w", mode)["reason"] == "it starts now on GPU 2–5 of h100"
    reason = "4 GPUs free, largest block 2; first block of 4 at step 5 (0–3)"
    assert told(problem(jobs, node_size=4), "w", mode)["reason"] == reason


@pytest.mark.parametrize("mode", ["fast", "fifo", "priority"])
def test_an_impossible_job_is_refused_and_the_others_start(mode: str) -> None:
    """X needs 16 of 8 GPUs, Y starts at step 0 (case P9)."""
    board = problem([waiting("X", 16, 1), waiting("Y", 2, 1, 1)])
    plan = explain(board, solve(board, mode))
    states = {record["job"]: (record["state"], record["start"]) for record in plan.extra["explanations"]}
    assert states == {"X": ("refused", None), "Y": ("now", 0)}
    assert refusals(board) == {"X": "it needs 16 GPUs, h100 has 8"}


@pytest.mark.parametrize(
    ("job", "pool", "reason"),
    [
        (
            waiting("x", 4, 6, earliest=3, deadline=8),
            {},
            "it may start at step 3 and must end before step 8, but it takes 6 steps on 4 GPUs of h100",
        ),
        (
            waiting("x", 4, 25, finish_inside=True),
            {},
            "it must end inside the horizon of 24 steps, but it takes 25 steps on 4 GPUs of h100",
        ),
        (waiting("x", 8, 1), {"node_size": 16, "gpus": 9}, None),
        (waiting("x", 4, 1), {"node_size": 4, "gpus": 3}, "it needs 4 GPUs, h100 has 3"),
        ({**waiting("x", 4, 1), "shapes": []}, {}, "it has no shape"),
    ],
)
def test_refusals_give_the_reason(job: dict[str, Any], pool: dict[str, Any], reason: str | None) -> None:
    found = refusals(problem([job], **pool)).get("x")
    assert found is None if reason is None else reason in str(found)


def _shapes(*ways: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"pool": "h100", "gpus": gpus, "steps": steps} for gpus, steps in ways]


@pytest.mark.parametrize(
    ("ways", "more", "reason"),
    [
        (
            [(1, 9), (2, 5), (4, 3)],
            {"earliest": 1, "deadline": 3},
            "it may start at step 1 and must end before step 3, but it takes 9 steps on 1 GPU or 5 on 2 or 3 on 4 "
            "of h100",
        ),
        (
            [(1, 90), (2, 80), (4, 70), (8, 60), (8, 65), (1, 85), (2, 75), (16, 1)],
            {"finish_inside": True},
            "it must end inside the horizon of 24 steps, but it takes 85 steps on 1 GPU or 75 on 2 or 70 on 4 or "
            "60 on 8 of h100; it needs 16 GPUs, h100 has 8",
        ),
        ([(16, 1), (32, 1)], {}, "it needs at least 16 GPUs, h100 has 8"),
    ],
)
def test_a_reason_that_shapes_share_is_told_once(
    ways: list[tuple[int, int]], more: dict[str, Any], reason: str
) -> None:
    board = problem([{**waiting("x", 1, 1, **more), "shapes": _shapes(*ways)}])
    assert refusals(board) == {"x": reason}
    assert told(board, "x")["reason"] == f"refused: {reason}"


def test_many_sizes_of_a_pool_are_told_by_the_quickest() -> None:
    ways = [(1 << k, 40 - k) for k in range(6)]
    board = problem([{**waiting("x", 1, 1, finish_inside=True), "shapes": _shapes(*ways)}], gpus=32)
    assert refusals(board)["x"].endswith("it takes at least 35 steps (32 GPUs; 6 sizes on offer) on h100")


def _at(start: str, board: Problem) -> Problem:
    return Problem.from_dict({**board.to_dict(), "start": start})


def test_clock_times_stand_beside_steps_where_the_problem_states_its_start() -> None:
    """UTC unless a zone is given; durations of one step are told in the singular."""
    jobs = [running("r", 0, 8, 5), waiting("w", 4, 2), running("s", 8, 2, 1)]
    board = _at("2026-03-02T08:00:00+00:00", problem(jobs, gpus=16))
    plan = Plan.of(
        board, "fifo", [Placement("r", "h100", 0, 8, 0, 5), Placement("w", "h100", 0, 4, 5, 2),
                        Placement("s", "h100", 8, 2, 0, 1)], [],
    )  # fmt: skip
    assert explain_job(board, plan, "s")["reason"] == "it runs, 1 step to go"
    full = _at("2026-03-02T08:00:00+00:00", problem([running("r", 0, 8, 5), waiting("w", 4, 2)]))
    here = explain_job(full, solve(full, "fifo"), "w")
    assert here["reason"] == "no GPU free; first block of 4 at step 5, Mon 13:00 UTC (0–3)"
    assert here["blockers"][0]["text"] == "r holds GPU 0–3 until step 5, Mon 13:00 UTC (running)"
    there = explain_job(full, solve(full, "fifo"), "w", timezone="Europe/Berlin")
    assert "at step 5, Mon 14:00 CET (0–3)" in there["reason"]
    with pytest.raises(InputError, match="not a time zone"):
        explain_job(full, solve(full, "fifo"), "w", timezone="Mars/Olympus")


def test_windows_and_risks_carry_clock_times() -> None:
    """The end of a window is the instant at which it ends; another day and a change of the clocks are named."""
    apps = [{"id": "chat", "pool": "h100", "priority": 9, "demand": [9] * 4, "held": list(range(8))}]
    board = _at("2026-03-02T22:00:00Z", problem([], apps, steps=4))
    (risk,) = explain(board, solve(board, "fifo")).extra["risks"]
    assert risk["text"] == (
        "chat is 1 GPU short in steps 0–3, Mon 22:00–Tue 02:00 UTC (4 GPU-hours): h100 has 8 GPUs, its apps need 9"
    )
    board = _at("2026-03-29T00:30:00Z", problem([], steps=2))
    plan = explain(board, solve(board, "fifo"), timezone="Europe/Berlin")
    (window,) = plan.extra["idle_windows"]
    assert window["text"] == "h100 GPU 0–7 idle in steps 0–1, Sun 01:30 CET–04:30 CEST"


def test_a_block_that_is_free_for_too_short_is_named() -> None:
    board = problem([running("r", 0, 4, 6), waiting("b", 8, 2), waiting("c", 4, 9, 1)])
    record = told(board, "c")
    assert (
        record["reason"]
        == "4 GPUs free, block of 4 (4–7) for 6 of 9 steps; first block of 4 for 9 steps at step 8 (0–3)"
    )
    assert [(b["task"], b["alone"]) for b in record["blockers"]] == [
        ("b", True)
    ]  # without r, b is still there


def test_demand_of_an_app_is_named_as_what_blocks() -> None:
    apps = [{"id": "chat", "pool": "h100", "priority": 9, "demand": [3, 3, 0, 0], "held": [5, 6, 7]}]
    board = problem([waiting("w", 8, 2)], apps, steps=4)
    record = told(board, "w", "fifo_elastic")
    assert record["reason"] == "5 GPUs free, largest block 4; first block of 8 at step 2 (0–7)"
    assert record["blockers"][0]["text"] == "chat holds GPU 5–7 until step 2 (realtime, demand up to 3)"


def test_first_in_first_out_says_that_the_queue_is_what_holds_a_job_up() -> None:
    board = problem([waiting("a", 4, 3), waiting("b", 8, 2, 1), waiting("c", 1, 1, 2)])
    assert told(board, "c", "fifo")["reason"] == (
        "4 GPUs free, block of 1 (4); "
        "first in, first out starts no job of a pool before its predecessor: it starts at step 5 (0)"
    )


def test_a_tail_that_costs_more_than_it_earns_is_the_reason() -> None:
    """The job could start, but past the horizon it would leave realtime short for longer than it earns."""
    apps = [{"id": "chat", "pool": "h100", "priority": 9, "demand": [0, 0, 8, 8, 8]}]
    board = problem([waiting("w", 8, 5)], apps, steps=2)
    plan = Plan.of(board, "fast", [], [AppCells("chat", [[], []])])
    record = explain_job(board, plan, "w")
    assert record["state"] == "not in this horizon"
    assert "past the horizon it would leave realtime short" in record["reason"]


@pytest.mark.parametrize("mode", ["fast", "fifo", "easy"])
def test_every_job_of_a_long_queue_has_a_start_or_a_state(mode: str) -> None:
    """1,000 equal jobs: none is passed over in silence (case P3)."""
    board = problem([waiting(f"j{i}", 4, 3, i) for i in range(1000)])
    records = explain(board, solve(board, mode)).extra["explanations"]
    assert len(records) == 1000
    begun = [record for record in records if record["start"] is not None]
    assert len(begun) == 16
    assert {record["state"] for record in records if record["start"] is None} == {"not in this horizon"}
    assert all(record["reason"] for record in records)


@pytest.mark.parametrize("mode", ["fast", "fifo", "fifo_backfill"])
def test_expected_starts_fall_step_by_step(mode: str) -> None:
    """Four jobs fill the pool one after the other, and each step brings the rest one step nearer (case P5)."""
    jobs = [waiting(f"j{i}", 4, 3, i) for i in range(4)]
    board = problem(jobs, gpus=4, steps=16)
    begun = {r["job"]: r["start"] for r in explain(board, solve(board, mode)).extra["explanations"]}
    assert sorted(begun.values()) == [0, 3, 6, 9]
    now = [name for name, start in begun.items() if start == 0]
    assert len(now) == 1
    following = [running(now[0], 0, 4, 2), *(job for job in jobs if job["id"] != now[0])]
    after = explain(problem(following, gpus=4, steps=16), solve(problem(following, gpus=4, steps=16), mode))
    later = {r["job"]: r["start"] for r in after.extra["explanations"]}
    assert {name: start + 1 for name, start in later.items() if name not in now} == {
        name: start for name, start in begun.items() if name not in now
    }


@pytest.mark.parametrize("mode", ["fast", "fifo"])
def test_a_job_longer_than_the_horizon_starts_now(mode: str) -> None:
    """It outruns the horizon, and shorter jobs do not starve it (case P7)."""
    board = problem(
        [waiting("long", 1, 60), *(waiting(f"s{i}", 1, 6, i + 1) for i in range(6))], gpus=2, steps=48
    )
    assert told(board, "long", mode)["start"] == 0


def test_risks_name_app_steps_and_gpus() -> None:
    """Each app's own shortfall, the part past the horizon charged to the lowest priority (case R4)."""
    apps = [
        {"id": "first", "pool": "h100", "priority": 9, "demand": [6, 6, 6, 6], "held": [0, 1, 2, 3, 4, 5]},
        {"id": "second", "pool": "h100", "priority": 3, "demand": [6, 6, 6, 1], "held": [6, 7]},
    ]
    board = problem([], apps, steps=2)
    said = "h100 has 8 GPUs, its apps need 12"
    both = {"app": "second", "job": "", "short": 4, "below": 0, "cause": "pool too small"}
    assert coverage_risks(board, solve(board, "fifo")) == [
        {**both, "from": 0, "to": 2, "text": f"second is 4 GPUs short in steps 0–1 (8 GPU-hours): {said}"},
        {
            **both,
            "from": 2,
            "to": 3,
            "text": f"second is 4 GPUs short at step 2, past the horizon (4 GPU-hours): {said}",
        },
    ]


def test_idle_windows_are_rectangles() -> None:
    board = problem([waiting("a", 2, 1)], gpus=4, steps=3)
    plan = Plan.of(board, "hand", [Placement("a", "h100", 1, 2, 0, 1)], [])
    assert [window["text"] for window in idle_windows(board, plan)] == [
        "h100 GPU 0 idle in steps 0–2",
        "h100 GPU 3 idle in steps 0–2",
        "h100 GPU 1–2 idle in steps 1–2",
    ]


def test_an_unknown_job_is_named() -> None:
    board = problem([waiting("a", 1, 1)])
    with pytest.raises(InputError, match="has no job 'b'; name one of a"):
        explain_job(board, solve(board, "fifo"), "b")


@given(problems(steps=(1, 12), jobs=(0, 10)), st.sampled_from((*BASELINES, "fast")))
def test_explanations_agree_with_the_plan(problem: Problem, mode: str) -> None:
    """One record a job, starts as planned, refusals unplaced, idle and surplus cells as the figures say."""
    plan = explain(problem, solve(problem, mode))
    records = {record["job"]: record for record in plan.extra["explanations"]}
    assert list(records) == [job.id for job in problem.jobs]
    for name, record in records.items():
        placed = plan.placement_by_job.get(name)
        assert record["state"] in STATES
        assert (record["start"], record["end"]) == ((placed.start, placed.end) if placed else (None, None))
        assert (record["state"] in ("refused", "not in this horizon")) == (placed is None)
        assert "\n" not in record["reason"]
    short = sum(risk["short"] * (risk["to"] - risk["from"]) for risk in plan.extra["risks"])
    assert short == plan.metrics["shortfall"]
    idle = sum(
        (w["last_gpu"] - w["first_gpu"] + 1) * (w["to"] - w["from"]) for w in plan.extra["idle_windows"]
    )
    idle += sum(s["gpus"] * (s["to"] - s["from"]) for s in plan.extra["surplus"])
    cells = problem.steps * sum(pool.gpus for pool in problem.pools)
    assert 1 - idle / cells == pytest.approx(plan.metrics["utilization"])


@given(problems(steps=(2, 12), jobs=(1, 10)), st.sampled_from(BASELINES))
def test_the_first_block_named_is_free_without_the_job(problem: Problem, mode: str) -> None:
    """The step and GPUs that a reason names are free, for everyone but the job itself."""
    import re

    plan = explain(problem, solve(problem, mode))
    assert plan.grid is not None
    for record in plan.extra["explanations"]:
        found = re.search(
            r"first block of \d+(?: for \d+ steps)? at step (\d+) \((\d+)(?:–(\d+))?\)", record["reason"]
        )
        placed = plan.placement_by_job.get(record["job"])
        if not found or placed is None:
            continue
        step, first = int(found[1]), int(found[2])
        for gpu in range(first, int(found[3] or first) + 1):
            assert plan.grid[placed.pool][gpu][step] in (None, record["job"])
