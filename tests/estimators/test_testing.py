"""The contract suite passes an honest estimator and names the promise that a broken one breaks."""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import pytest

from tidegrid.errors import InputError
from tidegrid.estimators import LEVELS, Estimator, Feature
from tidegrid.estimators.base import as_levels, checked_durations, checked_features, quantile_frame
from tidegrid.estimators.realtime import RealtimeEstimator
from tidegrid.estimators.testing import (
    ContractError,
    check_estimator,
    parametrize_with_checks,
    promises,
    run_checks,
)
from tidegrid.models import Bundle


class LogNormal(Estimator):
    """Log-normal hours a GPU type, shrunk to the overall median."""

    name: ClassVar[str] = "log_normal"
    kind: ClassVar[str] = "any"
    features: ClassVar[tuple[Feature, ...]] = (
        Feature("gpus", "int", "GPUs", low=1, required=True, doc="GPUs of the job"),
        Feature("gpu_type", "text", doc="what GPU it is"),
        Feature("precision", "category", categories=("bf16", "fp8"), default="bf16", doc="number format"),
        Feature("size", "float", "billion parameters", low=0.001, default=7.0, doc="size of the model"),
    )

    def __init__(self, spread: float = 0.7) -> None:
        self.spread = spread

    def fit(
        self,
        X: pd.DataFrame,
        y: pd.Series,
        *,
        observed: pd.Series | None = None,
        known_at: pd.Series | None = None,
    ) -> Self:
        frame = checked_features(X, self.features)
        hours, _ = checked_durations(X, y, observed)
        if len(hours) == 0:
            raise InputError("has no rows", field="y", fix="give at least one finished job")
        logs = np.log(np.maximum(hours, 1e-3))
        self.level_ = float(np.median(logs))
        groups = pd.Series(logs).groupby(frame["gpu_type"].to_numpy())
        self.types_ = {str(key): float(part.median()) for key, part in groups}
        return self

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        from scipy.stats import norm

        levels = as_levels(levels)
        self._require_fitted("level_")
        frame = checked_features(X, self.features)
        centre = frame["gpu_type"].map(lambda key: self.types_.get(key, self.level_)).to_numpy(dtype=float)
        centre = centre - 0.5 * np.log(frame["gpus"].to_numpy()) + 0.1 * np.log(frame["size"].to_numpy())
        centre = centre + 0.1 * (frame["precision"] == "fp8").to_numpy()
        return quantile_frame(np.exp(centre[:, None] + self.spread * norm.ppf(levels)), levels, X.index)

    def basis(self, X: pd.DataFrame) -> pd.Series:
        self._require_fitted("level_")
        frame = checked_features(X, self.features)
        known = frame["gpu_type"].isin(list(self.types_))
        return known.map({True: "site history: GPU type", False: "site history"}).astype(object)

    def to_bundle(self) -> Bundle:
        self._require_fitted("level_")
        return Bundle(self.name, self.get_params(), {"level": self.level_, "types": self.types_})

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        out = cls(**bundle.params)
        out.level_ = bundle.state["level"]
        out.types_ = dict(bundle.state["types"])
        return out


def test_an_honest_estimator_passes() -> None:
    check_estimator(LogNormal)
    check_estimator(LogNormal(spread=1.2))
    assert [o for o in run_checks(LogNormal) if not o.kept] == []


@parametrize_with_checks([LogNormal(), LogNormal])
def test_each_promise_can_be_a_case_of_its_own(estimator: Any, check: Any) -> None:
    check(estimator)


def test_a_case_names_the_promise_that_is_broken() -> None:
    (mark,) = [parametrize_with_checks([StoresMore]).mark]
    broken = []
    for case in mark.args[1]:
        try:
            case.values[1](case.values[0])
        except ContractError as error:
            broken.append(error.promise)
            assert str(case.id) == f"log_normal: {error.promise}"
    assert broken


def test_every_promise_is_one_line() -> None:
    assert len(promises()) == len(set(promises())) >= 20
    assert all(promise and "\n" not in promise for promise in promises())


class StoresMore(LogNormal):
    def __init__(self, spread: float = 0.7) -> None:
        self.spread = spread
        self.cache: dict = {}


class ChangesArgument(LogNormal):
    def __init__(self, spread: float = 0.7) -> None:
        self.spread = float(max(spread, 1.0))


class ReturnsNothing(LogNormal):
    def fit(self, X, y, *, observed=None, known_at=None):  # type: ignore[no-untyped-def, override]
        super().fit(X, y)


class ChangesParameter(LogNormal):
    def fit(self, X, y, *, observed=None, known_at=None):  # type: ignore[no-untyped-def, override]
        super().fit(X, y)
        self.spread = 0.9
        return self


class WritesIntoX(LogNormal):
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        X["log_gpus"] = np.log(X["gpus"].astype(float))
        return super().predict_quantiles(X, levels)


class TurnsY(LogNormal):
    def fit(self, X, y, *, observed=None, known_at=None):  # type: ignore[no-untyped-def, override]
        super().fit(X, y)
        y.iloc[:] = y.to_numpy()[::-1]
        return self


class ByPosition(LogNormal):
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        first = pd.to_numeric(X.iloc[:, 0], errors="coerce").fillna(0.0).to_numpy()
        return super().predict_quantiles(X, levels).mul(1.0 + np.abs(first), axis=0)


class CountsColumns(LogNormal):
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        return super().predict_quantiles(X, levels) * X.shape[1]


class Crosses(LogNormal):
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        out = super().predict_quantiles(X, levels)
        out[out.columns] = out.to_numpy()[:, ::-1]
        return out


class Negative(LogNormal):
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        return super().predict_quantiles(X, levels) - 0.5


class Infinite(LogNormal):
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        out = super().predict_quantiles(X, levels)
        out.loc[:, [level for level in levels if level > 0.99]] = np.inf
        return out


class ForgetsIndex(LogNormal):
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        return super().predict_quantiles(X, levels).reset_index(drop=True)


class SortsLevels(LogNormal):
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        return super().predict_quantiles(X, sorted(levels))


class TakesAnyLevel(LogNormal):
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        kept = [min(max(level, 0.001), 0.999) if level == level else 0.5 for level in levels] or [0.5]
        out = super().predict_quantiles(X, kept)
        out.columns = pd.Index([float(level) for level in levels] or [0.5], name="level")
        return out


class OwnBasis(LogNormal):
    def basis(self, X: pd.DataFrame) -> pd.Series:
        return pd.Series("my gut", index=X.index)


class SilentlyInfeasible(LogNormal):
    def feasible(self, X: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"feasible": False, "reason": ""}, index=X.index)


class BatchMean(LogNormal):
    """A batch's own categories become codes, so that a part of the rows is read as other categories."""

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        out = super().predict_quantiles(X, levels)
        codes = checked_features(X, self.features)["gpu_type"].astype("category").cat.codes.to_numpy()
        return out.mul(1.0 + codes, axis=0)


class AcceptsMissing(LogNormal):
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        return super().predict_quantiles(X if "gpus" in X.columns else X.assign(gpus=1), levels)


class RefusesWithoutName(LogNormal):
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        try:
            return super().predict_quantiles(X, levels)
        except InputError as error:
            if error.field in ("gpus", "precision"):
                raise InputError("bad input") from None
            raise


class AcceptsUnseen(LogNormal):
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        if "precision" in X.columns:
            known = X["precision"].astype(object).isin(["bf16", "fp8"]) | X["precision"].isna()
            X = X.assign(precision=X["precision"].astype(object).where(known, "bf16"))
        return super().predict_quantiles(X, levels)


class TracesBack(LogNormal):
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        if "size" in X.columns:
            X["size"].astype(float)
        return super().predict_quantiles(X, levels)


class FitsAnything(LogNormal):
    def fit(self, X, y, *, observed=None, known_at=None):  # type: ignore[no-untyped-def, override]
        good = np.isfinite(y) & (y >= 0)
        return super().fit(X[good.to_numpy()], y[good])


class Random(LogNormal):
    def fit(self, X, y, *, observed=None, known_at=None):  # type: ignore[no-untyped-def, override]
        super().fit(X, y)
        self.level_ += float(np.random.default_rng().normal())
        self.types_ = {}
        return self


class Remembers(LogNormal):
    def fit(self, X, y, *, observed=None, known_at=None):  # type: ignore[no-untyped-def, override]
        before = getattr(self, "types_", {})
        super().fit(X, y)
        self.types_ = {**{key: value + 1 for key, value in before.items()}, **self.types_}
        self.level_ += len(before)
        self.types_ = {} if before else self.types_
        return self


class ForgetsState(LogNormal):
    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        out = super().from_bundle(bundle)
        out.types_ = {}
        return out


class LosesParameter(LogNormal):
    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        out = cls()
        out.level_, out.types_ = bundle.state["level"], dict(bundle.state["types"])
        out.spread = 0.7000001
        return out


class NotPlainData(LogNormal):
    def to_bundle(self) -> Bundle:
        return Bundle(self.name, self.get_params(), {"level": self.level_, "types": {"n": np.int64(3)}})


class SaysItPredictsUnfitted(LogNormal):
    predicts_unfitted: ClassVar[bool] = True


class BreaksOnEmpty(LogNormal):
    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float] = LEVELS) -> pd.DataFrame:
        X.iloc[0]
        return super().predict_quantiles(X, levels)


class UnknownKind(LogNormal):
    kind: ClassVar[str] = "gaming"


class NeedsFortyRows(LogNormal):
    def fit(self, X, y, *, observed=None, known_at=None):  # type: ignore[no-untyped-def, override]
        if 0 < len(X) < 10:
            raise IndexError("single positional indexer is out-of-bounds")
        return super().fit(X, y)


class TakesNothingIn(LogNormal):
    def update(self, X: pd.DataFrame, y: pd.Series, **_: Any) -> None:
        self.level_ = float(np.log(y).median())


class Peeks(LogNormal):
    """Replay that fits on all rows first, and so tells an early job what late ones took."""

    features: ClassVar[tuple[Feature, ...]] = (
        *LogNormal.features,
        Feature("submit_time", "instant", doc="when it was submitted"),
    )

    def replay(
        self, X: pd.DataFrame, y: pd.Series, levels: Sequence[float] = LEVELS, **_: Any
    ) -> pd.DataFrame:
        self.fit(X, y)
        return self.predict_quantiles(X, levels)


class FillsWithZero(RealtimeEstimator):
    """Missing hours count as zeros, smoothed with their neighbours so that no cleaning finds them again."""

    def fit(self, X, y, *, observed=None, known_at=None):  # type: ignore[no-untyped-def, override]
        filled = y.fillna(0.0).rolling(7, min_periods=1).mean() if y.isna().any() else y
        return super().fit(X, filled, observed=observed, known_at=known_at)


BROKEN: list[tuple[type[Estimator], str, str]] = [
    (StoresMore, "__init__ only stores", "cache"),
    (ChangesArgument, "__init__ only stores", "spread"),
    (ReturnsNothing, "fit returns self", "did not return self"),
    (ChangesParameter, "fit returns self", "changed a parameter"),
    (WritesIntoX, "no input is mutated", "predict_quantiles changed"),
    (TurnsY, "no input is mutated", "fit changed y"),
    (ByPosition, "by name, not by place", "columns reversed"),
    (CountsColumns, "unknown column", "changed from"),
    (Crosses, "quantiles are finite", "cross"),
    (Negative, "quantiles are finite", "negative"),
    (Infinite, "quantiles are finite", "not finite"),
    (ForgetsIndex, "quantiles are finite", "index of X"),
    (SortsLevels, "quantiles are finite", "columns are"),
    (TakesAnyLevel, "level outside", "accepted"),
    (OwnBasis, "basis", "my gut"),
    (SilentlyInfeasible, "feasible", "no reason"),
    (BatchMean, "a batch predicts the same", "changed from"),
    (AcceptsMissing, "missing required column", "gpus"),
    (RefusesWithoutName, "missing required column", "does not name"),
    (AcceptsUnseen, "unseen category", "precision"),
    (TracesBack, "a cell that is no number", "ValueError"),
    (FitsAnything, "a target that is no number", "accepted"),
    (Random, "same history gives the same bytes", "other numbers"),
    (Remembers, "same history gives the same bytes", "second fit"),
    (ForgetsState, "save and load", "other numbers"),
    (LosesParameter, "save and load", "parameters"),
    (NotPlainData, "save and load", "state.types.n"),
    (SaysItPredictsUnfitted, "unfitted", "NotFittedError"),
    (BreaksOnEmpty, "an empty X", "IndexError"),
    (UnknownKind, "the class says", "gaming"),
    (NeedsFortyRows, "a short history", "IndexError"),
    (TakesNothingIn, "takes in new rows", "did not return self"),
    (Peeks, "takes in new rows", "changed an earlier answer"),
    (FillsWithZero, "a missing hour of demand", "factor"),
]


@pytest.mark.parametrize(("broken", "promise", "how"), BROKEN, ids=[b[0].__name__ for b in BROKEN])
def test_the_broken_promise_is_named(broken: type[Estimator], promise: str, how: str) -> None:
    outcomes = {o.promise: o for o in run_checks(broken) if not o.kept}
    found = [o for text, o in outcomes.items() if promise in text]
    assert found and how in found[0].detail, outcomes
    with pytest.raises(ContractError) as caught:
        check_estimator(broken)
    assert "\n" not in str(caught.value) and str(caught.value).startswith(
        f"{broken.name} breaks the promise: "
    )


@pytest.mark.parametrize("thing", [object(), 3, dict])
def test_what_is_no_estimator_is_refused(thing: Any) -> None:
    with pytest.raises(ContractError, match="is a"):
        check_estimator(thing)


def test_a_class_that_needs_arguments_is_refused() -> None:
    class Needy(LogNormal):
        def __init__(self, spread: float) -> None:
            self.spread = spread

    with pytest.raises(ContractError, match="without arguments"):
        check_estimator(Needy)


def test_an_instance_is_left_unfitted() -> None:
    estimator = LogNormal()
    check_estimator(estimator)
    assert vars(estimator) == {"spread": 0.7}
