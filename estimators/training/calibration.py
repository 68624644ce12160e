"""Calibration of the physics prior: constants and bands from published runs, honest on sources never seen.

The constants are fitted by robust least squares on log seconds, each held near its starting value by a prior, and with
one offset a source (a random effect): what sets a source apart is not blamed on the physics, and each source has one
vote. The bands come from leave-one-source-out residuals: what the prior is wrong by on software that it has not been
calibrated on.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any, Self

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.estimators.gpus import ARCHS
from tidegrid.estimators.training import features, intervals, physics
from tidegrid.estimators.training.features import Runs

SOURCE_SPREAD = 0.25
"""Standard deviation of a source's offset in log seconds, before any is seen."""

NOISE = 0.25
"""Scale in log seconds beyond which a row's residual counts linearly, not squared (pseudo-Huber)."""

ENOUGH = 3
"""Rows of an architecture that make a source count for it."""

ROWS_A_SOURCE = 60
"""Rows of one source that calibration looks at, evenly spaced; the rest say the same."""


@dataclass(frozen=True)
class Calibration:
    """What calibration learnt.

    Parameters
    ----------
    constants
        The physics constants, by name.
    scale
        Coefficients of the log scale of residuals, by the names of ``intervals.SCALE_TERMS``.
    sources
        The sources and their numbers of rows.
    """

    constants: Mapping[str, float] = field(default_factory=lambda: dict(physics.START))
    scale: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "constants": {k: float(v) for k, v in self.constants.items()},
            "scale": {k: float(v) for k, v in self.scale.items()},
            "sources": {k: int(v) for k, v in self.sources.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Rebuild it from :meth:`to_dict`.

        Raises
        ------
        InputError
            A constant is missing or no positive number.
        """
        constants = dict(physics.START)
        for name, value in dict(data.get("constants", {})).items():
            if not (isinstance(value, int | float) and np.isfinite(value) and value > 0):
                raise InputError(
                    f"{value!r} cannot be used", field=f"constants.{name}", fix="write a positive number"
                )
            constants[name] = float(value)
        return cls(constants, dict(data.get("scale", {})), dict(data.get("sources", {})))


@lru_cache(maxsize=1)
def shipped() -> Calibration:
    """Return the calibration that comes with the product (benchmarks/calibrate_training.py makes it)."""
    import json

    text = (
        resources.files("tidegrid.estimators.training")
        .joinpath("calibration.json")
        .read_text(encoding="utf-8")
    )
    return Calibration.from_dict(json.loads(text))


def take(runs: Runs, rows: np.ndarray) -> Runs:
    """Return the runs at ``rows``."""
    return Runs(**{name: value[rows] for name, value in vars(runs).items()})


def log_hours(runs: Runs, constants: Mapping[str, float]) -> np.ndarray:
    """Return the prior's log hours of pure training, shape (rows,)."""
    return np.log(np.maximum(physics.terms(runs, constants).seconds, 1e-6) / 3600.0)


def calibrate(table: pd.DataFrame, *, bands: bool = True) -> Calibration:
    """Calibrate on a table of ``timings.read``.

    Parameters
    ----------
    table
        The rows; flagged and censored ones are left out.
    bands
        Whether to fit the bands as well, which takes one fit a source.

    Raises
    ------
    InputError
        No row can be used.
    """
    used = table[table["calibrates"]]
    if used.empty:
        raise InputError(
            "has no usable row", fix="give rows with a duration or throughput, a model size and GPUs"
        )
    keep = np.sort(
        np.concatenate(
            [_spaced(np.asarray(rows)) for rows in used.groupby("group", sort=True).indices.values()]
        )
    )
    used = used.iloc[keep]
    runs = features.derive(features.checked(used))
    target, weight = np.log(used["hours"].to_numpy(float)), used["weight"].to_numpy(float)
    group = used["group"].to_numpy(dtype=object).astype(str)
    counts = table[table["calibrates"]].groupby("group").size()
    sources = {str(k): int(v) for k, v in counts.items()}
    constants = fit_constants(runs, target, weight, group)
    if not bands or len(sources) < 3:
        return Calibration(constants, shipped().scale if bands else {}, sources)
    residual, novel = np.zeros(len(target)), np.ones(len(target))
    for source in sorted(sources):
        out = group == source
        inner = fit_constants(
            take(runs, np.flatnonzero(~out)), target[~out], weight[~out], group[~out], constants
        )
        left = take(runs, np.flatnonzero(out))
        residual[out] = target[out] - log_hours(left, inner)
        novel[out] = intervals.novelty(left, _architectures(take(runs, np.flatnonzero(~out)), group[~out]))
    # only what was measured as such is what a prediction will be judged by
    scored = np.flatnonzero((used["flag"] == "").to_numpy())
    scale = intervals.fit_scale(take(runs, scored), residual[scored], group[scored], novel[scored])
    scale.update(_architectures(runs, group))
    return Calibration(constants, scale, sources)


def _architectures(runs: Runs, group: np.ndarray) -> dict[str, float]:
    """Return how many sources have at least :data:`ENOUGH` rows of each architecture, as ``arch_<name>``."""
    counts = {}
    for index, arch in enumerate(ARCHS):
        _, rows = np.unique(group[(runs.arch == index) & runs.known_gpu], return_counts=True)
        counts[f"arch_{arch}"] = float((rows >= ENOUGH).sum())
    return counts


def _spaced(rows: np.ndarray) -> np.ndarray:
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(len(rows), ROWS_A_SOURCE)).round().astype(int))]


def fit_constants(
    runs: Runs,
    target: np.ndarray,
    weight: np.ndarray,
    group: np.ndarray,
    near: Mapping[str, float] | None = None,
) -> dict[str, float]:
    """Fit the physics constants.

    Parameters
    ----------
    runs
        The runs.
    target
        Log hours, shape (rows,).
    weight
        Weights of the rows.
    group
        The source of each row.
    near
        Constants to search from; the prior stays where it is.
    """
    from scipy.optimize import least_squares

    names = list(physics.CONSTANTS)
    start = np.log([physics.CONSTANTS[name].start for name in names])
    spread = np.array([physics.CONSTANTS[name].spread for name in names])
    _, code = np.unique(group, return_inverse=True)
    sources = int(code.max()) + 1
    root = np.sqrt(weight)

    def residuals(x: np.ndarray) -> np.ndarray:
        constants = dict(zip(names, np.exp(x[: len(names)]), strict=True))
        e = (target - log_hours(runs, constants) - x[len(names) :][code]) / NOISE
        robust = root * np.sign(e) * np.sqrt(2.0 * (np.sqrt(1.0 + e**2) - 1.0))
        return np.concatenate([robust, (x[: len(names)] - start) / spread, x[len(names) :] / SOURCE_SPREAD])

    # from a neighbour's solution a few steps do: one source less moves the constants by a few per cent
    search, budget = (start, 20) if near is None else (np.log([near[name] for name in names]), 8)
    solved = least_squares(
        residuals,
        np.concatenate([search, np.zeros(sources)]),
        max_nfev=budget,
        diff_step=1e-4,
        ftol=1e-5,
        xtol=1e-5,
    )
    return {name: float(value) for name, value in zip(names, np.exp(solved.x[: len(names)]), strict=True)}
