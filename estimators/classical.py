"""Classical reference forecasters of hourly demand, by statsmodels: what the default is worth on one's own traffic.

`SeasonalSmoothing` decomposes a series (STL, Cleveland et al. 1990) and smooths what is left (simple exponential
smoothing as a state-space model, Hyndman et al. 2008); `DailyStateSpace` is a structural model (Harvey 1989): a local
level, a daily seasonality of harmonics, and an autoregressive remainder. Both keep the contract of every estimator.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
from scipy.stats import norm

from tidegrid.errors import InputError
from tidegrid.estimators.base import LEVELS, Estimator, Feature, as_levels, named_columns, quantile_frame
from tidegrid.estimators.realtime.clean import clean
from tidegrid.estimators.realtime.history import histories
from tidegrid.estimators.realtime.localtime import utc_hours
from tidegrid.models import Bundle

DAY = 24
WEEK = 168

SHORT_SPREAD = 0.5
"""Standard deviation of the band of a series without two whole cycles, as a part of its level."""

UNKNOWN_SPREAD = 1.0
"""The same of a series of which nothing is known."""


def period_of(hours: int) -> int:
    """Return the rhythm that a history of so many hours tells: a week, a day, or 0 below two whole days."""
    return WEEK if hours >= 2 * WEEK + 1 else DAY if hours >= 2 * DAY + 1 else 0


def decompose(values: np.ndarray) -> pd.DataFrame:
    """Split hourly demand into level, weekly shape and remainder, which add up to it.

    Parameters
    ----------
    values : ndarray of shape (n,)
        Demand an hour, units an hour; NaN is missing and filled from the series' own rhythm.

    Returns
    -------
    DataFrame
        One row an hour from the first demand on (its index counts the hours of ``values``): ``level``, ``shape`` (of
        the period that :func:`period_of` tells, 0 where there is none) and ``remainder``.
    """
    cleaned = clean(np.asarray(values, dtype=float))
    x = cleaned.values
    index = pd.RangeIndex(cleaned.offset, cleaned.offset + len(x))
    period = period_of(len(x))
    if not period:
        level = np.full(len(x), x.mean() if len(x) else 0.0)
        return pd.DataFrame({"level": level, "shape": 0.0, "remainder": x - level}, index=index)
    from statsmodels.tsa.seasonal import STL

    parts = STL(x, period=period, robust=False).fit()
    return pd.DataFrame(
        {"level": parts.trend, "shape": parts.seasonal, "remainder": parts.resid}, index=index
    )


class ClassicalDemand(Estimator):
    """Base of the reference forecasters: one model a series, forecast for a week at fit time and kept as numbers.

    Hours past the first week repeat its last; hours inside the history are answered by the same hour of the week.

    Parameters
    ----------
    history_weeks
        Weeks of history, counted from each series' end, that are used.
    prior_demand
        Units an hour expected of a series of which nothing is known.
    """

    kind: ClassVar[str] = "realtime"
    target: ClassVar[Literal["duration_h", "demand"]] = "demand"
    features: ClassVar[tuple[Feature, ...]] = (
        Feature("unique_id", "text", required=True, doc="the app's traffic series"),
        Feature("ds", "instant", required=True, doc="start of the hour, UTC"),
    )

    def __init__(self, history_weeks: int = 4, prior_demand: float = 1.0) -> None:
        self.history_weeks = history_weeks
        self.prior_demand = prior_demand

    @abstractmethod
    def forecast(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the WEEK hours after ``x``, which has unit mean and two whole days."""

    def fit(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        """Fit one model a series.

        Raises
        ------
        InputError
            A column is missing, a time is not the start of an hour, an hour is there twice, a value is negative or
            infinite, or a parameter is out of range.
        """
        if int(self.history_weeks) < 1 or not 0 < float(self.prior_demand) < np.inf:
            raise InputError(
                f"history_weeks {self.history_weeks!r}, prior_demand {self.prior_demand!r} cannot be used",
                field="history_weeks",
                fix="give at least 1 week and a positive number",
            )
        known = histories(X, y, observed, int(self.history_weeks) * WEEK)
        # a series without a single known hour is as one that is absent
        known = {key: one for key, one in known.items() if one.known_hours}
        self.last_ = {key: one.last for key, one in known.items()}
        self.hours_ = {key: one.known_hours for key, one in known.items()}
        self.mean_: dict[str, np.ndarray] = {}
        self.sd_: dict[str, np.ndarray] = {}
        for key, one in known.items():
            self.mean_[key], self.sd_[key] = self._forecast(clean(one.raw).values)
        return self

    def _forecast(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scale = float(values.mean())
        if scale == 0.0:
            return np.zeros(WEEK), np.zeros(WEEK)
        if len(values) <= 2 * DAY or np.ptp(values) == 0.0:
            spread = SHORT_SPREAD * scale if np.ptp(values) else 0.0
            return np.full(WEEK, scale), np.full(WEEK, spread)
        mean, sd = self.forecast(values / scale)
        mean, sd = np.clip(mean, 0.0, 3.0 * values.max() / scale), np.minimum(sd, 10.0)
        return mean * scale, sd * scale

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Predict quantiles of demand, units an hour, from the model's normal law, cut at 0.

        Raises
        ------
        InputError
            A column is missing, or a time is not the start of an hour; the row is named.
        """
        wanted = as_levels(levels)
        self._require_fitted("mean_")
        ids, hours = self._rows(X)
        prior = float(self.prior_demand)
        mean, sd = np.full(len(X), prior), np.full(len(X), UNKNOWN_SPREAD * prior)
        for key in pd.unique(ids):
            if key in self.last_:
                at = np.flatnonzero(ids == key)
                lead = hours[at] - self.last_[key] - 1
                mean[at] = self.mean_[key][lead % WEEK]
                sd[at] = self.sd_[key][lead % WEEK] * np.sqrt(1.0 + np.maximum(lead // WEEK, 0))
        out = mean[:, None] + sd[:, None] * norm.ppf(np.asarray(wanted))[None, :]
        return quantile_frame(out, wanted, X.index)

    def basis(self, X: pd.DataFrame) -> pd.Series:
        """Say for each row what its quantiles rest on."""
        self._require_fitted("mean_")
        ids, _ = self._rows(X)
        said = [
            f"site history: {self.hours_[key]} hours, {self.name}"
            if key in self.hours_
            else "unknown: no history"
            for key in ids
        ]
        return pd.Series(said, index=X.index, name="basis", dtype=object)

    def _rows(self, X: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
        for feature in self.features:
            if feature.name not in named_columns(X).columns:
                raise InputError("the column is missing", field=feature.name, fix=f"add it: {feature.doc}")
        if X["unique_id"].isna().any():
            at = int(np.flatnonzero(X["unique_id"].isna())[0])
            raise InputError("the cell is empty", row=at + 2, field="unique_id", fix="name the series")
        return X["unique_id"].astype(object).astype(str).to_numpy(dtype=object), utc_hours(X["ds"])

    def to_bundle(self) -> Bundle:
        """Return parameters and forecasts as plain data."""
        self._require_fitted("mean_")
        ids = list(self.last_)
        arrays: dict[str, np.ndarray] = {
            "ids": np.array(ids, dtype=np.str_) if ids else np.zeros(0, dtype="<U1"),
            "last": np.array([self.last_[key] for key in ids], dtype=np.int64),
            "hours": np.array([self.hours_[key] for key in ids], dtype=np.int64),
            "mean": np.array([self.mean_[key] for key in ids]).reshape(len(ids), WEEK),
            "sd": np.array([self.sd_[key] for key in ids]).reshape(len(ids), WEEK),
        }
        return Bundle(self.name, params=self.get_params(deep=False), state={"format": 1}, arrays=arrays)

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Rebuild from :meth:`to_bundle`'s data."""
        if bundle.estimator != cls.name or bundle.state.get("format") != 1:
            raise InputError(
                f"the bundle is {bundle.estimator!r}, layout {bundle.state.get('format')!r}",
                field="bundle",
                fix=f"load a {cls.name!r} bundle of layout 1, or fit again",
            )
        out, a = cls(**bundle.params), bundle.arrays
        ids = a["ids"].tolist()
        out.last_ = dict(zip(ids, a["last"].tolist(), strict=True))
        out.hours_ = dict(zip(ids, a["hours"].tolist(), strict=True))
        out.mean_ = {key: np.array(row) for key, row in zip(ids, a["mean"], strict=True)}
        out.sd_ = {key: np.array(row) for key, row in zip(ids, a["sd"], strict=True)}
        return out


class SeasonalSmoothing(ClassicalDemand):
    """Seasonal decomposition of the week (of the day below two weeks), and exponential smoothing of what is left.

    A fit takes about 0.2 CPU seconds a series of eight weeks.
    """

    name: ClassVar[str] = "seasonal_smoothing"

    def __init__(self, history_weeks: int = 8, prior_demand: float = 1.0) -> None:
        super().__init__(history_weeks, prior_demand)

    def forecast(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the WEEK hours after ``x``."""
        parts = decompose(x)
        period = period_of(len(x)) or DAY
        rest = (parts["level"] + parts["remainder"]).to_numpy()
        level, alpha, sigma = _smoothed(rest)
        k = np.arange(WEEK)
        shape = parts["shape"].to_numpy()[-period:][k % period]
        # variance of the k-th step of simple exponential smoothing (Hyndman et al. 2008, table 6.1)
        return level + shape, sigma * np.sqrt(1.0 + alpha**2 * k)


def _smoothed(x: np.ndarray) -> tuple[float, float, float]:
    """Return level, weight and error of simple exponential smoothing fitted by maximum likelihood."""
    from statsmodels.tsa.holtwinters import SimpleExpSmoothing

    fitted = SimpleExpSmoothing(x, initialization_method="estimated").fit()
    alpha = float(fitted.params["smoothing_level"])
    return float(fitted.forecast(1)[0]), alpha, float(np.std(fitted.resid))


class DailyStateSpace(ClassicalDemand):
    """Structural time-series model: local level, daily seasonality of four harmonics, autoregressive remainder.

    A fit takes about 0.2 CPU seconds a series of two weeks: the optimizer stops after 12 steps.
    """

    name: ClassVar[str] = "daily_state_space"

    def __init__(self, history_weeks: int = 2, prior_demand: float = 1.0) -> None:
        super().__init__(history_weeks, prior_demand)

    def forecast(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of the WEEK hours after ``x``."""
        import warnings

        from statsmodels.tsa.statespace.structural import UnobservedComponents

        with warnings.catch_warnings():
            # an optimizer that stops early is good enough for a reference
            warnings.simplefilter("ignore")
            model = UnobservedComponents(
                x, level="llevel", freq_seasonal=[{"period": DAY, "harmonics": 4}], autoregressive=1
            )
            ahead: Any = model.fit(disp=False, maxiter=12).get_forecast(WEEK)
        mean, sd = np.asarray(ahead.predicted_mean), np.sqrt(np.maximum(np.asarray(ahead.var_pred_mean), 0.0))
        if not (np.isfinite(mean).all() and np.isfinite(sd).all()):
            return np.full(WEEK, float(x[-DAY:].mean())), np.full(WEEK, float(x.std()))
        return mean, sd
