"""The members: many cheap forecasters run side by side from several past origins, one pass over the history
each."""

from itertools import pairwise

import numpy as np

from tidegrid.estimators.realtime import profiles, regression, smoothing

DAY = 24
WEEK = 168
HORIZON = 169
"""Leads that every member forecasts, hours: a week, and the hour that spring skips on the wall clock."""

# Lags of the ridge autoregressions, hours: the last hours, the same hour of past days, the same hour last
# week.
SHORT = np.array([1, 2, 3, 4, 5, 6, 23, 24, 25])
LONG = np.array([1, 2, 3, 4, 5, 6, 12, 23, 24, 25, 47, 48, 49, 72, 96, 120, 144, 167, 168, 169])
WEEKLY = np.array([1, 2, 3, 4, 5, 6, 12, 23, 24, 25, 48, 72, 96, 120, 144])

NAMES = (
    "dshw", "dshw log", "ridge 24h short", "ridge 24h short log", "ridge 24h long", "ridge 24h long log",
    "ridge 168h log", "ridge levels log", "weekly curve", "last week", "last day", "daily mean", "level",
    "last value",
)  # fmt: skip
"""The members in their order."""

FIT_LOSSES = 120
"""Evaluations that a Holt–Winters fit may spend."""

FIRST_GUESS = np.array([-2.5, -1.5, -1.5, 1.5])
"""Logits of the Holt–Winters parameters from which the first fit starts."""


def run_members(x: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Run all members over ``x`` from the origins ``ends``.

    Parameters
    ----------
    x : ndarray of shape (n,)
        Demand about unit scale, non-negative, without gaps.
    ends : ndarray of int
        Ascending; the last is n.

    Returns
    -------
    ndarray of shape (members, origins, HORIZON)
        On the scale of ``x``; NaN where the past was too short for the member.
    """
    ends = np.ascontiguousarray(ends, dtype=np.int64)
    out = np.full((len(NAMES), len(ends), HORIZON), np.nan)
    mean = float(x.mean())
    shift = 0.0 if float(x.min()) > 0.02 * mean else 0.05 * mean
    logs = np.log(x + shift)
    top = float(x.max())
    low, high = float(logs.min()) - 1.0, float(logs.max()) + 1.0
    m = dict(zip(NAMES, out, strict=True))
    long_enough = int(ends[0]) >= 2 * WEEK
    for suffix, series, bounds in (("", x, (0.0, 3.0 * top)), (" log", logs, (low, high))):
        if ends[-1] >= 2 * DAY:
            guess = FIRST_GUESS
            cuts = [0, len(ends) - 1, len(ends)] if len(ends) > 1 and long_enough else [0, len(ends)]
            for a, b in pairwise(cuts):
                guess = smoothing.dshw_fit(series, ends[a], 2 * DAY, guess, FIT_LOSSES)
                smoothing.dshw_forecast(series, ends[a:b], HORIZON, guess, m["dshw" + suffix][a:b])
        ridge = regression.ridge_forecast
        ridge(series, DAY, SHORT, 1e-4, 1.0, ends, HORIZON, *bounds, m["ridge 24h short" + suffix])
        ridge(series, DAY, LONG, 1e-3, 1.0, ends, HORIZON, *bounds, m["ridge 24h long" + suffix])
    regression.ridge_forecast(logs, WEEK, WEEKLY, 1e-3, 1.0, ends, HORIZON, low, high, m["ridge 168h log"])
    regression.ridge_forecast(logs, 0, LONG, 1e-3, 1.0, ends, HORIZON, low, high, m["ridge levels log"])
    profiles.weekly_profile(x, ends, HORIZON, 0.8, 2 * DAY, m["weekly curve"])
    profiles.seasonal_repeat(x, ends, HORIZON, WEEK, m["last week"])
    profiles.seasonal_repeat(x, ends, HORIZON, DAY, m["last day"])
    profiles.daily_profile(x, ends, HORIZON, 0.7, m["daily mean"])
    smoothing.level_forecast(x, ends, HORIZON, 0, m["level"])
    profiles.seasonal_repeat(x, ends, HORIZON, 1, m["last value"])
    for name, path in m.items():
        if name.endswith(" log"):
            np.subtract(np.exp(np.clip(path, low, high, out=path), out=path), shift, out=path)
    np.clip(out, 0.0, 3.0 * top, out=out)
    return out
