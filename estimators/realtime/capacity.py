"""From demand to GPUs: what one GPU serves at the service objective, replicas, and the swap cap's ramps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.swaps import ramp

__all__ = ["Capacity", "fit_capacity", "gpu_curve", "ramp"]

PATIENCE = 1
"""Steps for which a GPU that will be wanted again is kept: one, so that a lone dip does not cost two
swaps."""


MOST_GPUS = 1e9
"""GPUs beyond which a demand is a mistake of units."""


@dataclass(frozen=True)
class Capacity:
    """What an app's GPUs serve.

    Parameters
    ----------
    units_per_gpu_hour
        Requests or tokens (whatever demand is counted in) that one GPU serves in an hour within the service
        objective.
    gpus_per_replica
        GPUs that serve together (tensor parallel); GPUs come and go in this many.
    min_replicas
        Replicas that stay even without demand.
    target_load
        Part of the capacity that may be used, 0 to 1; the rest absorbs bursts within the hour.
    max_replicas
        Replicas that are never exceeded; None for no limit.
    """

    units_per_gpu_hour: float
    gpus_per_replica: int = 1
    min_replicas: int = 0
    target_load: float = 1.0
    max_replicas: int | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite(self.units_per_gpu_hour) and self.units_per_gpu_hour > 0):
            raise InputError(
                f"{self.units_per_gpu_hour!r} cannot be used",
                field="units_per_gpu_hour",
                fix="give a positive number",
            )
        if not 0 < self.target_load <= 1:
            raise InputError(
                f"{self.target_load!r} cannot be used",
                field="target_load",
                fix="give a number above 0 and up to 1",
            )
        for name, low in (("gpus_per_replica", 1), ("min_replicas", 0)):
            if int(getattr(self, name)) != getattr(self, name) or getattr(self, name) < low:
                raise InputError(
                    f"{getattr(self, name)!r} cannot be used",
                    field=name,
                    fix=f"give a whole number from {low}",
                )
        if self.max_replicas is not None and self.max_replicas < max(self.min_replicas, 1):
            raise InputError(
                f"{self.max_replicas!r} is below min_replicas or 1",
                field="max_replicas",
                fix="raise it, or leave it out",
            )

    @classmethod
    def from_tokens(
        cls, tokens_per_gpu_second: float, tokens_per_request: float = 1.0, **replicas: Any
    ) -> "Capacity":
        """Return the capacity for demand in requests an hour from a token rate; for demand in tokens leave
        the size 1."""
        if not (np.isfinite(tokens_per_request) and tokens_per_request > 0):
            raise InputError(
                f"{tokens_per_request!r} cannot be used",
                field="tokens_per_request",
                fix="give a positive number",
            )
        return cls(tokens_per_gpu_second * 3600.0 / tokens_per_request, **replicas)

    def gpus(self, demand: np.ndarray | Sequence[float] | pd.Series) -> np.ndarray:
        """Return the GPUs that serve ``demand`` (units an hour), int64, same shape; more demand never gives
        fewer.

        Raises
        ------
        InputError
            A demand is NaN, infinite or negative, or asks for more than MOST_GPUS.
        """
        units = np.asarray(demand, dtype=float)
        if units.size and not (np.isfinite(units).all() and float(units.min()) >= 0):
            raise InputError(
                "demand must be finite and not negative", field="demand", fix="fill or drop such hours"
            )
        if units.size and float(units.max()) / self.units_per_gpu_hour > MOST_GPUS:
            raise InputError(
                f"{float(units.max()):g} units an hour ask for more than {MOST_GPUS:,.0f} GPUs",
                field="demand",
                fix="check the units of demand and of units_per_gpu_hour",
            )
        each = self.units_per_gpu_hour * self.gpus_per_replica * self.target_load
        # a billionth of a replica is rounding, not demand
        replicas = np.ceil(units / each - 1e-9).astype(np.int64)
        replicas = np.maximum(replicas, self.min_replicas)
        if self.max_replicas is not None:
            replicas = np.minimum(replicas, self.max_replicas)
        return replicas * self.gpus_per_replica


def fit_capacity(
    traffic: pd.Series | np.ndarray | Sequence[float],
    gpus: pd.Series | np.ndarray | Sequence[float],
    *,
    within_objective: pd.Series | np.ndarray | Sequence[bool] | None = None,
    level: float = 0.9,
    **replicas: Any,
) -> Capacity:
    """Measure what one GPU serves from hours in which traffic and GPUs are both known.

    Hours with spare GPUs say only that one GPU serves at least that much, so the capacity is a high quantile
    of the units served a GPU and hour, among the hours in which the service objective was met.

    Parameters
    ----------
    traffic : array-like of shape (hours,)
        Units served an hour; NaN is unknown.
    gpus : array-like of shape (hours,)
        GPUs that served them.
    within_objective : array-like of bool, shape (hours,), optional
        Whether the service objective was met; hours that missed it are left out.
    level
        The quantile.
    **replicas
        The other parameters of :class:`Capacity`.

    Raises
    ------
    InputError
        Fewer than 24 hours say anything.
    """
    units = np.asarray(traffic, dtype=float)
    count = np.asarray(gpus, dtype=float)
    if units.shape != count.shape:
        raise InputError(
            f"traffic has {units.size} hours and gpus {count.size}",
            field="gpus",
            fix="give both for the same hours",
        )
    told = np.isfinite(units) & np.isfinite(count) & (count > 0) & (units > 0)
    if within_objective is not None:
        told &= np.asarray(within_objective, dtype=bool)
    if told.sum() < 24:
        raise InputError(
            f"only {int(told.sum())} hours tell traffic and GPUs together",
            field="traffic",
            fix="give at least 24, or declare units_per_gpu_hour",
        )
    return Capacity(float(np.quantile(units[told] / count[told], level)), **replicas)


def gpu_curve(
    demand: np.ndarray | Sequence[float] | pd.Series,
    capacity: Capacity,
    *,
    swap_cap: int | None = None,
    held: int = 0,
    patience: int = PATIENCE,
) -> np.ndarray:
    """Return the GPUs that the allocator is asked for: ``demand`` turned into GPUs, ramped early under the
    cap.

    Parameters
    ----------
    demand : array-like of shape (steps,)
        Demand at the policy's quantile, units an hour, one value a step.
    capacity
        What a GPU serves.
    swap_cap, held, patience
        As in :func:`tidegrid.swaps.ramp`.

    Returns
    -------
    ndarray of int64, shape (steps,)
    """
    return np.array(ramp(capacity.gpus(demand).tolist(), swap_cap, held, patience=patience), dtype=np.int64)
