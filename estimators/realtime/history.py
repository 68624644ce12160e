"""Histories: rows of (series, UTC hour, demand) as regular hourly series, one a series."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.estimators.base import named_columns, row_by_row
from tidegrid.estimators.realtime.localtime import DAY, utc_hours

MOST_DEMAND = 1e15
"""Units an hour beyond which a number is a mistake; sums of squares of them are still finite."""


@dataclass(frozen=True)
class History:
    """One series on a regular grid of UTC hours.

    Parameters
    ----------
    first : int
        The first hour, counted from 1970-01-01 UTC.
    raw : ndarray of shape (n,)
        Demand an hour; NaN where there is no row or no value.
    """

    first: int
    raw: np.ndarray

    @property
    def last(self) -> int:
        """The last hour."""
        return self.first + len(self.raw) - 1

    @property
    def known_hours(self) -> int:
        """How many hours have a value."""
        return int(np.isfinite(self.raw).sum())

    def same_as(self, other: "History") -> bool:
        """Say whether both hold the same hours and values."""
        return (
            self.first == other.first
            and len(self.raw) == len(other.raw)
            and np.array_equal(self.raw, other.raw, equal_nan=True)
        )

    def joined(self, more: "History", longest: int) -> "History":
        """Return this history with later hours added, cut to the last ``longest`` hours once it is a day longer.

        A series is learnt from the start where its first hour changes: cut a day at a time, that is once a day.

        Raises
        ------
        InputError
            ``more`` begins before this one ends.
        """
        if more.first <= self.last:
            raise InputError(
                "an hour is already in the history", field="ds", fix="give only hours after its end"
            )
        gap = np.full(more.first - self.last - 1, np.nan)
        raw = np.concatenate([self.raw, gap, more.raw])
        cut = len(raw) - longest if len(raw) >= longest + DAY else 0
        return History(self.first + cut, raw[cut:])

    def on_wall_clock(self, local: np.ndarray) -> tuple[int, np.ndarray]:
        """Return the series on the axis of local hours: a skipped hour is NaN, a repeated one the mean of
        both.

        Parameters
        ----------
        local : ndarray of int, shape (at least n,)
            Local hour of each UTC hour from ``first`` on.
        """
        at = local[: len(self.raw)]
        if len(at) == 0:
            return 0, np.zeros(0)
        first = int(at[0])
        size = int(at.max()) - first + 1
        if size == len(at) and bool((np.diff(at) == 1).all()):
            return first, self.raw
        seen = np.isfinite(self.raw)
        total = np.bincount(at[seen] - first, weights=self.raw[seen], minlength=size)
        count = np.bincount(at[seen] - first, minlength=size)
        with np.errstate(invalid="ignore", divide="ignore"):
            return first, np.where(count > 0, total / count, np.nan)


def histories(X: pd.DataFrame, y: pd.Series, observed: pd.Series | None, longest: int) -> dict[str, History]:
    """Return the history of each series, in the order of their names.

    Parameters
    ----------
    X
        Columns ``unique_id`` and ``ds`` (UTC hour starts), in any order.
    y
        Demand an hour on the index of ``X``; NaN is missing.
    observed
        False where ``y`` is only a lower bound; such hours count as missing.
    longest
        Hours kept, counted from each series' end.

    Raises
    ------
    InputError
        A column is missing, a cell cannot be used, or a series has an hour twice; series or row are named.
    """
    for name in ("unique_id", "ds"):
        if name not in named_columns(X).columns:
            raise InputError(
                "the column is missing", field=name, fix="give unique_id and ds (UTC hour starts)"
            )
    y = row_by_row(y, X, "y")
    if X["unique_id"].isna().any():
        at = int(np.flatnonzero(X["unique_id"].isna())[0])
        raise InputError("the cell is empty", row=at + 2, field="unique_id", fix="name the series")
    demand = pd.to_numeric(y, errors="coerce").to_numpy(dtype=float, copy=True)
    text = y.notna().to_numpy() & ~np.isfinite(demand)
    too_high = f"is above {MOST_DEMAND:g} an hour"
    for bad, what in (
        (text, "is no finite number"),
        (demand < 0, "is negative"),
        (demand > MOST_DEMAND, too_high),
    ):
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"{pd.Series(y).iloc[at]!r} {what}",
                row=at + 2,
                field="y",
                fix="write demand an hour, or leave it empty",
            )
    if observed is not None:
        demand[~row_by_row(observed, X, "observed").to_numpy(dtype=bool)] = np.nan
    hours = utc_hours(X["ds"])
    codes, names = pd.factorize(X["unique_id"].astype(object).astype(str), sort=True)
    order = np.lexsort((hours, codes))
    codes, hours, demand = codes[order], hours[order], demand[order]
    twice = np.flatnonzero((np.diff(codes) == 0) & (np.diff(hours) == 0))
    if len(twice):
        at = int(twice[0])
        instant = pd.Timestamp(int(hours[at]) * 3600, unit="s", tz="UTC")
        raise InputError(
            f"series {names[codes[at]]!r} has {instant.isoformat()} twice",
            field="ds",
            fix="keep one row an hour",
        )
    cuts = np.searchsorted(codes, np.arange(len(names) + 1))
    out = {}
    for i, name in enumerate(names):
        when, values = hours[cuts[i] : cuts[i + 1]], demand[cuts[i] : cuts[i + 1]]
        first = max(int(when[0]), int(when[-1]) - longest + 1)
        raw = np.full(int(when[-1]) - first + 1, np.nan)
        inside = when >= first
        raw[when[inside] - first] = values[inside]
        out[str(name)] = History(first, raw)
    return out
