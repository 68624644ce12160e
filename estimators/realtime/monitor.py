"""Watching forecasts once the truth is known: coverage, bias, skill, drift alarms with a reason, recalibration.

The input of all functions is a record: one row a series and hour, with the columns ``unique_id``, ``ds`` (UTC hour
starts), ``y`` (what came; NaN is unknown) and one column for each quantile level that was forecast, among them 0.1,
0.5 and 0.9.
"""

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.estimators.realtime.localtime import DAY, WEEK, utc_hours

STEP = 0.05
"""How far, in logs, one miss of the 80 % band widens it; a hit narrows it by a quarter of that."""

WIDEST = 4.0
"""Factor by which recalibration may widen a band, and one over which it may narrow it."""

ALARM = 1e-3
"""Chance at which a run of misses, were the band right and hours independent in blocks of a day, is an alarm."""

SHIFT_HOURS = 12
"""Hours on one side of the 80 % band, without a break, that mean a new level."""


def _checked(record: pd.DataFrame) -> pd.DataFrame:
    for name in ("unique_id", "ds", "y", 0.1, 0.5, 0.9):
        if name not in record.columns:
            raise InputError(
                "the column is missing",
                field=str(name),
                fix="give unique_id, ds, y and the levels 0.1, 0.5, 0.9",
            )
    hours = utc_hours(record["ds"])
    out = record.assign(hour=hours).dropna(subset=["y"])
    return out.sort_values(["unique_id", "hour"], kind="stable")


def width_factors(record: pd.DataFrame) -> dict[str, float]:
    """Return for each series the factor by which its band should be widened (above 1) or narrowed.

    Adaptive conformal inference (Gibbs and Candès 2021) on the log width: hour after hour the band is widened by
    ``STEP`` times 0.8 after a miss and narrowed by ``STEP`` times 0.2 after a hit, so that four in five hours end
    up inside.
    """
    out = {}
    for key, part in _checked(record).groupby("unique_id", sort=True):
        y, middle = part["y"].to_numpy(dtype=float), part[0.5].to_numpy(dtype=float)
        low, high = part[0.1].to_numpy(dtype=float), part[0.9].to_numpy(dtype=float)
        log_width = 0.0
        for gone, below, above in zip(y - middle, middle - low, high - middle, strict=True):
            factor = np.exp(log_width)
            missed = gone > above * factor or -gone > below * factor
            log_width = float(np.clip(log_width + STEP * (missed - 0.2), -np.log(WIDEST), np.log(WIDEST)))
        out[str(key)] = float(np.exp(log_width))
    return out


def watch(record: pd.DataFrame, history: pd.DataFrame | None = None, window: int = WEEK) -> pd.DataFrame:
    """Return coverage, bias, skill and alarms of each series over its last ``window`` hours.

    Parameters
    ----------
    record
        Forecasts and what came.
    history
        ``unique_id``, ``ds``, ``y`` before the record; with it, skill is measured against the last value, the last
        day, the last week and the mean of the hour of the week, each known a day before. Without it, skill is NaN.
    window
        Hours.

    Returns
    -------
    DataFrame
        Indexed by series: ``hours``, ``coverage_80`` (part of hours inside), ``bias`` (median forecast minus
        demand, as a part of mean demand), ``skill_last_value``, ``skill_last_day``, ``skill_last_week``,
        ``skill_week_mean`` (1 minus the ratio of absolute errors: above 0 is better than the baseline), ``alarm``
        (empty, or the reason).
    """
    rows = {}
    for key, part in _checked(record).groupby("unique_id", sort=True):
        part = part.iloc[-window:]
        y, middle = part["y"].to_numpy(dtype=float), part[0.5].to_numpy(dtype=float)
        inside = (y >= part[0.1].to_numpy(dtype=float)) & (y <= part[0.9].to_numpy(dtype=float))
        mean = float(np.mean(y))
        bias = float(np.mean(middle - y) / mean) if mean > 0 else 0.0
        row: dict[str, object] = {"hours": len(part), "coverage_80": float(inside.mean()), "bias": bias}
        row.update(_skills(str(key), part, history))
        row["alarm"] = _alarm(part, inside)
        rows[str(key)] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("unique_id")


def _skills(key: str, part: pd.DataFrame, history: pd.DataFrame | None) -> dict[str, float]:
    names = ("skill_last_value", "skill_last_day", "skill_last_week", "skill_week_mean")
    if history is None or not (history["unique_id"] == key).any():
        return dict.fromkeys(names, float("nan"))
    past = history[history["unique_id"] == key]
    value = dict(zip(utc_hours(past["ds"]).tolist(), past["y"].tolist(), strict=True))
    value.update(zip(part["hour"].tolist(), part["y"].tolist(), strict=True))
    own = np.abs(part["y"].to_numpy(dtype=float) - part[0.5].to_numpy(dtype=float))
    hours = part["hour"].to_numpy()
    guesses = {
        # at the same time of day for all: what was known when the day of the hour began
        "skill_last_value": [value.get(int(h - h % DAY - 1), np.nan) for h in hours],
        "skill_last_day": [value.get(int(h - DAY), np.nan) for h in hours],
        "skill_last_week": [value.get(int(h - WEEK), np.nan) for h in hours],
        "skill_week_mean": [
            _mean([value.get(int(h - WEEK * w), np.nan) for w in range(1, 5)]) for h in hours
        ],
    }
    out = {}
    for name in names:
        theirs = np.abs(part["y"].to_numpy(dtype=float) - np.array(guesses[name], dtype=float))
        both = np.isfinite(theirs)
        total = float(theirs[both].sum())
        out[name] = 1.0 - float(own[both].sum()) / total if total > 0 else float("nan")
    return out


def _mean(values: list[float]) -> float:
    seen = [value for value in values if np.isfinite(value)]
    return float(np.mean(seen)) if seen else float("nan")


def _alarm(part: pd.DataFrame, inside: np.ndarray) -> str:
    """Return the first reason that applies: a new level now, a band too narrow, a standing bias."""
    from scipy.stats import binom

    y, middle = part["y"].to_numpy(dtype=float), part[0.5].to_numpy(dtype=float)
    above, below = y > part[0.9].to_numpy(dtype=float), y < part[0.1].to_numpy(dtype=float)
    for side, word in ((above, "above"), (below, "below")):
        run = len(side) if side.all() else int(np.argmin(side[::-1]))
        if run >= SHIFT_HOURS:
            part_of = (
                100.0
                * abs(float(np.sum(y[-run:] - middle[-run:])))
                / max(float(np.sum(middle[-run:])), 1e-12)
            )
            return f"level shift: {run} hours in a row {word} the 80 % band, {part_of:.0f} % off the median"
    # hours of one day err together: six a day count as independent
    blocks = max(1, len(inside) // 4)
    hits = int(np.floor(inside.mean() * blocks))
    if binom.cdf(hits, blocks, 0.8) < ALARM:
        return f"band too narrow: {100 * inside.mean():.0f} % of {len(inside)} hours inside the 80 % band"
    middle_above = float((y > middle).mean())
    times = int(np.floor(min(middle_above, 1.0 - middle_above) * blocks))
    if binom.cdf(times, blocks, 0.5) < ALARM / 2:
        word = "below" if middle_above > 0.5 else "above"
        return f"bias: the median ran {word} demand in {100 * max(middle_above, 1 - middle_above):.0f} % of hours"
    return ""
