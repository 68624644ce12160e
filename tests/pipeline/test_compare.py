"""Comparisons: gains, gaps and records follow from the plans."""

import pytest

from tidegrid.errors import InputError
from tidegrid.pipeline.compare import bench, compare
from tidegrid.scheduler import BASELINES
from tidegrid.scheduler.generate import random_problem
from tidegrid.scheduler.scenarios import scenario


def test_gains_and_gaps_follow_from_the_figures() -> None:
    problem = scenario("realtime_heavy")
    result = compare(problem, ["fast", *BASELINES], bound_limit=1.0)
    assert result.bound is not None
    for row in result.rows():
        assert row["gap"] == pytest.approx((result.bound - row["objective"]) / result.bound)
        fifo = result.plans["fifo"].metrics["value"]
        assert row["gain"]["fifo"] == pytest.approx(row["value"] / fifo - 1)
        assert (row["seconds"], row["runs"]) == (None, 1)
    assert all(plan.metrics["objective"] <= result.bound * (1 + 1e-9) for plan in result.plans.values())


def test_a_problem_without_any_value_has_no_gain() -> None:
    problem = random_problem(0, jobs=(0, 0), apps=(1, 1))
    result = compare(problem, ["fast", "fifo"], bound_limit=None)
    assert result.gain("fast", "fifo") is None
    assert result.gap("fast") is None
    assert result.record()["bound"] is None


def test_runs_are_counted_after_the_first() -> None:
    result = compare(random_problem(4), ["fifo"], bound_limit=None, repeats=3)
    assert len(result.seconds["fifo"]) == 3
    assert result.rows()[0]["runs"] == 3


def test_the_mean_gain_is_over_the_contended_scenarios() -> None:
    result = bench(["burst", "scale"], ["fast", "fifo"], bound_limit=None, repeats=0, race=False)
    assert result.mean_gain() == result.comparisons[0].gain("fast", "fifo")


def test_an_unknown_mode_is_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="'magic' is not a mode"):
        compare(random_problem(1), ["fifo", "magic"])
