"""Level shifts: a demand that became another within a day and stayed there."""

import numpy as np

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
    logs = np.log(sums)
    best, found = 0.0, (0, 1.0)
    for day in range(max(LEAST_BEFORE, days - LOOK_BACK), days - LEAST_AFTER + 1):
        first = max(0, day - LOOK_BACK)
        usual = np.array(
            [np.median(logs[first + (w - first) % WEEK_DAYS : day : WEEK_DAYS]) for w in range(WEEK_DAYS)]
        )
        off = logs[first:] - usual[np.arange(first, days) % WEEK_DAYS]
        before, after = off[: day - first], off[day - first :]
        change = float(np.median(after))
        noise = 1.4826 * float(np.median(np.abs(before))) + 0.02
        steady = bool((np.sign(change) * after >= HELD * abs(change)).all())
        # the last day before must still have been at the old level, or the change began earlier
        fresh = abs(float(before[-1])) < (1.0 - HELD) * abs(change)
        if abs(change) > max(np.log(LEAST_RATIO), STEADINESS * noise) and steady and fresh:
            clear = abs(change) * np.sqrt(len(after)) / noise
            if clear > best:
                best, found = clear, (start + day * DAY, float(np.exp(change)))
    return found
