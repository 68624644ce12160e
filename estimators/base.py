"""The contract of every estimator: features by name in, ordered quantiles out, state as plain data."""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import NotFittedError as SklearnNotFittedError

from tidegrid import errors
from tidegrid.errors import InputError
from tidegrid.models import Bundle

LEVELS = (0.1, 0.5, 0.9)
"""The quantile levels that are predicted unless others are asked for."""

BASES = ("site history", "calibrated prior", "prior", "unknown")
"""The rungs of the ladder that can answer, the best first; an estimator may add detail after a colon. ``unknown``:
nothing of its own is known, so that no need may be read off the quantiles."""

TAIL_FROM, TAIL_FREEDOM = 0.95, 3.0
"""From which level on a mean takes the tail of a duration to be no heavier than Student's t with so few degrees."""

_ZONED = re.compile(r"(?:[Zz]|[+-]\d\d(?::?\d\d)?)$")

Dtype = Literal["float", "int", "bool", "category", "text", "instant"]


@dataclass(frozen=True)
class Feature:
    """One input column of an estimator.

    Parameters
    ----------
    name
        The column's name.
    dtype
        ``float``, ``int`` and ``bool`` are numbers; ``category`` has known levels; ``text`` is free (a user,
        a job's name, a GPU type nobody has listed); ``instant`` is a UTC time stamp.
    unit
        The unit of a number: ``"billion parameters"``, ``"tokens"``, ``"GPUs"``.
    low, high
        The range of a number, both ends included; None for no bound.
    default
        What an absent column or an empty cell stands for; None with ``required=False`` means unknown.
    categories
        The levels of a closed category; a value outside them is refused by name.
    required
        Whether the column and every one of its cells must be there.
    instead
        The feature that may stand in for a required one, cell by cell; empty for none.
    doc
        One line that says what it is.
    """

    name: str
    dtype: Dtype
    unit: str = ""
    low: float | None = None
    high: float | None = None
    default: Any = None
    categories: tuple[str, ...] = ()
    required: bool = False
    instead: str = ""
    doc: str = ""


class NotFittedError(errors.NotFittedError, SklearnNotFittedError):
    """An estimator was asked to predict before it was fitted: tidegrid's error, and scikit-learn's too."""


class Estimator(RegressorMixin, BaseEstimator, ABC):
    """Base class of every estimator.

    The contract is that of a scikit-learn regressor: ``__init__`` only stores its arguments, ``fit`` validates, learns
    and returns ``self``, ``clone``, ``score`` (R² of the median), ``Pipeline``, ``GridSearchCV`` and
    ``cross_val_score`` work, what is learnt has a trailing underscore. ``X`` is a DataFrame, since features are found
    by name. An estimator that ``predicts_unfitted`` answers from its prior before any fit.
    :func:`tidegrid.estimators.testing.check_estimator` tests all of it.

    Attributes
    ----------
    name : str
        The name in the entry-point group ``tidegrid.estimators``.
    kind : str
        The workload kind that it serves (``training``, ``batch_inference``, ``quantization``, ``realtime``), or
        ``"any"`` for one that needs nothing but a job's past.
    target : str
        What ``y`` and the quantiles are: ``"duration_h"`` (hours of a job) or ``"demand"`` (units an hour).
    features : tuple of Feature
        The columns that it reads. Others are ignored; their order does not matter.
    predicts_unfitted : bool
        Whether it can predict before ``fit``.
    """

    name: ClassVar[str]
    kind: ClassVar[str]
    target: ClassVar[Literal["duration_h", "demand"]] = "duration_h"
    features: ClassVar[tuple[Feature, ...]]
    predicts_unfitted: ClassVar[bool] = False

    @abstractmethod
    def fit(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        """Learn from history.

        Parameters
        ----------
        X
            One row a finished job (or, for ``demand``, a series and hour), with the columns of ``features``.
        y
            The target: hours, or demand an hour. A Series has the index of ``X``; an array has one value a row.
        observed
            Whether ``y`` is the true value; False where it is only a lower bound (the job failed, was cancelled
            or ran into its limit). All True where absent.
        known_at
            The UTC instant at which each row became known; the caller has already left out what lies after the
            cutoff. Estimators use it to weigh or order the past.

        Raises
        ------
        InputError
            A column is missing or a value is out of range; the column and the row are named.
        """

    @abstractmethod
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Predict quantiles of the target.

        Returns
        -------
        pandas.DataFrame
            One row for each row of ``X`` on the same index, one column a level (the floats of ``levels``, in
            their order, ``columns.name == "level"``); finite, non-negative, non-decreasing in the level.
        """

    @abstractmethod
    def basis(self, X: pd.DataFrame) -> pd.Series:
        """Say for each row which rung answers: one of ``BASES``, with detail after a colon where useful."""

    @abstractmethod
    def to_bundle(self) -> Bundle:
        """Return parameters and learnt state as plain data."""

    @classmethod
    @abstractmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Rebuild the estimator from :meth:`to_bundle`'s data; it predicts the same to the bit."""

    def predict(self, X: pd.DataFrame) -> pd.Series:
        """Predict the median of the target."""
        return self.predict_quantiles(X, (0.5,))[0.5].rename(self.target)

    def predict_mean(self, X: pd.DataFrame) -> pd.Series:
        """Predict the mean of the target, for sums of GPU-hours: a sum of medians runs far too low.

        The mean is the integral of the quantile function, by the midpoint rule on 40 levels. The last levels lie
        beyond what most histories can show: for durations they are bounded by Student's t with ``TAIL_FREEDOM``
        degrees of freedom in log space through the median and the ``TAIL_FROM`` quantile.
        """
        from scipy.stats import t

        levels = (np.arange(40) + 0.5) / 40
        told = self.predict_quantiles(X, (*levels, 0.5, TAIL_FROM))
        values = told.to_numpy(dtype=float)
        quantiles, middle, far = values[:, :-2], np.maximum(values[:, -2:-1], 1e-9), values[:, -1:]
        if self.target == "duration_h":
            beyond = np.maximum(t.ppf(levels, TAIL_FREEDOM) / t.ppf(TAIL_FROM, TAIL_FREEDOM) - 1.0, 0.0)
            with np.errstate(over="ignore"):
                bound = far * np.maximum(far / middle, 1.0) ** beyond
            quantiles = np.where(levels > TAIL_FROM, np.minimum(quantiles, bound), quantiles)
        return pd.Series(quantiles.mean(axis=1), index=X.index, name=self.target)

    def feasible(self, X: pd.DataFrame) -> pd.DataFrame:
        """Say for each row whether the job can run on its GPUs at all.

        Returns
        -------
        pandas.DataFrame
            Columns ``feasible`` (bool) and ``reason`` (text, empty where feasible) on the index of ``X``.
        """
        return pd.DataFrame({"feasible": True, "reason": ""}, index=X.index)

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Names of the features, in their declared order; absent before ``fit``, as scikit-learn has it.

        Raises
        ------
        AttributeError
            The estimator is not fitted.
        """
        if not any(name.endswith("_") for name in vars(self)):
            raise AttributeError(f"{type(self).__name__} is not fitted")
        return np.array([feature.name for feature in self.features], dtype=object)

    @property
    def n_features_in_(self) -> int:
        """How many features it reads; absent before ``fit``."""
        return len(self.feature_names_in_)

    def _require_fitted(self, attribute: str) -> None:
        if not hasattr(self, attribute):
            raise NotFittedError(
                f"{type(self).__name__} is not fitted; call fit(X, y), or load a saved version"
            )


def named_columns(X: Any) -> pd.DataFrame:
    """Return ``X``, refused unless it is a DataFrame.

    Raises
    ------
    InputError
        It is an array or something else without names of columns.
    """
    if not isinstance(X, pd.DataFrame):
        raise InputError(
            f"is a {type(X).__name__}, whose columns have no names",
            field="X",
            fix="give a pandas.DataFrame with the features as columns",
        )
    return X


def row_by_row(values: Any, X: pd.DataFrame, name: str) -> pd.Series:
    """Return one value for each row of ``X``, on its index.

    Parameters
    ----------
    values
        A Series on the index of ``X``, or an array or list with one value a row.
    name
        What it is called in errors.

    Raises
    ------
    InputError
        It has another length, or the index of a Series is not that of ``X``.
    """
    if len(values) != len(X):
        raise InputError(f"has {len(values)} values for {len(X)} rows", field=name, fix="give one a row of X")
    if isinstance(values, pd.Series):
        if not values.index.equals(X.index):
            raise InputError(
                "has another index than X", field=name, fix=f"align it, as in {name}.loc[X.index]"
            )
        return values
    return pd.Series(values, index=X.index)


def checked_durations(X: pd.DataFrame, y: Any, observed: Any = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the target of a duration estimator as arrays.

    Returns
    -------
    hours : ndarray of float64, shape (rows,)
        Finite, 0 or more.
    seen : ndarray of bool, shape (rows,)
        Whether each is the true duration; False for a lower bound.

    Raises
    ------
    InputError
        ``y`` or ``observed`` has another length or index than ``X``, or a duration is missing, negative or infinite.
    """
    given = row_by_row(y, X, "y")
    hours = pd.to_numeric(given, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    bad = ~(np.isfinite(hours) & (hours >= 0))
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"{given.iloc[at]!r} cannot be used", row=at + 2, field="y", fix="give finite hours, 0 or more"
        )
    if observed is None:
        return hours, np.ones(len(X), dtype=bool)
    return hours, row_by_row(observed, X, "observed").to_numpy(dtype=bool)


def as_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """Return quantile levels as floats, refused unless each lies strictly between 0 and 1."""
    out = tuple(float(level) for level in levels)
    if not out or not all(0.0 < level < 1.0 for level in out):
        raise InputError(
            f"quantile levels are {list(levels)}", field="levels", fix="give numbers between 0 and 1"
        )
    return out


def quantile_frame(values: np.ndarray, levels: Sequence[float], index: pd.Index) -> pd.DataFrame:
    """Return the contract's frame from raw quantiles.

    Parameters
    ----------
    values : ndarray of shape (rows, levels)
        Raw quantiles; they are clipped at 0 and sorted along the levels, so that they never cross.
    levels
        The level of each column, in any order.
    index
        The index of ``X``.
    """
    order = np.argsort(levels, kind="stable")
    ordered = np.maximum.accumulate(np.maximum(values[:, order], 0.0), axis=1)
    out = np.empty_like(ordered)
    out[:, order] = ordered
    return pd.DataFrame(out, index=index, columns=pd.Index([float(v) for v in levels], name="level"))


def checked_features(
    X: pd.DataFrame, features: Sequence[Feature], *, file: str | None = None
) -> pd.DataFrame:
    """Return the columns of ``features``, by name, typed, in range, with defaults filled in.

    Rows are named in errors by their position, counted so that the header is row 1.

    Returns
    -------
    pandas.DataFrame
        A new frame with exactly the columns of ``features`` in their order, on the index of ``X``: numbers as
        float64 (NaN is unknown), categories and texts as str objects ("" is unknown), instants as UTC.

    Raises
    ------
    InputError
        A required column or cell is missing, a cell is not of its type, or a value is out of range.
    """
    # object, whatever pandas would infer: the same dtype with every version of pandas
    typed = {
        name: pd.Series(column, index=X.index, dtype=object, copy=False) if column.dtype == object else column
        for name, column in checked_columns(X, features, file=file).items()
    }
    return pd.DataFrame(typed, index=X.index, copy=False)


def checked_columns(
    X: pd.DataFrame, features: Sequence[Feature], *, file: str | None = None
) -> dict[str, Any]:
    """Return what :func:`checked_features` returns as arrays by name, instants as a UTC ``DatetimeIndex``.

    A prediction of one row should not pay for pandas' frames and alignment a dozen times.
    """
    named_columns(X)
    columns: dict[str, Any] = {}
    for declared in features:
        feature = relaxed(X, declared, file)
        if feature.name not in X.columns:
            if feature.required:
                raise InputError(
                    "the column is missing",
                    file=file,
                    field=feature.name,
                    fix=f"add it: {feature.doc or feature.dtype}"
                    + (f"; or add {feature.instead}" if feature.instead else ""),
                )
            columns[feature.name] = _unknown(feature, len(X))
            continue
        raw = X[feature.name]
        if isinstance(raw, pd.DataFrame):
            raise InputError("the column is there twice", file=file, field=feature.name, fix="keep one")
        columns[feature.name] = _checked_column(raw, feature, file)
    return columns


def relaxed(X: pd.DataFrame, feature: Feature, file: str | None = None) -> Feature:
    """Return ``feature`` as optional where its stand-in fills the cells that it leaves empty.

    Raises
    ------
    InputError
        A row has neither.
    """
    if not feature.required or feature.instead not in X.columns:
        return feature
    gone = lacking(X, (feature,)) != ""
    if gone.any():
        raise InputError(
            f"is empty, and so is {feature.instead}", file=file, row=int(np.flatnonzero(gone)[0]) + 2,
            field=feature.name, fix=f"fill in one of them: {feature.doc or feature.dtype}",
        )  # fmt: skip
    return replace(feature, required=False)


def lacking(X: pd.DataFrame, features: Sequence[Feature]) -> np.ndarray:
    """Return for each row the first required feature that it lacks, and nothing stands in for; "" where none."""

    def filled(name: str) -> np.ndarray:
        if name not in X.columns:
            return np.zeros(len(X), dtype=bool)
        return (X[name].notna() & (X[name].astype(object) != "")).to_numpy(dtype=bool)

    out = np.full(len(X), "", dtype=object)
    for feature in features:
        if feature.required:
            out[(out == "") & ~filled(feature.name) & ~filled(feature.instead)] = feature.name
    return out


def _unknown(feature: Feature, rows: int) -> Any:
    if feature.dtype in ("text", "category"):
        return np.full(rows, feature.default or "", dtype=object)
    if feature.dtype == "instant":
        return pd.DatetimeIndex(np.full(rows, "NaT", dtype="datetime64[ns]"), tz="UTC")
    return np.full(rows, np.nan if feature.default is None else float(feature.default))


def _refuse(bad: np.ndarray, raw: pd.Series, feature: Feature, file: str | None, fix: str) -> None:
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"{raw.iloc[at]!r} cannot be used", file=file, row=at + 2, field=feature.name, fix=fix
        )


def _checked_column(raw: pd.Series, feature: Feature, file: str | None) -> Any:
    if feature.dtype in ("text", "category"):
        return _checked_text(raw, feature, file)
    if feature.dtype == "instant":
        return _checked_instants(raw, feature, file)
    return _checked_numbers(raw, feature, file)


def _checked_text(raw: pd.Series, feature: Feature, file: str | None) -> np.ndarray:
    cells = raw.to_numpy(dtype=object)
    absent = pd.isna(cells)
    text = np.array(
        ["" if gone else str(cell) for cell, gone in zip(cells, absent, strict=True)], dtype=object
    )
    absent = text == ""
    if feature.categories:
        known = set(feature.categories)
        bad = np.array([cell not in known for cell in text], dtype=bool) & ~absent
        _refuse(bad, raw, feature, file, f"use one of {', '.join(feature.categories)}")
    if feature.required:
        _refuse(absent, raw, feature, file, f"fill it in: {feature.doc or feature.dtype}")
    if feature.default:
        text[absent] = feature.default
    return text


def _checked_instants(raw: pd.Series, feature: Feature, file: str | None) -> pd.DatetimeIndex:
    absent = raw.isna().to_numpy()
    if isinstance(raw.dtype, pd.DatetimeTZDtype):
        instants = pd.DatetimeIndex(raw).tz_convert("UTC")
    else:
        fix = "write an ISO 8601 instant with its zone"
        # without a zone an instant is anybody's guess
        zoned = np.array([_has_zone(cell) for cell in raw.to_numpy(dtype=object)], dtype=bool)
        _refuse(~zoned & ~absent, raw, feature, file, fix)
        instants = pd.DatetimeIndex(pd.to_datetime(raw, utc=True, errors="coerce", format="ISO8601"))
        _refuse(np.asarray(instants.isna()) & ~absent, raw, feature, file, fix)
    if feature.required:
        _refuse(absent, raw, feature, file, f"fill it in: {feature.doc or feature.dtype}")
    return instants


def _has_zone(cell: Any) -> bool:
    if isinstance(cell, str):
        return _ZONED.search(cell) is not None
    return getattr(cell, "tzinfo", None) is not None


def _checked_numbers(raw: pd.Series, feature: Feature, file: str | None) -> np.ndarray:
    if raw.dtype.kind in "fiub":
        numbers = raw.to_numpy(dtype=float)
        absent = np.isnan(numbers)
    else:
        absent = raw.isna().to_numpy()
        numbers = pd.to_numeric(raw, errors="coerce").to_numpy(dtype=float, na_value=np.nan)
    unit = f" ({feature.unit})" if feature.unit else ""
    _refuse(~np.isfinite(numbers) & ~absent, raw, feature, file, f"write a finite number{unit}")
    low = -np.inf if feature.low is None else feature.low
    high = np.inf if feature.high is None else feature.high
    # NaN compares as false, so an unknown cell is within any bounds
    bounds = (
        f"between {feature.low} and {feature.high}" if feature.high is not None else f"at least {feature.low}"
    )
    _refuse((numbers < low) | (numbers > high), raw, feature, file, f"write a number {bounds}{unit}")
    if feature.required:
        _refuse(absent, raw, feature, file, f"fill it in: {feature.doc or feature.dtype}")
    return numbers if feature.default is None else np.where(absent, float(feature.default), numbers)
