"""What a policy may be told in a replay instead of forecasts, as estimators on the one contract."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd

from tidegrid.errors import TidegridError
from tidegrid.estimators import Estimator, Feature
from tidegrid.estimators.base import LEVELS, as_levels, quantile_frame
from tidegrid.models import Bundle
from tidegrid.pipeline.worlds.trace import HOUR, Trace

KEPT = 100
"""Past jobs that a median looks at."""


class _Truth(Estimator):
    """An estimator that is made for one trace and never saved."""

    def fit(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        """Learn nothing: all is known."""
        return self

    def basis(self, X: pd.DataFrame) -> pd.Series:
        """Say what answers."""
        return pd.Series(f"site history: {type(self).__name__}", index=X.index, dtype=object)

    def to_bundle(self) -> Bundle:
        """Refuse: it knows one trace only."""
        raise TidegridError(f"{type(self).__name__} is not saved")

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Refuse, as :meth:`to_bundle` does."""
        raise TidegridError(f"{cls.__name__} is not saved")


class PerfectDurations(_Truth):
    """Knows every true duration, at each size that a job may have."""

    name: ClassVar[str] = "recurring"
    kind: ClassVar[str] = "any"
    predicts_unfitted: ClassVar[bool] = True
    knows_sizes: ClassVar[bool] = True
    features: ClassVar[tuple[Feature, ...]] = (
        Feature("job_id", "text", required=True),
        Feature("gpus", "float"),
    )

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._row = {job: j for j, job in enumerate(trace.jobs["job_id"].astype(str))}

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Return the truth at every level."""
        at = X["job_id"].astype(str).map(self._row).to_numpy()
        hours = self.trace.duration_s[at] / HOUR
        if self.trace.exponent is not None:
            hours = (
                hours * (self.trace.asked[at] / X["gpus"].to_numpy(dtype=float)) ** self.trace.exponent[at]
            )
        wanted = as_levels(levels)
        return quantile_frame(np.repeat(hours[:, None], len(wanted), axis=1), wanted, X.index)


class MedianDurations(_Truth):
    """The median of past jobs of the same user and size, else of the user, else of all; an hour before any."""

    name: ClassVar[str] = "recurring"
    kind: ClassVar[str] = "any"
    predicts_unfitted: ClassVar[bool] = True
    features: ClassVar[tuple[Feature, ...]] = (
        Feature("user", "text"),
        Feature("group", "text"),
        Feature("gpus", "float"),
    )

    def __init__(self) -> None:
        self._past: dict[tuple[object, ...], list[float]] = {}

    def update(self, X: pd.DataFrame, y: pd.Series, **_: Any) -> Self:
        """Remember the hours of jobs that have ended."""
        for keys, hours in zip(_keys(X), y.tolist(), strict=True):
            for key in keys:
                self._past[key] = [*self._past.get(key, [])[-KEPT + 1 :], hours]
        return self

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Return the median of the finest key that has a past, at every level."""
        found = [
            float(np.median(next((self._past[key] for key in keys if key in self._past), [1.0])))
            for keys in _keys(X)
        ]
        wanted = as_levels(levels)
        return quantile_frame(np.repeat(np.array(found)[:, None], len(wanted), axis=1), wanted, X.index)


def _keys(X: pd.DataFrame) -> list[tuple[tuple[object, ...], ...]]:
    user = X["user"] if "user" in X else pd.Series("", index=X.index)
    group = X["group"] if "group" in X else pd.Series("", index=X.index)
    who = user.where(user.fillna("") != "", group).tolist()
    return [(("us", u, int(n)), ("u", u), ("all",)) for u, n in zip(who, X["gpus"].tolist(), strict=True)]


class PerfectDemand(_Truth):
    """Knows the true demand; past the replay's end the last day repeats."""

    name: ClassVar[str] = "realtime"
    kind: ClassVar[str] = "realtime"
    target: ClassVar[Any] = "demand"
    features: ClassVar[tuple[Feature, ...]] = (
        Feature("unique_id", "text", required=True),
        Feature("ds", "instant", required=True),
    )

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._units = {
            app.id: gpus * app.units_per_gpu for app, gpus in zip(trace.apps, trace.demand(), strict=True)
        }

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Return the demand of each hour, in units that need exactly the true GPUs, at every level."""
        hours = ((pd.to_datetime(X["ds"], utc=True) - self.trace.start) // pd.Timedelta(hours=1)).to_numpy()
        wanted, out = as_levels(levels), np.empty(len(X))
        for name, units in self._units.items():
            at = (X["unique_id"] == name).to_numpy()
            hour = np.where(hours >= len(units), len(units) - 24 + (hours - len(units)) % 24, hours)
            out[at] = units[np.clip(hour, 0, len(units) - 1)][at]
        return quantile_frame(np.repeat(out[:, None], len(wanted), axis=1), wanted, X.index)


class PeakDemand(PerfectDemand):
    """The peak of the whole replay at every hour: what a fixed reservation holds."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._units = {name: np.full(len(units), units.max()) for name, units in self._units.items()}
