# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Members that repeat the past, compiled: seasonal repeats, the weekly curve × level, and analogues."""

import numpy as np
from numba import njit

DAY = 24
WEEK = 168


@njit(cache=True, nogil=True)
def seasonal_repeat(x, ends, horizon, period, out):
    """Repeat the last ``period`` hours again and again."""
    for o in range(len(ends)):
        end = ends[o]
        for k in range(horizon):
            u = end + k - period
            while u >= end:
                u -= period
            if u >= 0:
                out[o, k] = x[u]


@njit(cache=True, nogil=True)
def weekly_curve(x, ends, horizon, weeks, span, out):
    """Take the median of the same hour in the last ``weeks`` weeks, each week moved to today's level.

    The level is the mean of the ``span`` hours before the origin and before the same time in each past week; with
    a span of 0 the hours are taken as they were.
    """
    past = np.empty(weeks)
    for o in range(len(ends)):
        end = ends[o]
        now = x[max(0, end - span) : end].mean() if span > 0 else 0.0
        for k in range(horizon):
            count = 0
            for w in range(1, weeks + 1):
                u = end + k - WEEK * (w + k // WEEK)
                then = end - WEEK * w
                if u < 0 or then - span < 0:
                    break
                past[count] = x[u]
                if span > 0:
                    past[count] += now - x[then - span : then].mean()
                count += 1
            if count > 0:
                out[o, k] = np.median(past[:count])


@njit(cache=True, nogil=True)
def analogues(x, ends, horizon, window, nearest, reach, out):
    """Average what followed the past days most like the last ``window`` hours.

    Windows are compared at the same hour of day only, each after taking off the mean of its last day, by absolute
    distance in which recent hours count up to three times as much as early ones. The ``nearest`` are averaged with
    weights of one over their distance and moved to today's level. An origin whose past holds fewer than two
    windows is left NaN. Leads past ``reach`` repeat the forecast's last week (or day, while it is shorter).
    """
    for o in range(len(ends)):
        end = ends[o]
        last = end - reach - window
        if last < 2 * DAY:
            continue
        now = x[end - DAY : end].mean()
        count = last // DAY + 1
        distance = np.empty(count)
        for c in range(count):
            a = last - DAY * c - (last - DAY * c - (end - window)) % DAY
            distance[c] = np.inf
            if a < 0:
                continue
            then = x[a + window - DAY : a + window].mean()
            total = 0.0
            for i in range(window):
                gap = abs((x[a + i] - then) - (x[end - window + i] - now))
                total += gap * (0.5 + i / window)
            distance[c] = total
        order = np.argsort(distance, kind="mergesort")
        mass = 0.0
        total_path = np.zeros(reach)
        for c in order[: min(nearest, count)]:
            if distance[c] == np.inf:
                continue
            a = last - DAY * c - (last - DAY * c - (end - window)) % DAY
            weight = 1.0 / (distance[c] + 1e-9 * window)
            mass += weight
            then = x[a + window - DAY : a + window].mean()
            for k in range(reach):
                total_path[k] += weight * (x[a + window + k] - then)
        if mass == 0.0:
            continue
        for k in range(horizon):
            j = k
            while j >= reach:
                j -= DAY
            out[o, k] = total_path[j] / mass + now
