"""Local calendars over elapsed time: the hour of the week of UTC instants in an explicit zone."""

import datetime as dt
from collections.abc import Sequence

import numpy as np
import pandas as pd

from tidegrid.data.instants import as_instant
from tidegrid.zones import zone_of

SLOTS = 168
"""Hours of a week: slot 0 is Monday 00:00 local time, slot 167 Sunday 23:00."""


def hour_of_week(
    instants: pd.DatetimeIndex | pd.Series | Sequence[pd.Timestamp], timezone: str
) -> np.ndarray:
    """Return the local hour of the week of UTC instants.

    A week with a change of the clock skips one slot or has it twice; there are 168 all the same.

    Parameters
    ----------
    instants
        Instants with a zone.
    timezone
        IANA name of the zone whose clock counts.

    Returns
    -------
    ndarray of shape (instants,)
        Integers 0 (Monday 00:00) to 167 (Sunday 23:00).

    Raises
    ------
    InputError
        There is no such zone, or the instants carry none.
    """
    local = local_times(instants, timezone)
    return (local.day_of_week * 24 + local.hour).to_numpy(dtype="int64")


def hour_of_day(instants: pd.DatetimeIndex | pd.Series | Sequence[pd.Timestamp], timezone: str) -> np.ndarray:
    """Return the local hour of the day of UTC instants, 0 to 23, shape (instants,)."""
    return local_times(instants, timezone).hour.to_numpy(dtype="int64")


def local_times(
    instants: pd.DatetimeIndex | pd.Series | Sequence[pd.Timestamp], timezone: str
) -> pd.DatetimeIndex:
    """Return instants on the clock of a zone.

    Raises
    ------
    InputError
        There is no such zone, or the instants carry none.
    """
    index = pd.DatetimeIndex(list(instants) if isinstance(instants, (list, tuple)) else instants)  # type: ignore[arg-type]
    if len(index) == 0:
        index = pd.DatetimeIndex([], tz="UTC")
    if index.tz is None:
        as_instant(index[0])  # raises: the instant carries no zone
    return index.tz_convert(zone_of(timezone))


def horizon(start: object, steps: int, step_minutes: int = 60) -> pd.DatetimeIndex:
    """Return the starts of ``steps`` steps from an instant: elapsed time, whatever the clocks do meanwhile.

    Raises
    ------
    InputError
        The start is not an instant with a zone.
    """
    first = as_instant(start, field="start")
    return pd.date_range(first, periods=steps, freq=pd.Timedelta(minutes=step_minutes))


def local_day(day: dt.date | str, timezone: str, step_minutes: int = 60) -> pd.DatetimeIndex:
    """Return the UTC starts of the steps of a local day: 23, 24 or 25 hours of them.

    Raises
    ------
    InputError
        There is no such zone.
    """
    zone = zone_of(timezone)
    date = pd.Timestamp(day).date()
    begin = pd.Timestamp(dt.datetime.combine(date, dt.time(), zone)).tz_convert("UTC")
    end = pd.Timestamp(dt.datetime.combine(date + dt.timedelta(days=1), dt.time(), zone)).tz_convert("UTC")
    return pd.date_range(begin, end, freq=pd.Timedelta(minutes=step_minutes), inclusive="left")
