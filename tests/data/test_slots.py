"""Local weeks over elapsed time: case R5, daylight saving."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegrid.data import horizon, hour_of_day, hour_of_week, local_day
from tidegrid.errors import InputError

ZONES = st.sampled_from(("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe"))


@pytest.mark.parametrize(
    ("day", "steps", "half_past_two"), [("2026-03-29", 46, 0), ("2026-10-25", 50, 2), ("2026-06-01", 48, 1)]
)
def test_a_local_day_in_berlin_has_its_own_number_of_half_hours(
    day: str, steps: int, half_past_two: int
) -> None:
    """46 half hours and no 02:30 in spring, 50 and two 02:30 in autumn."""
    starts = local_day(day, "Europe/Berlin", step_minutes=30)
    assert len(starts) == steps
    clock = starts.tz_convert("Europe/Berlin").strftime("%H:%M")
    assert (clock == "02:30").sum() == half_past_two


@pytest.mark.parametrize("start", ["2026-03-28T12:00:00Z", "2026-10-24T12:00:00Z"])
def test_a_horizon_is_elapsed_time_across_a_change_of_the_clock(start: str) -> None:
    """24 h are 48 half-hour steps, no UTC hour missing or double."""
    steps = horizon(start, 48, 30)
    assert steps[-1] - steps[0] == pd.Timedelta(hours=23.5)
    assert steps.is_unique and (np.diff(steps.asi8) == np.diff(steps.asi8)[0]).all()


def test_slots_follow_the_local_clock() -> None:
    hours = horizon("2026-03-28T23:00:00Z", 5)  # Sunday 00:00 local; 02:00 does not exist
    assert list(hour_of_week(hours, "Europe/Berlin")) == [144, 145, 147, 148, 149]
    hours = horizon("2026-10-24T22:00:00Z", 5)  # Sunday 00:00 local; 02:00 is there twice
    assert list(hour_of_week(hours, "Europe/Berlin")) == [144, 145, 146, 146, 147]
    assert list(hour_of_day(hours, "Europe/Berlin")) == [0, 1, 2, 2, 3]


@given(st.integers(0, 60 * 24 * 365 * 3), ZONES)
def test_there_are_168_slots_in_every_zone(minutes: int, zone: str) -> None:
    start = pd.Timestamp("2025-01-01", tz="UTC") + pd.Timedelta(minutes=minutes)
    fortnight = hour_of_week(horizon(start, 24 * 14), zone)
    assert set(fortnight) == set(range(168))
    steps = np.diff(fortnight) % 168
    # a change of the clock repeats or skips one hour at most, once in two weeks
    assert ((steps == 0) | (steps == 1) | (steps == 2)).all() and (steps != 1).sum() <= 1


def test_a_zone_and_an_instant_have_to_be_right() -> None:
    with pytest.raises(InputError, match="is not a time zone"):
        hour_of_week(horizon("2026-01-01T00:00:00Z", 2), "Berlin")
    with pytest.raises(InputError, match="no time zone"):
        hour_of_week(pd.date_range("2026-01-01", periods=2, freq="h"), "UTC")
    assert len(hour_of_week(pd.DatetimeIndex([]), "UTC")) == 0
