"""Closed-loop replay: what really happens is hidden, GPUs are given once, figures add up."""

from dataclasses import replace as changed

import numpy as np
import pandas as pd
import pytest

from tidegrid.data import History
from tidegrid.errors import InputError
from tidegrid.pipeline.control import Settings
from tidegrid.pipeline.replay import POLICIES, Trace, replay
from tidegrid.pipeline.replay.run import forecaster_of, play
from tidegrid.pipeline.worlds.trace import HOUR, WARM_UP_HOURS, Outage, RealtimeApp


def trace(seed: int = 0, jobs: int = 60, gpus: int = 16, hours: int = 20, apps: int = 1) -> Trace:
    """A made-up trace: a contended pool, users with habits, an app with a daily rhythm."""
    rng = np.random.default_rng(seed)
    submit = np.sort(rng.uniform(0, (hours - 4) * HOUR, jobs)).round()
    user = rng.integers(0, 5, jobs)
    length = np.exp(rng.normal(np.log(600.0 * (1 + user)), 0.8)).round() + 60
    block = 2 ** rng.integers(0, 4, jobs)
    start = pd.Timestamp("2026-03-02T00:00:00Z")
    table = pd.DataFrame(
        {
            "job_id": [f"j{i}" for i in range(jobs)],
            "kind": "training",
            "status": "completed",
            "submit_time": start + pd.to_timedelta(submit, unit="s"),
            "duration_s": length,
            "gpus": block,
            "user": [f"u{u}" for u in user],
        }
    )
    at = np.arange(WARM_UP_HOURS + hours)
    traffic = 100 * (1.2 + np.sin(2 * np.pi * at / 24)) + rng.normal(0, 3, len(at))
    return Trace(
        start=start,
        gpus=gpus,
        node_size=8,
        jobs=History(table).jobs,
        submit_s=submit,
        duration_s=length,
        size=block,
        priority=1 + user,
        limit_s=np.full(jobs, np.nan),
        apps=tuple(RealtimeApp(f"app{k}", 8, 2, traffic, 50.0) for k in range(apps)),
        end_s=hours * HOUR,
    )


def test_no_gpu_serves_two_jobs_and_blocks_are_legal() -> None:
    made = trace()
    out = play(made, forecaster_of(made), Settings(rounds=0))
    began = np.isfinite(out.start)
    assert began.any()
    assert (out.start[began] >= made.submit_s[began]).all()
    first, size = np.array([out.ids[j][0] for j in np.flatnonzero(began)]), made.size[began]
    assert (first // 8 == (first + size - 1) // 8)[size <= 8].all()
    assert (first + size <= made.gpus).all()
    starts, ends = out.start[began], out.start[began] + made.duration_s[began]
    for i in range(len(starts)):
        for j in range(i):
            apart_in_time = ends[i] <= starts[j] or ends[j] <= starts[i]
            apart_in_space = first[i] + size[i] <= first[j] or first[j] + size[j] <= first[i]
            assert apart_in_time or apart_in_space


def test_the_same_replay_gives_the_same_bytes() -> None:
    made = trace()
    one, two = (replay(made, ["rolling"])[0] for _ in range(2))
    assert one.outcome.start.tobytes() == two.outcome.start.tobytes()
    assert one.outcome.held.tobytes() == two.outcome.held.tobytes()
    assert one.figures == two.figures


def test_what_has_not_happened_yet_does_not_change_what_was_done() -> None:
    """Durations of jobs that end after the cutoff, and demand after it, are hidden from the planner."""
    made = trace()
    cutoff = 8 * HOUR
    before = replay(made, ["rolling"])[0].outcome.start
    late = ~(before + made.duration_s <= cutoff)
    traffic = made.apps[0].traffic.copy()
    traffic[WARM_UP_HOURS + 8 :] *= 3
    other = changed(
        made,
        duration_s=np.where(late, made.duration_s + cutoff, made.duration_s),
        apps=(changed(made.apps[0], traffic=traffic),),
    )
    after = replay(other, ["rolling"])[0].outcome.start
    early = before < cutoff
    assert early.any()
    assert (before[early] == after[early]).all()
    assert (after[~early] >= cutoff).all()


@pytest.mark.parametrize(
    "name", ["fifo", "fifo_backfill", "easy", "easy_priority", "sjf", "rolling", "rolling_peak"]
)
def test_figures_lie_where_they_must(name: str) -> None:
    made = trace(seed=3)
    figures = replay(made, [name])[0].figures
    most = float((made.priority * made.size * made.duration_s / HOUR).sum())
    assert 0 < figures["value_discounted"] <= figures["value"] <= most
    assert 0 < figures["utilization"] <= 1
    assert 0 <= figures["unmet_share"] <= 1
    assert figures["completed"] <= figures["jobs"] == len(made.jobs)


def test_baselines_reserve_the_peak_and_leave_nothing_unmet() -> None:
    figures = replay(trace(), ["fifo"])[0].figures
    assert figures["unmet"] == 0
    assert figures["swaps"] == 0


def test_perfect_knowledge_foretells_every_end() -> None:
    figures = replay(trace(), ["rolling_perfect"])[0].figures
    assert figures["eta"]["coverage_80"] == 1.0
    assert figures["eta"]["within_10_min"] == 1.0


def test_an_idle_cluster_starts_every_job_within_its_minute() -> None:
    """Steps are the plan's resolution, not the clock at which work may start."""
    made = trace(jobs=12, gpus=64, apps=0)
    out = play(made, forecaster_of(made, "perfect"), Settings(rounds=0))
    assert (out.start - made.submit_s <= 60).all()


def test_processes_give_the_results_of_one() -> None:
    names = ["fifo", "rolling"]
    alone, beside = replay(trace(), names), replay(trace(), names, jobs=2)
    assert [r.figures for r in alone] == [r.figures for r in beside]


def test_an_unknown_policy_is_named() -> None:
    with pytest.raises(InputError, match="magic"):
        replay(trace(), ["magic"])
    with pytest.raises(InputError, match="no requested time limits"):
        replay(trace(), ["easy_limits"])
    assert "easy_limits" in POLICIES


def test_a_gpu_that_fails_fails_its_job_and_nothing_is_put_on_it_until_it_works() -> None:
    made = changed(trace(jobs=40, apps=0), outages=(Outage(3, 4.5 * HOUR, 12 * HOUR),))
    out = play(made, forecaster_of(made), Settings(rounds=0))
    there = np.array([3 in out.ids.get(j, ()) for j in range(len(made.jobs))])
    assert (there & (out.start < 4.5 * HOUR)).any()
    assert not (there & (out.start >= 4.5 * HOUR) & (out.start < 12 * HOUR)).any()
    assert (there & (out.start >= 12 * HOUR)).any()


def test_a_site_that_plans_with_perfect_knowledge_leaves_no_demand_unmet_that_its_cap_can_follow() -> None:
    figures = replay(trace(gpus=32), ["rolling_perfect_demand"])[0].figures
    assert figures["unmet"] == 0
