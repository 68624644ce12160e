"""The next hours: they follow a change within hours, and a lone spike moves nothing."""

import numpy as np
import pandas as pd
import pytest
from realtime_cases import LEVELS, ahead, forecast, frame, weekly

from tidegrid.errors import InputError
from tidegrid.estimators.realtime import Capacity, RealtimeEstimator


def hour_by_hour(values: np.ndarray, known: int, hours: int) -> RealtimeEstimator:
    """Fit the first ``known`` hours and take in ``hours`` more, one after another."""
    X, y = frame(values)
    estimator = RealtimeEstimator().fit(X[:known], y[:known])
    for at in range(known, known + hours):
        estimator.update(X[at : at + 1], y[at : at + 1])
    return estimator


@pytest.mark.parametrize("begin", [24 * 28, 24 * 28 + 9, 24 * 28 + 17])
def test_three_hours_after_traffic_doubled_the_upper_quantile_covers_it(begin):
    values = weekly(begin + 48, seed=begin, level=100.0)
    values[begin:] *= 2.0
    out = hour_by_hour(values, begin, 3).predict_quantiles(ahead(6, begin + 3), (0.5, 0.9))
    assert (out[0.9].to_numpy() >= values[begin + 3 : begin + 9]).all()


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_three_hours_after_a_level_went_from_20_to_300_the_forecast_is_there(seed):
    rng = np.random.default_rng(seed)
    values = np.round(20.0 * np.exp(0.05 * rng.standard_normal(24 * 21 + 30)))
    change = 24 * 21 + 5
    values[change:] *= 15.0
    estimator = hour_by_hour(values, change, 3)
    out = estimator.predict_quantiles(ahead(24, change + 3), (0.5, 0.9))
    assert (out[0.9].to_numpy()[:6] >= 300.0).all()
    assert out[0.5].iloc[0] > 200.0
    # the hours after them follow too
    assert out[0.5].median() > 200.0


@pytest.mark.parametrize("hours", [5, 30, 80, 24 * 10, 24 * 28])
def test_a_lone_spike_in_the_last_hour_moves_no_later_hour_by_more_than_twice(hours):
    values = weekly(hours, seed=4)
    wild = values.copy()
    wild[-1] *= 1e4
    rows = ahead(168, hours)
    calm, spiked = (
        RealtimeEstimator().fit(*frame(v)).predict_quantiles(rows, LEVELS) for v in (values, wild)
    )
    ratio = spiked[[0.5, 0.9]].to_numpy() / np.maximum(calm[[0.5, 0.9]].to_numpy(), 1.0)
    assert ratio.max() <= 2.0


def test_a_spike_some_hours_ago_is_set_aside_once_later_hours_are_normal():
    values = weekly(24 * 28, seed=6, level=5000.0)
    wild = values.copy()
    wild[-6] *= 1000.0
    estimator = RealtimeEstimator().fit(*frame(wild))
    assert estimator.report()["spikes"].iloc[0] == 1
    assert estimator.predict_quantiles(ahead(48, len(values)), (0.9,)).to_numpy().max() < 1.5 * values.max()


def test_two_high_hours_at_the_end_are_kept_as_a_new_level():
    values = weekly(24 * 28, seed=6)
    values[-2:] *= 20.0
    assert RealtimeEstimator().fit(*frame(values)).report()["spikes"].iloc[0] == 0


def test_a_walk_is_forecast_by_its_last_value():
    rng = np.random.default_rng(0)
    values = np.round(200.0 + np.cumsum(rng.choice([0.0, 0.0, 0.0, -8.0, 8.0], size=24 * 28)))
    out = forecast(np.abs(values), 3)
    assert np.allclose(out[0.5], np.abs(values[-1]), rtol=0.02)


def test_an_app_without_a_known_hour_is_unknown_whether_its_rows_are_empty_or_absent():
    X, y = frame(weekly(24 * 28))
    empty = RealtimeEstimator().fit(
        pd.concat([X, X.assign(unique_id="new")], ignore_index=True),
        pd.concat([y, y * np.nan], ignore_index=True),
    )
    absent = RealtimeEstimator().fit(X, y)
    rows = ahead(48, 24 * 28, "new")
    pd.testing.assert_frame_equal(empty.predict_quantiles(rows), absent.predict_quantiles(rows))
    assert not empty.knows("new") and not absent.knows("new") and absent.knows("chat")
    assert empty.basis(rows).str.startswith("unknown: none of its hours has a value").all()
    assert absent.basis(rows).str.startswith("unknown: no history").all()


@pytest.mark.parametrize("values", [np.full(400, 7.0), np.zeros(400), np.full(1, 7.0), np.full(5, 7.0)])
def test_plain_series_give_finite_quantiles(values):
    assert np.isfinite(forecast(values, 48).to_numpy()).all()


def test_numbers_beyond_any_demand_are_refused_by_name():
    with pytest.raises(InputError, match=r"row 12, y: .*1\.7e"):
        RealtimeEstimator().fit(*frame(np.r_[np.ones(10), 1.7e308, np.ones(90)]))
    with pytest.raises(InputError, match="more than 1,000,000,000 GPUs"):
        Capacity(1.0).gpus([1e19])
