"""UTC hours, local hours of the week, and holidays.

Demand follows the wall clock. A series is therefore learnt on the axis of local hours: an hour that the clock
skips is a gap there, and the two that it repeats share one place, so the week always has 168 slots.
Forecasts are asked for by UTC hour and look up their local hour, so that none is missing or double.
"""

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.zones import zone_of

DAY = 24
WEEK = 168
# 1970-01-01 was a Thursday: three days after a Monday.
_EPOCH_WEEKDAY_H = 3 * DAY
_HOUR_US = 3_600_000_000


def utc_hours(ds: pd.Series, *, field: str = "ds") -> np.ndarray:
    """Return instants as whole hours since 1970-01-01 UTC, int64; a time without a zone is taken as UTC.

    Raises
    ------
    InputError
        A cell is empty, no instant, or not the start of an hour.
    """
    instants = pd.to_datetime(ds, utc=True, errors="coerce")
    bad = instants.isna().to_numpy()
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"{ds.iloc[at]!r} is no instant",
            row=at + 2,
            field=field,
            fix="write the start of an hour, in UTC",
        )
    stamps = instants.to_numpy(dtype="datetime64[us]").view("int64")
    uneven = stamps % _HOUR_US != 0
    if uneven.any():
        at = int(np.flatnonzero(uneven)[0])
        raise InputError(
            f"{ds.iloc[at]} is not the start of an hour",
            row=at + 2,
            field=field,
            fix="sum demand by UTC hour first",
        )
    return stamps // _HOUR_US


def local_hours(hours: np.ndarray, timezone: str) -> np.ndarray:
    """Return the local hour on the wall clock of each UTC hour, counted from 1970-01-01 00:00 local time.

    Zones off by part of an hour are rounded down: their hours start at the same minute all year.
    """
    if timezone == "UTC" or len(hours) == 0:
        zone_of(timezone)
        return hours.copy()
    place = zone_of(timezone)
    first, last = int(hours.min()), int(hours.max())
    span = pd.date_range(
        pd.Timestamp(first * 3600, unit="s", tz="UTC"), periods=last - first + 1, freq="h"
    ).tz_convert(place)
    wall = span.tz_localize(None).as_unit("s").astype("int64").to_numpy() // 3600
    return wall[hours - first]


def hour_of_week(local: np.ndarray) -> np.ndarray:
    """Return 0 … 167 for local hours, 0 being Monday's first."""
    return (local + _EPOCH_WEEKDAY_H) % WEEK


def on_holiday(local: np.ndarray, days: frozenset[int]) -> np.ndarray:
    """Return for each local hour whether its day is one of ``days`` (counted from 1970-01-01)."""
    if not days or len(local) == 0:
        return np.zeros(len(local), dtype=bool)
    return np.isin(local // DAY, np.fromiter(days, dtype=np.int64, count=len(days)))
