"""Estimators that cannot stop a tick: where one raises, its fallback answers with the same schema, flagged."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from tidegrid.data import Cluster, History
from tidegrid.estimators import Estimator
from tidegrid.estimators.base import as_levels, quantile_frame
from tidegrid.estimators.recurring import RecurringJobEstimator
from tidegrid.pipeline.estimates import FALLBACK
from tidegrid.pipeline.naive import NaiveDemand


class SafeDemand:
    """A demand estimator behind which the seasonal naive forecast stands.

    Where the estimator raises, or answers with what is no quantile, the value of the same hour a week (or a day)
    before answers, with that forecast's own past errors as its band; for a series without any history, what the
    GPUs serve that its apps hold now.

    Attributes
    ----------
    problem
        Why the fallback answers; empty while the estimator does.
    """

    name = "realtime"

    def __init__(self, inner: Estimator | None, history: History, cluster: Cluster) -> None:
        self.inner, self.history = inner, history
        self.problem = "" if inner is not None else "there is no fitted realtime estimator"
        self.held = {
            app.series: len(app.held) * (app.capacity.units_per_gpu_hour or 0.0) for app in cluster.apps
        }

    def predict_quantiles(self, X: pd.DataFrame, levels: Sequence[float]) -> pd.DataFrame:
        """Predict quantiles of demand, units an hour."""
        wanted = as_levels(levels)
        if self.inner is not None and not self.problem:
            try:
                out = self.inner.predict_quantiles(X, wanted)
                values = out.to_numpy(dtype=float)
                if (
                    values.shape == (len(X), len(wanted))
                    and np.isfinite(values).all()
                    and (values >= 0).all()
                ):
                    return out
                self.problem = "its answer is no demand"
            except (
                Exception
            ) as error:  # whatever is wrong with it, the plan goes on with the fallback, flagged
                self.problem = f"{type(error).__name__}: {error}"
        return quantile_frame(self._naive(X, wanted), wanted, X.index)

    def basis(self, X: pd.DataFrame) -> pd.Series:
        """Say what answers."""
        if self.inner is not None and not self.problem:
            try:
                return self.inner.basis(X)
            except Exception as error:  # as above
                self.problem = f"{type(error).__name__}: {error}"
        text = f"site history: the same hour a week before, since realtime failed ({self.problem})"
        return pd.Series(text, index=X.index, dtype=object)

    def _naive(self, X: pd.DataFrame, levels: Sequence[float]) -> np.ndarray:
        traffic = self.history.traffic
        past = pd.DataFrame({"unique_id": traffic["series_id"], "ds": traffic["timestamp"]})
        naive = NaiveDemand().fit(past, traffic["value"]).quantiles(X, levels)
        last = traffic.dropna(subset=["value"]).groupby("series_id")["value"].last()
        latest = self.held | {str(name): float(value) for name, value in last.items()}
        known = X["unique_id"].map(latest).fillna(0.0).to_numpy(dtype=float)
        out = np.where(np.isfinite(naive), naive, known[:, None])
        return np.maximum.accumulate(np.maximum(out, 0.0), axis=1)


def with_fallbacks(
    estimators: Mapping[str, Estimator], history: History, cluster: Cluster
) -> tuple[dict[str, Estimator], SafeDemand]:
    """Return the estimators with a realtime one that cannot raise, and a duration fallback that is there."""
    safe = SafeDemand(estimators.get("realtime"), history, cluster)
    out = dict(estimators)
    out["realtime"] = cast(Estimator, safe)
    out.setdefault(FALLBACK, RecurringJobEstimator())
    return out, safe


def recalibrated(estimator: Estimator, record: pd.DataFrame) -> Estimator:
    """Return a demand estimator whose bands follow how its recorded forecasts fared; the given one stays as it is."""
    import copy

    adapt: Any = getattr(estimator, "recalibrate", None)
    if adapt is None or record.empty:
        return estimator
    out = copy.copy(estimator)
    cast(Any, out).recalibrate(record)
    return out
