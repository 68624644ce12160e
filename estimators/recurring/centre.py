"""Where the middle of an answer lies: at what its own past repeats, or where the trees see it.

Durations that recur do so closely or not at all: a user's jobs take twenty minutes or ten hours, and what lies between
is seldom right. Where much of the belief falls within a factor of two, that cluster is the answer; where it does not,
and for a recipe that is new, the trees' median is the better one, since it has seen how such cases end.
"""
# mypy: disable-error-code="no-untyped-def"

from dataclasses import dataclass, field

import numpy as np
from numba import njit

from tidegrid.estimators.recurring.calibration import GRID
from tidegrid.estimators.recurring.kernels import BY_RUNG, MEMBERS

WINDOW = 0.28 * np.log(10.0)
"""Half the width of a cluster, in log time: a factor of 1.9."""

LEAN = 0.2 * np.log(10.0)
"""How far within a cluster the answer leans towards the trees, in log time: a factor of 1.6."""

RAMP = 0.1
"""The cluster takes over between this much less and this much more belief than the threshold."""

THRESHOLDS = (0.45, 0.0, 0.35, 0.55, 2.0)
"""The belief from which a cluster answers, the usual one first: 0 lets it always answer, 2 never.

On the first half of the trace of Helios Venus (2020), 0.45 costs 0.001 decades of mean error against the best of 0.35
to 0.55, and 0.007 of rank correlation against the trees alone; on that of Alliance Cedar (2021) 0.014 against 0.55.
"""

CHOICES = len(THRESHOLDS) + 1
"""The thresholds, then the mixture's own median, without trees."""

MEMORY, ENOUGH, GAIN = 1000.0, 50.0, 0.01
"""Outcomes that a record reaches back to; how many it needs before trees are believed at all; and what another choice
must gain on the usual one."""

_HALF = int(np.searchsorted(GRID, 0.5))
_FINE = np.linspace(0.01, 0.99, 99)


@njit(cache=True)
def _clusters(quantiles, grid, fine, width, mass, middle):
    n = fine.shape[0]
    for row in range(quantiles.shape[0]):
        q = np.interp(fine, grid, quantiles[row])
        high = 0
        mass[row] = 0.0
        for low in range(n):
            while high + 1 < n and q[high + 1] <= q[low] + width:
                high += 1
            held = fine[high] - fine[low] + 0.01
            if held > mass[row] + 1e-9:
                mass[row] = held
                middle[row] = q[(low + high) // 2]


def clusters(quantiles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how much belief each row's densest cluster holds, and the cluster's median in log hours.

    Parameters
    ----------
    quantiles : ndarray of shape (rows, len(GRID))
        Log hours at ``GRID``.
    """
    mass, middle = np.empty(len(quantiles)), np.empty(len(quantiles))
    _clusters(quantiles, GRID, _FINE, 2 * WINDOW, mass, middle)
    return mass, middle


def is_new(inputs: np.ndarray) -> np.ndarray:
    """Say of which rows no job of the same recipe has ended; where rows have no recipe, of the same user and GPUs."""
    first = 2 * len(MEMBERS) + 1
    recipe, size = inputs[:, first], inputs[:, first + 2 * BY_RUNG]
    return np.where(np.isnan(recipe), size, recipe) == 0.0


def choices(quantiles: np.ndarray, trees: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return the middles of each row's answer in log hours that may be chosen, shape (rows, CHOICES).

    Parameters
    ----------
    quantiles : ndarray of shape (rows, len(GRID))
        The mixture's log hours at ``GRID``.
    trees : ndarray of shape (rows,)
        The trees' median.
    new : ndarray of bool
        Whose recipe is new: the past of other recipes clusters too, but says little.
    """
    mass, cluster = clusters(quantiles)
    near = cluster + np.clip(trees - cluster, -LEAN, LEAN)
    out = np.empty((len(quantiles), CHOICES))
    for k, threshold in enumerate(THRESHOLDS):
        share = np.where(new, 0.0, np.clip((mass - threshold + RAMP) / (2 * RAMP), 0.0, 1.0))
        out[:, k] = trees + share * (near - trees)
    out[:, -1] = quantiles[:, _HALF]
    return out


@dataclass
class Record:
    """How far each choice was from past outcomes: the mean absolute error in log time, the newest counting most.

    Attributes
    ----------
    losses : ndarray of shape (CHOICES,)
        Sums of the errors, each older one weighing less by a factor of 1 - 1 / ``MEMORY``.
    weight : float
        The sum of the weights.
    """

    losses: np.ndarray = field(default_factory=lambda: np.zeros(CHOICES))
    weight: float = 0.0

    def best(self) -> int:
        """Return the choice that has been the closest; the usual one unless another gains enough."""
        return int(_best(self.losses, self.weight))

    def follow(self, submit: np.ndarray, known: np.ndarray, errors: np.ndarray) -> np.ndarray:
        """Take in outcomes; return what each row would have been answered by, as of its submission.

        Parameters
        ----------
        submit, known : ndarray of shape (rows,)
            Instants, seconds.
        errors : ndarray of shape (rows, CHOICES)
            Absolute errors in log time.
        """
        asked, told = np.argsort(submit, kind="stable"), np.argsort(known, kind="stable")
        chosen = np.empty(len(submit), dtype=np.int64)
        self.weight = float(
            _follow(
                self.losses, self.weight, asked, told, submit, known, np.ascontiguousarray(errors), chosen
            )
        )
        return chosen


@njit(cache=True)
def _best(losses, weight):
    if weight < ENOUGH:
        return losses.shape[0] - 1
    best = np.argmin(losses)
    return best if losses[best] < (1.0 - GAIN) * losses[0] else 0


@njit(cache=True)
def _follow(losses, weight, asked, told, submit, known, errors, chosen):
    keep = 1.0 - 1.0 / MEMORY
    j = 0
    for i in range(asked.shape[0] + 1):
        # an outcome at a row's own instant is not yet known to it; after the last row the rest is taken in
        until = submit[asked[i]] if i < asked.shape[0] else np.inf
        while j < told.shape[0] and known[told[j]] < until:
            for k in range(losses.shape[0]):
                losses[k] = keep * losses[k] + errors[told[j], k]
            weight = keep * weight + 1.0
            j += 1
        if i < asked.shape[0]:
            chosen[asked[i]] = _best(losses, weight)
    return weight


def moved(quantiles: np.ndarray, middle: np.ndarray) -> np.ndarray:
    """Return quantiles whose median is ``middle``; the tails stay: what the past has shown remains possible."""
    share = np.clip(1.0 - np.abs(GRID - 0.5) / 0.4, 0.0, 1.0)
    out = quantiles + share * (middle - quantiles[:, _HALF])[:, None]
    out[:, _HALF] = middle
    out[:, :_HALF] = np.sort(np.minimum(out[:, :_HALF], middle[:, None]), axis=1)
    out[:, _HALF + 1 :] = np.sort(np.maximum(out[:, _HALF + 1 :], middle[:, None]), axis=1)
    return out
