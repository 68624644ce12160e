"""Case R5 and holidays: curves follow the wall clock, horizons are elapsed time."""

import numpy as np
import pandas as pd
import pytest
from realtime_cases import LEVELS

from tidegrid.errors import InputError
from tidegrid.estimators.realtime import RealtimeEstimator
from tidegrid.estimators.realtime.localtime import hour_of_week, local_hours, utc_hours

BERLIN = "Europe/Berlin"


def local_traffic(start: str, days: int) -> tuple[pd.DataFrame, pd.Series]:
    """Demand of 900 from 09:00 to 17:00 on Berlin's wall clock, 100 otherwise, over days of elapsed time."""
    ds = pd.date_range(start, periods=24 * days, freq="h", tz="UTC")
    hour = ds.tz_convert(BERLIN).hour
    return pd.DataFrame({"unique_id": "chat", "ds": ds}), pd.Series(
        np.where((hour >= 9) & (hour < 17), 900.0, 100.0)
    )


@pytest.mark.parametrize(("last", "hours"), [("2026-03-28", 23), ("2026-10-24", 25)])
def test_the_day_of_a_clock_change_has_as_many_hours_as_elapse(last, hours):
    day = pd.date_range(
        f"{last} 23:00" if hours == 23 else f"{last} 22:00", periods=hours, freq="h", tz="UTC"
    )
    local = local_hours(utc_hours(pd.Series(day)), BERLIN)
    assert len(set((local // 24).tolist())) == 1
    assert len(set(local.tolist())) == (23 if hours == 23 else 24)
    assert 2 not in set((local % 24).tolist()) if hours == 23 else (local % 24 == 2).sum() == 2


@pytest.mark.parametrize("start", ["2026-02-20", "2026-09-20"])
def test_the_forecast_follows_the_wall_clock_over_a_change(start):
    """History ends before the change, or after it: the office hours stay 09:00 to 17:00 local time."""
    X, y = local_traffic(start, 45)
    change = pd.Timestamp("2026-03-29" if start == "2026-02-20" else "2026-10-25", tz="UTC")
    for cut in (change - pd.Timedelta(hours=10), change + pd.Timedelta(hours=30)):
        before = X["ds"] < cut
        rows = pd.DataFrame({"unique_id": "chat", "ds": pd.date_range(cut, periods=48, freq="h")})
        out = RealtimeEstimator(timezone=BERLIN).fit(X[before], y[before]).predict_quantiles(rows, LEVELS)
        hour = rows["ds"].dt.tz_convert(BERLIN).dt.hour
        office = (hour >= 9) & (hour < 17)
        assert len(out) == 48 and rows["ds"].is_unique
        assert (out.loc[office, 0.5] > 700).all() and (out.loc[~office, 0.5] < 300).all()


def test_the_week_keeps_168_slots_over_a_change():
    X, y = local_traffic("2026-02-20", 60)
    curve = RealtimeEstimator(timezone=BERLIN).fit(X, y).curve("chat")
    assert curve.shape.shape == (168,)
    slots = hour_of_week(local_hours(utc_hours(X["ds"]), BERLIN))
    assert set(slots.tolist()) == set(range(168))
    office = np.arange(168) % 24
    assert (
        curve.shape[(office >= 9) & (office < 17)].min()
        > 3 * curve.shape[(office < 9) | (office >= 17)].max()
    )


def test_an_unknown_zone_is_refused_by_name():
    X, y = local_traffic("2026-02-20", 2)
    with pytest.raises(InputError, match="'Mars/Base' is not a time zone"):
        RealtimeEstimator(timezone="Mars/Base").fit(X, y)


def test_a_holiday_is_forecast_like_the_holidays_of_the_past():
    """Christmas and New Year halve demand; Epiphany is no holiday in all of Germany, Good Friday is."""
    ds = pd.date_range("2025-11-03", "2026-04-02 23:00", freq="h", tz="UTC")
    day = ds.strftime("%m-%d")
    values = np.where(day.isin(["12-25", "12-26", "01-01"]), 30.0, 100.0)
    X = pd.DataFrame({"unique_id": "chat", "ds": ds})
    rows = pd.DataFrame(
        {"unique_id": "chat", "ds": pd.date_range("2026-04-03", periods=48, freq="h", tz="UTC")}
    )
    out = RealtimeEstimator(country="DE").fit(X, pd.Series(values)).predict_quantiles(rows, (0.5,))
    assert out[0.5].iloc[:24].mean() < 60
    assert out[0.5].iloc[24:].mean() > 90
    plain = RealtimeEstimator().fit(X, pd.Series(values)).predict_quantiles(rows, (0.5,))
    assert plain[0.5].mean() > 90


def test_an_unknown_country_is_refused_by_name():
    X, y = local_traffic("2026-02-20", 2)
    with pytest.raises(InputError, match="no holiday calendar for 'XX'"):
        RealtimeEstimator(country="XX").fit(X, y)
