"""A base for small estimators: give a point forecast, and get calibrated quantiles, a basis and a bundle."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.estimators.base import (
    LEVELS,
    Estimator,
    NotFittedError,
    as_levels,
    checked_durations,
    checked_features,
    quantile_frame,
)
from tidegrid.estimators.conformal import ConformalQuantiles
from tidegrid.models import Bundle

FLOOR_H = 1.0 / 3600.0
"""The shortest duration that counts, one second."""

PRIOR_SIGMA = float(np.log(4.0) / 1.2816)
"""Spread of the log where there are too few past jobs to show it: an 80 % band of a factor of 4 to each side."""


class PointEstimator(Estimator):
    """An estimator of durations that states a point, :meth:`point`, from what :meth:`learn` found.

    The quantiles are split-conformal in log space: the history is dealt into ``folds`` parts, each is predicted
    from the others, and the quantiles of those errors make the band. Jobs that did not complete are not learnt
    from. A subclass sets ``name``, ``kind`` and ``features`` and writes ``learn`` and ``point``; with
    ``predicts_unfitted`` it also writes ``prior``.
    """

    folds = 5

    @abstractmethod
    def learn(self, X: pd.DataFrame, hours: np.ndarray) -> Mapping[str, Any]:
        """Return what is learnt from finished jobs: numbers, texts, lists, mappings, or NumPy arrays.

        Parameters
        ----------
        X
            The declared features, checked, in range, with defaults filled in; at least one row.
        hours
            What each job took.
        """

    @abstractmethod
    def point(self, X: pd.DataFrame, learnt: Mapping[str, Any]) -> np.ndarray:
        """Return typical hours of each row, from the checked features and what :meth:`learn` returned."""

    def prior(self) -> Mapping[str, Any]:
        """Return what is assumed before any history, in the form of :meth:`learn`'s result."""
        raise NotFittedError(f"{type(self).__name__} is not fitted; call fit(X, y), or load a saved version")

    def fit(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        """Learn from the jobs that completed.

        Raises
        ------
        InputError
            A duration is missing, negative or infinite, a feature cannot be used, or no job completed.
        """
        checked = checked_features(X, self.features)
        hours, done = checked_durations(X, y, observed)
        if not done.any() and not self.predicts_unfitted:
            raise InputError("no job completed", field="observed", fix="give at least one finished job")
        checked, hours = checked[done].reset_index(drop=True), hours[done]
        self.rows_ = len(hours)
        self.learnt_ = dict(self.learn(checked, hours) if len(hours) else self.prior())
        self.errors_ = self._errors(checked, hours)
        return self

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Predict quantiles of the duration in hours."""
        from scipy.stats import norm

        wanted = as_levels(levels)
        learnt = self.learnt_ if hasattr(self, "learnt_") else self.prior()
        log_hours = self._log_point(checked_features(X, self.features), learnt)
        errors = getattr(self, "errors_", np.empty(0))
        assumed = PRIOR_SIGMA * norm.ppf(wanted)
        offsets = ConformalQuantiles(errors).offsets(wanted) if len(errors) >= 2 else assumed
        # two errors can stretch a far level beyond any number: e^30 hours is for ever
        logs = np.clip(log_hours[:, None] + offsets[None, :], -30.0, 30.0)
        return quantile_frame(np.exp(logs), wanted, X.index)

    def basis(self, X: pd.DataFrame) -> pd.Series:
        """Say that the site's history answers, and how many jobs it holds; or the prior."""
        if not hasattr(self, "learnt_"):
            self.prior()
        rows = getattr(self, "rows_", 0)
        few = "" if rows >= 9 else ", uncalibrated band"
        text = f"site history: {rows} jobs{few}" if rows else "prior"
        return pd.Series(text, index=X.index, dtype=object)

    def to_bundle(self) -> Bundle:
        """Return parameters and what was learnt as plain data."""
        params = self.get_params(deep=False)
        if not hasattr(self, "learnt_"):
            self.prior()
            return Bundle(self.name, params)
        arrays = {f"learnt.{k}": v for k, v in self.learnt_.items() if isinstance(v, np.ndarray)}
        plain = {key: value for key, value in self.learnt_.items() if not isinstance(value, np.ndarray)}
        return Bundle(
            self.name, params, {"learnt": plain, "rows": self.rows_}, {**arrays, "errors": self.errors_}
        )

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Rebuild from :meth:`to_bundle`'s data."""
        out = cls(**bundle.params)
        if bundle.state:
            arrays = {k.removeprefix("learnt."): v for k, v in bundle.arrays.items() if k != "errors"}
            out.learnt_ = {**bundle.state["learnt"], **arrays}
            out.rows_, out.errors_ = bundle.state["rows"], bundle.arrays["errors"]
        return out

    def _errors(self, checked: pd.DataFrame, hours: np.ndarray) -> np.ndarray:
        part = np.arange(len(hours)) % min(self.folds, max(len(hours), 1))
        errors = np.empty(len(hours))
        for k in range(int(part.max()) + 1 if len(part) > 1 else 0):
            out = part == k
            learnt = self.learn(checked[~out].reset_index(drop=True), hours[~out])
            errors[out] = np.log(np.maximum(hours[out], FLOOR_H)) - self._log_point(checked[out], learnt)
        return errors if len(hours) > 1 else np.empty(0)

    def _log_point(self, checked: pd.DataFrame, learnt: Mapping[str, Any]) -> np.ndarray:
        # a copy: what a subclass does to its frame stays its own
        hours = np.asarray(self.point(checked.reset_index(drop=True), learnt), dtype=float)
        if hours.shape != (len(checked),) or not np.isfinite(hours).all():
            raise InputError(
                f"{type(self).__name__}.point gave a value that is no duration",
                fix="return one finite number of hours a row",
            )
        return np.log(np.maximum(hours, FLOOR_H))
