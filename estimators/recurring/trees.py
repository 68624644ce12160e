"""Boosted trees on what the past says in numbers: they answer where a job's own past leaves much open."""

import warnings
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.estimators.recurring.keys import RUNGS, sizes
from tidegrid.estimators.recurring.memory import Past

ROUNDS, LEAVES, RATE = 250, 15, 0.03
SCALE = 0.3
"""Where the loss turns from squared to absolute, in log time: LightGBM's own absolute loss takes no constraints."""

LEAST_ROWS = 60
"""Jobs in a leaf at least."""

ENOUGH = 300
"""Jobs from which trees are worth growing."""

_DECAYS = (0.6, 0.97)
_BY_RUNG = ("recent mean", "mean", "spread", "newest", "count", "age", "open", "idle")
_OWN = ("gpus", "walltime", "cpus", "nodes", "mem", "hour")
RISING = [int(name in ("recent mean", "mean", "newest")) for name in _BY_RUNG] * len(RUNGS)
RISING += [int(name == "walltime") for name in _OWN]


def described(features: pd.DataFrame, submit: np.ndarray, past: Past) -> np.ndarray:
    """Return the trees' inputs: each rung's past in numbers, then the job's own.

    Parameters
    ----------
    features
        Checked features.
    submit : ndarray of shape (rows,)
        Instants, seconds since 1970; the hour is UTC's. The day of the week is left out: few histories hold enough
        weeks to tell it from chance.
    past
        As of the instants.
    """
    columns: list[np.ndarray] = []
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        for r in range(len(RUNGS)):
            values = past.hours[:, r].astype(float)
            there, plain = ~np.isnan(values), np.nan_to_num(values)
            for decay in _DECAYS:
                weight = np.where(there, decay ** np.arange(values.shape[1]), 0.0)
                total = weight.sum(axis=1)
                mean = (weight * plain).sum(axis=1) / total
                columns.append(mean)
            square = (weight * plain**2).sum(axis=1) / total
            columns.append(np.sqrt(np.maximum(square - mean**2, 0.0)))
            gaps = (np.log(np.maximum(gap[:, r], 1.0)) for gap in (past.age, past.idle))
            age, idle = gaps
            columns += [values[:, 0], np.log1p(past.count[:, r]), age, past.open[:, r], idle]
        columns += [
            np.log2(np.maximum(sizes(features), 0.5)),
            np.log(np.maximum(features["requested_walltime_h"].to_numpy(dtype=float), 1e-3)),
            np.log1p(features["cpus"].to_numpy(dtype=float)),
            features["nodes"].to_numpy(dtype=float),
            np.log1p(features["mem_mb"].to_numpy(dtype=float)),
            (submit % 86400.0) / 3600.0,
        ]
    return np.column_stack(columns)


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
        "monotone_constraints": RISING,
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
