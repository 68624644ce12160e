"""Baselines on what live clusters have: nodes, replicas, closed GPUs, limits, order; each rule on a small board."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tidegrid.scheduler import BASELINES, Plan, Problem, check, solve
from tidegrid.scheduler.baselines import plan_baseline
from tidegrid.scheduler.baselines.places import Layout, gpus_of, mask_of
from tidegrid.scheduler.generate import random_problem
from tidegrid.scheduler.generate_clusters import FAMILIES, random_cluster
from tidegrid.scheduler.problem import Pool


def cluster(jobs: list[Any], apps: list[Any] | None = None, steps: int = 12, **more: Any) -> Problem:
    """A pool of 4 nodes with 8 GPUs; jobs as (GPUs, steps), in arrival order, or as dictionaries."""
    listed = [
        job if isinstance(job, dict) else {"id": f"j{i}", "order": i, "priority": 5, **shape(*job)}
        for i, job in enumerate(jobs)
    ]
    pool = {"id": "a", "gpus": 32, "node_size": 8, "placement": "node"}
    if "closed" in more:
        pool["closed"] = more.pop("closed")
    return Problem.from_dict(
        {
            "version": 2, "steps": steps, "decay": 0.98, "shortfall_weight": 8, "pools": [pool], "jobs": listed,
            "apps": apps or [], **more,
        }
    )  # fmt: skip


def shape(gpus: int, steps: int, **more: Any) -> dict[str, Any]:
    return {"shapes": [{"pool": "a", "gpus": gpus, "steps": steps, **more}]}


def job(name: str, gpus: int, steps: int, **more: Any) -> dict[str, Any]:
    return {"id": name, "order": 0, "priority": 5, **shape(gpus, steps), **more}


def running(name: str, gpus: list[int], remaining: int, **more: Any) -> dict[str, Any]:
    return {"id": name, "order": 0, "priority": 5, "running": {"pool": "a", "gpu_ids": gpus, "remaining": remaining},
            **more}  # fmt: skip


def app(demand: list[int], **more: Any) -> dict[str, Any]:
    return {"id": "chat", "pool": "a", "priority": 8, "demand": demand, **more}


def starts(plan: Plan) -> dict[str, int]:
    return {p.job: p.start for p in plan.placements}


def test_every_baseline_is_legal_on_both_versions(
    contract_check: Callable[[dict[str, Any], dict[str, Any]], tuple[list[str], dict[str, Any]]],
) -> None:
    """Both checkers, every family, and everything at once on crowded boards."""
    for seed in range(48):
        for problem in (
            random_problem(seed),
            random_cluster(seed, FAMILIES[seed % len(FAMILIES)]),
            random_cluster(seed, "everything", jobs=(5, 30)),
        ):
            data = problem.to_dict()
            for mode in BASELINES:
                plan = plan_baseline(problem, mode)
                violations, figures = check(problem, plan)
                assert violations == [], (seed, mode)
                assert contract_check(data, plan.with_metrics(figures).to_dict())[0] == [], (seed, mode)
                for one in plan.extra["expected"]:
                    assert one["start"] >= problem.steps and one["job"] not in plan.placement_by_job


def test_who_is_held_back_by_a_limit_or_another_job_alone_holds_up_nobody() -> None:
    """The tenant's second job waits for its first, the array's third for one of two; the last job passes them."""
    jobs = [
        job("n1", 4, 3, tenant="nlp"),
        job("n2", 4, 3, tenant="nlp", order=1),
        *(job(f"a{i}", 4, 3, group="a", order=2 + i) for i in range(3)),
        job("late", 4, 3, after=["n1"], order=9),
        job("last", 4, 3, order=10),
    ]
    problem = cluster(jobs, tenants=[{"id": "nlp", "limit": 4}], groups=[{"id": "a", "most": 2}])
    wanted = {"n1": 0, "n2": 3, "a0": 0, "a1": 0, "a2": 3, "late": 3, "last": 0}
    for mode in BASELINES:
        assert starts(plan_baseline(problem, mode)) == wanted


def test_floors_are_up_before_a_dearer_app_has_its_peak() -> None:
    """8 free GPUs, two apps that want all of them: each has its floor of a replica."""
    runs = running("r", [*range(24)], 9)
    dear = {**app([8, 8], replica=4, floor=4), "id": "dear", "priority": 9}
    plan = plan_baseline(cluster([runs], [app([8, 8], replica=4, floor=4), dear], 2), "fifo")
    assert [one.counts() for one in plan.apps] == [[4, 4], [4, 4]]


@pytest.mark.parametrize("mode", ["fast", *BASELINES])
def test_a_wavering_demand_moves_no_more_than_it_must(mode: str) -> None:
    """Replicas 10, 9, 8, 9, 9, 8, 9, 8, 9, 8 of 2 GPUs on nodes of 8 under a cap of 2 GPUs (case R1)."""
    demand = [2 * n for n in (10, 9, 8, 9, 9, 8, 9, 8, 9, 8)]
    chat = app(demand, replica=2, swap_cap=2, held=[[2 * k, 2 * k + 1] for k in range(10)])
    plan = solve(cluster([], [chat], 10, swap_cost=0.1), mode)
    ups = sum(later > now for now, later in pairwise(plan.apps[0].counts()))
    # the curve follows every turn; the others have no reason to let a replica go that they need again
    assert (ups, plan.metrics["swaps"] > 4) == ((3, True) if mode == "fifo_elastic" else (0, False))
    assert plan.metrics["shortfall"] == 0


@pytest.mark.parametrize("mode", BASELINES)
def test_a_wide_job_in_a_stream_of_long_ones_has_its_turn(mode: str) -> None:
    """Step after step a new (4, 80) job comes, played step by step: BIG, 32 wide, starts when R ends at 40."""
    for hour in (0, 17, 39, 40):
        stream = [job(f"s{i}", 4, 80, priority=1, order=1 + i) for i in range(hour + 1)]
        runs = [running("r", [0, 1, 2, 3], 40 - hour)] if hour < 40 else []
        begun = starts(plan_baseline(cluster([*runs, job("big", 32, 4, priority=9), *stream]), mode))
        assert [name for name, at in begun.items() if at == 0] == (["r"] if hour < 40 else ["big"])


def test_a_wide_job_takes_any_whole_nodes() -> None:
    """Node 1 is in use: 16 GPUs lie on nodes 0 and 2, which are no neighbours."""
    plan = plan_baseline(cluster([running("r", [9], 20), (16, 4)]), "fifo")
    assert plan.placement_by_job["j1"].ids == (*range(8), *range(16, 24))


def test_small_jobs_fill_the_fullest_node_and_keep_whole_nodes_whole() -> None:
    """3 GPUs beside the 2 that run, in place of an empty node; then 8 on a whole one."""
    plan = plan_baseline(cluster([running("r", [16, 17], 20), (3, 4), (3, 4), (24, 2)]), "fifo_backfill")
    assert list(plan.placement_by_job["j1"].ids) == [18, 19, 20]
    assert list(plan.placement_by_job["j2"].ids) == [21, 22, 23]
    assert starts(plan)["j3"] == 0


def test_gpus_lie_evenly_on_the_nodes_asked_for_and_within_their_ranges() -> None:
    spread = {"id": "j", "order": 0, "priority": 5, **shape(6, 2, nodes=3, within=[[0, 8], [16, 16]])}
    plan = plan_baseline(cluster([spread]), "fifo")
    assert [gpu // 8 for gpu in plan.placement_by_job["j"].ids] == [0, 0, 2, 2, 3, 3]


def test_closed_gpus_are_kept_clear() -> None:
    """Down from step 3: 4 steps fit only after it; what drains lets a job stay that began before."""
    down = [{"gpus": [0, 32], "from": 3, "to": 6, "kind": "down"}]
    assert starts(plan_baseline(cluster([(8, 4), (8, 3)], closed=down), "fifo_backfill")) == {
        "j0": 6,
        "j1": 0,
    }
    drain = [{"gpus": [0, 32], "from": 1, "to": 6, "kind": "drain"}]
    jobs = [job("now", 8, 9), job("soon", 8, 9, earliest=1)]
    assert starts(plan_baseline(cluster(jobs, closed=drain), "easy")) == {"now": 0, "soon": 6}


@pytest.mark.parametrize("mode", BASELINES)
def test_limits_hold_in_every_step_in_which_a_job_is_on(mode: str) -> None:
    """What runs counts: the tenant holds 8 of 16 until step 3, and an array runs two at a time."""
    tenants = [{"id": "nlp", "limit": 16}]
    jobs = [running("r", list(range(8)), 3, tenant="nlp"), job("w", 16, 2, tenant="nlp")]
    assert starts(plan_baseline(cluster(jobs, tenants=tenants), mode))["w"] == 3
    array = [job(f"a{k}", 1, 4, group="array-7") for k in range(5)]
    groups = [{"id": "array-7", "most": 2}]
    assert sorted(starts(plan_baseline(cluster(array, groups=groups), mode)).values()) == [0, 0, 4, 4, 8]


@pytest.mark.parametrize("mode", BASELINES)
def test_a_job_waits_for_those_that_it_comes_after(mode: str) -> None:
    """In any order of the queue; a circle has no place, and neither has what waits for it."""
    jobs = [
        job("last", 1, 1, priority=9, after=["prep", "ended-long-ago"]),
        job("prep", 32, 5, priority=1, order=1),
        job("egg", 1, 1, after=["hen"]),
        job("hen", 1, 1, after=["egg"]),
        job("chick", 1, 1, after=["egg"]),
    ]
    assert starts(plan_baseline(cluster(jobs), mode)) == {"prep": 0, "last": 5}


def test_the_reservation_holds_whole_replicas_and_the_floor() -> None:
    """A peak of 5 GPUs is two replicas of 4, each on one node; a floor of 12 is three."""
    plan = plan_baseline(cluster([], [app([1, 5, 2], replica=4)], steps=3), "fifo")
    assert plan.apps[0].cells == (((24, 25, 26, 27), (28, 29, 30, 31)),) * 3
    plan = plan_baseline(cluster([], [app([1, 5, 2], replica=4, floor=12)], steps=3), "fifo_elastic")
    assert plan.apps[0].counts() == [12, 12, 12]
    plan = plan_baseline(cluster([], [app([3, 3], replica=16)], steps=2), "fifo")
    assert plan.apps[0].cells[0] == ((*range(16, 32),),)


def test_the_reservation_climbs_by_whole_replicas_under_its_cap() -> None:
    """A cap of 7 lets one replica of 4 move in a step; one below 4 lets none."""
    climbing = plan_baseline(cluster([], [app([12] * 4, replica=4, swap_cap=7)], steps=4), "fifo")
    assert climbing.apps[0].counts() == [4, 8, 12, 12]
    stuck = plan_baseline(cluster([], [app([12] * 4, replica=4, swap_cap=3)], steps=4), "fifo")
    assert stuck.apps[0].counts() == [0] * 4


def test_a_replica_leaves_what_goes_down_and_comes_back_elsewhere() -> None:
    """Leaving costs no swap, so the whole cap is there to enter; GPUs that go down later are not entered."""
    down = [{"gpus": [24, 32], "from": 1, "to": 3, "kind": "down"}]
    held = [[24, 25, 26, 27]]
    plan = plan_baseline(
        cluster([], [app([4] * 3, replica=4, swap_cap=4, held=held)], 3, closed=down), "fifo"
    )
    assert plan.apps[0].cells == (((24, 25, 26, 27),), ((20, 21, 22, 23),), ((20, 21, 22, 23),))
    fresh = plan_baseline(cluster([], [app([4] * 3, replica=4)], 3, closed=down), "fifo")
    assert fresh.apps[0].cells[0] == ((20, 21, 22, 23),)


def test_places_are_found_on_whole_numbers_as_on_lists() -> None:
    """The bits' arithmetic against the obvious search, on boards in a line and by node."""
    import random

    draw = random.Random(1)
    for _ in range(400):
        node, nodes = draw.choice((2, 3, 4, 8)), draw.randint(1, 4)
        pool = Pool(id="p", gpus=node * nodes - draw.choice((0, 0, 1)), node_size=draw.choice((node, None)))
        layout = Layout(pool)
        free = [gpu for gpu in range(pool.gpus) if draw.random() < 0.6]
        gpus = draw.choice((1, 2, 4, 8))
        legal = [g for g in range(pool.gpus) if pool.allows(g, gpus) and set(range(g, g + gpus)) <= set(free)]
        found = gpus_of(layout.find(mask_of(free), gpus, 1))
        assert bool(found) == bool(legal)
        if found:
            assert found[0] in legal and found == list(range(found[0], found[0] + gpus))
        even = Layout(Pool(id="p", gpus=pool.gpus, node_size=node, placement="node"))
        each, many = draw.randint(1, node), draw.randint(1, nodes)
        counts = [sum(gpu // node == k for gpu in free) for k in range(nodes)]
        found = gpus_of(even.find(mask_of(free), each * many, many))
        roomy = sorted((count, k) for k, count in enumerate(counts) if count >= each)
        assert bool(found) == (len(roomy) >= many)
        if found:
            assert sorted({gpu // node for gpu in found}) == sorted(k for _, k in roomy[:many])
            assert len(found) == each * many and set(found) <= set(free)
