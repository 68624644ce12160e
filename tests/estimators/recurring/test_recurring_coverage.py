"""Bands that keep their promise, and say when they cannot."""

import numpy as np
import pandas as pd
import pytest
from recurring_cases import START, history, jobs_of, one

from tidegrid.estimators.recurring import RecurringJobEstimator
from tidegrid.estimators.recurring.calibration import LevelCalibration
from tidegrid.estimators.recurring.ladder import GRID, read, transform
from tidegrid.models.codec import decode, encode


@pytest.mark.parametrize("size", [9, 30, 100, 1000])
def test_a_nominal_80_percent_covers_80_percent(size: int) -> None:
    """Case D3: over many draws of the calibration set, coverage lies within binomial bounds of what it may be."""
    rng = np.random.default_rng(size)
    covered = []
    for _ in range(200):
        # a forecaster whose spread is half of the truth's
        calibration = LevelCalibration()
        quantiles = np.tile(np.log(2.0) * _normal(GRID), (size + 100, 1))
        y = rng.normal(0.0, 2 * np.log(2.0), size + 100)
        u = transform(quantiles, y)
        for outcome in u[:size].tolist():
            calibration.add(outcome)
        # the sample alone: what the stretch adds on the way is another matter
        calibration = LevelCalibration(calibration.newest)
        at = np.tile(calibration.levels((0.1, 0.9)), (100, 1))
        band = read(quantiles[size:], at)
        covered.append(((band[:, 0] <= y[size:]) & (y[size:] <= band[:, 1])).mean())
    # a band between two order statistics of n covers (rank difference) / (n + 1) on average, and 200 draws of a
    # standard deviation of about 0.4 / sqrt(n) are judged
    low, high = np.floor((size + 1) * 0.1), np.ceil((size + 1) * 0.9)
    expected = (high - low) / (size + 1) if size >= 9 else 0.8
    assert abs(np.mean(covered) - expected) < 4 * (0.4 / np.sqrt(size) + 0.04) / np.sqrt(200) + 0.01


def _normal(levels: np.ndarray) -> np.ndarray:
    from scipy.stats import norm

    return norm.ppf(levels)


def test_too_few_outcomes_are_said_to_be_too_few() -> None:
    """Case D3: below the sample that a level needs, it is flagged."""
    X, y = jobs_of("me", [2.0] * 5)
    assert not RecurringJobEstimator().calibrated()
    assert not RecurringJobEstimator().fit(X, y).calibrated((0.1, 0.9))
    X, y = history(400)
    assert RecurringJobEstimator().fit(X, y).calibrated((0.1, 0.9))


def test_the_band_covers_on_a_site_that_changes_its_ways() -> None:
    """All durations grow threefold half-way through the replay: the levels follow."""
    X, y = history(1600, seed=11)
    y = y.where(np.arange(1600) < 1200, y * 3.0)
    past = np.arange(1600) < 800
    estimator = RecurringJobEstimator().fit(X[past], y[past])
    told = estimator.replay(X[~past], y[~past])
    inside = (told[0.1] <= y[~past]) & (y[~past] <= told[0.9])
    assert 0.74 <= inside.mean() <= 0.92


def test_it_beats_the_median_of_all_jobs_where_jobs_recur() -> None:
    X, y = history(900, seed=2)
    past = np.arange(900) < 600
    told = RecurringJobEstimator().fit(X[past], y[past]).replay(X[~past], y[~past])
    error = np.abs(np.log(told[0.5] / y[~past])).median()
    naive = np.abs(np.log(y[past].median() / y[~past])).median()
    assert error < 0.35 * naive


def test_a_saved_estimator_is_small_and_loads_to_the_same_bytes() -> None:
    """Case D9: a budget of 5 MB for 900 jobs, trees and all."""
    X, y = history(900)
    estimator = RecurringJobEstimator().fit(X, y)
    files = encode(estimator.to_bundle())
    assert sum(len(content) for content in files.values()) < 5_000_000
    loaded = RecurringJobEstimator.from_bundle(decode(files))
    same = (
        loaded.predict_quantiles(X).to_numpy().tobytes()
        == estimator.predict_quantiles(X).to_numpy().tobytes()
    )
    assert same
    late = pd.Series([START + pd.Timedelta(days=60)])
    for each in (estimator, loaded):
        each.update(X.iloc[[0]], y.iloc[[0]], known_at=late)
    assert loaded.predict(one(user="u1")).iloc[0] == estimator.predict(one(user="u1")).iloc[0]


def test_the_same_history_in_another_process_pool_gives_the_same_bytes() -> None:
    """Case D8: trained in loky workers beside each other, no hang and the same numbers."""
    from joblib import Parallel, delayed

    # a local function goes to the workers by value: they cannot import the tests
    def _fit_and_predict(X: pd.DataFrame, y: pd.Series) -> np.ndarray:
        return RecurringJobEstimator().fit(X, y).predict_quantiles(X).to_numpy()

    X, y = history(500)
    alone = RecurringJobEstimator().fit(X, y).predict_quantiles(X).to_numpy()
    told = Parallel(n_jobs=2)(delayed(_fit_and_predict)(X, y) for _ in range(2))
    assert all(t.tobytes() == alone.tobytes() for t in told)
