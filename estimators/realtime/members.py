"""The members: many cheap forecasters run side by side from several past origins, one pass over the past each."""

from itertools import pairwise

import numpy as np

from tidegrid.estimators.realtime import kernels

DAY = 24
WEEK = 168
HORIZON = 169
"""Leads that every member forecasts, hours: a week, and the hour that spring skips on the wall clock."""

# Lags of the autoregressions, hours: the last hours, the same hour of past days, the same hour last week.
SHORT = np.array([1, 2, 3, 4, 5, 6, 23, 24, 25])
NEAR = np.array([1, 2, 3, 4, 5, 6, 12, 23, 24, 25])
DAYS = np.array([1, 2, 3, 4, 5, 6, 12, 18, 23, 24, 25, 36, 47, 48, 49, 71, 72, 73])
WEEKLY = np.array(
    [1, 2, 3, 4, 5, 6, 12, 23, 24, 25, 47, 48, 49, 71, 72, 73, 96, 120, 143, 144, 145, *range(166, 171)]
)
LONG = np.concatenate(
    [
        np.arange(1, 13),
        [18, 22, 23, 24, 25, 26, 36],
        [47, 48, 49, 71, 72, 73, 95, 96, 97, 119, 120, 121, 143, 144, 145],
        np.arange(166, 171),
    ]
)

# Name, whether there is a weekly pattern.
HOLT = (
    ("Holt-Winters 24h and 168h", True),
    ("Holt-Winters 24h and 168h, log", True),
    ("Holt-Winters 24h and 168h, root", True),
    ("Holt-Winters 24h, log", False),
)
# Name, period of the difference, lags, ridge, rounds of reweighting towards the absolute loss.
REGRESSIONS = (
    ("ridge on day differences", DAY, SHORT, 1e-4, 1),
    ("robust ridge on day differences", DAY, SHORT, 1e-3, 5),
    ("robust ridge on day differences, lags of 3 days", DAY, DAYS, 1e-2, 5),
    ("ridge on day differences, lags of a week, log", DAY, WEEKLY, 1e-2, 1),
    ("robust ridge on day differences, lags of a week, log", DAY, LONG, 1e-2, 5),
    ("robust ridge on week differences, log", WEEK, NEAR, 1e-2, 5),
    ("robust ridge on week differences, root", WEEK, NEAR, 1e-2, 5),
    ("robust ridge on hour differences, log", 1, LONG, 1e-3, 5),
    ("robust ridge on hour differences, root", 1, LONG, 1e-3, 5),
)
NAMES = (
    *(name for name, _ in HOLT),
    *(name for name, *_ in REGRESSIONS),
    "analogues of a day",
    "analogues of a week",
    "weekly curve",
    "weekly curve at today's level, log",
    "weekly curve at the last week's level, log",
    "last week",
    "last day",
    "level",
    "last value",
)
"""The members in their order; what a name ends in is the scale on which the member forecasts."""

PRIOR = np.array([2.0 if name == "weekly curve" else 1.0 for name in NAMES])
"""How much each counts at equal loss. Members and counts were chosen from 86 candidates by forward selection and
pruning on earlier windows of the training part of M4 hourly (as it is, and cut to 7 to 13 days) and on the older weeks
of five public files, never on hours that a benchmark scores."""

STEADY = np.array([name in ("level", "last value") for name in NAMES])
"""Members that forecast one value for all leads."""

FIT_LOSSES = 120
"""Evaluations that a Holt-Winters fit may spend."""

REFITS = 4
"""Times that costly members are fitted: at the first origin, at two more on the way, and at the end of the history."""

FIRST_GUESS = np.array([-2.5, -1.5, -1.5, 1.5])
"""Logits of the Holt-Winters parameters from which the first fit starts."""

SETTINGS = len(HOLT) * 4 + sum(len(lags) + 1 for _, _, lags, _, _ in REGRESSIONS)
"""Numbers that the fitted members are: smoothing parameters as logits, then regression coefficients."""


def run_members(
    x: np.ndarray,
    ends: np.ndarray,
    known: np.ndarray | None = None,
    horizon: int = HORIZON,
    judged: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Run all members over ``x`` from the origins ``ends``.

    Parameters
    ----------
    x : ndarray of shape (n,)
        Demand about unit scale, non-negative, without gaps.
    ends : ndarray of int
        Ascending; the last is n.
    known : ndarray of shape (SETTINGS,), optional
        Parameters and coefficients of an earlier run: used as they are, which saves most of the time.
    horizon : int
        Leads, hours.
    judged : int, optional
        Hours of ``x`` whose mean sets what is added before logs are taken; default all. With the same number, and the
        same extremes of ``x``, a forecast from an origin depends on nothing after it.

    Returns
    -------
    ndarray of shape (members, origins, horizon)
        On the scale of ``x``; NaN where the past was too short for the member.
    ndarray of shape (REFITS, SETTINGS)
        Parameters and coefficients as fitted at the origins of `refits_of`; NaN where the past was too short. Only
        ``known`` where that is given.
    """
    ends = np.ascontiguousarray(ends, dtype=np.int64)
    origins = len(ends)
    out = np.full((len(NAMES), origins, horizon), np.nan)
    m = dict(zip(NAMES, out, strict=True))
    mean, top = float(x[:judged].mean()), 3.0 * float(x.max())
    # logs of a series that touches zero are taken a twentieth of its mean above it
    shift = 0.0 if float(x.min()) > 0.02 * mean else 0.05 * mean
    logs = np.log(x + shift)
    # each scale with the bounds past which a recursion cannot run away
    scales = {
        "raw": (x, 0.0, top),
        "log": (logs, float(logs.min()) - 1.0, float(logs.max()) + 1.0),
        "root": (np.sqrt(x), 0.0, float(np.sqrt(top))),
    }
    at_refits = refits_of(origins)
    settings = np.full((REFITS, SETTINGS), np.nan) if known is None else known[None, :].copy()
    at = 0
    for name, weekly in HOLT:
        z, low, high = scales[_scale_of(name)]
        mine = settings[:, at : at + 4]
        at += 4
        logits = FIRST_GUESS.copy() if known is None else np.ascontiguousarray(mine[0])
        starts = at_refits.tolist() if known is None else [0]
        for i, (a, b) in enumerate(pairwise([*starts, origins])):
            if known is None and (i == 0 or a > starts[i - 1]):
                kernels.holt_winters_fit(z[: ends[a]], 2 * DAY, FIT_LOSSES, weekly, logits)
            mine[i] = logits
            kernels.holt_winters(z, ends[a:b], logits, weekly, m[name][a:b])
        np.clip(m[name], low, high, out=m[name])
    for name, base, lags, ridge, rounds in REGRESSIONS:
        z, low, high = scales[_scale_of(name)]
        width = len(lags) + 1
        # squares are cheap to solve anew at every origin
        due = np.unique(at_refits) if rounds > 1 else np.arange(origins)
        if known is not None:
            due = due[:0]
        betas = np.full((max(1, len(due)), width), np.nan)
        betas[:] = settings[0, at : at + width]
        kernels.autoregression(z, base, lags, ridge, rounds, due, ends, low, high, betas, m[name])
        if known is None:
            settings[:, at : at + width] = betas[np.searchsorted(due, at_refits)]
        at += width
    kernels.analogues(x, ends, DAY, 8, 2 * DAY, m["analogues of a day"])
    if horizon > DAY:
        # costs more than all others together, and tells little of the next hours
        kernels.analogues(x, ends, WEEK, 3, 2 * DAY, m["analogues of a week"])
    kernels.seasonal_curve(x, ends, WEEK, 4, 0, m["weekly curve"])
    kernels.seasonal_curve(logs, ends, WEEK, 4, DAY, m["weekly curve at today's level, log"])
    kernels.seasonal_curve(logs, ends, WEEK, 4, WEEK, m["weekly curve at the last week's level, log"])
    kernels.seasonal_repeat(x, ends, WEEK, m["last week"])
    kernels.seasonal_repeat(x, ends, DAY, m["last day"])
    kernels.seasonal_repeat(x, ends, 1, m["last value"])
    kernels.level(x, ends, m["level"])
    for name, path in m.items():
        if _scale_of(name) == "log":
            _, low, high = scales["log"]
            np.subtract(np.exp(np.clip(path, low, high, out=path), out=path), shift, out=path)
        elif _scale_of(name) == "root":
            np.square(path, out=path)
    np.clip(out, 0.0, top, out=out)
    return out, settings


def refits_of(origins: int) -> np.ndarray:
    """Return the positions of the origins at which costly members are fitted, shape (REFITS,)."""
    return np.array([0, origins // 3, 2 * origins // 3, origins - 1])


def _scale_of(name: str) -> str:
    return next((scale for scale in ("log", "root") if name.endswith(f", {scale}")), "raw")
