# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Profile members, compiled: the weekly curve × level, seasonal repeats, and recent means by hour of day."""

import numpy as np
from numba import njit

DAY = 24
WEEK = 168


@njit(cache=True, nogil=True)
def weekly_profile(x, ends, horizon, fade, span, out):
    """Hour-of-week means (older weeks fade by ``fade``) shifted to the level of the last ``span`` hours."""
    total = np.zeros(WEEK)
    mass = np.zeros(WEEK)
    t = 0
    for o in range(len(ends)):
        end = ends[o]
        while t < end:
            s = t % WEEK
            total[s] = fade * total[s] + x[t]
            mass[s] = fade * mass[s] + 1.0
            t += 1
        if end < WEEK + DAY:
            for k in range(horizon):
                out[o, k] = np.nan
            continue
        shift = 0.0
        for u in range(end - span, end):
            s = u % WEEK
            # the hour itself is left out of its own profile where an older week can stand for it
            if mass[s] > 1.0 + 1e-9:
                shift += x[u] - (total[s] - x[u]) / (mass[s] - 1.0)
        # leaving the hour out compares it with a profile that lags it: a plain mean of differences
        shift /= span
        for k in range(horizon):
            s = (end + k) % WEEK
            centre = total[s] / mass[s]
            u = end + k - WEEK
            while u >= end:
                u -= WEEK
            if u >= end - span and mass[s] > 1.0 + 1e-9:
                centre = (total[s] - x[u]) / (mass[s] - 1.0)
            out[o, k] = centre + shift


@njit(cache=True, nogil=True)
def seasonal_repeat(x, ends, horizon, period, out):
    """The last ``period`` hours again and again."""
    for o in range(len(ends)):
        end = ends[o]
        for k in range(horizon):
            u = end + k - period
            while u >= end:
                u -= period
            out[o, k] = x[u] if u >= 0 else np.nan


@njit(cache=True, nogil=True)
def daily_profile(x, ends, horizon, fade, out):
    """Hour-of-day means in which a day counts ``fade`` of the next, shifted by how the last day stood to
    them."""
    total = np.zeros(DAY)
    mass = np.zeros(DAY)
    t = 0
    for o in range(len(ends)):
        end = ends[o]
        while t < end:
            s = t % DAY
            total[s] = fade * total[s] + x[t]
            mass[s] = fade * mass[s] + 1.0
            t += 1
        for k in range(horizon):
            s = (end + k) % DAY
            out[o, k] = total[s] / mass[s] if mass[s] > 0 else np.nan
