"""The naive forecasts that every estimator has to beat: what the same user's last jobs took, what last week asked."""

from collections.abc import Collection, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd

FLOOR_H = 1.0 / 3600.0
"""The shortest duration that counts, one second: the resolution of every scheduler's clock."""

LAST = 50
"""How many of a group's latest jobs count."""

FEWEST = 5
"""Jobs below which a group says nothing, and the next coarser one answers."""


class NaiveDurations:
    """Quantiles of the last finished jobs of the same user and GPU count; of the user; of the site.

    Where no user is told, the group (the account) stands for one.
    """

    groups = (("who", "gpus"), ("who",))

    def fit(
        self, X: pd.DataFrame, y: pd.Series, observed: pd.Series, users: Collection[str] | None = None
    ) -> Self:
        """Remember the finished jobs, in the order of the rows; where ``users`` is given, only theirs by user."""
        done = observed.to_numpy(dtype=bool)
        logs = np.log(np.maximum(y.to_numpy(dtype=float)[done], FLOOR_H))
        self.site_ = logs[-20 * LAST :]
        X = X.assign(who=who(X))
        if users is not None:
            theirs = X["who"].isin(list(users)).to_numpy() & done
            logs = np.log(np.maximum(y.to_numpy(dtype=float)[theirs], FLOOR_H))
            done = theirs
        frame = X[done]
        self.known_: list[dict[Any, np.ndarray]] = []
        for columns in self.groups:
            keys = _keys(frame, columns)
            found = pd.Series(np.arange(len(frame))).groupby(pd.Series(keys), sort=False).indices
            self.known_.append({key: logs[at[-LAST:]] for key, at in found.items() if len(at) >= FEWEST})
        return self

    def quantiles(self, X: pd.DataFrame, levels: Sequence[float]) -> np.ndarray:
        """Return quantiles in hours, shape (rows, levels); NaN where nothing at all is known."""
        if not len(self.site_):
            return np.full((len(X), len(levels)), np.nan)
        X = X.assign(who=who(X))
        out = np.tile(np.quantile(self.site_, levels), (len(X), 1))
        for columns, known in reversed(list(zip(self.groups, self.known_, strict=True))):
            keys = pd.Series(_keys(X, columns))
            for key, rows in keys.groupby(keys, sort=False).indices.items():
                if key in known:
                    out[rows] = np.quantile(known[key], levels)
        return np.exp(out)


class NaiveDemand:
    """The value of the same hour a week before, else a day before; the band is that forecast's own past errors."""

    def fit(self, X: pd.DataFrame, y: pd.Series) -> Self:
        """Remember each series by the hour; the rows may come in any order."""
        hours = _hours(X["ds"])
        self.series_: dict[str, tuple[int, np.ndarray]] = {}
        self.errors_: dict[str, tuple[int, np.ndarray]] = {}
        for name, rows in X["unique_id"].astype(str).groupby(X["unique_id"].astype(str)).indices.items():
            first = int(hours[rows].min())
            values = np.full(int(hours[rows].max()) - first + 1, np.nan)
            values[hours[rows] - first] = y.to_numpy(dtype=float)[rows]
            season = 168 if len(values) >= 336 else 24
            errors = values[season:] - values[:-season] if len(values) > season else np.empty(0)
            self.series_[str(name)] = (first, values)
            self.errors_[str(name)] = (season, errors[np.isfinite(errors)])
        return self

    def scale(self, name: str) -> float:
        """Return the mean absolute error of the seasonal forecast in the history: the unit of scaled losses."""
        errors = self.errors_[name][1] if name in self.errors_ else np.empty(0)
        size = float(np.abs(errors).mean()) if len(errors) else 0.0
        values = self.series_[name][1] if name in self.series_ else np.empty(0)
        mean = float(np.nanmean(values)) if np.isfinite(values).any() else 0.0
        return max(size, 0.01 * mean, 1e-9)

    def quantiles(self, X: pd.DataFrame, levels: Sequence[float]) -> np.ndarray:
        """Return quantiles of demand, shape (rows, levels); NaN for a series without history."""
        hours = _hours(X["ds"])
        out = np.full((len(X), len(levels)), np.nan)
        for name, rows in X["unique_id"].astype(str).groupby(X["unique_id"].astype(str)).indices.items():
            if name not in self.series_:
                continue
            first, values = self.series_[str(name)]
            season, errors = self.errors_[str(name)]
            spread = np.quantile(errors, levels) if len(errors) else np.zeros(len(levels))
            points = np.array([_season_before(values, int(h) - first, season) for h in hours[rows]])
            out[rows] = np.maximum(points[:, None] + spread[None, :], 0.0)
        return out


def who(X: pd.DataFrame) -> pd.Series:
    """Return who submitted each job: the user, or the group where no user is told."""
    out = pd.Series("", index=X.index, dtype=object)
    for name in ("group", "user"):
        if name in X.columns:
            told = X[name].astype(object).fillna("").astype(str)
            out = told.where(told != "", out)
    return out


def _season_before(values: np.ndarray, at: int, season: int) -> float:
    for step in (season, 24):
        back = at - step
        while back >= len(values):
            back -= step
        while back >= 0:
            if np.isfinite(values[back]):
                return float(values[back])
            back -= step
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else np.nan


def _hours(ds: pd.Series) -> np.ndarray:
    return (
        pd.to_datetime(ds, utc=True).astype("datetime64[us, UTC]").astype("int64") // 3_600_000_000
    ).to_numpy()


def _keys(X: pd.DataFrame, columns: Sequence[str]) -> list[tuple]:
    parts = [
        X[name].astype(object).fillna("").tolist() if name in X.columns else [""] * len(X) for name in columns
    ]
    return list(zip(*parts, strict=True))
