"""From traffic to GPUs: the demand curve of each app, in GPUs a step, under the app's own swap cap."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tidegrid.data import App, Cluster
from tidegrid.errors import InputError
from tidegrid.estimators import Estimator
from tidegrid.estimators.realtime.capacity import PATIENCE, Capacity, ramp
from tidegrid.pipeline.policy import Policy

LEVELS = (0.025, 0.1, 0.25, 0.5, 0.75, 0.9, 0.975)
"""The quantile levels of demand that a forecast carries; the policy's own is added."""


@dataclass(frozen=True)
class Demand:
    """What realtime will need.

    Attributes
    ----------
    traffic : DataFrame
        Forecast of each series by hour: ``unique_id``, ``ds`` (UTC), ``basis``, and one column a level.
    gpus : dict of str to ndarray
        For each app, GPUs a step over horizon and lookahead at the policy's quantile, before the swap cap.
    ramped : dict of str to ndarray
        The same under the app's swap cap: a ramp that the cap forbids starts earlier. This is what is planned.
    """

    traffic: pd.DataFrame
    gpus: dict[str, np.ndarray]
    ramped: dict[str, np.ndarray]


def forecast_traffic(
    estimator: Estimator,
    series: Sequence[str],
    start: pd.Timestamp,
    hours: int,
    levels: Sequence[float] = LEVELS,
) -> pd.DataFrame:
    """Forecast hourly traffic of each series for the ``hours`` hours from the one that holds ``start``.

    Returns
    -------
    DataFrame
        ``unique_id``, ``ds``, ``basis`` and one float column a level.
    """
    ds = pd.date_range(start.floor("h"), periods=hours, freq="h")
    X = pd.DataFrame({"unique_id": np.repeat(list(series), hours), "ds": list(ds) * len(series)})
    quantiles = estimator.predict_quantiles(X, tuple(levels))
    return X.assign(basis=estimator.basis(X)).join(quantiles)


def forecast_demand(estimator: Estimator, cluster: Cluster, now: pd.Timestamp, policy: Policy) -> Demand:
    """Forecast every app's demand over horizon and lookahead, and turn it into GPUs a step.

    A step that overlaps two hours takes the larger; steps are elapsed time, so a day with a clock change has as many
    steps as any other.
    """
    steps = policy.steps + policy.lookahead_steps
    minutes = policy.step_minutes
    starts = now + pd.to_timedelta(np.arange(steps) * minutes, unit="min")
    ends = starts + pd.Timedelta(minutes=minutes) - pd.Timedelta(nanoseconds=1)
    first_hour = now.floor("h")
    first = ((starts - first_hour) // pd.Timedelta(hours=1)).to_numpy()
    last = ((ends - first_hour) // pd.Timedelta(hours=1)).to_numpy()
    levels = tuple(sorted({*LEVELS, policy.demand_quantile}))
    ids = list(dict.fromkeys(app.series for app in cluster.apps))
    if not ids:
        return Demand(pd.DataFrame(columns=["unique_id", "ds", "basis", *levels]), {}, {})
    traffic = forecast_traffic(estimator, ids, now, int(last[-1]) + 1, levels)
    planned = {
        str(key): part[policy.demand_quantile].to_numpy() for key, part in traffic.groupby("unique_id")
    }
    gpus: dict[str, np.ndarray] = {}
    ramped: dict[str, np.ndarray] = {}
    for app in cluster.apps:
        by_hour = capacity_of(app).gpus(planned[app.series])
        gpus[app.id] = np.array(
            [by_hour[a : b + 1].max() for a, b in zip(first, last, strict=True)], dtype=int
        )
        ramped[app.id] = ramped_gpus(app, cluster, gpus[app.id])
    return Demand(traffic, gpus, ramped)


def ramped_gpus(app: App, cluster: Cluster, gpus: np.ndarray) -> np.ndarray:
    """Return the GPUs a step that an app is planned for: its need under its swap cap, from what it holds now.

    Parameters
    ----------
    app, cluster
        The app, and the cluster that it lives in; held GPUs that are down do not count.
    gpus : ndarray of int, shape (steps,)
        Its need.
    """
    held = len(set(app.held) - set(cluster.pool(app.pool).down))
    return np.array(ramp(gpus.tolist(), app.swap_cap, held, patience=PATIENCE), dtype=np.int64)


def capacity_of(app: App) -> Capacity:
    """Return the capacity model that the cluster description declares for an app.

    Raises
    ------
    InputError
        It declares no throughput of a GPU.
    """
    declared = app.capacity.model_dump()
    if declared["units_per_gpu_hour"] is None:
        raise InputError(
            f"app {app.id!r} declares no throughput",
            field="capacity.units_per_gpu_hour",
            fix="give the units of its traffic that one GPU serves in an hour",
        )
    return Capacity(**declared)
