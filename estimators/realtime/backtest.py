"""Rolling-origin backtests: forecasts that knew nothing after their origin, and their measures.

Hours are whole hours since 1970-01-01 UTC. A backtest's forecasts are a frame with the columns ``series_id``,
``origin`` (the last hour known), ``hour``, and one column a level, named ``q`` and the level.
"""

import time
from collections.abc import Callable

import numpy as np
import pandas as pd

from tidegrid.estimators.realtime.estimator import RealtimeEstimator

LEVELS = (0.025, 0.1, 0.5, 0.9, 0.975)
COLUMNS = [f"q{level}" for level in LEVELS]
DAY = 24


def origins(table: pd.DataFrame, horizon: int, days: int) -> pd.DataFrame:
    """Return the origins that cover the last ``days`` days of each series in steps of ``horizon`` hours.

    Parameters
    ----------
    table
        ``series_id``, ``hour``, ``value``, sorted.

    Returns
    -------
    DataFrame
        ``series_id``, ``origin``, ``until`` (last hour to forecast), ``first`` (first scored hour of the series).
    """
    rows = []
    for series, part in table.groupby("series_id", sort=False):
        last = int(part["hour"].iloc[-1])
        first = last - DAY * days + 1
        rows += [
            (series, start - 1, min(start + horizon - 1, last), first)
            for start in range(first, last + 1, horizon)
        ]
    return pd.DataFrame(rows, columns=["series_id", "origin", "until", "first"])


def instants(hours: pd.Series | np.ndarray) -> pd.Series:
    """Return whole hours as UTC instants."""
    return pd.Series(pd.to_datetime(np.asarray(hours) * 3600, unit="s", utc=True))


def roll(
    table: pd.DataFrame,
    plan: pd.DataFrame,
    estimator: RealtimeEstimator,
    clock: Callable[[], float] = time.process_time,
) -> tuple[pd.DataFrame, float]:
    """Forecast from every origin of ``plan``, refitting at each.

    Parameters
    ----------
    table
        ``series_id``, ``hour``, ``value``.
    plan
        From :func:`origins`.
    estimator
        It is fitted again and again; its parameters stay.
    clock
        Seconds; what fits and predictions take by it is summed.

    Returns
    -------
    DataFrame
        The forecasts.
    float
        Seconds.
    """
    used, parts = 0.0, []
    step = plan.groupby("series_id").cumcount()
    for _, wave in plan.groupby(step):
        known = table.merge(wave, on="series_id")
        known = known[known["hour"] <= known["origin"]]
        ahead = wave.loc[wave.index.repeat(wave["until"] - wave["origin"])]
        hour = ahead["origin"].to_numpy() + ahead.groupby(level=0).cumcount().to_numpy() + 1
        X = pd.DataFrame({"unique_id": known["series_id"].to_numpy(), "ds": instants(known["hour"])})
        future = pd.DataFrame({"unique_id": ahead["series_id"].to_numpy(), "ds": instants(hour)})
        before = clock()
        estimator.fit(X, pd.Series(known["value"].to_numpy()))
        quantiles = estimator.predict_quantiles(future, LEVELS)
        used += clock() - before
        out = pd.DataFrame(
            {"series_id": future["unique_id"], "origin": ahead["origin"].to_numpy(), "hour": hour}
        )
        out[COLUMNS] = quantiles.to_numpy()
        parts.append(out)
    return pd.concat(parts, ignore_index=True), used


def scales(table: pd.DataFrame, plan: pd.DataFrame) -> pd.Series:
    """Return by series the mean absolute difference between hours a day apart, before the first scored hour."""
    first = plan.groupby("series_id")["first"].min()
    before = table[table["hour"] < table["series_id"].map(first)]
    shifted = before.assign(hour=before["hour"] + DAY)
    pairs = before.merge(shifted, on=["series_id", "hour"], suffixes=("", "_before"))
    gap = (pairs["value"] - pairs["value_before"]).abs()
    return gap.groupby(pairs["series_id"]).mean()


def score(forecast: pd.DataFrame, actual: pd.DataFrame, scale: pd.Series) -> pd.DataFrame:
    """Return the measures of each series.

    Returns
    -------
    DataFrame
        Indexed by series. ``MASE``: absolute error of the median over the scale. ``sMAPE``: per cent, as in the M4
        competition. ``pinball``: mean pinball loss at 0.1, 0.5 and 0.9 over the scale; ``pinball5``: at all five
        levels. ``MSIS``: mean scaled interval score of the 95 % band. ``cover80``, ``cover95``: part of hours inside.
        ``bias``: median less demand over the scale. Measures over the scale are NaN where there is none.
    """
    both = forecast.merge(actual, on=["series_id", "hour"]).dropna(subset=["value"])
    y, unit = both["value"].to_numpy(), both["series_id"].map(scale).to_numpy(dtype=float)
    unit = np.where(unit > 0, unit, np.nan)
    q = both[COLUMNS].to_numpy()
    gone = np.abs(y - q[:, 2])
    over = y[:, None] - q
    tau = np.array(LEVELS)
    pinball = np.maximum(tau * over, (tau - 1) * over)
    low, high = q[:, 0], q[:, 4]
    interval = (high - low) + 40.0 * (np.maximum(low - y, 0) + np.maximum(y - high, 0))
    total = np.abs(y) + np.abs(q[:, 2])
    rows = pd.DataFrame(
        {
            "series_id": both["series_id"],
            "MASE": gone / unit,
            "sMAPE": np.where(total > 0, 200 * gone / np.where(total > 0, total, 1), 0.0),
            "pinball": pinball[:, 1:4].mean(axis=1) / unit,
            "pinball5": pinball.mean(axis=1) / unit,
            "MSIS": interval / unit,
            "cover80": (y >= q[:, 1]) & (y <= q[:, 3]),
            "cover95": (y >= low) & (y <= high),
            "bias": (q[:, 2] - y) / unit,
        }
    )
    return rows.groupby("series_id", sort=False).mean()
