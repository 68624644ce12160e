"""The demand curve: 168 local hours × level, in components that can be drawn and read."""

from dataclasses import dataclass

import numpy as np

from tidegrid.estimators.realtime.localtime import DAY, WEEK, hour_of_week

PULL = 2.0
"""Weeks that "this hour of the week is like this hour of any day" counts for."""


@dataclass(frozen=True)
class Curve:
    """The weekly curve of one series.

    Parameters
    ----------
    shape : ndarray of shape (168,)
        Demand at each local hour of the week relative to the level; Monday's first hour is 0; its mean is 1
        (or all 0 where there was no demand).
    level : float
        Demand an hour, mean of the last week.
    trend : float
        Change of the level a week, as a part of it.
    weeks : float
        Weeks of history behind it.
    """

    shape: np.ndarray
    level: float
    trend: float
    weeks: float

    def at(self, local: np.ndarray) -> np.ndarray:
        """Return shape × level at local hours."""
        return self.level * self.shape[hour_of_week(local)]


def weekly_curve(values: np.ndarray, known: np.ndarray, local0: int, fade: float = 0.9) -> Curve:
    """Return the weekly curve of a cleaned series.

    Hours of the week are means over the weeks (one week older counts ``fade``), taken after each week was
    divided by its own mean, and drawn to the mean of that hour of all days as far as weeks are few. Filled
    hours count nothing: an outage does not become next week's curve.

    Parameters
    ----------
    values, known : ndarray of shape (n,)
        The cleaned series, and which of its hours were measured.
    local0 : int
        Local hour (:func:`~tidegrid.estimators.realtime.localtime.local_hours`) of the first.
    """
    n = len(values)
    if n == 0 or not values.any():
        return Curve(np.zeros(WEEK), 0.0, 0.0, n / WEEK)
    age = (n - 1 - np.arange(n)) // WEEK
    sums = np.bincount(age, weights=values)
    counts = np.bincount(age)
    means = sums / counts
    overall = float(values.mean())
    # a week that is only begun, or nearly empty, is measured against the whole
    means = np.where((counts >= WEEK // 2) & (means > 0.01 * overall), means, overall)
    ratio = values / means[age]
    weight = fade**age * known
    slot = hour_of_week(local0 + np.arange(n))
    hour = slot % DAY
    day_mass = np.bincount(hour, weights=weight, minlength=DAY)
    day = np.bincount(hour, weights=weight * ratio, minlength=DAY)
    day = np.where(day_mass > 0, day / np.maximum(day_mass, 1e-300), 1.0)
    mass = np.bincount(slot, weights=weight, minlength=WEEK)
    total = np.bincount(slot, weights=weight * ratio, minlength=WEEK)
    pull = PULL / max(n / WEEK, 0.5)
    shape = (total + pull * day[np.arange(WEEK) % DAY]) / (mass + pull)
    shape = shape / shape.mean() if shape.mean() > 0 else np.ones(WEEK)
    # the level is what the last week (or what there is of it) shows once the time of week is taken out
    last = slice(max(0, n - WEEK), n)
    level = float(values[last].sum() / max(shape[slot[last]].sum(), 1e-300))
    before = slice(max(0, n - 2 * WEEK), max(0, n - WEEK))
    earlier = float(values[before].sum() / max(shape[slot[before]].sum(), 1e-300)) if n >= 2 * WEEK else level
    trend = level / earlier - 1.0 if earlier > 0 else 0.0
    return Curve(shape, level, trend, n / WEEK)
