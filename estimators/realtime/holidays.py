"""Public holidays: what they do to the hours of a day, learnt from those that history holds."""

import numpy as np

from tidegrid.estimators.realtime.localtime import DAY, hour_of_week

PRIOR_HOURS = 1.0
"""Holidays that the prior "like a Sunday" counts for."""


def holiday_factor(raw: np.ndarray, plain: np.ndarray, holiday: np.ndarray, local0: int) -> np.ndarray:
    """Return by local hour of day the demand of a holiday as a part of an ordinary day's, shape (24,).

    Each past holiday gives the ratio of what was measured to what its time of week would have brought. The
    mean of these is drawn to the ratio of a Sunday to the mean day, which is all there is where history
    holds no holiday.

    Parameters
    ----------
    raw : ndarray of shape (n,)
        Demand as measured, NaN where missing.
    plain : ndarray of shape (n,)
        The cleaned series, in the same unit, in which holidays were replaced by ordinary days.
    holiday : ndarray of bool, shape (at least n,)
        Which hours lie on a holiday.
    local0 : int
        Local hour of the first.
    """
    n = len(raw)
    local = local0 + np.arange(n)
    hour, sunday = local % DAY, hour_of_week(local) >= 6 * DAY
    everyday = np.bincount(hour, weights=plain, minlength=DAY) / np.maximum(
        np.bincount(hour, minlength=DAY), 1
    )
    sundays = np.bincount(hour[sunday], minlength=DAY)
    rest = np.bincount(hour[sunday], weights=plain[sunday], minlength=DAY) / np.maximum(sundays, 1)
    prior = np.where((sundays > 0) & (everyday > 0), rest / np.maximum(everyday, 1e-12), 1.0)
    told = holiday[:n] & np.isfinite(raw)
    expected = np.bincount(hour[told], weights=plain[told], minlength=DAY)
    measured = np.bincount(hour[told], weights=raw[told], minlength=DAY)
    usual = np.maximum(everyday, 1e-12)
    return (measured + PRIOR_HOURS * prior * usual) / np.maximum(expected + PRIOR_HOURS * usual, 1e-12)
