"""The forecaster on public traffic: gaps are found, the naive forecasts are beaten, GPUs are covered."""

import numpy as np
import pandas as pd
import pytest

from tidegrid.estimators.realtime import Capacity, RealtimeEstimator, gpu_curve
from tidegrid.estimators.realtime.backtest import origins, roll, scales, score
from tidegrid.estimators.realtime.clean import clean

pytestmark = pytest.mark.realdata


def traffic(folder, name: str) -> pd.DataFrame:
    return pd.read_csv(folder / "traffic" / f"{name}.csv.gz")


def test_collection_gaps_of_servegen_are_set_aside(shared_data):
    table = traffic(shared_data, "servegen_totals")
    for series, zeros in (("m-mid", 8), ("m-small", 1)):
        values = table.loc[table["series_id"] == series, "value"].to_numpy(dtype=float)
        found = clean(values)
        assert (~found.known[values == 0]).sum() == zeros
        assert found.values.min() > 0.2 * np.median(values)


def test_the_outage_of_a_hurricane_is_not_learnt(shared_data):
    values = traffic(shared_data, "nasa_http")["value"].to_numpy(dtype=float)
    found = clean(values)
    assert found.outages >= 38 and found.gaps >= 80
    assert (found.values > 0).mean() > 0.99


def test_seasonal_naive_is_beaten_by_a_third_on_40_series_of_m4(shared_data):
    """On hours 96 to 48 before the end of the training file; the last 48 are left for the benchmark."""
    table = traffic(shared_data, "m4_hourly_train")
    keep = table["series_id"].drop_duplicates().iloc[::10]
    table = table[table["series_id"].isin(keep)]
    table = table[table["hour"] <= table.groupby("series_id")["hour"].transform("max") - 48]
    plan = origins(table, 48, 2)
    forecasts, _ = roll(table, plan, RealtimeEstimator())
    own = score(forecasts, table, scales(table, plan))
    naive = forecasts.copy()
    day_before = table.assign(hour=table["hour"] + 24).rename(columns={"value": "before"})
    two_before = table.assign(hour=table["hour"] + 48).rename(columns={"value": "earlier"})
    both = naive.merge(day_before, how="left").merge(two_before, how="left")
    known = both["hour"] - 24 <= both["origin"]
    naive["q0.5"] = np.where(known, both["before"], both["earlier"])
    theirs = score(naive, table, scales(table, plan))
    assert own["MASE"].mean() < 0.67 * theirs["MASE"].mean()
    assert 0.7 < own["cover80"].mean() < 0.9 and own["cover95"].mean() > 0.9


def test_gpus_held_at_the_90_percent_quantile_cover_servegen(shared_data):
    table = traffic(shared_data, "servegen_totals")
    table = table[table["series_id"].isin(["m-mid", "m-small"])]
    plan = origins(table, 24, 7)
    forecasts, _ = roll(table, plan, RealtimeEstimator())
    both = forecasts.merge(table, on=["series_id", "hour"])
    unmet = needed = held = reserved = 0
    for _, part in both.groupby("series_id"):
        capacity = Capacity(part["value"].max() / 20)
        need = capacity.gpus(part["value"])
        curve = gpu_curve(part["q0.9"], capacity, held=int(need[0]))
        unmet += np.maximum(need - curve, 0).sum()
        needed, held, reserved = needed + need.sum(), held + curve.sum(), reserved + need.max() * len(need)
    assert unmet <= 0.02 * needed
    assert held < 0.85 * reserved
