"""The classical reference forecasters keep the contract, and know a rhythm when they see one."""

import numpy as np
import pandas as pd
import pytest

from tidegrid.errors import InputError
from tidegrid.estimators.classical import DailyStateSpace, SeasonalSmoothing, decompose
from tidegrid.estimators.testing import check_estimator

BOTH = (SeasonalSmoothing, DailyStateSpace)


def traffic(hours: int, seed: int = 0) -> np.ndarray:
    t = np.arange(hours)
    weekend = np.where((t // 24) % 7 >= 5, 0.6, 1.0)
    noise = np.exp(0.05 * np.random.default_rng(seed).standard_normal(hours))
    return 100.0 * (1.0 + 0.5 * np.sin(2 * np.pi * t / 24)) * weekend * noise


def frame(values: np.ndarray, begin: int = 0, name: str = "chat") -> tuple[pd.DataFrame, pd.Series]:
    ds = pd.Timestamp("2026-01-05", tz="UTC") + pd.to_timedelta(begin + np.arange(len(values)), unit="h")
    return pd.DataFrame({"unique_id": name, "ds": ds}), pd.Series(values)


@pytest.mark.parametrize("kind", BOTH)
def test_they_keep_the_contract(kind):
    check_estimator(kind())


@pytest.mark.parametrize("kind", BOTH)
def test_they_forecast_a_daily_rhythm(kind):
    values = traffic(24 * 28)
    fitted = kind().fit(*frame(values[: 24 * 25]))
    X, y = frame(values[24 * 25 :], 24 * 25)
    out = fitted.predict_quantiles(X[:24])
    error = np.abs(out[0.5] - y[:24]).mean()
    assert error < 0.6 * np.abs(values[24 * 25 - 1] - y[:24]).mean()
    assert fitted.basis(X).str.startswith("site history").all()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("values", [np.full(400, 7.0), np.zeros(400), np.full(1, 7.0), np.arange(30.0)])
def test_plain_and_short_series_give_finite_quantiles(kind, values):
    fitted = kind().fit(*frame(values))
    out = fitted.predict_quantiles(frame(np.zeros(200), len(values))[0]).to_numpy()
    assert np.isfinite(out).all() and (out >= 0).all()
    if np.ptp(values) == 0:
        assert np.allclose(out, values[0])


def test_a_series_without_a_known_hour_is_unknown():
    X, y = frame(traffic(400))
    fitted = SeasonalSmoothing().fit(
        pd.concat([X, X.assign(unique_id="new")], ignore_index=True),
        pd.concat([y, y * np.nan], ignore_index=True),
    )
    assert fitted.basis(frame(np.zeros(3), 400, "new")[0]).str.startswith("unknown").all()


def test_parameters_out_of_range_are_refused():
    with pytest.raises(InputError, match="history_weeks 0"):
        SeasonalSmoothing(history_weeks=0).fit(*frame(traffic(100)))


@pytest.mark.parametrize("hours", [10, 100, 700])
def test_level_shape_and_remainder_add_up_to_the_series(hours):
    values = traffic(hours)
    parts = decompose(values)
    assert np.allclose(parts.sum(axis=1), values)
    if hours == 700:
        assert parts["remainder"].abs().mean() < 0.25 * np.abs(values - values.mean()).mean()
