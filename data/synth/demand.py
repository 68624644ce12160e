"""Synthetic hourly traffic: a weekly rhythm in local time, noise, holidays, an outage, a launch, collection gaps."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tidegrid.calendars import holiday_days


@dataclass(frozen=True)
class Rhythm:
    """The shape of an app's week: hours of its daily bumps, their width, and how quiet nights and weekends are."""

    peaks: tuple[tuple[float, float, float], ...]
    night: float
    weekend: float
    holiday: float


RHYTHMS = {
    "chat": Rhythm(((11.0, 3.0, 0.9), (20.0, 2.5, 1.0)), night=0.18, weekend=0.85, holiday=0.9),
    "code": Rhythm(((10.5, 2.0, 1.0), (15.5, 2.5, 0.95)), night=0.08, weekend=0.3, holiday=0.3),
    "search": Rhythm(((9.5, 2.5, 0.85), (14.0, 3.5, 1.0)), night=0.22, weekend=0.6, holiday=0.65),
}
"""The apps of the sample."""


def on_holiday(local: pd.DatetimeIndex) -> np.ndarray:
    """Return which local hours lie on a public holiday of Germany, bool of shape (hours,)."""
    days = holiday_days("DE", None, int(local.year.min()), int(local.year.max()))
    return np.isin((local.tz_localize(None).normalize() - pd.Timestamp(0)).days, list(days))


def profile(app: str, hours: pd.DatetimeIndex, timezone: str) -> np.ndarray:
    """Return an app's expected demand relative to its busiest hour, shape (hours,)."""
    rhythm = RHYTHMS[app]
    local = pd.DatetimeIndex(hours).tz_convert(timezone)
    clock = local.hour.to_numpy() + 0.5
    shape = np.zeros(len(hours))
    for at, width, height in rhythm.peaks:
        away = np.minimum(np.abs(clock - at), 24.0 - np.abs(clock - at))
        shape = np.maximum(shape, height * np.exp(-0.5 * (away / width) ** 2))
    shape = rhythm.night + (1.0 - rhythm.night) * shape
    day = local.day_of_week.to_numpy()
    return (
        shape
        * np.where(day >= 5, rhythm.weekend, 1.0 - 0.02 * np.abs(day - 2))
        * np.where(on_holiday(local) & (day < 5), rhythm.holiday, 1.0)
    )


def demand(
    rng: np.random.Generator,
    app: str,
    hours: pd.DatetimeIndex,
    timezone: str,
    level: float,
    outage: tuple[pd.Timestamp, pd.Timestamp],
    launch: pd.Timestamp | None,
) -> np.ndarray:
    """Return an app's requests an hour, NaN where collection failed, shape (hours,).

    Parameters
    ----------
    level
        Requests in the busiest hour of an ordinary week at the end of the history.
    outage
        From when to when nothing was served.
    launch
        When a launch brought a spike, if any.
    """
    n = len(hours)
    growth = 1.0 - 0.12 * np.linspace(1.0, 0.0, n)
    shocks = rng.normal(0.0, 0.035, n)
    drift = np.zeros(n)
    for t in range(1, n):
        drift[t] = 0.85 * drift[t - 1] + shocks[t]
    expected = level * growth * profile(app, hours, timezone) * np.exp(drift)
    if launch is not None:
        since = np.asarray((hours - launch).total_seconds()) / 3600.0
        expected *= np.where(since >= 0, 1.0 + 1.4 * np.exp(-np.maximum(since, 0.0) / 14.0), 1.0)
    # counts vary as a Poisson's do; bursts add as much again
    values = np.round(np.maximum(0.0, expected + rng.normal(0.0, 1.0, n) * 1.4 * np.sqrt(expected)))
    values[(hours >= outage[0]) & (hours < outage[1])] = 0.0
    for at in rng.integers(0, max(1, n - 24), size=max(1, n // 250)):
        values[at] = np.nan
    if n > 24 * 14:
        hole = int(rng.integers(24 * 3, n - 24 * 8))
        values[hole : hole + 5] = np.nan
    return values
