"""Cases R2, R3 and R6-R8, D4: what a demand forecast must not get wrong."""

from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from realtime_cases import LEVELS, START, ahead, forecast, frame, weekly

from tidegrid.data import History
from tidegrid.errors import InputError
from tidegrid.estimators.realtime import Capacity, RealtimeEstimator
from tidegrid.estimators.realtime.shifts import odd_days
from tidegrid.pipeline.backtest import fitted_as_of


def width(out: pd.DataFrame) -> float:
    return float((out[0.9] - out[0.1]).mean())


def test_falling_demand_is_never_forecast_below_zero():
    out = forecast(np.array([100, 80, 60, 40, 20, 10, 0, 0.0]))
    assert (out.to_numpy() >= 0).all() and np.isfinite(out.to_numpy()).all()
    assert out[0.5].iloc[0] < 60


@pytest.mark.parametrize("hours", [1, 5, 30, 100, 400])
def test_a_constant_series_is_forecast_as_that_constant(hours):
    out = forecast(np.full(hours, 37.0))
    assert np.allclose(out[0.5], 37.0, rtol=1e-6)


@pytest.mark.parametrize("hours", [2, 24, 100, 400])
def test_all_zeros_give_zero_and_the_gpus_go_back(hours):
    out = forecast(np.zeros(hours))
    assert (out.to_numpy() == 0).all()
    assert (Capacity(100.0).gpus(out[0.9]) == 0).all()


@given(factor=st.floats(1e-6, 1e6), hours=st.sampled_from([3, 30, 100, 400, 700]))
def test_scaling_the_history_scales_the_forecast(factor, hours):
    values = weekly(hours, seed=3)
    one, other = forecast(values), forecast(values * factor)
    assert np.allclose(other.to_numpy(), factor * one.to_numpy(), rtol=1e-6)


def test_the_forecast_carries_the_time_of_the_hour_that_is_forecast():
    """Demand that is busy only from 09:00 to 10:00 is forecast busy at 09:00, whatever hour history ends at."""
    for hours in (24 * 21, 24 * 21 + 5, 24 * 21 + 17):
        t = np.arange(hours)
        rows = ahead(48, hours)
        out = (
            RealtimeEstimator()
            .fit(*frame(np.where(t % 24 == 9, 500.0, 20.0)))
            .predict_quantiles(rows, (0.5,))
        )
        busy = rows["ds"].dt.hour == 9
        assert (out.loc[busy, 0.5] > 400).all() and (out.loc[~busy, 0.5] < 100).all()


def test_missing_hours_hold_the_forecast_widen_its_band_and_are_named():
    full = weekly(24 * 28)
    broken = full.copy()
    broken[-3:] = np.nan
    rows = ahead(24, len(full))
    sound, gap = RealtimeEstimator().fit(*frame(full)), RealtimeEstimator().fit(*frame(broken))
    a, b = sound.predict_quantiles(rows, LEVELS), gap.predict_quantiles(rows, LEVELS)
    assert np.allclose(a[0.5], b[0.5], rtol=0.25)
    assert width(b) > width(a)
    assert gap.basis(rows).str.contains("last 3 hours are missing").all()


def test_two_hours_and_a_gap_hold_their_level():
    values = np.array([40.0, 42.0, np.nan, np.nan, np.nan])
    estimator, rows = RealtimeEstimator().fit(*frame(values)), ahead(24, 5)
    out = estimator.predict_quantiles(rows, LEVELS)
    assert (out[0.5] > 30).all() and (out[0.5] < 55).all()
    assert estimator.basis(rows).str.contains("the last 3 hours are missing").all()
    assert width(out) >= width(forecast(values[:2]))


def test_collection_gaps_recorded_as_zeros_are_not_learnt_as_demand():
    full = weekly(24 * 21)
    broken = full.copy()
    broken[[100, 205, 206, 330, 460]] = 0.0
    broken[207] = 3.0
    estimator = RealtimeEstimator().fit(*frame(broken))
    assert estimator.report()["outages"].iloc[0] == 6
    a, b = forecast(full, 48), forecast(broken, 48)
    assert np.allclose(a[0.5], b[0.5], rtol=0.15)


def test_an_app_that_is_quiet_every_night_keeps_its_zeros():
    t = np.arange(24 * 21)
    values = np.where((t % 24 >= 8) & (t % 24 < 20), 100.0, 0.0)
    estimator = RealtimeEstimator().fit(*frame(values))
    assert estimator.report()["outages"].iloc[0] == 0
    rows = ahead(24, len(values))
    out = estimator.predict_quantiles(rows, (0.5,))
    assert (out.loc[rows["ds"].dt.hour < 7, 0.5] < 5).all()


def test_a_forecast_is_always_given_and_its_band_narrows_as_history_grows():
    values = weekly(24 * 40, seed=5)
    widths = []
    for hours in (0, 1, 2, 23, 24, 167, 168, 335, 336, 700):
        estimator = RealtimeEstimator().fit(*frame(values[:hours]))
        rows = ahead(24, hours)
        out = estimator.predict_quantiles(rows, LEVELS)
        assert np.isfinite(out.to_numpy()).all()
        assert estimator.basis(rows).str.len().min() > 10
        widths.append(float(((out[0.9] - out[0.1]) / out[0.5].clip(lower=1.0)).median()))
    # no length has a wider band than a shorter one, but for chance; from days to weeks it is far narrower
    assert all(after <= 1.05 * before for before, after in pairwise(widths))
    assert widths[0] > widths[1] > widths[3] > widths[5] > 3 * widths[-1]


def test_an_app_without_history_borrows_from_the_others_and_says_so():
    others = [frame(weekly(24 * 28, seed=s, level=500.0 * (s + 1)), f"app-{s}") for s in range(5)]
    X, y = pd.concat([x for x, _ in others]), pd.concat([v for _, v in others])
    estimator = RealtimeEstimator().fit(X, y)
    new = ahead(168, 24 * 28, "new")
    basis = estimator.basis(new)
    assert basis.str.startswith("unknown: no history").all() and basis.str.contains("5 other apps").all()
    out = estimator.predict_quantiles(new, LEVELS)
    weekend = new["ds"].dt.day_of_week >= 5
    assert out.loc[weekend, 0.5].mean() < 0.7 * out.loc[~weekend, 0.5].mean()
    known = estimator.predict_quantiles(ahead(168, 24 * 28, "app-1"), LEVELS)
    relative = (out[0.9] - out[0.1]).mean() / out[0.5].mean()
    assert relative > 2 * (known[0.9] - known[0.1]).mean() / known[0.5].mean()


def test_a_young_app_takes_its_weekend_from_the_others():
    others = [frame(weekly(24 * 28, seed=s), f"app-{s}") for s in range(5)]
    young = frame(weekly(24 * 4, seed=9, level=80.0), "young", START + pd.Timedelta(days=21))
    X = pd.concat([x for x, _ in others] + [young[0]])
    y = pd.concat([v for _, v in others] + [young[1]])
    estimator = RealtimeEstimator().fit(X, y)
    rows = ahead(72, 24 * 25, "young")
    out = estimator.predict_quantiles(rows, (0.5,))
    weekend = rows["ds"].dt.day_of_week >= 5
    assert out.loc[weekend, 0.5].mean() < 0.85 * out.loc[~weekend, 0.5].mean()


def test_an_hour_that_is_there_twice_is_refused_by_the_name_of_its_series():
    X, y = frame(weekly(100))
    with pytest.raises(InputError, match="'chat' has 2026-01-05T03:00:00"):
        RealtimeEstimator().fit(pd.concat([X, X.iloc[[3]]]), pd.concat([y, y.iloc[[3]]]))


@given(seed=st.integers(0, 50))
def test_deleted_rows_are_missing_hours_and_lags_keep_their_places_in_time(seed):
    """Dropping rows gives what blanking them gives: nothing goes by position."""
    rng = np.random.default_rng(seed)
    values = weekly(24 * 21, seed=seed)
    X, y = frame(values)
    gone = rng.random(len(values)) < 0.1
    gone[[0, -1]] = False
    blank = y.where(~gone)
    order = rng.permutation(int((~gone).sum()))
    rows = ahead(24, len(values))
    a = RealtimeEstimator().fit(X, blank).predict_quantiles(rows, LEVELS)
    kept = X[~gone].iloc[order]
    b = RealtimeEstimator().fit(kept, y[~gone].iloc[order]).predict_quantiles(rows, LEVELS)
    assert np.array_equal(a.to_numpy(), b.to_numpy())


def test_an_outage_does_not_become_next_weeks_curve():
    full = weekly(24 * 28)
    broken = full.copy()
    broken[-168 + 24 : -168 + 48] = 0.0
    a, b = forecast(full, 168), forecast(broken, 168)
    day = slice(24, 48)
    assert np.allclose(a[0.5].iloc[day], b[0.5].iloc[day], rtol=0.2)


def test_a_long_weekend_does_not_make_the_next_monday_quiet():
    full = weekly(24 * 35)
    quiet = full.copy()
    monday = slice(24 * 28, 24 * 29)
    quiet[monday] *= 0.5
    rows = ahead(168, len(full))
    a = RealtimeEstimator().fit(*frame(full)).predict_quantiles(rows, (0.5,))
    b = RealtimeEstimator().fit(*frame(quiet)).predict_quantiles(rows, (0.5,))
    assert b[0.5].iloc[:24].sum() > 0.85 * a[0.5].iloc[:24].sum()
    assert np.allclose(b[0.5].iloc[24:], a[0.5].iloc[24:], rtol=0.2)


def test_an_odd_day_that_passed_is_filled_and_a_lasting_or_last_one_is_not():
    values = weekly(24 * 35)
    passed, lasting, last = values.copy(), values.copy(), values.copy()
    passed[24 * 28 : 24 * 29] *= 0.5
    lasting[24 * 28 :] *= 0.5
    last[24 * 34 :] *= 0.5
    local0 = int(START.timestamp()) // 3600
    found = odd_days(passed, local0)
    assert found[24 * 28 : 24 * 29].all() and found.sum() == 24
    for other in (values, lasting, last, passed[: 24 * 20]):
        assert not odd_days(other, local0).any()


def test_a_launch_days_spike_is_not_forecast_again():
    full = weekly(24 * 28)
    spiked = full.copy()
    spiked[24 * 20 + 9 : 24 * 20 + 15] *= 12
    estimator = RealtimeEstimator().fit(*frame(spiked))
    assert estimator.report()["spikes"].iloc[0] == 6
    assert np.allclose(forecast(full, 48)[0.5], forecast(spiked, 48)[0.5], rtol=0.2)


def test_what_became_known_after_the_cutoff_changes_nothing():
    """Two whole histories that differ from the cutoff on, the hour under way included, give the same bits there."""
    values = weekly(24 * 30)
    cut = 24 * 25
    other = values.copy()
    other[cut - 1 :] *= 7.0
    outs = []
    for series in (values, other):
        X, y = frame(series)
        history = History(None, pd.DataFrame({"series_id": X["unique_id"], "timestamp": X["ds"], "value": y}))
        # half an hour before the first changed hour is over
        known = START + pd.Timedelta(hours=cut) - pd.Timedelta(minutes=30)
        fitted, rows = fitted_as_of(RealtimeEstimator(), history, known)
        assert len(rows) == cut - 1
        outs.append(fitted.predict_quantiles(ahead(48, cut), LEVELS))
    assert outs[0].to_numpy().tobytes() == outs[1].to_numpy().tobytes()


def test_a_negative_demand_is_refused_with_its_row():
    X, y = frame(weekly(50))
    y.iloc[7] = -3
    with pytest.raises(InputError, match=r"row 9, y: .*negative"):
        RealtimeEstimator().fit(X, y)


def test_a_time_that_is_no_hour_is_refused_with_its_row():
    X, y = frame(weekly(50))
    X["ds"] = X["ds"].where(X.index != 4, X["ds"] + pd.Timedelta(minutes=30))
    with pytest.raises(InputError, match=r"row 6, ds: .*not the start of an hour"):
        RealtimeEstimator().fit(X, y)


def test_throttled_hours_count_as_missing():
    values = weekly(24 * 28)
    capped = np.minimum(values, 400.0)
    X, y = frame(capped)
    out = (
        RealtimeEstimator()
        .fit(X, y, observed=pd.Series(capped < 400.0))
        .predict_quantiles(ahead(24, len(values)))
    )
    assert out[0.5].max() >= forecast(capped)[0.5].max() * 0.9
