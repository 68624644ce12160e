"""The distribution that a job's own past foretells: each rung answers as far as it has evidence."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from scipy.stats import norm

from tidegrid.estimators.recurring.keys import RUNGS
from tidegrid.estimators.recurring.memory import Past

LADDER = tuple(RUNGS.index(name) for name in ("user+gpus+name", "user+gpus", "user", "group", "site"))
"""The rungs that answer, finest first. The recipe only describes a job to the trees: users vary what they ask for
between jobs that take as long."""

NEWEST = 32
"""How many of a rung's newest jobs answer."""

SHRINK = 3.0
"""Jobs at which a rung is believed by half; the next coarser rung gets the rest, the prior what is left at last."""

DECAY = 0.97
"""Weight of a job against the next newer one of its rung."""

PRIOR_MEDIAN_H, PRIOR_SIGMA = 0.5, 2.8
"""A job of which nothing is known: log-normal about half an hour, with a standard deviation of 1.2 decades.

The public traces of Helios Venus (2020) and Alliance Cedar (2021) have medians of 0.1 to 3.5 hours and a standard
deviation of 1.0 to 1.3 decades; the prior spans both: 80 % of it lies between 50 seconds and 18 hours.
"""

DOUBT = 0.03
"""The share of belief that the prior keeps however long the past: a job may be the first of its kind."""

SPREAD = 0.1
"""Log time by which a job that repeats may differ from a single one before it, as a standard deviation."""

NEAR = 1.0
"""The distance in log time from the trees' answer at which a past job counts less by a factor of e."""

GRID = np.array(
    [0.001, 0.005, 0.01, 0.025] + [round(0.05 * i, 2) for i in range(1, 20)] + [0.975, 0.99, 0.995, 0.999]
)
"""The levels at which a predictive distribution is sampled."""

TIE = 0.01
"""Log durations that differ by less are the same: jobs that repeat do so to the second at best."""


_PRIOR = norm.ppf((np.arange(31) + 0.5) / 31, np.log(PRIOR_MEDIAN_H), PRIOR_SIGMA)
_AGES = DECAY ** np.arange(NEWEST)
_TOTAL = np.concatenate([[1.0], np.cumsum(_AGES)])
_EVIDENCE = np.concatenate([[0.0], np.cumsum(_AGES) ** 2 / np.cumsum(_AGES**2)])


def sample(past: Past) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's past durations in ascending order (log hours) and what each weighs, shape (rows, jobs).

    Each rung's jobs share what it is believed, the prior's what is left. A cell without a job is infinite and weighs
    nothing.
    """
    rows, cells = len(past.hours), len(LADDER) * NEWEST
    hours = past.hours[:, LADDER, :NEWEST]
    there = ~np.isnan(hours)
    jobs = there.sum(axis=2)
    doubt = SHRINK / (_EVIDENCE[jobs] + SHRINK)
    left = np.cumprod(doubt, axis=1)
    share = (1.0 - DOUBT) * left * (1.0 / doubt - 1.0) / _TOTAL[jobs]
    prior = (DOUBT + (1.0 - DOUBT) * left[:, -1:]) / len(_PRIOR)
    weight = np.where(there, share[..., None] * _AGES, 0.0).reshape(rows, cells)
    weight = np.concatenate([weight, np.repeat(prior, len(_PRIOR), axis=1)], axis=1)
    values = np.where(there, hours, np.inf).reshape(rows, cells)
    values = np.concatenate([values, np.broadcast_to(_PRIOR, (rows, len(_PRIOR)))], axis=1)
    order = np.argsort(values, axis=1, kind="stable")
    weight = np.take_along_axis(weight, order, axis=1)
    exact = past.exact[:, LADDER, :NEWEST].reshape(rows, cells)
    if not exact.all():
        exact = np.concatenate([exact, np.ones((rows, len(_PRIOR)), dtype=bool)], axis=1)
        weight = beyond_bounds(weight, np.take_along_axis(exact, order, axis=1))
    return np.take_along_axis(values, order, axis=1).astype(np.float32), weight.astype(np.float32)


def foretold(values: np.ndarray, weight: np.ndarray, told: np.ndarray | None = None) -> np.ndarray:
    """Return each row's log hours at ``GRID`` from its past as :func:`sample` gives it, shape (rows, len(GRID)).

    Where the trees have ``told`` log hours, shape (rows,), past jobs count the more the nearer they are to that.
    """
    if told is not None:
        weight = weight * np.exp(-np.abs(values - told[:, None]) / NEAR)
    below = np.cumsum(weight, axis=1, dtype=float)
    shift = 2.0 * np.arange(len(below))[:, None]
    at = np.searchsorted((below / below[:, -1:] + shift).ravel(), (GRID + shift).ravel())
    at = np.minimum(at, below.size - 1).reshape(len(below), len(GRID))
    return values.ravel()[at].astype(float)


def spread(weight: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """Return how far levels lie from the past durations themselves, shape (rows, levels), in log time.

    What has repeated to the second need not again: the bandwidth falls with the fifth root of the number of jobs
    (Silverman 1986), here Kish's effective one.
    """
    z = [NormalDist().inv_cdf(level) for level in levels]
    return SPREAD * (weight**2).sum(axis=1, keepdims=True) ** 0.2 * np.array(z)


def beyond_bounds(weight: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the weights of durations in ascending order (rows, jobs), those of lower bounds handed on.

    A lower bound hands its weight to the durations above it (Kaplan and Meier 1958); the prior's are the last.
    """
    risk = np.cumsum(weight[:, ::-1], axis=1)[:, ::-1]
    gone = np.divide(np.where(exact, weight, 0.0), risk, out=np.zeros_like(risk), where=risk > 1e-12)
    alive = np.cumprod(1.0 - np.minimum(gone, 1.0), axis=1)
    return np.concatenate([np.ones((len(alive), 1)), alive[:, :-1]], axis=1) - alive


def read(quantiles: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return quantiles at ``levels`` (one for each row and column) from those at ``GRID``, linearly in log time."""
    hi = np.clip(np.searchsorted(GRID, levels), 1, len(GRID) - 1)
    share = np.clip((levels - GRID[hi - 1]) / (GRID[hi] - GRID[hi - 1]), 0.0, 1.0)
    rows = np.arange(len(quantiles))[:, None]
    return quantiles[rows, hi - 1] * (1 - share) + quantiles[rows, hi] * share


def transform(quantiles: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return F(y) of each row from its quantiles at ``GRID``; outside them 0 or 1, within a tie the middle."""
    above = (quantiles <= y[:, None] + TIE).sum(axis=1)
    below = (quantiles < y[:, None] - TIE).sum(axis=1)
    rows, last = np.arange(len(y)), len(GRID) - 1
    lo, hi = np.clip(below - 1, 0, last), np.clip(below, 0, last)
    x0, x1 = quantiles[rows, lo], quantiles[rows, hi]
    share = np.divide(y - x0, x1 - x0, out=np.zeros(len(y)), where=x1 > x0)
    inside = GRID[lo] + np.clip(share, 0.0, 1.0) * (GRID[hi] - GRID[lo])
    tie = 0.5 * (GRID[hi] + GRID[np.clip(above - 1, 0, last)])
    out = np.where(above > below, tie, inside)
    return np.where(above == 0, 0.0, np.where(below == len(GRID), 1.0, out))
