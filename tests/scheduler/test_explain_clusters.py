"""What reasons and risks say of clusters, and laws that hold every statement against the plan's board."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from naive_planner import naive_plan
from test_baselines_clusters import app, cluster, job, running, shape

from tidegrid.scheduler import (
    AppCells,
    Placement,
    Plan,
    Problem,
    check,
    coverage_risks,
    explain,
    idle_windows,
)
from tidegrid.scheduler.baselines import plan_baseline
from tidegrid.scheduler.baselines.board import Ask
from tidegrid.scheduler.baselines.places import mask_of
from tidegrid.scheduler.generate import SeededChooser, random_problem
from tidegrid.scheduler.generate_clusters import FAMILIES, random_cluster
from tidegrid.scheduler.planned import PlanBoard
from tidegrid.scheduler.problem import Job


def told(problem: Problem, name: str, mode: str = "fifo_backfill") -> dict[str, Any]:
    plan = explain(problem, plan_baseline(problem, mode))
    return next(record for record in plan.extra["explanations"] if record["job"] == name)


def reason(problem: Problem, name: str, mode: str = "fifo_backfill") -> str:
    return str(told(problem, name, mode)["reason"])


def test_by_node_the_nodes_that_have_room_are_counted() -> None:
    """Node 1 of 4 is in use until step 5: three of four nodes are whole."""
    board = cluster([running("r", [9], 5), (32, 2)])
    assert reason(board, "j1") == (
        "31 GPUs free, 3 of the 4 nodes that it needs have 8 GPUs free; "
        "first place for 32 GPUs on 4 nodes at step 5 (0–31)"
    )
    spread = [running(f"r{k}", [8 * k], 5 + k) for k in range(4)]
    assert reason(cluster([*spread, (8, 2)]), "j4") == (
        "28 GPUs free, at most 7 on one node; first place for 8 GPUs at step 5 (0–7)"
    )
    assert reason(cluster([(3, 2)]), "j0") == "it starts now on GPU 0–2 of a"


def test_limits_are_named_with_what_they_count() -> None:
    tenants = [{"id": "nlp", "limit": 16}]
    jobs = [running("r", list(range(16)), 3, tenant="nlp"), job("w", 8, 2, tenant="nlp")]
    record = told(cluster(jobs, tenants=tenants), "w")
    assert record["reason"] == "nlp holds 16 of its 16 GPUs; first place for 8 GPUs at step 3 (0–7)"
    assert [(b["task"], b["alone"]) for b in record["blockers"]] == [("r", True)]
    array = [job(f"a{k}", 1, 4, group="array-7") for k in range(3)]
    record = told(cluster(array, groups=[{"id": "array-7", "most": 2}]), "a2")
    assert record["reason"] == "waits for array-7: 2 of at most 2 run; first place for 1 GPU at step 4 (0)"
    assert {b["text"] for b in record["blockers"]} == {
        "a0 holds GPU 0 until step 4 (priority 5)", "a1 runs until step 4 (priority 5)",
    }  # fmt: skip
    far = [job("w", 8, 2, tenant="nlp")]
    assert reason(cluster(far, tenants=[{"id": "nlp", "limit": {"a": 4}}]), "w") == (
        "refused: it needs 8 GPUs, its tenant nlp may hold 4 GPUs of a"
    )


def test_the_job_that_is_waited_for_is_named() -> None:
    jobs = [running("prep", [0], 5), job("w", 1, 2, after=["prep"])]
    assert reason(cluster(jobs), "w") == "waits for prep, which ends at step 5"
    jobs = [running("prep", [0], 50), job("w", 1, 2, after=["prep"])]
    assert reason(cluster(jobs), "w").startswith("waits for prep, which ends at step 50, past the horizon")
    circle = [job("egg", 1, 1, after=["hen"]), job("hen", 1, 1, after=["egg"])]
    assert reason(cluster(circle), "egg") == "refused: it and jobs before it wait for each other"
    never = [job("big", 64, 1), job("w", 1, 1, after=["big"])]
    assert reason(cluster(never), "w") == "refused: it waits for big, which can never run"


def test_nodes_that_are_down_are_named_where_they_are_the_reason() -> None:
    """Three nodes are down from 14:00 to 18:00; the job fits beside nothing but them."""
    down = [{"gpus": [8, 32], "from": 2, "to": 6, "kind": "down"}]
    board = cluster([(16, 3)], closed=down, start="2026-03-02T12:00:00Z")
    assert reason(board, "j0") == (
        "32 GPUs free, room for 16 GPUs on 2 nodes (0–15) for 2 of 3 steps; "
        "nodes 1–3 (GPUs 8–31) are down from step 2 to step 6, Mon 14:00–18:00 UTC; "
        "first place for 16 GPUs on 2 nodes for 3 steps at step 6, Mon 18:00 UTC (0–15)"
    )
    down[0]["gpus"] = [16, 24]
    assert "node 2 (GPUs 16–23) is down from step 2 to step 6, Mon 14:00–18:00 UTC" in reason(
        cluster([(32, 3)], closed=down, start="2026-03-02T12:00:00Z"), "j0"
    )


def test_a_shape_that_the_time_limit_kills_is_told() -> None:
    ways = [
        {"pool": "a", "gpus": 4, "steps": 9, "success": 0.1},
        {"pool": "a", "gpus": 8, "steps": 4, "success": 0.95},
    ]
    board = cluster([{"id": "w", "order": 0, "priority": 5, "shapes": ways}])
    assert reason(board, "w") == (
        "it starts now on GPU 0–7 of a; 4 GPUs of a: killed by its time limit in 9 of 10 cases"
    )
    forced = {"id": "w", "order": 0, "priority": 5, "shapes": ways, "requested": 0}
    board = cluster([forced])
    (risk,) = coverage_risks(board, plan_baseline(board, "fifo"))
    assert risk["text"] == "w on 4 GPUs of a is killed by its time limit in 9 of 10 cases"


def test_a_deadline_is_the_reason_where_it_is() -> None:
    """A place is free from step 6 on, and would end past the deadline: nothing is said of no place."""
    board = cluster([running("r", list(range(32)), 6), job("w", 8, 4, deadline=8)])
    record = told(board, "w")
    assert record["reason"] == (
        "no GPU free; first place for 8 GPUs at step 6 (0–7); "
        "it would end at step 10, past its deadline, step 8"
    )
    assert [b["text"] for b in record["blockers"]] == ["r holds GPU 0–7 until step 6 (running)"]


def test_a_job_of_lower_priority_that_goes_first_is_told_with_its_reason() -> None:
    """The small job fits now beside what runs, the wide one does not: it is smaller, and shorter."""
    wide, small = job("wide", 32, 6, priority=9), job("small", 8, 5, priority=2)
    board = cluster([wide, small, running("r", list(range(8)), 3)])
    plan = Plan.of(
        board, "hand",
        [Placement("r", "a", 0, 8, 0, 3), Placement("small", "a", 8, 8, 0, 5), Placement("wide", "a", 0, 32, 5, 6)], [],
    )  # fmt: skip
    (record,) = [one for one in explain(board, plan).extra["explanations"] if one["job"] == "wide"]
    assert [b["text"] for b in record["blockers"]] == [
        "small holds GPU 8–15 until step 5 "
        "(priority 2, goes first: smaller, 8 against 32 GPUs; shorter, 5 against 6 steps)"
    ]
    queue = [job("first", 32, 5, priority=2), job("wide", 32, 6, priority=9, order=1)]
    assert told(cluster(queue), "wide")["blockers"][0]["text"] == (
        "first holds GPU 0–31 until step 5 (priority 2, it came first)"
    )


def test_a_start_past_the_horizon_is_told() -> None:
    record = told(cluster([running("r", list(range(32)), 40), (8, 4)]), "j1")
    assert (record["state"], record["start"], record["expected"]) == ("not in this horizon", None, 40)
    assert record["reason"].endswith("expected at step 40, past the horizon")


@pytest.mark.parametrize(
    ("board", "cause", "text"),
    [
        (
            cluster([], [app([19] * 2, swap_cap=10)], steps=2),
            "swap cap",
            "chat is 9 GPUs short at step 0 (9 GPU-hours): its swap cap is 10 GPUs a step",
        ),
        (
            cluster([], [app([40], id="chat")], steps=1),
            "pool too small",
            "chat is 8 GPUs short at step 0 (8 GPU-hours): a has 32 GPUs, its apps need 40",
        ),
        (
            cluster([running("r", list(range(30)), 9)], [app([4] * 2, floor=3)], steps=2),
            "taken",
            "chat is 2 GPUs short and 1 GPU below its floor of 3 in steps 0–1 (4 GPU-hours): "
            "a is held by r (running)",
        ),
        (
            cluster([], [app([32] * 2)], 2, closed=[{"gpus": [0, 8], "from": 0, "to": 2, "kind": "down"}]),
            "nodes down",
            "chat is 8 GPUs short in steps 0–1 (16 GPU-hours): "
            "node 0 (GPUs 0–7) is down from step 0 to step 2",
        ),
        (
            cluster([running(f"r{k}", [8 * k], 9) for k in range(4)], [app([8], replica=8)], steps=1),
            "no whole replica",
            "chat is 8 GPUs short at step 0 (8 GPU-hours): no node has room for a replica of 8 GPUs",
        ),
    ],
)
def test_a_shortage_has_its_cause_and_units(board: Problem, cause: str, text: str) -> None:
    (risk,) = coverage_risks(board, plan_baseline(board, "fifo"))
    assert (risk["cause"], risk["text"]) == (cause, text)


def test_a_plan_that_leaves_gpus_free_is_told_so() -> None:
    board = cluster([], [app([2])], steps=1)
    (risk,) = coverage_risks(board, Plan.of(board, "hand", [], [AppCells("chat", [[]])]))
    assert risk["text"] == "chat is 2 GPUs short at step 0 (2 GPU-hours): the plan leaves GPUs free"


def test_a_job_that_runs_on_gpus_that_go_down_is_a_risk() -> None:
    board = cluster([running("r", [0, 1], 6)], closed=[{"gpus": [0, 8], "from": 4, "to": 9, "kind": "down"}])
    (risk,) = coverage_risks(board, plan_baseline(board, "fifo"))
    assert (risk["job"], risk["text"]) == (
        "r", "r runs on GPUs that go down: node 0 (GPUs 0–7) is down from step 4 to step 9",
    )  # fmt: skip


def test_gpus_that_are_down_are_not_idle() -> None:
    board = cluster([], steps=4, closed=[{"gpus": [0, 24], "from": 1, "to": 9, "kind": "down"}])
    assert [window["text"] for window in idle_windows(board, plan_baseline(board, "fifo"))] == [
        "a GPU 0–23 idle at step 0", "a GPU 24–31 idle in steps 0–3",
    ]  # fmt: skip


def test_a_hold_ends_where_nothing_of_the_gpus_is_held_any_longer() -> None:
    """An app grows at step 2 and keeps GPU 7 until it leaves it at step 4."""
    board = cluster([], [app([1, 1, 2, 2, 1])], steps=5)
    cells = AppCells("chat", [[7], [7], [6, 7], [6, 7], [6]])
    held = PlanBoard(board, Plan.of(board, "hand", [], [cells])).held
    assert held("chat", "a", mask_of([7]), 0, 2) == (mask_of([7]), 0, 4)
    assert held("chat", "a", mask_of([6, 7]), 1, 2) == (mask_of([7]), 1, 4)
    assert held("chat", "a", mask_of([5]), 0, 5) is None


# --- laws ---


def plans() -> Iterator[tuple[Problem, Plan]]:
    for seed in range(24):
        for problem in (
            random_problem(seed),
            random_cluster(seed, FAMILIES[seed % len(FAMILIES)]),
            random_cluster(seed, "everything", jobs=(5, 24)),
        ):
            yield problem, naive_plan(problem, SeededChooser(seed))
            for mode in ("fifo", "easy_priority", "fifo_elastic"):
                plan = plan_baseline(problem, mode)
                yield problem, plan.with_metrics(check(problem, plan)[1])


@pytest.fixture(scope="module")
def explained() -> list[tuple[Problem, Plan]]:
    return [(problem, explain(problem, plan)) for problem, plan in plans()]


def owners(problem: Problem, plan: Plan, pool: str, gpu: int, t: int) -> list[str]:
    """Who holds a GPU at a step, tails past the horizon included."""
    found = [p.job for p in plan.placements if p.pool == pool and gpu in p.ids and p.start <= t < p.end]
    if t < problem.steps:
        mine = [entry for entry in plan.apps if problem.app_by_id[entry.app].pool == pool]
        found += [entry.app for entry in mine if gpu in entry.gpus(t)]
    return found


def numbers(text: str) -> list[int]:
    """The GPUs of "0–3, 6"."""
    out: list[int] = []
    for part in text.split(", "):
        first, _, last = part.partition("–")
        out += range(int(first), int(last or first) + 1)
    return out


def asks(problem: Problem, board: PlanBoard, name: str, gpus: int, **more: Any) -> list[Ask]:
    one: Job = problem.job_by_id[name]
    found = [board.ask(one, s) for s in one.shapes if s.gpus == gpus]
    return [ask._replace(limits=(), latest_end=1 << 40, **more) for ask in found if ask is not None]


def test_every_first_place_is_free_for_everyone_but_the_job(explained: list[tuple[Problem, Plan]]) -> None:
    seen = 0
    for problem, plan in explained:
        for record in plan.extra["explanations"]:
            found = re.search(
                r"first (?:block of|place for) (\d+)[^;]*? at step (\d+)[^(]*\(([\d–, ]+)\)", record["reason"]
            )
            if not found:
                continue
            gpus, step, where = int(found[1]), int(found[2]), numbers(found[3])
            board = PlanBoard(problem, plan)
            shapes = [s for s in problem.job_by_id[record["job"]].shapes if s.gpus == gpus]
            with board.without(record["job"]):
                assert any(not mask_of(where) & ~board.free(s.pool, step, step + s.steps) for s in shapes)
            seen += 1
    assert seen > 100


def test_where_no_place_is_said_to_be_free_none_is(explained: list[tuple[Problem, Plan]]) -> None:
    seen = 0
    for problem, plan in explained:
        for record in plan.extra["explanations"]:
            found = re.search(r"no (?:block of|place for) (\d+).*? is free for (\d+) step", record["reason"])
            if not found:
                continue
            board, name = PlanBoard(problem, plan), record["job"]
            mine = asks(problem, board, name, int(found[1]))
            mine = [ask for ask in mine if ask.steps == int(found[2])]
            after = [
                plan.placement_by_job[o].end
                for o in problem.job_by_id[name].after or ()
                if o in problem.job_by_id
            ]
            ready = max([problem.job_by_id[name].earliest, *after])
            assert any(not any(board.at(ask, t) for t in range(ready, problem.steps)) for ask in mine), (
                record["reason"]
            )
            seen += 1
    assert seen > 50


def test_every_until_is_the_end_of_the_hold(explained: list[tuple[Problem, Plan]]) -> None:
    """The task holds some of the GPUs named in the step before, and none of them in the step named."""
    seen = 0
    for problem, plan in explained:
        for record in plan.extra["explanations"]:
            for blocker in record["blockers"]:
                task, end = blocker["task"], blocker["to"]
                placed = plan.placement_by_job.get(task)
                if placed is not None:
                    assert end == placed.end
                found = re.search(r"holds GPU ([\d–, ]+) (?:until step (\d+)|to the end)", blocker["text"])
                if not found:
                    continue
                pool = placed.pool if placed else problem.app_by_id[task].pool
                where = numbers(found[1])
                assert found[2] is None or int(found[2]) == end
                assert any(task in owners(problem, plan, pool, gpu, end - 1) for gpu in where)
                assert not any(task in owners(problem, plan, pool, gpu, end) for gpu in where)
                seen += 1
    assert seen > 100


def test_without_a_blocker_the_job_starts_sooner(explained: list[tuple[Problem, Plan]]) -> None:
    """A blocker that is said to be one alone is taken away alone, by another way than the one that found it."""
    seen = joint = 0
    for problem, plan in explained:
        for record in plan.extra["explanations"]:
            name, placed = record["job"], plan.placement_by_job.get(record["job"])
            until = problem.steps if placed is None else placed.start
            shapes = [
                s
                for s in problem.job_by_id[name].shapes
                if placed is None or (s.pool, s.gpus, s.steps) == (placed.pool, placed.gpus, placed.steps)
            ]
            groups = [[b["task"]] for b in record["blockers"] if b["alone"]]
            together = [b["task"] for b in record["blockers"] if not b["alone"]]
            if together and "more)" not in record["blockers"][0]["text"]:
                groups.append(together)
                joint += 1
            for gone in groups:
                rest = Plan.of(
                    problem, "rest",
                    [p for p in plan.placements if p.job not in (*gone, name) or p.job in _kept(problem, gone)],
                    [entry for entry in plan.apps if entry.app not in gone],
                )  # fmt: skip
                assert _starts_before(problem, rest, name, shapes, gone, until, plan), record
                seen += 1
    assert seen > 100 and joint > 10


def _kept(problem: Problem, gone: list[str]) -> list[str]:
    """Running jobs stay on a new board whatever a plan says, so they are taken off it by hand."""
    return [name for name in gone if problem.job_by_id.get(name) and problem.job_by_id[name].running]


def _starts_before(
    problem: Problem, rest: Plan, name: str, shapes: Any, gone: list[str], until: int, plan: Plan
) -> bool:
    board = PlanBoard(problem, rest)
    waiting = problem.job_by_id[name]
    after = [plan.placement_by_job[o].end for o in waiting.after or () if o in problem.job_by_id]
    ready = max([waiting.earliest, *after])
    with board.without(*_kept(problem, gone)):
        found = [board.ask(waiting, s) for s in shapes]
        return any(board.at(ask, t) for ask in found if ask for t in range(ready, until))


def test_risks_add_up_to_the_shortfall_and_name_a_cause(explained: list[tuple[Problem, Plan]]) -> None:
    for problem, plan in explained:
        risks = plan.extra["risks"]
        assert sum(r["short"] * (r["to"] - r["from"]) for r in risks) == plan.metrics["shortfall"]
        assert all(r["cause"] and ("GPU-hour" in r["text"] or r["job"]) for r in risks)
        below = sum(r["below"] * (r["to"] - r["from"]) for r in risks)
        assert below == sum(
            max(0, problem.app_by_id[entry.app].floor - held)
            for entry in plan.apps
            for held in entry.counts()
        )


def test_idle_and_surplus_cells_are_what_utilization_leaves(explained: list[tuple[Problem, Plan]]) -> None:
    for problem, plan in explained:
        idle = sum(
            (w["last_gpu"] - w["first_gpu"] + 1) * (w["to"] - w["from"]) for w in plan.extra["idle_windows"]
        )
        idle += sum(s["gpus"] * (s["to"] - s["from"]) for s in plan.extra["surplus"])
        down = 0
        for pool in problem.pools:
            for t in range(problem.steps):
                shut = {
                    gpu
                    for c in pool.closed or ()
                    if c.kind == "down" and c.start <= t < c.end
                    for gpu in range(*c.gpus)
                }
                down += sum(not owners(problem, plan, pool.id, gpu, t) for gpu in shut)
        cells = problem.steps * sum(pool.gpus for pool in problem.pools) - down
        if cells:
            assert 1 - idle / cells == pytest.approx(plan.metrics["utilization"])


def test_a_time_limit_that_never_kills_is_not_told() -> None:
    ways = [{"pool": "a", "gpus": 4, "steps": 9, "success": 0.6}, *shape(8, 4)["shapes"]]
    assert "killed" not in reason(cluster([{"id": "w", "order": 0, "priority": 5, "shapes": ways}]), "w")
