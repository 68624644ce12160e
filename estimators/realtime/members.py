"""The members: many cheap forecasters run side by side from several past origins, one pass over the past each."""

from itertools import pairwise

import numpy as np

from tidegrid.estimators.realtime import profiles, regression, smoothing

DAY = 24
WEEK = 168
HORIZON = 169
"""Leads that every member forecasts, hours: a week, and the hour that spring skips on the wall clock."""

# Lags of the autoregressions, hours: the last hours, the same hour of past days, the same hour last week.
SHORT = np.array([1, 2, 3, 4, 5, 6, 23, 24, 25])
LONG = np.concatenate(
    [
        np.arange(1, 13),
        [18, 22, 23, 24, 25, 26, 36],
        [47, 48, 49, 71, 72, 73, 95, 96, 97, 119, 120, 121, 143, 144, 145],
        np.arange(166, 171),
    ]
)

NAMES = (
    "Holt-Winters 24h and 168h",
    "Holt-Winters 24h",
    "ridge on day differences",
    "robust ridge on day differences",
    "ridge on hour differences, log",
    "analogues of a day",
    "analogues of a week",
    "analogues of two days, log",
    "weekly curve",
    "weekly curve at today's level, log",
    "last week",
    "last day",
    "level by hour of day",
    "level",
    "last value",
)
"""The members in their order."""

PRIOR = np.array([2.0 if name == "weekly curve" else 1.0 for name in NAMES])
"""How much each counts at equal loss. Members and counts were chosen by forward selection on the training part of
M4 hourly and on the older weeks of four public series, never on hours that a benchmark scores."""

STEADY = np.array([name in ("level", "last value") for name in NAMES])
"""Members that forecast one value for all leads."""

YOUNG = 3 * WEEK
"""Hours below which the level by hour of day takes part: longer series have members that know more."""

FIT_LOSSES = 120
"""Evaluations that a Holt-Winters fit may spend."""

FIRST_GUESS = np.array([-2.5, -1.5, -1.5, 1.5])
"""Logits of the Holt-Winters parameters from which the first fit starts."""


HOLT = ("Holt-Winters 24h and 168h", "Holt-Winters 24h")


def run_members(
    x: np.ndarray, ends: np.ndarray, known: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Run all members over ``x`` from the origins ``ends``.

    Parameters
    ----------
    x : ndarray of shape (n,)
        Demand about unit scale, non-negative, without gaps.
    ends : ndarray of int
        Ascending; the last is n.
    known : ndarray of shape (2, 4), optional
        Smoothing parameters of the Holt-Winters members from an earlier run: used as they are, which saves most of
        the time.

    Returns
    -------
    ndarray of shape (members, origins, HORIZON)
        On the scale of ``x``; NaN where the past was too short for the member.
    ndarray of shape (2, 4)
        The smoothing parameters at the last end, as logits.
    """
    ends = np.ascontiguousarray(ends, dtype=np.int64)
    out = np.full((len(NAMES), len(ends), HORIZON), np.nan)
    mean = float(x.mean())
    # logs of a series that touches zero are taken a twentieth of its mean above it
    shift = 0.0 if float(x.min()) > 0.02 * mean else 0.05 * mean
    logs = np.log(x + shift)
    top = 3.0 * float(x.max())
    low, high = float(logs.min()) - 1.0, float(logs.max()) + 1.0
    origins = len(ends)
    m = dict(zip(NAMES, out, strict=True))
    # costly fits are made at the first origin, at two more on the way, and at the end of the history
    refits = np.unique([0, origins // 3, 2 * origins // 3, origins - 1])
    settings = np.empty((2, 4))
    for h, name in enumerate(HOLT):
        weekly = h == 0
        guess = FIRST_GUESS if known is None else known[h]
        for a, b in pairwise([*refits.tolist(), origins]):
            if known is None:
                guess = smoothing.dshw_fit(x, ends[a], 2 * DAY, guess, FIT_LOSSES, weekly)
            smoothing.dshw_forecast(x, ends[a:b], HORIZON, guess, weekly, m[name][a:b])
        settings[h] = guess
    every = np.arange(origins)
    ar = regression.autoregression
    ar(x, DAY, SHORT, 1e-4, 1, every, ends, HORIZON, 0.0, top, m["ridge on day differences"])
    ar(x, DAY, SHORT, 1e-3, 5, refits, ends, HORIZON, 0.0, top, m["robust ridge on day differences"])
    ar(logs, 1, LONG, 1e-3, 1, refits, ends, HORIZON, low, high, m["ridge on hour differences, log"])
    profiles.analogues(x, ends, HORIZON, DAY, 8, 2 * DAY, m["analogues of a day"])
    profiles.analogues(x, ends, HORIZON, WEEK, 3, 2 * DAY, m["analogues of a week"])
    profiles.analogues(logs, ends, HORIZON, 2 * DAY, 5, 2 * DAY, m["analogues of two days, log"])
    profiles.weekly_curve(x, ends, HORIZON, 4, 0, m["weekly curve"])
    profiles.weekly_curve(logs, ends, HORIZON, 4, DAY, m["weekly curve at today's level, log"])
    profiles.seasonal_repeat(x, ends, HORIZON, WEEK, m["last week"])
    profiles.seasonal_repeat(x, ends, HORIZON, DAY, m["last day"])
    profiles.seasonal_repeat(x, ends, HORIZON, 1, m["last value"])
    if ends[-1] < YOUNG:
        smoothing.adjusted_level(x, ends, HORIZON, 2 * WEEK, m["level by hour of day"])
    smoothing.level_forecast(x, ends, HORIZON, m["level"])
    for name, path in m.items():
        if name.endswith(", log"):
            np.subtract(np.exp(np.clip(path, low, high, out=path), out=path), shift, out=path)
    np.clip(out, 0.0, top, out=out)
    return out, settings
