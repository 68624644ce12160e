"""What is learnt from one series: members run from past origins, weighed, combined, and their errors kept."""

from dataclasses import dataclass, field, replace

import numpy as np

from tidegrid.estimators.realtime.clean import Cleaned, clean, fill
from tidegrid.estimators.realtime.coldstart import Pool, borrowed_paths, short_forecast
from tidegrid.estimators.realtime.combine import LEADS, combine, member_weights, past_errors
from tidegrid.estimators.realtime.curve import Curve, weekly_curve
from tidegrid.estimators.realtime.holidays import holiday_factor
from tidegrid.estimators.realtime.intervals import DAY, GRID, spread_by_hour
from tidegrid.estimators.realtime.members import (
    HORIZON,
    NAMES,
    PRIOR,
    REFITS,
    SETTINGS,
    STEADY,
    refits_of,
    run_members,
)
from tidegrid.estimators.realtime.nexthours import AHEAD, PastPaths, next_hours, past_paths
from tidegrid.estimators.realtime.shifts import level_shift, odd_days

WEEK = 168
ORIGINS = 14
"""Past origins, a day apart, from which members are judged and errors collected."""

SHORTEST = 72
"""Hours from which members are run; a shorter series takes its shape from similar apps."""

GROWN = 2 * WEEK
"""Hours from which a series stands on its own."""

BORROWED = 3.0
"""How much the borrowed curve counts at equal loss: to a young series it alone tells of the days still to come."""

JUDGED = 48
"""Leads by which members are weighed."""

BASELINES = ("last value", "last day", "last week", "weekly curve")
"""What the forecast is held against on the series' own past, and gives way to where it loses."""

MARGIN = 0.06
"""Part by which a baseline must be better before it takes over. It grows with the fourth power of how many times fewer
than ORIGINS the past origins are: over a handful of days a baseline looks better by luck. Set on the training part of
M4 hourly cut to 14 days."""

CHANGE_HALF_LIFE = 24.0
"""Hours ahead over which a change of level that the last hours showed is believed half."""

PRIOR_ERROR = 0.35
"""Mean absolute error expected of a new series, as a part of its level, before its own errors are known."""


@dataclass(frozen=True)
class Learnt:
    """What is known of one series at the end of its history.

    Parameters
    ----------
    local0 : int
        Local hour of the first cleaned value.
    length : int
        Hours of cleaned history.
    scale : float
        Demand an hour that counts as 1 below; 0 where there was no demand.
    point : ndarray of shape (HORIZON,)
        Median forecast from the end, units of demand.
    weights : ndarray of shape (groups of leads, members + 1)
        Weight of each member, the borrowed curve last; all 0 for a short series.
    errors : ndarray of shape (origins, HORIZON)
        Actual minus forecast at past origins, in units of demand; NaN where unknown.
    spread : ndarray of shape (24,)
        Usual absolute error by local hour of day, units of demand.
    log_sigma : float
        Width of the band in logs for a series too short for errors of its own; 0 for others.
    losses : ndarray of shape (1 + baselines,)
        Mean absolute past error of the forecast and of each baseline, units of demand; NaN where unknown.
    chosen : str
        ``"combination"``, or the baseline that is used instead.
    stale : int
        Hours at the end of the history that are missing.
    gaps, outages, spikes : int
        Hours set aside.
    shift_h : int
        How many hours before the end the level shifted; 0 where it did not.
    shift_ratio : float
        New level over the old.
    judged : int
        ``length`` when members were last judged and errors collected.
    refits : ndarray of shape (REFITS,)
        Hours of history at which the members were fitted.
    settings : ndarray of shape (REFITS, SETTINGS)
        Their parameters and coefficients there.
    near : ndarray of shape (AHEAD, grid levels)
        What the quantiles of the next hours lie above the medians, units of demand; NaN without errors of its own.
    lift : ndarray of shape (HORIZON,)
        Factor by which a change of level that the last hours showed moved each median; 1 for the next hours.
    past : PastPaths or None
        What members forecast of past hours, kept from one update to the next (0.4 MB); it can be made again.
    """

    local0: int
    length: int
    scale: float
    point: np.ndarray
    weights: np.ndarray
    errors: np.ndarray
    spread: np.ndarray
    log_sigma: float
    losses: np.ndarray
    chosen: str
    stale: int
    gaps: int
    outages: int
    spikes: int
    shift_h: int
    shift_ratio: float
    judged: int
    refits: np.ndarray
    settings: np.ndarray
    near: np.ndarray
    lift: np.ndarray
    past: PastPaths | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Series:
    """One app's history on the axis of local hours.

    Parameters
    ----------
    local0 : int
        Local hour of ``raw[0]``.
    raw : ndarray of shape (n,)
        Demand an hour, NaN where missing.
    holiday : ndarray of bool, shape (n + HORIZON,)
        Public holidays, the hours to forecast included.
    """

    local0: int
    raw: np.ndarray
    holiday: np.ndarray

    def cleaned(self) -> Cleaned:
        """Return the series without gaps, outages and spikes; holidays are filled like gaps, to be put back
        after."""
        out = clean(self.raw)
        free = self.holiday[out.offset : len(self.raw)]
        if not free.any() or free.mean() > 0.5 or not out.values.any():
            return out
        plain = fill(np.where(out.known & ~free, out.values, np.nan))
        return replace(out, values=np.where(free, plain, out.values), known=out.known & ~free)

    def curve(self) -> Curve:
        """Return the weekly curve."""
        out = self.cleaned()
        return weekly_curve(at_present_level(out.values)[0], out.known, self.local0 + out.offset)


def at_present_level(values: np.ndarray) -> tuple[np.ndarray, int, float]:
    """Return the series with what came before a level shift brought to the new level, the shift's hour and ratio."""
    shift, ratio = level_shift(values)
    if not shift:
        return values, 0, 1.0
    return np.concatenate([values[:shift] * ratio, values[shift:]]), shift, ratio


def without_odd_days(x: np.ndarray, local0: int) -> np.ndarray:
    """Return the series with odd days filled from its rhythm, to be learnt from; members are judged on what came."""
    odd = odd_days(x, local0)
    return fill(np.where(odd, np.nan, x)) if odd.any() else x


def origins(length: int) -> np.ndarray:
    """Return the ends of the past origins, a day apart, and the end of the history last.

    A grown series keeps two weeks before its first origin, a shorter one two days.
    """
    least = GROWN if length >= GROWN + 7 * DAY else 2 * DAY
    back = np.arange(min(ORIGINS, max(0, (length - least) // DAY)), -1, -1)
    return length - DAY * back


def learn(series: Series, pool: Pool, keep: bool = False) -> Learnt:
    """Learn one series.

    Parameters
    ----------
    series
        Its history.
    pool
        What similar apps show; only a series shorter than ``GROWN`` borrows from it.
    keep
        Whether what members forecast of past hours is kept for the next update.
    """
    cleaned = series.cleaned()
    values, known = cleaned.values, cleaned.known
    n = len(values)
    local0 = series.local0 + cleaned.offset
    stale = n - 1 - int(np.flatnonzero(known)[-1]) if known.any() else n
    blank = Learnt(
        local0=local0,
        length=n,
        scale=0.0,
        point=np.zeros(HORIZON),
        weights=np.zeros((len(LEADS), len(NAMES) + 1)),
        errors=np.full((0, HORIZON), np.nan),
        spread=np.zeros(DAY),
        log_sigma=0.0,
        losses=np.full(1 + len(BASELINES), np.nan),
        chosen="combination",
        stale=stale,
        gaps=cleaned.gaps,
        outages=cleaned.outages,
        spikes=cleaned.spikes,
        shift_h=0,
        shift_ratio=1.0,
        judged=n,
        refits=np.zeros(REFITS, dtype=np.int64),
        settings=np.full((REFITS, SETTINGS), np.nan),
        near=np.full((AHEAD, len(GRID)), np.nan),
        lift=np.ones(HORIZON),
    )
    scale = float(values.mean()) if n else 0.0
    if n < SHORTEST or scale == 0.0:
        point, sigma = short_forecast(values, known, local0, HORIZON, pool)
        return replace(blank, scale=scale, point=point, log_sigma=sigma)
    values, shift, ratio = at_present_level(values)
    scale = float(values.mean())
    x = np.round(values / scale, 12)
    plain = without_odd_days(x, local0)
    ends = origins(n)
    paths, settings = run_members(plain, ends)
    extra = (
        borrowed_paths(x, ends, local0, HORIZON, pool)
        if n < GROWN
        else np.full((1, *paths.shape[1:]), np.nan)
    )
    paths = np.concatenate([paths, extra])
    errors = past_errors(x, known, ends[:-1], paths[:, :-1])
    weights = member_weights(errors, np.append(PRIOR, BORROWED), np.append(STEADY, False))
    if not weights.any():
        usable = np.isfinite(paths[:, -1]).all(axis=1) * np.append(PRIOR, BORROWED)
        weights = np.tile(usable / usable.sum(), (len(LEADS), 1))
    combined = combine(paths, weights)
    own = past_errors(x, known, ends[:-1], combined[:-1])
    point, chosen = combined[-1], "combination"
    losses = np.array([_loss(own)] + [_loss(errors[NAMES.index(name)]) for name in BASELINES])
    if np.isfinite(losses).any() and np.isfinite(losses[1:]).any():
        best = int(np.nanargmin(losses[1:]))
        margin = MARGIN * (ORIGINS / (len(ends) - 1)) ** 4
        if losses[1 + best] < (1.0 - margin) * losses[0]:
            chosen = BASELINES[best]
            own, point = errors[NAMES.index(chosen)], paths[NAMES.index(chosen), -1]
    refits = ends[refits_of(len(ends))]
    past = past_paths(
        x,
        plain,
        known,
        local0,
        refits,
        settings,
        paths[: len(NAMES), -1],
        np.where(known, np.nan, x),
        pool if n < GROWN else None,
    )
    point, near, lift = with_next_hours(point, next_hours(local0, past), float(x[-WEEK:].max()))
    point = on_holidays(point, series, cleaned.offset, x, scale)
    at = (local0 + ends[:-1, None] + np.arange(HORIZON)[None, :]) % DAY
    spread = spread_by_hour(own, at, floor=1e-6, prior=PRIOR_ERROR)
    return replace(
        blank,
        scale=scale,
        point=point * scale,
        weights=weights,
        errors=own * scale,
        spread=spread * scale,
        losses=losses * scale,
        chosen=chosen,
        shift_h=n - shift if shift else 0,
        shift_ratio=ratio,
        refits=refits,
        settings=settings,
        near=near * scale,
        lift=lift,
        past=past if keep else None,
    )


def follow(series: Series, learnt: Learnt, pool: Pool) -> Learnt:
    """Bring what was learnt of a series up to its new hours: forecasts anew, members not fitted again.

    Scale, level shift and filled hours stay as they were learnt, so that what members forecast of past hours stays
    too. Once a day has passed since they were judged, and wherever more than the new hours changed (a gap was cut, the
    level shifted), the series is learnt from the start.
    """
    cleaned = series.cleaned()
    n = len(cleaned.values)
    fresh = n - learnt.judged
    same_start = series.local0 + cleaned.offset == learnt.local0
    young = n < GROWN
    grown_up = not young and learnt.length < GROWN
    if not same_start or not 0 < fresh < DAY or grown_up or not learnt.weights.any():
        return learn(series, pool, keep=True)
    values, scale = cleaned.values, learnt.scale
    if bool(level_shift(values)[0]) != bool(learnt.shift_h):
        return learn(series, pool, keep=True)
    shift = learnt.length - learnt.shift_h if learnt.shift_h else 0

    def about_one(some: np.ndarray) -> np.ndarray:
        return np.round(np.concatenate([some[:shift] * learnt.shift_ratio, some[shift:]]) / scale, 12)

    x = about_one(values)
    if learnt.past is not None:
        filled = learnt.past.filled
    else:
        then = replace(series, raw=series.raw[: cleaned.offset + learnt.judged]).cleaned()
        if then.offset != cleaned.offset:
            return learn(series, pool, keep=True)
        filled = np.where(then.known, np.nan, about_one(then.values))
    # what was filled stays as it was, although every hour would change it a little
    still = ~cleaned.known[: learnt.judged] & np.isfinite(filled)
    x[: learnt.judged][still] = filled[still]
    plain = without_odd_days(x, learnt.local0)
    paths, _ = run_members(plain, np.array([n]), learnt.settings[-1], judged=learnt.judged)
    lent = (
        borrowed_paths(x, np.array([n]), learnt.local0, HORIZON, pool)
        if young
        else np.full((1, *paths.shape[1:]), np.nan)
    )
    paths = np.concatenate([paths, lent])
    point = combine(paths, learnt.weights)[0]
    if learnt.chosen in BASELINES:
        point = paths[NAMES.index(learnt.chosen), 0]
    past = past_paths(
        x,
        plain,
        cleaned.known,
        learnt.local0,
        learnt.refits,
        learnt.settings,
        paths[: len(NAMES), 0],
        filled,
        pool if young else None,
        learnt.past,
    )
    ahead = next_hours(learnt.local0, past)
    point, near, lift = with_next_hours(point, ahead, float(x[-WEEK:].max()))
    point = on_holidays(point, series, cleaned.offset, x, scale)
    return replace(
        learnt,
        near=near * scale,
        lift=lift,
        length=n,
        point=point * scale,
        stale=n - 1 - int(np.flatnonzero(cleaned.known)[-1]),
        gaps=cleaned.gaps,
        outages=cleaned.outages,
        spikes=cleaned.spikes,
        shift_h=learnt.shift_h + n - learnt.length if learnt.shift_h else 0,
        past=past,
    )


def on_holidays(point: np.ndarray, series: Series, offset: int, x: np.ndarray, scale: float) -> np.ndarray:
    """Return the medians with public holidays at their usual part of an ordinary day."""
    free = series.holiday[len(series.raw) :]
    if not free.any():
        return point
    local0 = series.local0 + offset
    factor = holiday_factor(series.raw[offset:] / scale, x, series.holiday[offset:], local0)
    return np.where(free, point * factor[(local0 + len(x) + np.arange(HORIZON)) % DAY], point)


def with_next_hours(
    point: np.ndarray, ahead: tuple[np.ndarray, np.ndarray, float], highest: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the medians with the next hours' own in their place, the next hours' band, and the later hours' lift.

    After a change of level the later hours follow too, the less the later they are, but not past the ``highest``
    hour of the last week.
    """
    near, offsets, followed = ahead
    usual, later = point[:AHEAD], point[AHEAD:]
    # next to nothing tells no proportion
    some = usual > 0.1
    times = float(np.median(near[some] / usual[some])) if some.any() else 1.0
    # by proportion or by difference, whichever moves less
    moves = np.stack([later * (times - 1.0), np.full(len(later), float(np.median(near - usual)))])
    move = np.where(moves[0] * moves[1] > 0.0, np.sign(moves[0]) * np.abs(moves).min(axis=0), 0.0)
    fade = followed * 0.5 ** (np.arange(1, len(later) + 1) / CHANGE_HALF_LIFE)
    moved = np.clip(later + fade * move, 0.0, np.maximum(later, highest))
    lift = np.concatenate([np.ones(AHEAD), moved / np.maximum(later, 1e-12)])
    return np.concatenate([near, moved]), offsets, lift


def _loss(errors: np.ndarray) -> float:
    near = np.abs(errors[:, :JUDGED])
    seen = np.isfinite(near)
    return float(near[seen].mean()) if seen.any() else float("nan")


def peak_errors(series: Series, learnt: Learnt, lead: int, hours: int) -> np.ndarray:
    """Return actual minus forecast peak of the window ``lead`` … ``lead + hours`` from each past origin that saw it.

    Parameters
    ----------
    series, learnt
        The series and what was learnt of it.
    lead
        First hour of the window after the end of the history; 0 is the next hour.
    hours
        Length of the window.
    """
    values, _, _ = at_present_level(series.cleaned().values)
    out = []
    for end, errors in zip(origins(learnt.judged)[:-1], learnt.errors, strict=True):
        window = slice(max(lead, 0), max(lead, 0) + hours)
        missed = errors[window]
        if len(missed) < hours or not np.isfinite(missed).all():
            continue
        actual = values[end + window.start : end + window.stop]
        out.append(float(actual.max() - (actual - missed).max()))
    return np.array(out)
