"""Remaining time of a job given how long it has run."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import expon, lognorm

from tidegrid.estimators.conditional import GRID, remaining_quantiles

LEVELS = (0.1, 0.5, 0.9)


def whole(distribution: object) -> np.ndarray:
    return np.asarray(distribution.ppf(GRID))[None, :]  # type: ignore[attr-defined]


def test_a_job_that_has_just_started_has_its_whole_duration_left() -> None:
    quantiles = whole(lognorm(0.5, scale=3.0))
    left = remaining_quantiles(quantiles, GRID, np.array([0.0]), LEVELS)[0]
    assert left == pytest.approx(lognorm(0.5, scale=3.0).ppf(LEVELS), rel=0.02)


def test_a_memoryless_duration_leaves_the_same_time_whenever_it_is_asked() -> None:
    """An exponential duration: the remaining time never depends on the elapsed one."""
    quantiles = np.repeat(whole(expon(scale=2.0)), 3, axis=0)
    left = remaining_quantiles(quantiles, GRID, np.array([0.0, 1.0, 3.0]), LEVELS)
    for row in left:
        assert row == pytest.approx(expon(scale=2.0).ppf(LEVELS), rel=0.08)


@pytest.mark.parametrize("elapsed", [0.5, 2.0, 6.0])
def test_it_agrees_with_simulation(elapsed: float) -> None:
    """Of simulated jobs that survived so long, the remaining time has these quantiles."""
    distribution = lognorm(0.8, scale=2.0)
    drawn = distribution.rvs(400_000, random_state=1)
    survived = drawn[drawn > elapsed] - elapsed
    left = remaining_quantiles(whole(distribution), GRID, np.array([elapsed]), LEVELS)[0]
    assert left == pytest.approx(np.quantile(survived, LEVELS), rel=0.1)


def test_a_job_past_its_last_quantile_is_never_done() -> None:
    """The longer it overruns, the longer it is expected to go on."""
    quantiles = np.repeat(whole(lognorm(0.3, scale=1.0)), 3, axis=0)
    left = remaining_quantiles(quantiles, GRID, np.array([3.0, 10.0, 100.0]), LEVELS)
    assert (left > 0).all()
    assert (np.diff(left[:, 1]) > 0).all()


@given(
    st.floats(0.01, 1000.0),
    st.floats(0.05, 2.0),
    st.floats(0.0, 1e5),
)
def test_remaining_time_is_positive_finite_and_ordered(scale: float, spread: float, elapsed: float) -> None:
    left = remaining_quantiles(whole(lognorm(spread, scale=scale)), GRID, np.array([elapsed]), LEVELS)[0]
    assert np.isfinite(left).all()
    assert (left > 0).all()
    assert (np.diff(left) >= 0).all()


def test_no_job_is_given_longer_than_its_limit_unless_it_has_run_past_it() -> None:
    """Most such jobs end at once; one that runs on has at most what its limit leaves."""
    levels, ran = (0.5, 0.9, 0.9999), np.array([0.05, 0.15, 0.3, 0.05])
    quantiles = np.tile(np.where(np.array(GRID) < 0.95, 0.001, 0.2), (4, 1))
    free = remaining_quantiles(quantiles, GRID, ran, levels)
    left = remaining_quantiles(quantiles, GRID, ran, levels, np.array([0.2, 0.2, 0.2, np.inf]))
    assert free[0].max() > 1 and left[0].max() <= 0.15 + 1e-9 and left[1].max() <= 0.05 + 1e-9
    assert (left[2:] == free[2:]).all()
