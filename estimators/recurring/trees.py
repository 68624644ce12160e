"""Boosted trees on what the past says in numbers: a second opinion for jobs whose own past leaves much open."""

from typing import Any

import numpy as np
import pandas as pd

from tidegrid.estimators.recurring.kernels import BY_RUNG, MEMBERS, NUMBERS

ROUNDS, LEAVES, RATE = 250, 15, 0.03
SCALE = 0.3
"""Where the loss turns from squared to absolute, in log time: LightGBM's own absolute loss takes no constraints."""

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
        Instants, seconds since 1970; the hour is UTC's. The day of the week is left out: few histories hold enough
        weeks to tell it from chance.
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
    return np.column_stack([numbers, *own, (submit % 86400.0) / 3600.0])


def _rising(columns: int) -> list[int]:
    """Return 1 for inputs with which the answer may only rise: past durations and the walltime; 0 for the others."""
    out = np.zeros(columns, dtype=int)
    out[0 : 2 * len(MEMBERS) : 2] = 1
    out[2 * len(MEMBERS) : NUMBERS : BY_RUNG] = 1
    out[NUMBERS + 1] = 1
    return [int(v) for v in out]


def grow(inputs: np.ndarray, log_hours: np.ndarray, seed: int) -> str:
    """Return a LightGBM model of the median log duration, as LightGBM's text.

    The answer may only rise with past durations and with the walltime: histories have many jobs and few bursts, and
    what contradicts this is chance.
    """
    import lightgbm as lgb

    params: dict[str, Any] = {
        "objective": "fair",
        "fair_c": SCALE,
        "learning_rate": RATE,
        "num_leaves": LEAVES,
        "min_data_in_leaf": LEAST_ROWS,
        "feature_fraction": 0.4,
        "bagging_fraction": 0.7,
        "bagging_freq": 1,
        "lambda_l2": 5.0,
        "monotone_constraints": _rising(inputs.shape[1]),
        "num_threads": 1,
        "deterministic": True,
        "force_row_wise": True,
        "seed": seed,
        "verbosity": -1,
    }
    data = lgb.Dataset(inputs, label=log_hours, params={"verbosity": -1}, free_raw_data=True)
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
