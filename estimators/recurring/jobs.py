"""Finished jobs as arrays: durations, instants, keys."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.estimators.base import checked_durations, row_by_row
from tidegrid.estimators.recurring.keys import rung_keys

FLOOR_H = 1.0 / 3600.0
"""The shortest duration that counts, one second: the resolution of every scheduler's clock."""


@dataclass(frozen=True)
class Jobs:
    """Finished jobs as arrays, in the order of the frame that they came in.

    Attributes
    ----------
    features : pandas.DataFrame
        Checked features.
    keys : ndarray of uint64, shape (jobs, len(RUNGS))
        As :func:`tidegrid.estimators.recurring.keys.rung_keys` gives them.
    log_hours : ndarray of float64
        Natural log of the duration in hours, at least a second.
    exact : ndarray of bool
        False for a lower bound.
    submit, known : ndarray of float64
        Instants in seconds since 1970.
    log_limit : ndarray of float64
        Log of the requested walltime in hours; infinite for none.
    """

    features: pd.DataFrame
    keys: np.ndarray
    log_hours: np.ndarray
    exact: np.ndarray
    submit: np.ndarray
    known: np.ndarray
    log_limit: np.ndarray

    def __len__(self) -> int:
        """Return how many jobs there are."""
        return len(self.log_hours)

    def take(self, at: np.ndarray) -> "Jobs":
        """Return the jobs at these places."""
        arrays = (self.keys, self.log_hours, self.exact, self.submit, self.known, self.log_limit)
        return Jobs(self.features.iloc[at], *(array[at] for array in arrays))


def as_jobs(
    features: pd.DataFrame,
    y: pd.Series,
    observed: pd.Series | None,
    known_at: pd.Series | None,
    clock: float,
    every_end: bool,
) -> Jobs:
    """Return jobs as arrays.

    Parameters
    ----------
    features
        Checked features.
    y, observed, known_at
        As :meth:`tidegrid.estimators.Estimator.fit` takes them.
    clock
        The newest instant known so far, seconds; jobs without any instant come after it, in their order.
    every_end
        Whether every row is an outcome, whatever ``observed`` says.

    Raises
    ------
    InputError
        A duration is negative, missing or infinite, or a column has another length; the row is named.
    """
    hours, exact = checked_durations(features, y, observed)
    if known_at is not None:
        known_at = row_by_row(known_at, features, "known_at")
    if every_end:
        exact = np.ones(len(features), dtype=bool)
    submit, known = _instants(features["submit_time"], known_at, hours, clock)
    log_hours = np.log(np.maximum(hours, FLOOR_H))
    return Jobs(features, rung_keys(features), log_hours, exact, submit, known, log_limits(features))


def log_limits(features: pd.DataFrame) -> np.ndarray:
    """Return the log of the requested walltime in hours, infinite where none (or 0) is requested."""
    limit = features["requested_walltime_h"].to_numpy(dtype=float)
    return np.log(np.where(limit > 0, np.maximum(limit, FLOOR_H), np.inf))


def refuse(bad: np.ndarray, values: Any, field: str, fix: str) -> None:
    """Raise for the first bad value, naming its row."""
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise InputError(f"{values[at]!r} cannot be used", row=at + 2, field=field, fix=fix)


def seconds(instants: pd.Series) -> np.ndarray:
    """Return instants as seconds since 1970, NaN for none."""
    utc = instants if isinstance(instants.dtype, pd.DatetimeTZDtype) else pd.to_datetime(instants, utc=True)
    plain = utc.to_numpy(dtype="datetime64[us]")
    return np.where(np.isnat(plain), np.nan, plain.astype(np.int64) / 1e6)


def _instants(
    submit: pd.Series, known_at: pd.Series | None, hours: np.ndarray, clock: float
) -> tuple[np.ndarray, np.ndarray]:
    start = seconds(submit)
    known = np.full(len(start), np.nan) if known_at is None else seconds(known_at)
    start = np.where(np.isnan(start), known - hours * 3600.0, start)
    # no instant at all: rows in their order, after all that is known so far
    after = (clock if np.isfinite(clock) else 0.0) + 1.0 + np.arange(len(start), dtype=float)
    bare = np.isnan(start)
    known = np.where(np.isnan(known), np.where(bare, after, start + hours * 3600.0), known)
    return np.where(bare, after, start), known
