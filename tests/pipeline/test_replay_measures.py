"""Figures of a replay against hand-made outcomes and brute force."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replay_traces import busy, of_jobs
from scipy.optimize import linprog

from tidegrid.pipeline.replay import Trace, replay
from tidegrid.pipeline.replay.measures import (
    by_size,
    by_user,
    digest,
    eta_accuracy,
    eta_errors,
    measure,
    regret,
    timeline,
    value_limit,
)
from tidegrid.pipeline.worlds.simulated import Played
from tidegrid.pipeline.worlds.trace import HOUR


def outcome(trace: Trace, start_h: list[float], held: list[list[float]] | None = None) -> Played:
    """What a policy did, from start hours (infinity: never) and GPUs held by each app in each hour."""
    need = trace.demand().astype(float)
    kept = np.array(held, float) if held else need
    return Played(np.array(start_h) * HOUR, kept, np.maximum(need - kept, 0.0))


def test_figures_of_a_replay_that_can_be_worked_out_by_hand() -> None:
    """8 GPUs, 10 h: a job that ends, one cut by the end, one that never starts; an app an hour short of a GPU."""
    trace = of_jobs(
        [(0, 4, 2), (1, 2, 20), (2, 1, 1)], priority=[3, 10, 7], user=["a", "b", "a"], demand=[[2] * 10]
    )
    found = measure(trace, outcome(trace, [1, 2, np.inf], held=[[2] * 9 + [1]]))
    assert found["value"] == 3 * 4 * 2
    assert found["completed"] == 1
    assert found["unmet"] == 1
    assert found["unmet_share"] == 1 / 20
    assert found["by_app"] == [
        {"app": "app0", "demanded": 20.0, "held": 19.0, "unmet": 1.0, "unmet_share": 1 / 20}
    ]
    assert found["utilization"] == pytest.approx((8 + 16 + 19) / 80)
    assert found["wait_h"] == pytest.approx({"mean": 10 / 3, "median": 1.0, "p95": 1 + 0.9 * 7})
    assert found["jct_h"]["mean"] == pytest.approx((3 + 9 + 8) / 3)
    assert found["slowdown"]["median"] == pytest.approx(1.5)
    assert found["value_limit"] == 3 * 8 + 7 * 1


def test_waits_are_told_by_size_and_by_user() -> None:
    trace = of_jobs([(0, 4, 2), (0, 4, 2), (1, 1, 1)], user=["a", "b", "a"], priority=[3, 4, 3])
    out = outcome(trace, [0, 2, 4])
    sizes = {row["gpus"]: row for row in by_size(trace, out)}
    assert sizes[4]["wait_h"]["mean"] == 1.0
    assert sizes[1]["wait_h"]["mean"] == 3.0
    rows = by_user(trace, out)
    assert [(r["user"], r["priority"], r["jobs"], r["gpu_hours"]) for r in rows] == [
        ("a", 3, 2, 9.0),
        ("b", 4, 1, 8.0),
    ]
    assert rows[0]["wait_h"]["mean"] == 1.5
    assert rows[0]["slowdown"]["mean"] == (1 + 4) / 2


def test_expected_ends_are_scored_past_the_end_and_a_band_that_is_over_is_a_miss() -> None:
    trace = of_jobs([(0, 1, 5), (0, 1, 20), (0, 1, 1), (0, 1, 1)])
    out = outcome(trace, [0, 1, np.inf, np.inf])
    eta = np.array([[4, 5.1, 6], [10, 20, 22], [1, 2, 3], [1, 2, 30]]) * HOUR
    found = eta_accuracy(trace, out, eta)
    assert found["told"] == 3
    assert found["coverage_80"] == pytest.approx(2 / 3)
    assert found["within_10_min"] == pytest.approx(1 / 3)
    assert found["short"] == {"told": 1, "coverage_80": 0.0, "within_10_min": 0.0, "within_30_min": 0.0}
    assert eta_errors(trace, out, eta).tolist() == pytest.approx([6.0, 60.0])
    nothing = {"told": 0, "coverage_80": None, "within_10_min": None, "within_30_min": None}
    assert eta_accuracy(trace, out, np.empty((0, 3))) == {**nothing, "short": nothing}
    assert not len(eta_errors(trace, out, np.empty((0, 3))))


def test_the_timeline_adds_up() -> None:
    trace = busy()
    out = replay(trace, ["rolling_perfect"])[0].outcome
    found = timeline(trace, out)
    figures = measure(trace, out)
    room = trace.gpus * trace.end_s / HOUR
    assert len(found) == trace.hours
    assert (found.drop(columns="hour") > -1e-6).all().all()
    assert (found["jobs"].sum() + found["served"].sum()) / room == pytest.approx(figures["utilization"])
    assert found["unmet"].sum() == pytest.approx(figures["unmet"])
    wait = (np.minimum(out.start, trace.end_s) - trace.submit_s) @ trace.size / HOUR
    assert found["waiting"].sum() == pytest.approx(wait)
    assert np.allclose(found["jobs"] + found["held"] + found["idle"], trace.gpus)


def limit_by_linear_program(trace: Trace) -> float:
    """The same relaxation, stated hour by hour (submits lie on whole hours) and solved."""
    hours, n = trace.hours, len(trace.jobs)
    left = np.maximum(trace.gpus - trace.demand().sum(axis=0), 0)
    work = trace.size * trace.duration_s / HOUR
    possible = trace.submit_s + trace.duration_s <= trace.end_s
    bounds = [
        (0, None if possible[j] and h * HOUR >= trace.submit_s[j] else 0)
        for j in range(n)
        for h in range(hours)
    ]
    a = np.zeros((n + hours, n * hours))
    for j in range(n):
        a[j, j * hours : (j + 1) * hours] = 1
    for h in range(hours):
        a[n + h, h::hours] = 1
    gain = -np.repeat(trace.priority, hours).astype(float)
    return float(-linprog(gain, A_ub=a, b_ub=np.concatenate([work, left]), bounds=bounds).fun)


@st.composite
def small_traces(draw: st.DrawFn) -> Trace:
    n = draw(st.integers(1, 6))
    submit = sorted(draw(st.lists(st.integers(0, 7), min_size=n, max_size=n)))
    sizes = draw(st.lists(st.sampled_from([1, 2, 4, 8]), min_size=n, max_size=n))
    lengths = draw(st.lists(st.floats(0.25, 6), min_size=n, max_size=n))
    return of_jobs(
        list(zip(submit, sizes, lengths, strict=True)),
        hours=8,
        priority=draw(st.lists(st.integers(1, 10), min_size=n, max_size=n)),
        demand=[draw(st.lists(st.integers(0, 9), min_size=8, max_size=8))],
    )


@given(trace=small_traces())
def test_the_limit_of_value_is_the_optimum_of_its_relaxation(trace: Trace) -> None:
    assert value_limit(trace) == pytest.approx(limit_by_linear_program(trace), abs=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_no_policy_that_serves_all_demand_passes_the_limit(seed: int) -> None:
    trace = busy(seed)
    for result in replay(trace, ["fifo", "easy_priority", "sjf_perfect"]):
        assert result.figures["unmet"] == 0
        assert 0 < result.figures["value_share_of_limit"] <= 1


def test_regret_names_each_part_that_was_played() -> None:
    values = {"rolling": 90.0, "rolling_perfect": 100.0, "rolling_perfect_demand": 92.0, "rolling_peak": 60.0}
    found = {row["part"]: row for row in regret(values)}
    assert set(found) == {"both", "demand", "peak reservation"}
    assert found["both"]["regret"] == 10.0
    assert found["both"]["kept"] == 0.9
    assert found["peak reservation"]["regret"] == -30.0
    assert regret({"fifo": 1.0}) == []


def test_the_digest_tells_outcomes_apart() -> None:
    trace = busy()
    one, two = replay(trace, ["fifo", "easy"])
    assert digest(one.outcome) == digest(replay(trace, ["fifo"])[0].outcome)
    assert digest(one.outcome) != digest(two.outcome)
