"""Bands: conformal in log space, asymmetric, scaled by what is not known of a run.

A row's band is its scale times quantiles of scaled residuals. The prior's scale grows with what a request leaves unsaid
and with what the physics knows least (mixtures of experts, adapters, generation, many nodes); its quantiles come from
sources that calibration had left out. History replaces both, in the measure in which it has seen rows like this one.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from tidegrid.estimators.conformal import ConformalQuantiles
from tidegrid.estimators.gpus import ARCHS
from tidegrid.estimators.training import variants
from tidegrid.estimators.training.features import Runs

GRID = np.concatenate([[0.001, 0.005, 0.01, 0.025], np.linspace(0.05, 0.95, 19), [0.975, 0.99, 0.995, 0.999]])
"""Levels at which quantile functions are kept."""

BASE_SCALE = 0.22
"""Scale of the prior's log residual for a run that says everything about itself."""

SCALE_TERMS: Mapping[str, float] = {
    "unsaid": 0.15, "experts": 0.3, "adapters": 0.2, "generation": 0.3, "nodes": 0.15, "narrow": 0.1, "unpacked": 0.4,
    "unknown_gpu": 0.7, "long": 0.2,
}  # fmt: skip
"""What widens the prior's band, as starting coefficients of the log scale."""

HALF = 20.0
"""Residuals at which a pool's own quantiles weigh as much as what they are shrunk towards."""

ALIKE = 4.0
"""Sources at which half of their common bias is believed."""

NOVEL = (1.6, 1.3, 1.0)
"""How much wider a band is on an architecture that none, one, or more sources have calibrated."""

NESTED = 0.92
"""What the leave-source-out band is narrowed by: a source left out of it is predicted from one source fewer than the
next one will be, and without the site's offset. Measured by leaving sources out twice (benchmarks/
training_timings.py)."""

ENOUGH_ROWS, ENOUGH_SOURCES = 60, 4
"""What a variant needs for a band of its own; below, it shares its family's."""


def scale_inputs(r: Runs) -> np.ndarray:
    """Return the inputs of the scale model, shape (rows, len(SCALE_TERMS))."""
    unsaid = np.isnan(r.checkpointing).astype(float) + r.assumed_layout + np.isnan(r.narrow)
    return np.column_stack([
        unsaid, r.moe, r.lora, r.rl, r.gpus > r.node, np.nan_to_num(r.narrow, nan=0.0) > 0, r.packing < 0.5,
        ~r.known_gpu, r.seq > 16384,
    ]).astype(float)  # fmt: skip


def novelty(r: Runs, scale: Mapping[str, float]) -> np.ndarray:
    """Return how much wider a band is on an architecture that few sources have calibrated, shape (rows,).

    ``scale`` holds the number of sources of each architecture as ``arch_<name>``; none there means that nobody counted.
    """
    if not any(name.startswith("arch_") for name in scale):
        return np.ones(len(r))
    counts = np.array([int(scale.get(f"arch_{arch}", 0)) for arch in ARCHS])
    return np.array(NOVEL)[np.minimum(counts, len(NOVEL) - 1)][r.arch]


def prior_scale(r: Runs, scale: Mapping[str, float]) -> np.ndarray:
    """Return the prior's scale for each row, in log hours."""
    coefficient = np.array([scale.get(name, start) for name, start in SCALE_TERMS.items()])
    return np.asarray(
        scale.get("base", BASE_SCALE) * np.exp(scale_inputs(r) @ coefficient) * novelty(r, scale)
    )


def weighted_quantiles(
    values: np.ndarray, weight: np.ndarray, levels: Sequence[float] | np.ndarray
) -> np.ndarray:
    """Return weighted quantiles, interpolated between the mid-points of the weights; shape (levels,)."""
    order = np.argsort(values, kind="stable")
    v, w = values[order], weight[order]
    at = (np.cumsum(w) - 0.5 * w) / w.sum()
    return np.interp(np.asarray(levels, dtype=float), at, v)


def fit_prior_bands(
    r: Runs, residual: np.ndarray, weight: np.ndarray, group: np.ndarray, novel: np.ndarray
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Fit the scale model and the quantiles of scaled residuals on left-out sources.

    Parameters
    ----------
    r
        The runs.
    residual
        Log actual over predicted, each row from constants that never saw its source.
    weight, group
        Weight and source of each row.
    novel
        How novel each row's architecture was to the constants that predicted it (:func:`novelty`).

    Returns
    -------
    tuple of (dict, dict)
        Coefficients of the log scale (with ``base``), and quantiles at :data:`GRID` by family.
    """
    from scipy.optimize import minimize

    inputs, residual = scale_inputs(r), residual / novel
    start = np.array(list(SCALE_TERMS.values()))
    w = weight / weight.sum() * len(np.unique(group)) * 6.0

    def loss(x: np.ndarray) -> float:
        s = np.exp(x[0] + inputs @ x[1:])
        # Laplace likelihood: the scale is a mean absolute residual, robust against wild rows
        fit = np.sum(w * (np.abs(residual) / s + np.log(s)))
        return float(fit + np.sum((x[1:] - start) ** 2) / (2 * 0.25**2))

    x = minimize(loss, np.concatenate([[np.log(BASE_SCALE)], start]), method="L-BFGS-B").x
    scale = {"base": float(np.exp(x[0])), **dict(zip(SCALE_TERMS, (float(v) for v in x[1:]), strict=True))}
    scaled = residual / prior_scale(r, scale)
    bands: dict[str, list[float]] = {}
    for family, rows in _families(r, group).items():
        count = len(np.unique(group[rows]))
        if count < ENOUGH_SOURCES:
            # so few sources say little about the next one: all rows' quantiles, as wide as their number makes them
            q = _with_tails(scaled, weight, 0) * _few(count)
        else:
            q = _with_tails(scaled[rows], weight[rows], count)
        bands[family] = [float(v) for v in q]
    return scale, bands


def _few(sources: int) -> float:
    """Return how much wider a band is that rests on this many sources: Student's quantile over the normal's at 90 %."""
    from scipy.stats import norm, t

    return float(np.sqrt(1.0 + 1.0 / sources) * t.ppf(0.9, sources + 2) / norm.ppf(0.9))


def _families(r: Runs, group: np.ndarray) -> dict[str, np.ndarray]:
    out = {"all": np.ones(len(group), dtype=bool)}
    if r.rl.any():
        out["rl"] = r.rl
    if (~r.rl).any():
        out["supervised"] = ~r.rl
    for index, name in enumerate(variants.NAMES):
        rows = r.variant == index
        if rows.sum() >= ENOUGH_ROWS and len(np.unique(group[rows])) >= ENOUGH_SOURCES:
            out[name] = rows
    return out


def _with_tails(values: np.ndarray, weight: np.ndarray, sources: int) -> np.ndarray:
    """Return quantiles at GRID whose outermost parts follow Laplace tails rather than the extreme residual."""
    q = weighted_quantiles(values, weight, GRID)
    low, high = np.interp([0.1, 0.9], GRID, q)
    middle = float(np.interp(0.5, GRID, q))
    rate_low, rate_high = (middle - low) / np.log(5.0), (high - middle) / np.log(5.0)
    with np.errstate(divide="ignore"):
        tail_low = middle + rate_low * np.log(2.0 * np.minimum(GRID, 0.5))
        tail_high = middle - rate_high * np.log(2.0 * np.minimum(1.0 - GRID, 0.5))
    # what left-out sources have in common is a property of the next one only as far as there are many of them
    q = q - middle * ALIKE / (sources + ALIKE) * (1.0 - np.abs(2.0 * GRID - 1.0))
    q = np.where(GRID < 0.05, np.minimum(q, tail_low), np.where(GRID > 0.95, np.maximum(q, tail_high), q))
    return NESTED * np.maximum.accumulate(q)


def family_of(r: Runs, bands: Mapping[str, Sequence[float]]) -> list[str]:
    """Return for each row whose quantiles it uses: its variant's, else its family's, else all rows'."""
    names = [
        name if name in bands else ("rl" if variants.BY_NAME[name].rl else "supervised")
        for name in variants.NAMES
    ]
    names = [name if name in bands else "all" for name in names]
    return [names[i] for i in r.variant]


def prior_quantiles(r: Runs, bands: Mapping[str, Sequence[float]], levels: Sequence[float]) -> np.ndarray:
    """Return the scaled quantiles of each row's family, shape (rows, levels)."""
    from scipy.stats import laplace

    table: dict[str, np.ndarray] = {}
    for family in set(family_of(r, bands)):
        q = bands.get(family)
        values = np.asarray(q, dtype=float) if q is not None else laplace.ppf(GRID)
        table[family] = np.interp(np.asarray(levels, dtype=float), GRID, values)
    rows = family_of(r, bands)
    return np.array([table[name] for name in rows]).reshape(len(rows), len(levels))


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
        """Return the conformal quantiles of all rows, joined by a Laplace distribution's while residuals are few."""
        from scipy.stats import laplace

        return self._shrunk(self.residuals, np.asarray(laplace.ppf(np.asarray(levels, dtype=float))), levels)

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
