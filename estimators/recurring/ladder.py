"""The distribution that a job's own past foretells: each rung answers as far as it has evidence."""

import numpy as np
from scipy.signal import lfilter
from scipy.stats import norm

from tidegrid.estimators.recurring.keys import RUNGS
from tidegrid.estimators.recurring.memory import WINDOW, Past

LADDER = tuple(RUNGS.index(name) for name in ("user+gpus+name", "user+gpus", "user", "group", "site"))
"""The rungs that answer, finest first. The recipe only describes a job to the trees: users vary what they ask for
between jobs that take as long."""

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

LOW, BIN, BINS = -9.0, 0.05, 400
"""The grid of log hours on which distributions are summed: from 0.4 seconds to 60,000 hours in steps of 5 %."""

NARROW, WIDE, TAIL = 0.12, 0.7, 0.1
"""Widths of the two-sided exponential kernel in log time, and the share of the wide one."""

CLUSTER = 26
"""Bins of a cluster: durations within a factor of 1.9 of its middle."""

BEYOND = 0.4
"""How far past the largest lower bound its truth is taken to lie where no longer duration is known, in log time."""

GRID = np.array(
    [0.001, 0.005, 0.01, 0.025] + [round(0.05 * i, 2) for i in range(1, 20)] + [0.975, 0.99, 0.995, 0.999]
)
"""The levels at which a predictive distribution is sampled."""

HALF = int(np.searchsorted(GRID, 0.5))

_EDGES = LOW + BIN * np.arange(BINS + 1)
_PRIOR = np.diff(norm.cdf(_EDGES, np.log(PRIOR_MEDIAN_H), PRIOR_SIGMA))
_PRIOR = _PRIOR / _PRIOR.sum()


def mixture(past: Past) -> np.ndarray:
    """Return each row's belief in each bin of log hours, shape (rows, BINS), summing to 1."""
    rows = len(past.hours)
    out, rest = np.zeros((rows, BINS)), np.ones(rows)
    ages = DECAY ** np.arange(WINDOW)
    for r in LADDER:
        values = past.hours[:, r]
        weight = np.where(np.isnan(values), 0.0, ages)
        if not weight.any():
            continue
        total = weight.sum(axis=1)
        jobs = total**2 / np.maximum((weight**2).sum(axis=1), 1e-12)
        share = rest * jobs / (jobs + SHRINK)
        out += _mass(values, past.exact[:, r], weight * (share / np.maximum(total, 1e-12))[:, None])
        rest = rest - share
    return out + rest[:, None] * _PRIOR


def _mass(values: np.ndarray, exact: np.ndarray, weight: np.ndarray) -> np.ndarray:
    bounds = (weight > 0) & ~exact
    mass = _binned(values, np.where(exact, weight, 0.0))
    at = np.flatnonzero(bounds.any(axis=1))
    if len(at):
        # Kaplan and Meier (1958): a lower bound hands its weight to the durations above it
        lost = _binned(values[at], np.where(exact[at], 0.0, weight[at]))
        risk = np.cumsum((mass[at] + lost)[:, ::-1], axis=1)[:, ::-1]
        stay = 1.0 - np.divide(mass[at], risk, out=np.zeros_like(risk), where=risk > 1e-12)
        alive = np.cumprod(np.maximum(stay, 0.0), axis=1)
        total = weight[at].sum(axis=1)
        before = np.column_stack([np.ones(len(at)), alive[:, :-1]])
        mass[at] = (before - alive) * total[:, None]
        last = np.where(bounds[at], values[at], -np.inf).max(axis=1) + BEYOND
        mass[at] += _binned(last[:, None], (alive[:, -1] * total)[:, None])
    return mass


def _binned(values: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return weights summed by bin, each shared between the two bins that its value lies between."""
    place = np.clip((np.where(weight > 0, values, LOW) - LOW) / BIN - 0.5, 0.0, BINS - 1.001)
    low = place.astype(np.int64)
    flat = (np.arange(len(values))[:, None] * BINS + low).ravel()
    upper, size = (weight * (place - low)).ravel(), len(values) * BINS
    mass = np.bincount(flat, weight.ravel() - upper, size)
    return (mass + np.bincount(flat + 1, upper, size + 1)[:size]).reshape(-1, BINS)


def cluster(mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how much belief each row's densest cluster holds, and the cluster's median in log hours."""
    rows = np.arange(len(mass))
    below = np.column_stack([np.zeros(len(mass)), np.cumsum(mass, axis=1)])
    held = below[:, CLUSTER:] - below[:, :-CLUSTER]
    best = held.argmax(axis=1)
    return held[rows, best], _read(below, below[rows, best][:, None] + held[rows, best][:, None] / 2)[:, 0]


def quantiles(mass: np.ndarray) -> np.ndarray:
    """Return log hours at ``GRID`` of the smoothed belief, shape (rows, len(GRID))."""
    smooth = (1.0 - TAIL) * _smoothed(mass, NARROW) + TAIL * _smoothed(mass, WIDE)
    smooth = (1.0 - DOUBT) * smooth + DOUBT * _PRIOR
    below = np.column_stack([np.zeros(len(mass)), np.cumsum(smooth, axis=1)])
    below /= below[:, -1:]
    return _read(below, np.tile(GRID, (len(mass), 1)))


def _smoothed(mass: np.ndarray, width: float) -> np.ndarray:
    # one pass forward and one back; a product with a matrix would round each row by how many rows there are
    keep = np.exp(-BIN / width)
    ahead = lfilter([1.0], [1.0, -keep], mass, axis=1)
    back = lfilter([1.0], [1.0, -keep], mass[:, ::-1], axis=1)[:, ::-1]
    return np.asarray((ahead + back - mass) * (1.0 - keep) / (1.0 + keep))


def _read(below: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return where each row's cumulated belief reaches the wanted ones, linear within a bin."""
    if not len(below):
        return np.empty(wanted.shape)
    shift = 2.0 * np.arange(len(below))[:, None]
    at = np.searchsorted((below + shift).ravel(), (wanted + shift).ravel()).reshape(wanted.shape)
    at = np.clip(at - np.arange(len(below))[:, None] * (BINS + 1), 1, BINS)
    high, low = np.take_along_axis(below, at, axis=1), np.take_along_axis(below, at - 1, axis=1)
    inside = np.divide(wanted - low, high - low, out=np.full(wanted.shape, 0.5), where=high > low)
    return LOW + BIN * (at - 1 + np.clip(inside, 0.0, 1.0))


def moved(found: np.ndarray, middle: np.ndarray) -> np.ndarray:
    """Return quantiles whose median is ``middle``; the tails stay: what the past has shown remains possible."""
    share = np.clip(1.0 - np.abs(GRID - 0.5) / 0.4, 0.0, 1.0)
    out = found + share * (middle - found[:, HALF])[:, None]
    out[:, HALF] = middle
    out[:, :HALF] = np.sort(np.minimum(out[:, :HALF], middle[:, None]), axis=1)
    out[:, HALF + 1 :] = np.sort(np.maximum(out[:, HALF + 1 :], middle[:, None]), axis=1)
    return out
