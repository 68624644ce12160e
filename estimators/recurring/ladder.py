"""The distribution that a job's own past foretells: each rung answers as far as it has evidence."""

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

GRID = np.array(
    [0.001, 0.005, 0.01, 0.025] + [round(0.05 * i, 2) for i in range(1, 20)] + [0.975, 0.99, 0.995, 0.999]
)
"""The levels at which a predictive distribution is sampled."""

HALF = int(np.searchsorted(GRID, 0.5))

_PRIOR = norm.ppf((np.arange(31) + 0.5) / 31, np.log(PRIOR_MEDIAN_H), PRIOR_SIGMA)
_AGES = DECAY ** np.arange(NEWEST)
_EVIDENCE = np.concatenate([[0.0], np.cumsum(_AGES) ** 2 / np.cumsum(_AGES**2)])
_TOTAL = np.concatenate([[1.0], np.cumsum(_AGES)])


def foretold(past: Past) -> np.ndarray:
    """Return log hours at ``GRID`` of what each row's past foretells, shape (rows, len(GRID))."""
    rows = len(past.hours)
    hours = past.hours[:, LADDER, :NEWEST]
    jobs = (~np.isnan(hours)).sum(axis=2)
    doubt = SHRINK / (_EVIDENCE[jobs] + SHRINK)
    left = np.cumprod(doubt, axis=1)
    share = (1.0 - DOUBT) * left * (1.0 / doubt - 1.0)
    weight = np.where(np.isnan(hours), 0.0, (share / _TOTAL[jobs])[..., None] * _AGES).reshape(rows, -1)
    rest = DOUBT + (1.0 - DOUBT) * left[:, -1:]
    # a cell without a job sorts last and weighs nothing
    values = np.where(np.isnan(hours), np.inf, hours).reshape(rows, -1)
    values = np.concatenate([values, np.tile(_PRIOR, (rows, 1))], axis=1)
    weight = np.concatenate([weight, np.tile(rest / len(_PRIOR), (1, len(_PRIOR)))], axis=1)
    exact = past.exact[:, LADDER, :NEWEST].reshape(rows, -1)
    order = np.argsort(values, axis=1, kind="stable")
    values, weight = np.take_along_axis(values, order, 1), np.take_along_axis(weight, order, 1)
    if not exact.all():
        seen = np.concatenate([exact, np.ones((rows, len(_PRIOR)), dtype=bool)], axis=1)
        weight = beyond_bounds(weight, np.take_along_axis(seen, order, 1))
    # a value stands at the middle of its weight
    return read(np.cumsum(weight, axis=1) - weight / 2, values, np.tile(GRID, (rows, 1)))


def beyond_bounds(weight: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the weights of durations in ascending order (rows, jobs), those of lower bounds handed on.

    A lower bound hands its weight to the durations above it (Kaplan and Meier 1958); the prior's are the last.
    """
    risk = np.cumsum(weight[:, ::-1], axis=1)[:, ::-1]
    gone = np.divide(np.where(exact, weight, 0.0), risk, out=np.zeros_like(risk), where=risk > 1e-12)
    alive = np.cumprod(1.0 - np.minimum(gone, 1.0), axis=1)
    return np.concatenate([np.ones((len(alive), 1)), alive[:, :-1]], axis=1) - alive


def read(at: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Interpolate each row of ``values``, given at the ascending ``at`` (rows, n), at its ``wanted`` (rows, m)."""
    if not len(at):
        return np.empty(wanted.shape)
    shift = 2.0 * np.arange(len(at))[:, None]
    high = np.searchsorted((at + shift).ravel(), (wanted + shift).ravel()).reshape(wanted.shape)
    high = np.clip(high - np.arange(len(at))[:, None] * at.shape[1], 1, at.shape[1] - 1)
    # cells without a job stand last, at infinity
    ends = np.where(np.isfinite(values), values, _PRIOR[-1])
    x0, x1 = np.take_along_axis(at, high - 1, axis=1), np.take_along_axis(at, high, axis=1)
    y0, y1 = np.take_along_axis(ends, high - 1, axis=1), np.take_along_axis(ends, high, axis=1)
    share = np.divide(wanted - x0, x1 - x0, out=np.full(wanted.shape, 0.5), where=x1 > x0)
    return y0 + np.clip(share, 0.0, 1.0) * (y1 - y0)


def transform(quantiles: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return F(y) of each row from its quantiles at ``GRID``; outside them 0 or 1, within a tie the middle."""
    above = (quantiles <= y[:, None]).sum(axis=1)
    below = (quantiles < y[:, None]).sum(axis=1)
    rows, last = np.arange(len(y)), len(GRID) - 1
    lo, hi = np.clip(below - 1, 0, last), np.clip(below, 0, last)
    x0, x1 = quantiles[rows, lo], quantiles[rows, hi]
    share = np.divide(y - x0, x1 - x0, out=np.zeros(len(y)), where=x1 > x0)
    inside = GRID[lo] + np.clip(share, 0.0, 1.0) * (GRID[hi] - GRID[lo])
    tie = 0.5 * (GRID[hi] + GRID[np.clip(above - 1, 0, last)])
    out = np.where(above > below, tie, inside)
    return np.where(above == 0, 0.0, np.where(below == len(GRID), 1.0, out))


def moved(found: np.ndarray, middle: np.ndarray) -> np.ndarray:
    """Return quantiles whose median is ``middle``; the tails stay: what the past has shown remains possible."""
    share = np.clip(1.0 - np.abs(GRID - 0.5) / 0.4, 0.0, 1.0)
    out = found + share * (middle - found[:, HALF])[:, None]
    out[:, HALF] = middle
    out[:, :HALF] = np.sort(np.minimum(out[:, :HALF], middle[:, None]), axis=1)
    out[:, HALF + 1 :] = np.sort(np.maximum(out[:, HALF + 1 :], middle[:, None]), axis=1)
    return out
