"""Made-up rows that follow an estimator's declared features, for the contract suite."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from tidegrid.estimators.base import Estimator, Feature

START = pd.Timestamp("2026-03-02T00:00:00Z")
"""The Monday on which every made-up history starts."""


def example(estimator: Estimator, rows: int = 80, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """Return a made-up history ``(X, y)`` for an estimator, from the features that it declares.

    An estimator whose features must agree with one another in a way that ranges cannot say may offer its own
    class method ``example(rows, seed)`` with the same result; it is used instead.

    Returns
    -------
    tuple of (pandas.DataFrame, pandas.Series)
        About ``rows`` rows (for ``demand`` at least two series of three weeks of hours), and the target.
    """
    own = getattr(type(estimator), "example", None)
    if own is not None:
        X, y = own(rows, seed)
        return pd.DataFrame(X), pd.Series(y)
    if estimator.target == "demand":
        return _traffic(estimator.features, seed)
    return _jobs(estimator.features, rows, seed)


def example_future(estimator: Estimator, X: pd.DataFrame, rows: int = 24, seed: int = 1) -> pd.DataFrame:
    """Return rows to predict after the history ``X``: other jobs, or the hours that follow."""
    if estimator.target == "demand" and "ds" in X.columns and "unique_id" in X.columns:
        ends = X.groupby("unique_id", sort=True)["ds"].max()
        parts = [
            pd.DataFrame({"unique_id": name, "ds": pd.date_range(end, periods=rows + 1, freq="h")[1:]})
            for name, end in ends.items()
        ]
        future = pd.concat(parts, ignore_index=True)
        others = [f for f in estimator.features if f.name not in ("unique_id", "ds")]
        made = columns(others, len(future), np.random.default_rng(seed))
        return pd.concat([future, made], axis=1)
    return example(estimator, rows, seed)[0]


def columns(features: Sequence[Feature], rows: int, rng: np.random.Generator) -> pd.DataFrame:
    """Return one made-up column a feature, inside its range and among its categories."""
    return pd.DataFrame({feature.name: _column(feature, rows, rng) for feature in features})


def _jobs(features: Sequence[Feature], rows: int, seed: int) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(seed)
    X = columns(features, rows, rng)
    whole, part = "model_params_b", "active_params_b"
    if whole in X.columns and part in X.columns:
        # a model cannot have more active parameters than parameters
        X[part] = np.minimum(X[part].astype(float), X[whole].astype(float))
    gpus = pd.to_numeric(X["gpus"]).to_numpy(dtype=float) if "gpus" in X.columns else np.ones(rows)
    hours = np.exp(rng.normal(0.5, 0.8, rows)) / np.sqrt(gpus)
    return X, pd.Series(hours, index=X.index, name="duration_h")


def _traffic(features: Sequence[Feature], seed: int) -> tuple[pd.DataFrame, pd.Series]:
    rng = np.random.default_rng(seed)
    hours = 21 * 24
    ds = pd.date_range(START, periods=hours, freq="h")
    of_day = 1.0 + 0.6 * np.sin(2 * np.pi * (np.arange(hours) % 24 - 9) / 24)
    frames, values = [], []
    for name, level in (("chat", 100.0), ("code", 40.0)):
        frames.append(pd.DataFrame({"unique_id": name, "ds": ds}))
        values.append(level * of_day * np.exp(rng.normal(0.0, 0.08, hours)))
    X = pd.concat(frames, ignore_index=True)
    others = [feature for feature in features if feature.name not in ("unique_id", "ds")]
    X = pd.concat([X, columns(others, len(X), rng)], axis=1)
    return X, pd.Series(np.concatenate(values), index=X.index, name="demand")


def _column(feature: Feature, rows: int, rng: np.random.Generator) -> pd.Series:
    if feature.dtype == "category" and feature.categories:
        return pd.Series(rng.choice(np.array(feature.categories, dtype=object), rows), dtype=object)
    if feature.dtype in ("category", "text"):
        known = (
            ("H100", "A100") if feature.name == "gpu_type" else tuple(f"{feature.name}-{i}" for i in range(4))
        )
        return pd.Series(rng.choice(np.array(known, dtype=object), rows), dtype=object)
    if feature.dtype == "instant":
        return pd.Series(START + pd.to_timedelta(np.sort(rng.integers(0, 21 * 24 * 60, rows)), unit="min"))
    if feature.dtype == "bool":
        return pd.Series(rng.integers(0, 2, rows).astype(float))
    if feature.name in ("gpus", "gpus_per_node"):
        top = int(min(feature.high or 8, 8)) if feature.name == "gpus" else 8
        sizes = [size for size in (1, 2, 4, 8) if size <= top] if feature.name == "gpus" else [8]
        return pd.Series(rng.choice(np.array(sizes, dtype=float), rows))
    return _numbers(feature, rows, rng)


def _numbers(feature: Feature, rows: int, rng: np.random.Generator) -> pd.Series:
    low = 0.0 if feature.low is None else float(feature.low)
    high = np.inf if feature.high is None else float(feature.high)
    # around the default where there is one: a range alone says what is allowed, not what is usual
    if isinstance(feature.default, int | float) and float(feature.default) > 0:
        values = float(feature.default) * np.exp(rng.normal(0.0, 0.5, rows))
    elif np.isfinite(high) and (low <= 0 or high / low < 20):
        values = rng.uniform(low, high, rows)
    else:
        bottom = max(low, 1.0)
        values = bottom * np.exp(rng.uniform(0.0, np.log(50.0), rows))
    values = np.clip(values, low, high)
    return pd.Series(np.round(values) if feature.dtype == "int" else values)
