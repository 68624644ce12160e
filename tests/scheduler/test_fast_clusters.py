"""Mode fast on problems of version 2: nodes, replicas, closed GPUs, limits, order, and the work that pays."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import clusters, naive_plans

from tidegrid.scheduler import BASELINES, Placement, Plan, Problem, check, explain_job, solve
from tidegrid.scheduler.generate_clusters import FAMILIES, random_cluster

NODES = {"id": "a100", "gpus": 24, "node_size": 8, "placement": "node"}


def problem(jobs: list[dict[str, Any]], apps: list[dict[str, Any]] | None = None, **other: Any) -> Problem:
    """Three nodes of 8 GPUs, 12 steps; jobs and apps with their ids and orders filled in."""
    base = {"version": 2, "steps": 12, "decay": 0.98, "shortfall_weight": 8, "pools": [NODES]}
    jobs = [{"id": f"job-{i}", "priority": 5, "order": i, **job} for i, job in enumerate(jobs)]
    apps = [
        {"id": f"app-{i}", "pool": "a100", "priority": 5, "held": [], **app}
        for i, app in enumerate(apps or [])
    ]
    return Problem.from_dict({**base, "jobs": jobs, "apps": apps, **other})


def shape(gpus: int, steps: int, **other: Any) -> dict[str, Any]:
    return {"shapes": [{"pool": "a100", "gpus": gpus, "steps": steps, **other}]}


def starts(p: Problem) -> dict[str, int]:
    return {x.job: x.start for x in solve(p).placements}


@given(clusters())
def test_every_plan_is_legal(contract_check: Any, p: Problem) -> None:
    """Both checkers pass every plan and agree on its figures."""
    plan = solve(p, rounds=20)
    violations, figures = contract_check(p.to_dict(), plan.to_dict())
    assert not violations
    assert plan.metrics["objective"] == pytest.approx(figures["objective"])


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_planned_legally(contract_check: Any, family: str) -> None:
    for seed in range(25):
        p = random_cluster(seed, family)
        assert not contract_check(p.to_dict(), solve(p, rounds=40).to_dict())[0], seed


@given(st.data(), clusters())
def test_no_plan_is_worth_less_than_a_legal_warm_start(data: st.DataObject, p: Problem) -> None:
    warm = data.draw(naive_plans(p))
    worth = warm.metrics["objective"]
    assert solve(p, rounds=5, warm_start=warm).metrics["objective"] >= worth - 1e-9 * max(1.0, abs(worth))


def worst_below(p: Problem, rounds: int | None) -> float:
    """How far the plan is below the best baseline, as a share of it; 0 where it is not."""
    best = max(solve(p, mode).metrics["objective"] for mode in BASELINES)
    return max(0.0, best - solve(p, rounds=rounds).metrics["objective"]) / max(1.0, abs(best))


@given(clusters(), st.sampled_from((0, 20)))
def test_no_plan_is_worth_less_than_a_baseline(p: Problem, rounds: int) -> None:
    assert worst_below(p, rounds) < 1e-9


@pytest.mark.parametrize("family", FAMILIES)
def test_no_plan_of_a_family_is_worth_less_than_a_baseline(family: str) -> None:
    """Replicas, floors and closed GPUs make a baseline's apps hard to better; crowded boards too."""
    for seed in range(24):
        for p in (random_cluster(seed, family), random_cluster(seed, family, jobs=(5, 20))):
            assert worst_below(p, 20 * (seed % 2)) < 1e-9, seed


@pytest.mark.parametrize(
    ("seed", "family", "ranges"),
    [(10, "everything", {}), (40, "everything", {}), (43, "windows", {"jobs": (5, 20)})],
)
def test_a_baseline_with_its_own_apps_is_kept(seed: int, family: str, ranges: dict[str, Any]) -> None:
    """On these boards the baseline's own apps are served better than the search serves them after its jobs."""
    assert worst_below(random_cluster(seed, family, **ranges), None) < 1e-9


@pytest.mark.parametrize("mode", ["fast", *BASELINES])
@pytest.mark.parametrize("placement", ["node", "line"])
def test_a_shape_that_may_lie_nowhere_has_no_place(contract_check: Any, mode: str, placement: str) -> None:
    """No range is not any range: the job takes its other shape, or has no place and is refused."""
    nowhere = shape(8, 2, within=[])["shapes"]
    pools = [{**NODES, "placement": placement}]
    p = problem([{"shapes": nowhere}, {"shapes": nowhere + shape(4, 3)["shapes"]}], pools=pools)
    plan = solve(p, mode)
    assert [(x.job, x.gpus) for x in plan.placements] == [("job-1", 4)]
    assert not contract_check(p.to_dict(), plan.to_dict())[0]
    assert explain_job(p, plan, "job-0")["reason"] == "refused: it may use no GPU of a100"
    forced = Plan.of(p, mode, [Placement.on("job-0", "a100", range(8), 0, 2)], plan.apps)
    assert check(p, forced)[0] and contract_check(p.to_dict(), forced.to_dict())[0]


def test_an_unchanged_problem_keeps_its_plan() -> None:
    for seed in range(20):
        p = random_cluster(seed)
        old = solve(p, rounds=1000, seed=3)
        new = solve(p, rounds=0, warm_start=old)
        again = solve(p, rounds=0, warm_start=new)
        assert (again.placements, again.apps) == (new.placements, new.apps)


def test_two_threads_give_the_same_bytes_as_one() -> None:
    for seed in range(5):
        p = random_cluster(seed, nodes=(2, 4), jobs=(8, 14))
        one, two = solve(p, rounds=1000), solve(p, rounds=1000, threads=2)
        assert one.to_dict() == two.to_dict()


def earlier(p: Problem, plan: Plan) -> str | None:
    """A job that may start earlier, in its shape, on GPUs that nothing uses, and would earn more."""
    grid = plan.grid or {}
    for x in plan.placements:
        pool, job = p.pool_by_id[x.pool], p.job_by_id[x.job]
        for start in range(0 if job.running else job.earliest, 0 if job.running else x.start):
            rows = [row[start : min(start + x.steps, p.steps)] for row in grid[x.pool]]
            free = [g for g, row in enumerate(rows) if all(cell in (None, x.job) for cell in row)]
            if pool.by_node:
                ids = _even(free, pool.node_size or 1, x)
            else:
                blocks = (range(g, g + x.gpus) for g in free)
                ids = [list(block) for block in blocks if set(block) <= set(free)]
            for block in ids:
                rest = [y for y in plan.placements if y.job != x.job]
                moved = Placement.on(x.job, x.pool, block, start, x.steps)
                bad, figures = check(p, Plan.of(p, "moved", [*rest, moved], plan.apps))
                if not bad and figures["objective"] > plan.metrics["objective"] + 1e-6:
                    return f"{x.job} may start at {start}, not at {x.start}"
    return None


def _even(free: list[int], node: int, x: Placement) -> list[list[int]]:
    """The first GPUs of the first nodes on which a placement's shape fits, or nothing."""
    nodes = len({g // node for g in x.ids})
    by_node: dict[int, list[int]] = {}
    for g in free:
        by_node.setdefault(g // node, []).append(g)
    roomy = [gpus[: x.gpus // nodes] for gpus in by_node.values() if len(gpus) >= x.gpus // nodes]
    return [[g for gpus in roomy[:nodes] for g in gpus]] if len(roomy) >= nodes else []


def test_no_job_waits_for_gpus_that_are_free_earlier() -> None:
    for seed in range(60):
        p = random_cluster(seed, FAMILIES[seed % len(FAMILIES)])
        assert earlier(p, solve(p, rounds=5)) is None, seed


def test_a_wide_job_takes_any_free_nodes() -> None:
    """Two whole nodes that are not neighbours."""
    running = {"running": {"pool": "a100", "gpu_ids": [8, 9, 10], "remaining": 12}}
    plan = solve(problem([running, shape(16, 4, nodes=2)]))
    wide = plan.placement_by_job["job-1"]
    assert wide.start == 0 and {g // 8 for g in wide.ids} == {0, 2}


def test_small_jobs_leave_whole_nodes_whole() -> None:
    """Six jobs of 1 to 3 GPUs lie on one node, so that a job of two nodes starts at once."""
    sizes = (3, 1, 2, 1, 1)
    assert set(starts(problem([*(shape(n, 6) for n in sizes), shape(16, 6, nodes=2)])).values()) == {0}


def test_closed_gpus_are_used_by_nothing_new() -> None:
    """Node 1 is down from step 3, node 2 drains: two jobs of a node and 4 steps follow each other on node 0."""
    closed = [
        {"gpus": [8, 16], "from": 3, "to": 12, "kind": "down"},
        {"gpus": [16, 24], "from": 0, "to": 12, "kind": "drain"},
    ]
    p = problem([shape(8, 4), shape(8, 4), shape(8, 3)], pools=[{**NODES, "closed": closed}])
    assert sorted(starts(p).values()) == [0, 0, 4]


def test_limits_and_order_are_kept() -> None:
    tenants = [{"id": "nlp", "limit": 8}]
    p = problem([{**shape(8, 3), "tenant": "nlp"}] * 3, tenants=tenants)
    assert sorted(starts(p).values()) == [0, 3, 6]
    p = problem([{**shape(1, 3), "group": "array"}] * 3, groups=[{"id": "array", "most": 2}])
    assert sorted(starts(p).values()) == [0, 0, 3]
    p = problem([{**shape(1, 3), "after": ["job-1"]}, {**shape(1, 2), "after": ["gone"]}])
    assert starts(p) == {"job-0": 2, "job-1": 0}


def test_replicas_are_up_and_down_as_a_whole() -> None:
    """6 GPUs of demand are two replicas of 4, each on one node."""
    plan = solve(problem([], [{"demand": [6] * 12, "replica": 4, "swap_cap": 4}]))
    assert [len(cells) for cells in plan.apps[0].cells] == [1] + [2] * 11
    assert all(len({g // 8 for g in one}) == 1 for cells in plan.apps[0].cells for one in cells)


def test_the_floor_of_an_app_comes_before_the_demand_of_a_dearer_one() -> None:
    """Eight GPUs: the cheap app keeps its floor of 2 though the other wants all of them."""
    pools = [{**NODES, "gpus": 8}]
    apps = [{"demand": [8] * 12, "priority": 9}, {"demand": [4] * 12, "priority": 2, "floor": 2}]
    plan = solve(problem([], apps, pools=pools))
    assert [len(cells) for cells in plan.apps[1].cells] == [2] * 12


def test_a_wasteful_shape_earns_no_more_than_an_efficient_one() -> None:
    """The same work on 8 GPUs for 3 steps or on 16 for 9: the fast, small shape, whichever is listed first."""
    fast, slow = shape(8, 3)["shapes"], shape(16, 9, nodes=2)["shapes"]
    for shapes in (fast + slow, slow + fast):
        assert solve(problem([{"shapes": shapes}])).placements[0].gpus == 8


def test_a_shape_that_the_limit_kills_is_worth_little() -> None:
    """Of 2 GPUs, where one job in ten ends in time, and 8, where all do, it gets 8."""
    shapes = [
        {"pool": "a100", "gpus": 2, "steps": 6, "success": 0.1},
        {"pool": "a100", "gpus": 8, "steps": 4},
    ]
    assert solve(problem([{"shapes": shapes}])).placements[0].gpus == 8
