"""Boosted trees on what the past says in numbers: a second opinion for jobs whose own past leaves much open."""

from typing import Any

import numpy as np
import pandas as pd

ROUNDS, LEAVES, RATE = 150, 15, 0.05
LEAST_ROWS = 60
"""Jobs in a leaf at least."""

ENOUGH = 300
"""Jobs from which trees are worth growing."""


def described(features: pd.DataFrame, submit: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the trees' inputs: the numbers of the past, then the job's own.

    Parameters
    ----------
    features
        Checked features.
    submit : ndarray of shape (rows,)
        Instants, seconds since 1970; the hour and the day of the week are UTC's.
    numbers : ndarray of shape (rows, NUMBERS)
        As :func:`tidegrid.estimators.recurring.kernels.describe` gives them.
    """
    with np.errstate(divide="ignore"):
        own = [
            np.log2(np.maximum(features["gpus"].to_numpy(dtype=float), 0.5)),
            np.log(np.maximum(features["requested_walltime_h"].to_numpy(dtype=float), 1e-3)),
            np.log1p(features["cpus"].to_numpy(dtype=float)),
            features["nodes"].to_numpy(dtype=float),
            np.log1p(features["mem_mb"].to_numpy(dtype=float)),
        ]
    return np.column_stack([numbers, *own, (submit % 86400.0) / 3600.0, (submit // 86400.0 + 3) % 7])


def grow(inputs: np.ndarray, log_hours: np.ndarray, weight: np.ndarray, seed: int) -> str:
    """Return a LightGBM model of the median log duration, as LightGBM's text."""
    import lightgbm as lgb

    params: dict[str, Any] = {
        "objective": "l1",
        "learning_rate": RATE,
        "num_leaves": LEAVES,
        "min_data_in_leaf": LEAST_ROWS,
        "feature_fraction": 0.2,
        "bagging_fraction": 0.7,
        "bagging_freq": 1,
        "lambda_l2": 5.0,
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "seed": seed,
        "verbosity": -1,
    }
    data = lgb.Dataset(inputs, label=log_hours, weight=weight, params={"verbosity": -1}, free_raw_data=True)
    return str(lgb.train(params, data, num_boost_round=ROUNDS).model_to_string())


def load(text: str) -> Any:
    """Return the booster of a model's text."""
    import lightgbm as lgb

    return lgb.Booster(model_str=text)


def answer(booster: Any, inputs: np.ndarray) -> np.ndarray:
    """Return the trees' log hours."""
    if not len(inputs):
        return np.empty(0)
    return np.asarray(booster.predict(inputs, num_threads=1), dtype=float)
