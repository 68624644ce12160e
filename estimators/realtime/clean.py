"""From raw hourly demand to a series that members can learn from: gaps, outages and spikes told apart.

Missing is not zero: a blank hour, a collection gap and an outage carry no information on demand, and are
filled from the series' own rhythm so that lags and curves keep their places in time. They are marked, and
never judged a member by. What the app really had is kept: only hours that contradict everything around them
are set aside.
"""

from dataclasses import dataclass

import numpy as np

DAY = 24
WEEK = 168

# A zero run at the very end is an outage for this long, then it is believed: the app may have been retired.
HOLD_ENDING_ZEROS_H = 12
# A hole longer than this separates two histories; what lies before it no longer says much.
LONGEST_HOLE_H = 14 * DAY
# The comparisons that tell a strange hour from a usual one: the same local hour on other days.
NEIGHBOURS = np.array([-336, -168, -72, -48, -24, 24, 48, 72, 168, 336])
# Part of comparable hours that may be zero before zeros count as usual, and the demand that must surround a
# gap.
ZEROS_USUAL = 0.1
# An hour of less than this part of the typical one counts as zero: collection that stops leaves a part of an hour.
NEAR_ZERO = 0.02
ABRUPT = 0.25
# A launch-day spike stands this far above every comparable hour, and above the busiest hours of all other
# days.
SPIKE_OVER_NEIGHBOURS = 3.0
SPIKE_OVER_BUSIEST = 1.5
# Hours that must be known before one can be called a spike.
LEAST_TO_TELL = 4


@dataclass(frozen=True)
class Cleaned:
    """One series, ready to be learnt from.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Demand an hour, finite and non-negative, gaps filled.
    known : ndarray of bool, shape (n,)
        Whether the hour is what was measured; False where it was filled in.
    offset : int
        Hours cut from the front of the raw series: before the first demand, or before a hole that is too
        long.
    gaps, outages, spikes : int
        Hours of each kind that were set aside.
    """

    values: np.ndarray
    known: np.ndarray
    offset: int
    gaps: int
    outages: int
    spikes: int


def clean(raw: np.ndarray) -> Cleaned:
    """Tell demand from gaps, outages and spikes, and fill what is missing from the series' own rhythm.

    Parameters
    ----------
    raw : ndarray of shape (n,)
        Demand an hour on a regular hourly grid; NaN is missing.
    """
    y = np.asarray(raw, dtype=float)
    positive = np.flatnonzero(np.nan_to_num(y) > 0)
    if len(positive) == 0:
        # nothing but zeros (or nothing at all): zero is the demand
        finite = np.isfinite(y)
        return Cleaned(np.where(finite, y, 0.0), finite, 0, int((~finite).sum()), 0, 0)
    offset = _after_longest_hole(y, _start(y, int(positive[0])))
    y = y[offset:]
    gaps = ~np.isfinite(y)
    outages = _outages(y)
    spikes = _spikes(np.where(outages, np.nan, y))
    known = ~(gaps | outages | spikes)
    values = fill(np.where(known, y, np.nan))
    return Cleaned(values, known, offset, int(gaps.sum()), int(outages.sum()), int(spikes.sum()))


def _start(y: np.ndarray, first: int) -> int:
    """Return where the series begins: at its first demand, if from then on it was hardly ever without.

    An app that goes up and down to zero had no demand before, and that is history; one that runs since it started
    has none from before its start.
    """
    since = y[first:]
    running = len(since) >= DAY and np.mean(since[np.isfinite(since)] == 0) < ZEROS_USUAL
    return first if running else 0


def _after_longest_hole(y: np.ndarray, offset: int) -> int:
    at = np.flatnonzero(np.isfinite(y))
    at = at[at >= offset]
    holes = np.flatnonzero(np.diff(at) > LONGEST_HOLE_H)
    for hole in holes[::-1]:
        begin = int(at[hole + 1])
        if len(y) - begin >= 3 * WEEK:
            return begin
    return offset


def _runs(mask: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _comparable(y: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the values at the same hour of other days, shape (len(at), neighbours), NaN where there is
    none."""
    where = at[:, None] + NEIGHBOURS[None, :]
    inside = (where >= 0) & (where < len(y))
    return np.where(inside, y[np.clip(where, 0, len(y) - 1)], np.nan)


def _outages(y: np.ndarray) -> np.ndarray:
    """Mark zero runs that contradict the series: abrupt, and at hours at which it is otherwise busy."""
    out = np.zeros(len(y), dtype=bool)
    typical = float(np.median(y[y > 0]))
    nothing = NEAR_ZERO * typical
    zero = y <= nothing
    if not zero.any():
        return out
    for a, b in _runs(zero):
        length = b - a
        ends = b == len(y)
        if length > LONGEST_HOLE_H or (ends and length > HOLD_ENDING_ZEROS_H):
            continue
        others = y.copy()
        others[a:b] = np.nan
        around = _comparable(others, np.arange(a, b))
        seen = around[np.isfinite(around)]
        if len(seen) < 3:
            continue
        expected = float(np.median(seen))
        busy = (seen <= nothing).mean() < ZEROS_USUAL and expected >= ABRUPT * typical
        # a gap breaks off, or starts again, at full demand for the time of day; a quiet night fades in and out
        edges = np.array([at for at in (a - 1, b) if 0 <= at < len(y)])
        usual = np.array(
            [np.nanmedian(row) if np.isfinite(row).any() else 0.0 for row in _comparable(others, edges)]
        )
        if busy and bool((np.nan_to_num(y[edges], nan=0.0) >= ABRUPT * usual).any()):
            out[a:b] = True
    return out


def _spikes(y: np.ndarray) -> np.ndarray:
    """Mark hours far above every comparable one, unless they last to the end: two in a row may be a new level.

    A lone last hour is no level yet; the next hour tells.
    """
    seen = np.isfinite(y)
    out = np.zeros(len(y), dtype=bool)
    if seen.sum() < 4 * DAY:
        if seen.sum() < LEAST_TO_TELL:
            return out
        # too short for comparable hours: one that dwarfs the second highest
        second, highest = np.sort(y[seen])[-2:]
        if highest > SPIKE_OVER_NEIGHBOURS * SPIKE_OVER_BUSIEST * second > 0.0:
            out[np.nanargmax(y)] = True
        return out
    suspects = np.flatnonzero(np.nan_to_num(y) > SPIKE_OVER_BUSIEST * np.nanquantile(y, 0.98))
    if len(suspects) == 0 or len(suspects) > DAY:
        return out
    around = _comparable(y, suspects)
    enough = np.isfinite(around).sum(axis=1) >= 3
    highest = np.max(np.nan_to_num(around), axis=1)
    # where comparable hours are next to nothing, demand that comes and goes is no spike
    usual = highest > NEAR_ZERO * float(np.median(y[seen & (np.nan_to_num(y) > 0)]))
    out[suspects[enough & usual & (y[suspects] > SPIKE_OVER_NEIGHBOURS * highest)]] = True
    last = int(np.flatnonzero(seen)[-1])
    for a, b in _runs(out):
        if b == last + 1 and b - a > 1:
            out[a:b] = False
    return out


def fill(y: np.ndarray) -> np.ndarray:
    """Fill NaN by the seasonal shape × the level interpolated across the gap.

    The shape is the median by hour of week where three weeks were seen, else by hour of day, else flat.
    """
    missing = ~np.isfinite(y)
    if not missing.any():
        return y.copy()
    at = np.flatnonzero(~missing)
    if len(at) == 0:
        return np.zeros(len(y))
    n = len(y)
    overall = max(float(np.mean(y[at])), 1e-300)
    shape = np.full(n, overall)
    for period, cycles in ((DAY, 3), (WEEK, 3)):
        if len(at) < period * cycles * 0.8:
            continue
        padded = np.full(-(-n // period) * period, np.nan)
        padded[:n] = y
        table = padded.reshape(-1, period)
        seen = np.isfinite(table).sum(axis=0) >= 2
        middle = np.zeros(period)
        middle[seen] = np.nanmedian(table[:, seen], axis=0)
        tiled = np.tile(middle, len(table))[:n]
        shape = np.where(np.tile(seen, len(table))[:n], tiled, shape)
    # a floor on the shape keeps the ratio sane at hours that are usually empty
    floor = 0.05 * overall
    ratio = np.interp(np.arange(n), at, _smooth((y[at] + floor) / (shape[at] + floor)))
    return np.where(missing, np.maximum(ratio * (shape + floor) - floor, 0.0), y)


def _smooth(ratio: np.ndarray) -> np.ndarray:
    """Return running means over five known hours: one noisy edge must not set the level of a whole gap."""
    n = len(ratio)
    if n < 3:
        return ratio
    sums = np.concatenate([[0.0], np.cumsum(ratio)])
    low = np.maximum(np.arange(n) - 2, 0)
    high = np.minimum(np.arange(n) + 3, n)
    return (sums[high] - sums[low]) / (high - low)
