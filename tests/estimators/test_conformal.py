"""Split-conformal quantiles cover what they promise, and a small sample is flagged and wide."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegrid.estimators.conformal import ConformalQuantiles, needed

LEVELS = (0.1, 0.5, 0.9)


def coverage(size: int, draws: int, seed: int) -> tuple[float, float]:
    """Mean coverage of the 80 % band over calibration sets, and its standard error."""
    rng = np.random.default_rng(seed)
    shares = []
    for _ in range(draws):
        low, _, high = ConformalQuantiles(rng.standard_t(4, size)).offsets(LEVELS)
        fresh = rng.standard_t(4, 400)
        shares.append(np.mean((fresh >= low) & (fresh <= high)))
    return float(np.mean(shares)), float(np.std(shares) / np.sqrt(draws))


@pytest.mark.parametrize("size", [9, 30, 100, 1000])
def test_an_80_percent_band_covers_80_percent(size: int) -> None:
    """D3: within four standard errors of [0.80, 0.80 + 1 / (n + 1)], the split-conformal guarantee."""
    mean, error = coverage(size, draws=300 if size < 1000 else 80, seed=size)
    assert 0.80 - 4 * error <= mean <= 0.80 + 1.0 / (size + 1) + 4 * error
    assert ConformalQuantiles(np.zeros(size)).calibrated(LEVELS)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_too_few_residuals_are_flagged_and_never_narrow(size: int) -> None:
    """D3: below nine residuals the band says that it is uncalibrated, and covers at least as much."""
    assert not ConformalQuantiles(np.zeros(size)).calibrated(LEVELS)
    if size > 1:
        mean, error = coverage(size, draws=400, seed=size)
        assert mean >= 0.80 - 4 * error


@pytest.mark.parametrize(("level", "least"), [(0.5, 1), (0.9, 9), (0.1, 9), (0.95, 19), (0.99, 99)])
def test_needed_is_the_least_sample_whose_rank_exists(level: float, least: int) -> None:
    assert needed(level) == least
    tail = min(level, 1 - level)
    rank = int(np.floor((least + 1) * tail + 1e-9))
    assert rank >= 1
    assert int(np.floor(least * tail + 1e-9)) < 1


def test_no_residual_at_all_gives_a_wide_band() -> None:
    low, middle, high = ConformalQuantiles(np.zeros(0)).offsets(LEVELS)
    assert low < -1.0 < middle < 1.0 < high
    assert not ConformalQuantiles(np.zeros(0)).calibrated(LEVELS)


def test_one_sided_offsets_are_conservative() -> None:
    """The upper offset is the ceil((n+1)·level)-th residual, the lower the floor of the same."""
    residuals = np.arange(1.0, 31.0)
    pool = ConformalQuantiles(residuals)
    assert pool.offset(0.9) == 28.0
    assert pool.offset(0.1) == 3.0
    assert pool.offset(0.5) == 15.5


def test_bands_are_asymmetric_where_residuals_are() -> None:
    residuals = np.random.default_rng(0).exponential(1.0, 500)
    low, middle, high = ConformalQuantiles(residuals).offsets(LEVELS)
    assert high - middle > 2 * (middle - low)


@given(
    st.lists(st.floats(-50, 50), min_size=0, max_size=40),
    st.lists(st.floats(0.01, 0.99), min_size=1, max_size=6),
)
def test_offsets_never_cross(residuals: list[float], levels: list[float]) -> None:
    offsets = ConformalQuantiles(np.array(residuals)).offsets(levels)
    assert np.isfinite(offsets).all()
    assert (np.diff(offsets[np.argsort(levels, kind="stable")]) >= 0).all()


def test_values_that_are_no_numbers_are_left_out() -> None:
    clean = ConformalQuantiles(np.arange(20.0)).offset(0.9)
    assert ConformalQuantiles(np.concatenate([np.arange(20.0), [np.nan, np.inf]])).offset(0.9) == clean
