"""Recorded hours of traffic: how forecasts fared hour by hour, and what the apps' GPUs left unmet."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import pandas as pd

from tidegrid.data import Cluster
from tidegrid.pipeline.demand import gpus_needed
from tidegrid.pipeline.memory import Event, Hold, Hour, Unmet, iso

HOUR = pd.Timedelta(hours=1)

FEWEST_HOURS = 24
"""Recorded hours of a series from which on its band is recalibrated."""

BAND = (0.1, 0.5, 0.9)


def arrived(hours: Sequence[Hour], traffic: pd.DataFrame) -> tuple[list[Hour], list[Event]]:
    """Return the recorded hours whose traffic has become known, and an event for each that left its 80 % band."""
    traffic = traffic.dropna(subset=["value"])
    keys = zip(traffic["series_id"].astype(str), traffic["timestamp"], strict=True)
    actual = dict(zip(((name, iso(hour)) for name, hour in keys), traffic["value"], strict=True))
    known, events = [], []
    for one in hours:
        value = actual.get((one.series, one.hour)) if one.actual is None else None
        if value is None:
            continue
        known.append(replace(one, actual=float(value)))
        if not one.low <= value <= one.high:
            side = "above" if value > one.high else "below"
            text = (
                f"{one.series} had {value:,.0f} in the hour from {one.hour}, {side} its 80 % band of "
                f"{one.low:,.0f} to {one.high:,.0f}"
            )
            events.append(Event(f"{side} band", one.series, text))
    return known, events


def record_of(hours: Sequence[Hour], model: str = "realtime") -> pd.DataFrame:
    """Return a model's past forecasts and what came as :mod:`tidegrid.estimators.realtime.monitor` reads them.

    What another model missed says nothing about this one's band.
    """
    done = [one for one in hours if one.actual is not None and one.model == model]
    count = pd.Series([one.series for one in done], dtype=object).value_counts()
    done = [one for one in done if count[one.series] >= FEWEST_HOURS]
    frame = pd.DataFrame(
        {
            "unique_id": [one.series for one in done],
            "ds": pd.to_datetime([one.hour for one in done], utc=True),
            "y": [one.actual for one in done],
        }
    )
    for level, name in ((0.1, "low"), (0.5, "mid"), (0.9, "high")):
        frame[level] = pd.Series([getattr(one, name) for one in done], dtype=float)
    return frame


def next_hours(
    traffic: pd.DataFrame, now: pd.Timestamp, recorded: Sequence[Hour], models: Mapping[str, str]
) -> list[Hour]:
    """Return the forecast of the first whole hour from ``now`` on, for series that have none recorded for it.

    ``models`` says which model answers for each series.
    """
    have = {(one.series, one.hour) for one in recorded}
    first = traffic[(traffic["ds"] == now.ceil("h")).to_numpy()]
    out = []
    for row in first.to_dict("records"):
        key = (str(row["unique_id"]), iso(row["ds"]))
        if key not in have:
            low, mid, high = (float(row[level]) for level in BAND)
            out.append(Hour(*key, low, mid, high, model=models[key[0]]))
    return out


def unmet_hours(
    known: Sequence[Hour], holds: Sequence[tuple[str, Hold]], cluster: Cluster, before: Mapping[str, int]
) -> list[Unmet]:
    """Return what each app needed and went without in the hours whose traffic has become known.

    Parameters
    ----------
    known
        Those hours.
    holds
        (Instant, hold) of past ticks, in their order: an app holds its GPUs from a tick to the next.
    before
        GPUs that each app held before the first of ``holds``.
    """
    out = []
    for app in cluster.apps:
        steps = [(pd.Timestamp(at), one.gpus) for at, one in holds if one.app == app.id]
        for one in known:
            if one.series != app.series or one.actual is None:
                continue
            need = int(gpus_needed(app, [one.actual])[0])
            start = pd.Timestamp(one.hour)
            cuts = [start, *(at for at, _ in steps if start < at < start + HOUR), start + HOUR]
            unmet = 0.0
            for a, b in pairwise(cuts):
                held = [gpus for at, gpus in steps if at <= a]
                unmet += max(0, need - (held[-1] if held else before.get(app.id, 0))) * ((b - a) / HOUR)
            out.append(Unmet(app.id, one.hour, float(need), round(unmet, 9)))
    return out
