"""Boosted trees on what the past says in numbers: they answer where a job's own past leaves much open."""

import re
from typing import Any

import numpy as np

from tidegrid.estimators.recurring.keys import RUNGS
from tidegrid.estimators.recurring.memory import WINDOW, Past

ROUNDS, LEAVES, RATE = 250, 15, 0.03
SCALE = 0.3
"""Where the loss turns from squared to absolute, in log time: LightGBM's own absolute loss takes no constraints."""

LEAST_ROWS = 60
"""Jobs in a leaf at least."""

ENOUGH = 300
"""Jobs from which trees are worth growing."""

_BY_RUNG = ("recent mean", "mean", "spread", "newest", "count", "age", "open", "idle")
_OWN = ("gpus", "walltime", "cpus", "nodes", "mem", "hour")
RISING = [int(name in ("recent mean", "mean", "newest")) for name in _BY_RUNG] * len(RUNGS)
RISING += [int(name == "walltime") for name in _OWN]
_RECENT, _LONG = (decay ** np.arange(WINDOW, dtype=np.float32) for decay in (0.6, 0.97))


def described(own: np.ndarray, submit: np.ndarray, past: Past) -> np.ndarray:
    """Return the trees' inputs: each rung's past in numbers, then the job's own.

    Parameters
    ----------
    own : ndarray of shape (rows, 5)
        What the job asks for, as :class:`tidegrid.estimators.recurring.jobs.Rows` has it.
    submit : ndarray of shape (rows,)
        Instants, seconds since 1970; the hour is UTC's. The day of the week is left out: few histories hold enough
        weeks to tell it from chance.
    past
        As of the instants.
    """
    there = ~np.isnan(past.hours)
    hours = np.where(there, past.hours, np.float32(0.0))
    jobs = there.sum(axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        # the newest stand first, so that the sum of their weights depends on their number alone
        recent, mean, square = (
            (values * decay).sum(axis=2) / np.concatenate([[0.0], np.cumsum(decay)])[jobs]
            for values, decay in ((hours, _RECENT), (hours, _LONG), (hours**2, _LONG))
        )
        spread = np.sqrt(np.maximum(square - mean**2, 0.0))
        age, idle = (np.log(np.maximum(gap, 1.0)) for gap in (past.age, past.idle))
    by_rung = [recent, mean, spread, past.hours[:, :, 0], np.log1p(past.count), age, past.open, idle]
    hour = (submit % 86400.0) / 3600.0
    flat = np.stack(by_rung, axis=2).reshape(len(own), len(RUNGS) * len(_BY_RUNG))
    return np.column_stack([flat, own, hour]).astype(np.float32)


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
    text = str(lgb.train(params, data, num_boost_round=ROUNDS).model_to_string())
    # a split that parts known from unknown has an infinite threshold; the largest number parts them as well
    return re.sub(r"(?<=[= ])inf(?=[ \n])", repr(np.finfo(float).max.item()), text)


def answer(booster: Any, inputs: np.ndarray) -> np.ndarray:
    """Return the trees' log hours."""
    if not len(inputs):
        return np.empty(0)
    return np.asarray(booster.predict(inputs, num_threads=1), dtype=float)
