"""A full estimator, written against the contract itself: a learner, a calibrated band, censored rows, a bundle.

LightGBM learns the logarithm of the hours; the errors on rows that it did not see make the band. Every method says
which promise of the contract it keeps; ``tidegrid estimators check boosted`` tests them all.
"""

from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.estimators import LEVELS, Estimator, Feature
from tidegrid.estimators.base import as_levels, checked_durations, checked_features, quantile_frame
from tidegrid.estimators.boosted import booster_of
from tidegrid.estimators.conformal import ConformalQuantiles, needed
from tidegrid.models import Bundle

FLOOR_H = 1.0 / 3600.0
TEXTS = ("user", "gpu_type")
FEWEST = 30
"""Finished jobs below which no tree is grown, and the median answers."""


class Boosted(Estimator):
    """Hours of any job from its size, its user and its requested limit, by gradient boosting.

    Parameters
    ----------
    trees
        How many trees.
    seed
        The learner's seed.
    """

    name: ClassVar[str] = "boosted"
    kind: ClassVar[str] = "any"
    features: ClassVar[tuple[Feature, ...]] = (
        Feature("gpus", "float", "GPUs", low=0, default=1, doc="GPUs asked for"),
        Feature("requested_walltime_h", "float", "hours", low=0, doc="the limit that the submitter asks for"),
        Feature("user", "text", doc="who submits it"),
        Feature("gpu_type", "text", doc="what GPU it runs on"),
    )

    # promise: __init__ only stores, so that clone and get_params work
    def __init__(self, trees: int = 60, seed: int = 0) -> None:
        self.trees = trees
        self.seed = seed

    def fit(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        """Learn; what is learnt ends in an underscore, and nothing of an earlier fit is left."""
        # promise: columns by name, in range, or refused by name; X itself is never touched
        frame = checked_features(X, self.features)
        # promise: a target that is not a number, negative, or not on the index of X is refused
        hours, done = checked_durations(X, y, observed)
        logs = np.log(np.maximum(hours, FLOOR_H))
        # promise: a job that did not complete is a lower bound; it counts where it already outlasts the median
        middle = float(np.median(logs[done])) if done.any() else 0.0
        use = done | (logs > middle)
        if not use.any():
            raise InputError("no job completed", field="observed", fix="give at least one finished job")
        frame, logs, done = frame[use].reset_index(drop=True), logs[use], done[use]
        # promise: a category becomes the same code in any batch; 0 is for what was never seen
        self.codes_ = {name: sorted(set(frame[name]) - {""}) for name in TEXTS}
        self.middle_, self.rows_ = float(np.median(logs)), len(logs)
        self.model_ = ""
        numbers = self._numbers(frame)
        test = np.arange(len(logs)) % 4 == 3
        if len(logs) >= FEWEST:
            # the band comes from rows that this first model did not see; the second one answers
            first = self._grown(numbers[~test], logs[~test])
            self.errors_ = (logs[test] - self._raw(first, numbers[test]))[done[test]]
            self.model_ = self._grown(numbers, logs)
        else:
            self.errors_ = (logs - self.middle_)[done]
        return self

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        """Predict quantiles of hours: on the index of X, one column a level, ordered, finite, non-negative."""
        wanted = as_levels(levels)
        # promise: before fit, NotFittedError
        self._require_fitted("rows_")
        numbers = self._numbers(checked_features(X, self.features))
        centre = self._raw(self.model_, numbers)
        offsets = ConformalQuantiles(self.errors_).offsets(wanted)
        if len(self.errors_) < needed(0.9):
            # promise: too few samples are never quietly narrow
            offsets = offsets * 2.0 + np.log(3.0) * np.sign(np.asarray(wanted) - 0.5)
        return quantile_frame(np.exp(np.clip(centre[:, None] + offsets, -30.0, 30.0)), wanted, X.index)

    def basis(self, X: pd.DataFrame) -> pd.Series:
        """Say what answers: the site's history, and how much of it."""
        self._require_fitted("rows_")
        how = "boosted trees" if self.model_ else "median"
        return pd.Series(f"site history: {how} of {self.rows_} jobs", index=X.index, dtype=object)

    def to_bundle(self) -> Bundle:
        """Return plain data: JSON values, arrays, and LightGBM's own text; never a pickle."""
        self._require_fitted("rows_")
        state = {"codes": self.codes_, "middle": self.middle_, "rows": self.rows_}
        texts = {"model": self.model_} if self.model_ else {}
        return Bundle(self.name, self.get_params(), state, {"errors": self.errors_}, texts)

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Rebuild; it predicts the same to the bit."""
        out = cls(**bundle.params)
        out.codes_ = {key: list(values) for key, values in bundle.state["codes"].items()}
        out.middle_, out.rows_ = bundle.state["middle"], bundle.state["rows"]
        out.errors_, out.model_ = bundle.arrays["errors"], bundle.texts.get("model", "")
        return out

    def _numbers(self, frame: pd.DataFrame) -> np.ndarray:
        columns = [frame["gpus"].to_numpy(), frame["requested_walltime_h"].to_numpy()]
        for name in TEXTS:
            place = {value: i + 1.0 for i, value in enumerate(self.codes_[name])}
            columns.append(frame[name].map(lambda v, place=place: place.get(v, 0.0)).to_numpy(dtype=float))
        return np.column_stack(columns)

    def _grown(self, numbers: np.ndarray, logs: np.ndarray) -> str:
        import lightgbm as lgb

        rules = {
            "objective": "l1", "num_leaves": 15, "min_data_in_leaf": 5, "learning_rate": 0.1, "seed": self.seed,
            "deterministic": True, "force_row_wise": True, "num_threads": 1, "verbosity": -1,
        }  # fmt: skip
        data = lgb.Dataset(numbers, logs, params={"verbosity": -1})
        return lgb.train(rules, data, num_boost_round=self.trees).model_to_string()

    def _raw(self, model: str, numbers: np.ndarray) -> np.ndarray:
        if not model or not len(numbers):
            return np.full(len(numbers), self.middle_)
        return np.asarray(booster_of(model).predict(numbers, num_threads=1))
