"""Bands: what a new site's runs differ from the physics by, as a heavy-tailed distribution of log error.

The unit of chance is the source (a site, a software stack), not the row: a row's log error is its source's offset plus
what it differs from the others of its source by. Without history the band of a run is the predictive distribution of a
row of a source never seen: Student's t with few degrees of freedom, scaled by what a request leaves unsaid and by what
the physics knows least. The scale is fitted on predictions that had not seen the source, each source with one vote.
History narrows it in the measure in which it has seen rows like this one.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from tidegrid.estimators.conformal import ConformalQuantiles
from tidegrid.estimators.gpus import ARCHS
from tidegrid.estimators.training.features import Runs

FREEDOM = 5.0
"""Degrees of freedom of Student's t: about twenty sources do not tell a light tail from a heavy one."""

BASE_SCALE = 0.30
"""Scale of the log error for a run that says everything about itself, before any source is seen."""

SCALE_TERMS: Mapping[str, float] = {
    "unsaid": 0.05, "experts": 0.25, "generation": 0.4, "length": 0.4, "long": 0.3, "unknown_gpu": 0.6,
}  # fmt: skip
"""What widens the prior's band, as starting coefficients of the log scale: recomputation and layout not said, mixtures
of experts, generated text, samples of unknown length, sequences over 16384 tokens, a GPU without a data sheet."""

SHRINK = 0.15
"""Standard deviation of a coefficient around its start: few sources show each of them."""

NOVEL = (1.5, 1.25, 1.0)
"""How much wider a band is on an architecture that none, one, or more sources have calibrated."""

PRIOR_SOURCES = 8.0
"""Sources that the fitted scale counts for against the coverage of single sources."""

HALF = 20.0
"""Residuals at which a pool's own quantiles weigh as much as what they are shrunk towards."""


def scale_inputs(r: Runs) -> np.ndarray:
    """Return the inputs of the scale model, shape (rows, len(SCALE_TERMS))."""
    unsaid = np.isnan(r.checkpointing).astype(float) + r.assumed_layout
    return np.column_stack([unsaid, r.moe, r.rl, r.assumed_length, r.seq > 16384, ~r.known_gpu]).astype(float)


def novelty(r: Runs, scale: Mapping[str, float]) -> np.ndarray:
    """Return how much wider a band is on an architecture that few sources have calibrated, shape (rows,).

    ``scale`` holds the number of sources of each architecture as ``arch_<name>``; none there means that nobody counted.
    """
    if not any(name.startswith("arch_") for name in scale):
        return np.ones(len(r))
    counts = np.array([int(scale.get(f"arch_{arch}", 0)) for arch in ARCHS])
    return np.array(NOVEL)[np.minimum(counts, len(NOVEL) - 1)][r.arch]


def prior_scale(r: Runs, scale: Mapping[str, float]) -> np.ndarray:
    """Return the scale of each row's log error at a site never seen."""
    coefficient = np.array([scale.get(name, start) for name, start in SCALE_TERMS.items()])
    base = scale.get("base", BASE_SCALE)
    return np.asarray(base * np.exp(scale_inputs(r) @ coefficient) * novelty(r, scale))


def standard_quantiles(levels: Sequence[float]) -> np.ndarray:
    """Return the quantiles of the scaled log error, shape (levels,)."""
    return np.array(_student(tuple(levels)))


@lru_cache(maxsize=256)
def _student(levels: tuple[float, ...]) -> tuple[float, ...]:
    from scipy.special import stdtrit

    return tuple(float(q) for q in stdtrit(FREEDOM, np.asarray(levels, dtype=float)))


def fit_scale(r: Runs, residual: np.ndarray, group: np.ndarray, novel: np.ndarray) -> dict[str, float]:
    """Fit the scale on left-out sources, each with one vote.

    The likelihood is Student's t, a row of a source of n rows counting 1/n. Then the scale is moved towards what covers
    80 % with each source counted once: a likelihood is a statement about the whole curve, a band about two points.

    Parameters
    ----------
    r
        The runs.
    residual
        Log actual over predicted, each row from constants that never saw its source, shape (rows,).
    group
        The source of each row.
    novel
        How novel each row's architecture was to the constants that predicted it (:func:`novelty`).

    Returns
    -------
    dict
        ``base`` and the coefficients of :data:`SCALE_TERMS`.
    """
    from scipy.optimize import minimize

    inputs, residual = scale_inputs(r), residual / novel
    start = np.array(list(SCALE_TERMS.values()))
    _, code, rows = np.unique(group, return_inverse=True, return_counts=True)
    vote, sources = 1.0 / rows[code], len(rows)

    def loss(x: np.ndarray) -> float:
        log_scale = x[0] + inputs @ x[1:]
        tail = (FREEDOM + 1.0) / 2.0 * np.log1p((residual / np.exp(log_scale)) ** 2 / FREEDOM)
        return float(np.sum(vote * (tail + log_scale)) + np.sum((x[1:] - start) ** 2) / (2 * SHRINK**2))

    x = minimize(loss, np.concatenate([[np.log(BASE_SCALE)], start]), method="L-BFGS-B").x
    size = np.abs(residual) / np.exp(x[0] + inputs @ x[1:])
    order = np.argsort(size, kind="stable")
    at = np.searchsorted(np.cumsum(vote[order]), 0.8 * (sources + 1.0))
    covering = size[order][min(at, len(size) - 1)] / standard_quantiles([0.9])[0]
    base = np.exp(x[0]) * covering ** (sources / (sources + PRIOR_SOURCES))
    return {"base": float(base), **dict(zip(SCALE_TERMS, (float(v) for v in x[1:]), strict=True))}


class Pool:
    """Scaled residuals of predictions that had not seen their outcome: the history's quantiles.

    Parameters
    ----------
    residuals : ndarray of shape (n,)
        Actual minus predicted log hours over the predicted scale.
    """

    def __init__(self, residuals: np.ndarray, stack: np.ndarray | None = None) -> None:
        self.residuals = np.asarray(residuals, dtype=float)
        self.stack = np.full(len(self.residuals), "") if stack is None else np.asarray(stack)

    def calibrated(self, levels: Sequence[float]) -> bool:
        """Say whether there are residuals enough for every level."""
        return ConformalQuantiles(self.residuals).calibrated(levels)

    def quantiles(self, levels: Sequence[float]) -> np.ndarray:
        """Return the conformal quantiles of all rows, joined by Student's t while residuals are few."""
        return self._shrunk(self.residuals, standard_quantiles(levels), levels)

    def by_stack(self, stack: np.ndarray, levels: Sequence[float]) -> np.ndarray:
        """Return each row's quantiles: its stack's where that has residuals enough, else all rows'; (rows, levels)."""
        pooled = self.quantiles(levels)
        uniques, codes = np.unique(stack, return_inverse=True)
        own = [self._shrunk(self.residuals[self.stack == name], pooled, levels) for name in uniques]
        return np.array(own).reshape(len(uniques), len(levels))[codes]

    @staticmethod
    def _shrunk(residuals: np.ndarray, towards: np.ndarray, levels: Sequence[float]) -> np.ndarray:
        n = len(residuals)
        if n == 0:
            return towards
        weight = n / (n + HALF)
        return np.asarray(weight * ConformalQuantiles(residuals).offsets(levels) + (1.0 - weight) * towards)
