"""Cases of planning and realtime with a right answer, in mode fast."""

import random
from typing import Any

import pytest

from tidegrid.scheduler import Problem, solve


def planned(
    waiting: list[tuple[int, int, float]],
    gpus: int = 8,
    steps: int = 24,
    running: list[tuple[int, int, int]] | None = None,
    apps: list[dict[str, Any]] | None = None,
    decay: float = 1.0,
    finish_inside: bool = False,
) -> tuple[dict[str, int], Any]:
    """Start of each waiting job ``w0``, ``w1`` … of (GPUs, steps, priority); running: (first, GPUs, remaining)."""
    jobs = [
        {
            "id": f"r{i}",
            "priority": 5,
            "order": -100 + i,
            "running": {"pool": "p", "first_gpu": first, "gpus": size, "remaining": left},
            "shapes": [],
        }
        for i, (first, size, left) in enumerate(running or [])
    ] + [
        {
            "id": f"w{i}",
            "priority": priority,
            "order": i,
            "shapes": [{"pool": "p", "gpus": size, "steps": length}],
            "finish_inside": finish_inside,
        }
        for i, (size, length, priority) in enumerate(waiting)
    ]
    plan = solve(
        Problem.from_dict(
            {
                "version": 1,
                "steps": steps,
                "decay": decay,
                "shortfall_weight": 8,
                "pools": [{"id": "p", "gpus": gpus}],
                "jobs": jobs,
                "apps": [{"pool": "p", "priority": 5, **app} for app in apps or []],
            }
        )
    )
    return {p.job: p.start for p in plan.placements if p.job.startswith("w")}, plan


@pytest.mark.parametrize("decay", [1.0, 0.98])
def test_a_wide_job_does_not_starve(decay: float) -> None:
    """BIG starts when both halves are free, small ones fill the gap before it, the rest waits (case P1)."""
    starts, _ = planned(
        [(8, 4, 9), (2, 2, 1), (2, 2, 1), (2, 6, 1)], running=[(0, 4, 4), (4, 4, 6)], decay=decay
    )
    assert starts["w0"] == 6
    assert (starts["w1"], starts["w2"]) == (4, 4)
    assert starts["w3"] >= 10


def test_a_wide_job_is_never_put_off_by_newcomers() -> None:
    """With a new (2, 6, 1) at every re-run, BIG still starts at the sixth step (case P1)."""
    for now in range(6):
        running = [(0, 4, 4 - now)] if now < 4 else []
        running.append((4, 4, 6 - now))
        small = [(2, 2, 1)] * 2 if now < 4 else []
        if now == 5:  # both small jobs run since step 4
            running += [(0, 2, 1), (2, 2, 1)]
        if now == 4:
            small = [(2, 2, 1)] * 2
        starts, _ = planned([(8, 4, 9), *small, *[(2, 6, 1)] * (1 + now)], running=running)
        assert now + starts["w0"] == 6
        assert all(now + start >= 10 for job, start in starts.items() if int(job[1:]) > len(small))


@pytest.mark.parametrize("shuffle", range(6))
def test_seven_waves_fit(shuffle: int) -> None:
    """383 GPU-steps in 19 jobs on 4 GPUs × 98 steps: all are placed whatever the input order (case P4)."""
    waves = [(4, 16), *[(2, 16)] * 6, (1, 16), (1, 16), *((1, length) for length in range(14, 4, -1))]
    random.Random(shuffle).shuffle(waves)
    starts, _ = planned([(*wave, 5) for wave in waves], gpus=4, steps=98, finish_inside=True)
    assert len(starts) == 19


@pytest.mark.parametrize("decay", [1.0, 0.98])
def test_starts_follow_each_other(decay: float) -> None:
    """Four jobs of the whole pool start at 0, 3, 6, 9; after a step each is one step nearer (case P5)."""
    starts, _ = planned([(4, 3, 5)] * 4, gpus=4, decay=decay)
    assert starts == {"w0": 0, "w1": 3, "w2": 6, "w3": 9}
    later, _ = planned([(4, 3, 5)] * 3, gpus=4, running=[(0, 4, 2)], decay=decay)
    assert later == {"w0": 2, "w1": 5, "w2": 8}


def test_a_job_longer_than_the_horizon_starts() -> None:
    """48 steps, one GPU: a job of 60 starts at once, before younger short ones of its priority (case P7)."""
    starts, _ = planned([(1, 60, 5), *[(1, 2, 5)] * 30], gpus=1, steps=48)
    assert starts == {"w0": 0}


def test_singles_leave_whole_blocks() -> None:
    """Four singles and two pairs on 8 GPUs all start at 0 (case P8)."""
    starts, _ = planned([(1, 4, 5)] * 4 + [(2, 4, 5)] * 2, decay=0.98)
    assert set(starts.values()) == {0} and len(starts) == 6


def test_an_app_does_not_go_down_and_up() -> None:
    """Demand flutters between 8 and 9: the app steps down once and stays (case R1)."""
    demand = [10, 9, 8, 9, 9, 8, 9, 8, 9, 8]
    for cap in (None, 1, 2):
        app = {"id": "chat", "demand": demand, "held": list(range(10)), "swap_cap": cap}
        _, plan = planned([], gpus=16, steps=10, apps=[app])
        counts = [len(cells) for cells in plan.apps[0].cells]
        assert plan.metrics["shortfall"] == 0
        assert counts == sorted(counts, reverse=True)
        assert plan.metrics["swaps"] == 10 - counts[-1] <= 2


def test_an_app_gives_back_what_it_no_longer_needs() -> None:
    """A demand that falls to zero for good leaves no GPU held, a long valley frees GPUs and takes them back."""
    app = {"id": "chat", "demand": [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0], "held": [4, 5, 6, 7], "swap_cap": 4}
    _, plan = planned([], steps=12, apps=[app])
    counts = [len(cells) for cells in plan.apps[0].cells]
    assert counts[5] == 0 and counts[10] == 4 and counts[11] == 0
    assert plan.metrics["swaps"] == 12


def test_apps_never_hold_more_than_there_is() -> None:
    """8 GPUs, two apps that need 6 each: at most 8 in every step, the shortfall is shown (case R4)."""
    apps = [
        {"id": name, "demand": [6] * 12, "held": held, "swap_cap": 2}
        for name, held in (("a", [0, 1, 2, 3, 4, 5]), ("b", [6, 7]))
    ]
    _, plan = planned([], steps=12, apps=apps)
    assert all(len(a) + len(b) <= 8 for a, b in zip(plan.apps[0].cells, plan.apps[1].cells, strict=True))
    assert plan.metrics["shortfall"] == 4 * 12


@pytest.mark.parametrize("placement", ["node", "line"])
@pytest.mark.parametrize(
    ("replica", "held", "cap"), [(1, [0, 4], 1), (2, [[0, 1], [4, 5]], 2), (1, [0, 1, 4, 5], 2)]
)
def test_a_job_waits_a_step_for_replicas_that_are_replaced_before_they_leave(
    placement: str, replica: int, held: list[Any], cap: int
) -> None:
    """A cap pays for half of a move a step: the replica enters elsewhere first, and no demand is short for the job."""
    p = Problem.from_dict(
        {
            "version": 2, "steps": 12, "decay": 0.98, "shortfall_weight": 8,
            "pools": [{"id": "p", "gpus": 8, "node_size": 4, "placement": placement}],
            "apps": [{"id": "x", "pool": "p", "priority": 9, "replica": replica, "demand": [replica * len(held)] * 12,
                      "swap_cap": cap, "held": held}],
            "jobs": [{"id": "wide", "priority": 5, "order": 0, "shapes": [{"pool": "p", "gpus": 4, "steps": 10}]}],
        }
    )  # fmt: skip
    plan = solve(p)
    assert (plan.placements[0].start, plan.metrics["shortfall"]) == (1, 0)


def test_an_app_holds_before_a_drain_what_it_will_need() -> None:
    """From step 2 on nothing may enter: the demand of step 4 is met by what entered before."""
    p = Problem.from_dict(
        {
            "version": 2, "steps": 6, "decay": 0.98, "shortfall_weight": 8,
            "pools": [{"id": "p", "gpus": 8, "node_size": 4, "placement": "node",
                       "closed": [{"gpus": [0, 8], "from": 2, "to": 9, "kind": "drain"}]}],
            "apps": [{"id": "x", "pool": "p", "priority": 9, "demand": [1, 2, 1, 1, 5, 2],
                      "swap_cap": None, "held": [0]}],
            "jobs": [],
        }
    )  # fmt: skip
    plan = solve(p)
    assert plan.metrics["shortfall"] == 0


def test_a_crowd_of_jobs_takes_the_sizes_that_waste_least() -> None:
    """Eight jobs on 1 GPU for 8 steps or on 8 for 2: side by side all end in 8 steps, one after the other in 16."""
    shapes = [{"pool": "p", "gpus": 1, "steps": 8}, {"pool": "p", "gpus": 8, "steps": 2}]
    jobs = [{"id": f"job-{i}", "priority": 5, "order": i, "shapes": shapes} for i in range(8)]
    data = {
        "version": 2,
        "steps": 8,
        "decay": 1,
        "shortfall_weight": 8,
        "pools": [{"id": "p", "gpus": 8}],
        "apps": [],
    }
    plan = solve(Problem.from_dict(data | {"jobs": jobs}), rounds=0)
    assert plan.metrics["work"] == 64
    alone = solve(Problem.from_dict(data | {"decay": 0.98, "jobs": jobs[:1]}))
    assert [(x.gpus, x.start) for x in alone.placements] == [(8, 0)]
