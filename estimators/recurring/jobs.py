"""Jobs as arrays: keys, instants, what was asked for, and durations of those that have finished."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.estimators.base import checked_columns, checked_durations, row_by_row
from tidegrid.estimators.recurring.keys import rung_keys, sizes

FLOOR_H = 1.0 / 3600.0
"""The shortest duration that counts, one second: the resolution of every scheduler's clock."""


@dataclass(frozen=True)
class Rows:
    """Jobs to answer as arrays, in the order of the frame that they came in.

    Attributes
    ----------
    keys : ndarray of uint64, shape (rows, len(RUNGS))
        As :func:`tidegrid.estimators.recurring.keys.rung_keys` gives them.
    submit : ndarray of float64
        Instants in seconds since 1970, NaN for none.
    log_limit : ndarray of float64
        Log of the requested walltime in hours; infinite for none.
    own : ndarray of shape (rows, 5)
        What the job asks for in numbers: log GPUs, log walltime, log CPUs, nodes, log memory; NaN for unknown.
    log_scale : ndarray of float64
        Log of the GPUs asked for over those that the answer is for.
    """

    keys: np.ndarray
    submit: np.ndarray
    log_limit: np.ndarray
    own: np.ndarray
    log_scale: np.ndarray

    def __len__(self) -> int:
        """Return how many jobs there are."""
        return len(self.keys)

    def take(self, at: Any) -> Self:
        """Return the jobs at these places."""
        return type(self)(*(array[at] for array in vars(self).values()))


@dataclass(frozen=True)
class Jobs(Rows):
    """Finished jobs as arrays.

    Attributes
    ----------
    log_hours : ndarray of float64
        Natural log of the duration in hours, at least a second.
    exact : ndarray of bool
        False for a lower bound.
    known : ndarray of float64
        When each became known, seconds since 1970.
    """

    log_hours: np.ndarray
    exact: np.ndarray
    known: np.ndarray


def as_rows(columns: Mapping[str, Any]) -> Rows:
    """Return jobs as arrays from checked columns."""
    size, gpus, limit = sizes(columns), columns["gpus"], columns["requested_walltime_h"]
    limit = np.where(limit > 0, np.maximum(limit, FLOOR_H), np.nan)
    log_limit = np.log(limit)
    own = [np.log2(np.maximum(size, 0.5)), log_limit, np.log1p(columns["cpus"]), columns["nodes"]]
    return Rows(
        rung_keys(columns),
        seconds(columns["submit_time"]),
        np.where(np.isnan(log_limit), np.inf, log_limit),
        np.column_stack([*own, np.log1p(columns["mem_mb"])]),
        np.log(np.maximum(size, 1.0) / np.maximum(gpus, 1.0)),
    )


def as_jobs(
    X: pd.DataFrame,
    y: pd.Series,
    features: Any,
    observed: pd.Series | None,
    known_at: pd.Series | None,
    clock: float,
) -> Jobs:
    """Return finished jobs as arrays.

    Parameters
    ----------
    X, y, observed, known_at
        As :meth:`tidegrid.estimators.Estimator.fit` takes them.
    features
        The estimator's features.
    clock
        The newest instant known so far, seconds; jobs without any instant come after it, in their order.

    Raises
    ------
    InputError
        A feature cannot be used, a duration is negative, missing or infinite, or a column has another length; the row
        is named.
    """
    rows = as_rows(checked_columns(X, features))
    hours, exact = checked_durations(X, y, observed)
    known = np.full(len(X), np.nan)
    if known_at is not None:
        known = seconds(pd.DatetimeIndex(pd.to_datetime(row_by_row(known_at, X, "known_at"), utc=True)))
    submit = np.where(np.isnan(rows.submit), known - hours * 3600.0, rows.submit)
    # no instant at all: rows in their order, after all that is known so far
    after = (clock if np.isfinite(clock) else 0.0) + 1.0 + np.arange(len(X), dtype=float)
    bare = np.isnan(submit)
    known = np.where(np.isnan(known), np.where(bare, after, submit + hours * 3600.0), known)
    arrays = {**vars(rows), "submit": np.where(bare, after, submit)}
    return Jobs(**arrays, log_hours=np.log(np.maximum(hours, FLOOR_H)), exact=exact, known=known)


def refuse(bad: np.ndarray, values: Any, field: str, fix: str) -> None:
    """Raise for the first bad value, naming its row."""
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise InputError(f"{values[at]!r} cannot be used", row=at + 2, field=field, fix=fix)


def seconds(instants: pd.DatetimeIndex) -> np.ndarray:
    """Return UTC instants as seconds since 1970, NaN for none."""
    plain = instants.as_unit("us").asi8
    return np.where(plain == np.iinfo(np.int64).min, np.nan, plain / 1e6)
