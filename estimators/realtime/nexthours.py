"""The next hours: members weighed, and the band measured, on their forecasts from every hour of the last two weeks.

A day ahead what counts is the rhythm, and origins a day apart judge that well. The next hours also depend on what the
last hours did: after a change the members that follow it must take over within hours, and the band must open at once.
"""

from itertools import pairwise

import numpy as np
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

FOLLOWER = 0.3
LAST_VALUE = 8.0
"""How much a follower and the last value count at equal loss, a common member counting 1: where a series walks, the
many members that look for more must not outvote the last value."""

HALF = int(np.flatnonzero(GRID == 0.5)[0])

MEMORY_H = 3.0
"""Half-life of the last errors that say how wild the series is just now, hours."""

WILDEST = 100.0
"""An error counts for at most this many usual ones: where a series hardly ever moves, any move dwarfs the usual."""

CALM = 0.5
"""Part of the band that does not follow the last errors."""


def next_hours(
    x: np.ndarray,
    plain: np.ndarray,
    known: np.ndarray,
    local0: int,
    refits: np.ndarray,
    settings: np.ndarray,
    pool: Pool,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Forecast the hours after the end of ``x``.

    Parameters
    ----------
    x, plain : ndarray of shape (n,)
        The cleaned series about unit scale, and the same with odd days filled: what members learn from.
    known : ndarray of bool, shape (n,)
        Which hours were measured.
    local0 : int
        Local hour of the first.
    refits : ndarray of int, shape (refits,)
        Hours of history at which members were fitted, ascending.
    settings : ndarray of shape (refits, SETTINGS)
        What was fitted there: no member is judged on hours that it was fitted on.
    pool : Pool
        What similar apps show, for a young series.

    Returns
    -------
    ndarray of shape (AHEAD,)
        Medians.
    ndarray of shape (AHEAD, grid levels)
        What the quantiles at ``GRID`` lie above the medians.
    float
        How sure a change of level is that the last hours alone show: 0 to 1.
    """
    n = len(x)
    first = max(int(refits[0]), n - ORIGINS)
    ends = np.arange(first, n + 1)
    cuts = np.searchsorted(ends, refits).tolist()
    parts = [
        run_members(plain, ends[a:b], fitted, AHEAD)[0]
        for (a, b), fitted in zip(pairwise([*cuts, len(ends)]), settings, strict=True)
        if a < b
    ]
    follow = _followers(plain, ends)
    paths = np.concatenate([np.concatenate(parts, axis=1), follow])
    prior = np.append(
        np.where(np.array(NAMES) == "last value", LAST_VALUE, PRIOR), np.full(len(follow), FOLLOWER)
    )
    if pool.apps:
        paths = np.concatenate([paths, borrowed_paths(x, ends, local0, AHEAD, pool)])
        prior = np.append(prior, 1.0)
    combined, followed = np.empty((len(ends), AHEAD)), np.zeros(1)
    kernels.next_hours(x, known, first, np.ascontiguousarray(paths), prior, AHEAD, JUDGE, combined, followed)
    reach = np.nanmedian(follow[:, -1], axis=0) if np.isfinite(follow[:, -1]).any() else combined[-1]
    offsets, sure = _offsets(x, known, local0, ends, combined, reach)
    return combined[-1], offsets, sure * float(followed[0])


def _followers(x: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the daily and the weekly shape at the level of the last hour and of the last three hours."""
    out = np.full((4, len(ends), AHEAD), np.nan)
    base = 0.05 * float(x.mean())
    logs = np.log(x + base)
    for path, (period, cycles, span) in zip(
        out, ((WEEK, 4, 1), (WEEK, 4, 3), (DAY, 7, 1), (DAY, 7, 3)), strict=True
    ):
        kernels.seasonal_curve(logs, ends, period, cycles, span, path)
    return np.clip(np.exp(np.minimum(out, logs.max() + 1.0)) - base, 0.0, 3.0 * float(x.max()))


def _offsets(
    x: np.ndarray,
    known: np.ndarray,
    local0: int,
    ends: np.ndarray,
    combined: np.ndarray,
    reach: np.ndarray,
) -> tuple[np.ndarray, float]:
    """Return the conformal quantiles of past errors, and how sure a change of level is, 0 to 1.

    Errors are in units of what is usual at the hour and of how wild the hours before were.
    """
    at = ends[:, None] + np.arange(AHEAD)[None, :]
    inside = np.minimum(at, len(x) - 1)
    errors = np.where((at < len(x)) & known[inside], x[inside] - combined, np.nan)
    hours = (local0 + at) % DAY
    # what is usual must not be told by a change of level
    sizes = np.abs(errors[np.isfinite(errors)])
    limit = max(JUDGE.surprise_to * float(np.median(sizes)), float(sizes.mean())) if len(sizes) else 1.0
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
            ranks = np.clip((GRID * (len(own) + 1) - 0.5) / len(own), 0.0, 1.0)
            table[k] += share * np.quantile(own, ranks, method="hazen")
    middle = table[:, [HALF]]
    offsets = np.maximum.accumulate(table - middle, axis=1) * usual[hours[-1]][:, None] * wild[-1]
    # while a change is not yet sure, its side of the band reaches to where it would lead
    signed = errors[:-1, 0] / usual[hours[:-1, 0]]
    both = np.where(signed[1:] * signed[:-1] > 0, np.minimum(np.abs(signed[1:]), np.abs(signed[:-1])), 0.0)
    change = np.clip((both[-DAY:] - CHANGE[0]) / (CHANGE[1] - CHANGE[0]), 0.0, 1.0)
    sure = float(np.max(change * CHANGE_FADE ** np.arange(len(change))[::-1], initial=0.0))
    gap = sure * (reach - combined[-1])[:, None] * np.minimum(np.abs(norm.ppf(GRID)) / norm.ppf(0.9), 1.0)
    above = np.arange(len(GRID)) > HALF
    return offsets + np.where(above, np.maximum(gap, 0.0), np.minimum(gap, 0.0)), sure
