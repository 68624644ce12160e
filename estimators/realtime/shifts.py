"""Level shifts: a demand that became another within a day and stayed there."""

import numpy as np

from tidegrid.estimators.realtime import kernels

DAY = 24
WEEK_DAYS = 7

LEAST_BEFORE = 14
"""Days before a shift that tell the old level and each weekday's place in it."""

LEAST_AFTER = 4
"""Days that the new level must have lasted: longer than a long weekend."""

LOOK_BACK = 28
"""A shift is looked for in this many last days and must have lasted for LEAST_AFTER; older ones have been learnt."""

LEAST_RATIO = 1.3
"""A smaller change of level is left to the members."""

STEADINESS = 5.0
"""The change must be this many robust standard deviations of the days before it."""

HELD = 0.6
"""Every day since must have kept this part of the change (in logs)."""


def level_shift(values: np.ndarray) -> tuple[int, float]:
    """Return the hour of the last level shift and the ratio of the new level to the old; (0, 1.0) without one.

    Days are compared with the median of the same weekday before the shift, in logs. Among the days that would do,
    the one with the clearest change is taken.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Demand an hour, gaps filled. Days are counted back from the end.
    """
    days = len(values) // DAY
    start = len(values) - days * DAY
    if days < LEAST_BEFORE + LEAST_AFTER:
        return 0, 1.0
    sums = values[start:].reshape(days, DAY).sum(axis=1)
    if float(sums.min()) <= 0.0:
        return 0, 1.0
    change = np.zeros(1)
    rules = kernels.ShiftRules(LEAST_BEFORE, LEAST_AFTER, LOOK_BACK, np.log(LEAST_RATIO), STEADINESS, HELD)
    day = kernels.clearest_shift(np.log(sums), rules, change)
    return (start + day * DAY, float(np.exp(change[0]))) if day else (0, 1.0)


ODD_OTHERS = 3
"""Same weekdays of other weeks that must tell what is usual before a day can be called odd."""

ODD_RUN = 3
"""Days in a row that may be odd together: a long weekend; more of them are a new level."""


def odd_days(values: np.ndarray, local0: int) -> np.ndarray:
    """Return which hours lie on an odd day, bool of shape (n,): a day unlike its weekday after which all was as before.

    A holiday without a calendar, a strike, a storm: such a day says nothing of the same weekday a week later. The
    last days are never odd, since whether they pass is not known yet. The measures are those of a level shift.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Demand an hour, gaps filled.
    local0 : int
        Local hour of the first.
    """
    odd = np.zeros(len(values), dtype=bool)
    start = -local0 % DAY
    days = (len(values) - start) // DAY
    if days < (ODD_OTHERS + 1) * WEEK_DAYS:
        return odd
    sums = values[start : start + days * DAY].reshape(days, DAY).sum(axis=1)
    if float(sums.min()) <= 0.0:
        return odd
    off = np.empty(days)
    kernels.off_weekday(np.log(sums), LOOK_BACK, off)
    noise = 1.4826 * float(np.median(np.abs(off))) + 0.02
    strange = np.abs(off) > max(float(np.log(LEAST_RATIO)), STEADINESS * noise)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], strange, [False]]).astype(np.int8)))
    for a, b in zip(edges[::2], edges[1::2], strict=True):
        if b - a > ODD_RUN or b == days:
            continue
        # before and after all must be as usual, or the days belong to a longer change
        around = [off[at] for at in (a - 1, b) if at >= 0]
        if max(abs(one) for one in around) < (1.0 - HELD) * float(np.abs(off[a:b]).min()):
            odd[start + a * DAY : start + b * DAY] = True
    return odd
