"""The next hours: members weighed, and the band measured, on their forecasts from every hour of the last two weeks.

A day ahead what counts is the rhythm, and origins a day apart judge that well. The next hours also depend on what the
last hours did: after a change the members that follow it must take over within hours, and the band must open at once.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.signal import lfilter
from scipy.special import expit
from scipy.stats import norm

from tidegrid.estimators.realtime import kernels
from tidegrid.estimators.realtime.coldstart import Pool, borrowed_paths
from tidegrid.estimators.realtime.intervals import DAY, GRID, PRIOR_ERRORS, PRIOR_SHAPE, spread_by_hour
from tidegrid.estimators.realtime.members import NAMES, PRIOR, run_members

WEEK = 168

AHEAD = 6
"""Leads, hours, that are forecast here."""

ORIGINS = 336
"""Origins, an hour apart, that judge."""

JUDGE = kernels.JudgeRules(
    slow_half_life=168.0,
    fast_half_life=6.0,
    fast_share=0.15,
    sharpness=4.0,
    all_leads_share=0.2,
    surprise_from=4.0,
    surprise_to=8.0,
)
"""Half-lives of past errors, hours; how far (in logs) the losses with the short one count; power with which a weight
falls with the loss; how far a lead's losses are those of all leads; the mean of the last errors, in units of the usual
ones, from which and at which the short half-life alone counts. Chosen on hours before those that a benchmark scores."""

CHANGE = (3.0, 5.0)
CHANGE_FADE = 0.9
"""Two errors in a row to the same side, in units of the usual ones, from which and at which the band reaches to where
the level of the last hour leads; and what is left of that an hour later."""

FOLLOWERS = 4
FOLLOWER = 0.3
LAST_VALUE = 8.0
"""How many followers there are; how much each of them and the last value count at equal loss, a common member
counting 1: where a series walks, the many members that look for more must not outvote the last value."""

GIVE_WAY = 40.0
"""Power of the ratio of their past errors by which the last value counts beside the combination. Chosen on hours before
those that a benchmark scores: 1 % less error on GPU counts, nothing elsewhere."""

NEW_CHANGES = 3.0
"""Past hours of change, all lasting, that a series is taken to have had before its own are counted."""

HALF = int(np.flatnonzero(GRID == 0.5)[0])

TOWARDS = np.minimum(np.abs(norm.ppf(GRID)) / norm.ppf(0.9), 1.0)
"""How far each level of the band goes to where a change would lead: the 0.1 and 0.9 quantiles, and those beyond, all
the way."""

MEMORY_H = 3.0
"""Half-life of the last errors that say how wild the series is just now, hours."""

WILDEST = 100.0
"""An error counts for at most this many usual ones: where a series hardly ever moves, any move dwarfs the usual."""

CALM = 0.5
"""Part of the band that does not follow the last errors."""


@dataclass(frozen=True)
class PastPaths:
    """What members, and their combination, forecast of the next hours from every hour of the last two weeks.

    Parameters
    ----------
    x, plain : ndarray of shape (n,)
        The cleaned series about unit scale, and the same with odd days filled: what members learn from.
    known : ndarray of bool, shape (n,)
        Which hours were measured.
    refits : ndarray of int, shape (refits,)
        Hours of history at which members were fitted, ascending.
    ends : ndarray of int, shape (origins,)
        The origins, an hour apart; the last is n.
    paths : ndarray of shape (members, origins, AHEAD)
        Forecasts of the members, the followers and, for a young series, the borrowed curve.
    combined : ndarray of shape (origins, AHEAD)
        Their combination.
    done : int
        How many of the first origins are combined already; `next_hours` combines the others.
    filled : ndarray of shape (hours at the last fit,)
        What gaps, outages and spikes were filled with at the last fit, NaN elsewhere.
    """

    x: np.ndarray
    plain: np.ndarray
    known: np.ndarray
    refits: np.ndarray
    ends: np.ndarray
    paths: np.ndarray
    combined: np.ndarray
    done: int
    filled: np.ndarray


def past_paths(
    x: np.ndarray,
    plain: np.ndarray,
    known: np.ndarray,
    local0: int,
    refits: np.ndarray,
    settings: np.ndarray,
    newest: np.ndarray,
    filled: np.ndarray,
    pool: Pool | None,
    before: PastPaths | None = None,
) -> PastPaths:
    """Run members, followers and the borrowed curve from every hour of the two weeks before the last fit, and since.

    Parameters
    ----------
    x, plain, known, refits, filled
        As in :class:`PastPaths`; the last of ``refits`` is when members were judged.
    local0 : int
        Local hour of the first.
    settings : ndarray of shape (refits, SETTINGS)
        What was fitted there: no member is judged on hours that it was fitted on.
    newest : ndarray of shape (members, at least AHEAD)
        The members' forecasts from the end.
    pool : Pool, optional
        What similar apps show, for a young series.
    before : PastPaths, optional
        Of an earlier hour since the last fit. What would come out the same is kept.
    """
    n, judged = len(plain), int(refits[-1])
    first = max(int(refits[0]), judged - ORIGINS)
    kept = done = 0
    if (
        before is not None
        and np.array_equal(before.refits, refits)
        and _same_frame(plain, before.plain, judged)
    ):
        # origins up to the first hour that is another one now
        kept = _same_hours(plain, before.plain) - first + 1
        done = min(kept, _same_hours(x, before.x) - first + 1, _same_hours(known, before.known) - first + 1)
    ends = np.arange(first, n + 1)
    paths = np.empty((len(NAMES) + FOLLOWERS + (1 if pool and pool.apps else 0), len(ends), AHEAD))
    if before is not None and kept > 0:
        paths[:, :kept] = before.paths[:, :kept]
    kept, done = max(kept, 0), max(done, 0)
    members, new = paths[: len(NAMES)], ends[kept:-1]
    cuts = np.searchsorted(new, refits).tolist()
    for (a, b), fitted in zip(pairwise([*cuts, len(new)]), settings, strict=True):
        if a < b:
            members[:, kept + a : kept + b] = run_members(plain, new[a:b], fitted, AHEAD, judged)[0]
    members[:, -1] = np.where((np.array(NAMES) == "analogues of a week")[:, None], np.nan, newest[:, :AHEAD])
    _followers(plain, ends[kept:], judged, paths[len(NAMES) : len(NAMES) + FOLLOWERS, kept:])
    if pool and pool.apps:
        paths[-1:, kept:] = borrowed_paths(x, ends[kept:], local0, AHEAD, pool)
    combined = np.full((len(ends), AHEAD), np.nan)
    if before is not None:
        combined[:done] = before.combined[:done]
    return PastPaths(x, plain, known, refits, ends, paths, combined, done, filled)


def _same_hours(now: np.ndarray, before: np.ndarray) -> int:
    """Return how many of the first hours are the same."""
    differ = np.flatnonzero(now[: len(before)] != before)
    return int(differ[0]) if len(differ) else len(before)


def _same_frame(x: np.ndarray, before: np.ndarray, judged: int) -> bool:
    """Say whether paths over both have the same bounds and the same past up to the last fit."""
    return (
        len(x) > len(before)
        and x.min() == before.min()
        and x.max() == before.max()
        and np.array_equal(x[:judged], before[:judged])
    )


def next_hours(local0: int, past: PastPaths) -> tuple[np.ndarray, np.ndarray, float]:
    """Forecast the hours after the end of the series.

    Parameters
    ----------
    local0 : int
        Local hour of the first hour.
    past : PastPaths
        What members forecast; the combination is filled in.

    Returns
    -------
    ndarray of shape (AHEAD,)
        Medians.
    ndarray of shape (AHEAD, grid levels)
        What the quantiles at ``GRID`` lie above the medians.
    float
        How far a change of level that the last hours showed is believed to last: 0 to 1.
    """
    x, ends, paths, combined = past.x, past.ends, past.paths, past.combined
    prior = np.concatenate(
        [
            np.where(np.array(NAMES) == "last value", LAST_VALUE, PRIOR),
            np.full(FOLLOWERS, FOLLOWER),
            np.ones(len(paths) - len(NAMES) - FOLLOWERS),
        ]
    )
    followed = np.zeros(1)
    kernels.next_hours(x, past.known, int(ends[0]), paths, prior, AHEAD, past.done, JUDGE, combined, followed)
    combined = _beside_last_value(x, past.known, ends, combined)
    last = paths[len(NAMES) : len(NAMES) + FOLLOWERS, -1]
    reach = np.nanmedian(last, axis=0) if np.isfinite(last).any() else combined[-1]
    offsets, change = _offsets(x, past.known, local0, ends, combined, reach)
    sure = _still_open(change)
    if sure * followed[0] > 0.0:
        sure *= _lasting(x, ends, change)
    return combined[-1], offsets, sure * float(followed[0])


def _beside_last_value(
    x: np.ndarray, known: np.ndarray, ends: np.ndarray, combined: np.ndarray
) -> np.ndarray:
    """Return the combination mixed with the last value, at each origin by the errors of both until then.

    Where a series walks, the members that look for more cost the combination a little at every hour.
    """
    at = ends[:, None] + np.arange(AHEAD)[None, :]
    inside = np.minimum(at, len(x) - 1)
    seen = (at < len(x)) & known[inside] & np.isfinite(combined)
    last = np.broadcast_to(x[ends - 1][:, None], combined.shape)
    # a change of level, which the last value meets first, must not decide for two weeks
    most = _common(np.abs(x[inside] - combined)[seen])
    if most < 1e-9:  # what has never been wrong gives way to nothing
        return combined
    fade = 2.0 ** (-1.0 / JUDGE.slow_half_life)
    logs = []
    for paths in (combined, last):
        sizes = np.where(seen, np.minimum(np.abs(x[inside] - paths), most), 0.0)
        gone = lfilter([1.0], [1.0, -fade], sizes, axis=0)
        # an error is known only once its hour has come
        faded = np.stack([np.concatenate([np.zeros(k + 1), gone[: -k - 1, k]]) for k in range(AHEAD)], axis=1)
        pooled = JUDGE.all_leads_share
        faded = (1.0 - pooled) * faded + pooled * faded.mean(axis=1, keepdims=True)
        logs.append(np.log(faded + 1e-9))
    share = expit(GIVE_WAY * (logs[0] - logs[1]))
    return share * last + (1.0 - share) * combined


def _common(sizes: np.ndarray) -> float:
    """Return the error that a usual hour does not exceed."""
    return max(JUDGE.surprise_to * float(np.median(sizes)), float(sizes.mean())) if len(sizes) else 1.0


def _still_open(change: np.ndarray) -> float:
    """Return how sure the last change is by now."""
    last = change[-DAY:]
    return float(np.max(last * CHANGE_FADE ** np.arange(len(last))[::-1], initial=0.0))


def _lasting(x: np.ndarray, ends: np.ndarray, change: np.ndarray) -> float:
    """Return the part of a change that was left in the later hours of a day, by the changes of the series' own past.

    A change is how far the last two hours lie from the median of the same hours two to eight days before.
    """
    start = max(0, int(ends[0]) - 8 * DAY)
    recent = x[start:]
    if len(recent) <= 9 * DAY:
        return 1.0
    off = recent[8 * DAY :] - np.median(
        [recent[(8 - k) * DAY : len(recent) - k * DAY] for k in range(2, 9)], axis=0
    )
    # positions in `off` of the origins at which each change was seen
    at = ends[2:] - start - 8 * DAY
    done = (change > 0.0) & (at >= 2) & (at + DAY <= len(off))
    if not done.any():
        return 1.0
    at, weight = at[done], change[done]
    now = 0.5 * (off[at - 2] + off[at - 1])
    later = np.median(np.lib.stride_tricks.sliding_window_view(off, DAY - AHEAD)[at + AHEAD], axis=1)
    kept = np.clip(later * now, 0.0, now**2) / np.maximum(now**2, 1e-18)
    return float((NEW_CHANGES + (weight * kept).sum()) / (NEW_CHANGES + weight.sum()))


def _followers(x: np.ndarray, ends: np.ndarray, judged: int, out: np.ndarray) -> None:
    """Fill in the daily and the weekly shape at the level of the last hour and of the last three hours."""
    curves = np.full((FOLLOWERS, len(ends), AHEAD), np.nan)
    base = 0.05 * float(x[:judged].mean())
    logs = np.log(x + base)
    for path, (period, cycles, span) in zip(
        curves, ((WEEK, 4, 1), (WEEK, 4, 3), (DAY, 7, 1), (DAY, 7, 3)), strict=True
    ):
        kernels.seasonal_curve(logs, ends, period, cycles, span, path)
    out[:] = np.clip(np.exp(np.minimum(curves, logs.max() + 1.0)) - base, 0.0, 3.0 * float(x.max()))


def _offsets(
    x: np.ndarray,
    known: np.ndarray,
    local0: int,
    ends: np.ndarray,
    combined: np.ndarray,
    reach: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the conformal quantiles of past errors, and how sure a change of level was at each origin from the third
    on, 0 to 1.

    Errors are in units of what is usual at the hour and of how wild the hours before were.
    """
    at = ends[:, None] + np.arange(AHEAD)[None, :]
    inside = np.minimum(at, len(x) - 1)
    errors = np.where((at < len(x)) & known[inside], x[inside] - combined, np.nan)
    hours = (local0 + at) % DAY
    # what is usual must not be told by a change of level
    limit = _common(np.abs(errors[np.isfinite(errors)]))
    usual = spread_by_hour(np.clip(errors, -limit, limit), hours, floor=1e-9, prior=0.0)
    relative = np.clip(errors / usual[hours], -WILDEST, WILDEST)
    # how wild the hours up to each origin were: what the origin before it forecast of its last hour
    wild, now, fade = np.ones(len(ends)), 1.0, 2.0 ** (-1.0 / MEMORY_H)
    for o in range(1, len(ends)):
        last = abs(relative[o - 1, 0])
        now = now if np.isnan(last) else fade * now + (1.0 - fade) * last
        wild[o] = CALM + (1.0 - CALM) * now
    relative = np.clip(relative / wild[:, None], PRIOR_SHAPE[0] * 4.0, PRIOR_SHAPE[-1] * 4.0)
    table = np.empty((AHEAD, len(GRID)))
    for k in range(AHEAD):
        own = relative[:, k][np.isfinite(relative[:, k])]
        share = len(own) / (len(own) + PRIOR_ERRORS)
        table[k] = (1.0 - share) * PRIOR_SHAPE
        if len(own):
            # the conformal ranks (n + 1) p, between order statistics
            table[k] += share * np.interp(GRID * (len(own) + 1) - 1.0, np.arange(len(own)), np.sort(own))
    middle = table[:, [HALF]]
    offsets = np.maximum.accumulate(table - middle, axis=1) * usual[hours[-1]][:, None] * wild[-1]
    # while a change is not yet sure, its side of the band reaches to where it would lead
    signed = errors[:-1, 0] / usual[hours[:-1, 0]]
    both = np.where(signed[1:] * signed[:-1] > 0, np.minimum(np.abs(signed[1:]), np.abs(signed[:-1])), 0.0)
    change = np.clip((both - CHANGE[0]) / (CHANGE[1] - CHANGE[0]), 0.0, 1.0)
    gap = _still_open(change) * (reach - combined[-1])[:, None] * TOWARDS
    above = np.arange(len(GRID)) > HALF
    return offsets + np.where(above, np.maximum(gap, 0.0), np.minimum(gap, 0.0)), change
