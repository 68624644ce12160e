"""From traffic to GPUs: what each app needs a step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from tidegrid.data import App
from tidegrid.estimators.realtime.capacity import Capacity
from tidegrid.pipeline.policy import Policy

HOUR = pd.Timedelta(hours=1)


@dataclass(frozen=True)
class Demand:
    """What realtime will need.

    Attributes
    ----------
    traffic : DataFrame
        Forecast of each series by hour: ``unique_id``, ``ds`` (UTC), ``basis``, and one column a level.
    gpus : dict of str to ndarray
        For each app, GPUs a step over horizon and lookahead at the policy's quantile: its true need, whatever its
        swap cap lets it have.
    """

    traffic: pd.DataFrame
    gpus: dict[str, np.ndarray]


def hours_of(now: pd.Timestamp, policy: Policy) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and the last hour that each step of horizon and lookahead touches, counted from now's hour."""
    step, hour = policy.step_minutes * 60_000_000_000, HOUR.value
    since = now.as_unit("ns").value % hour
    starts = since + np.arange(policy.steps + policy.lookahead_steps, dtype=np.int64) * step
    return starts // hour, (starts + step - 1) // hour


def hours_asked(series: Sequence[str], start: pd.Timestamp, hours: int) -> pd.DataFrame:
    """Return ``unique_id`` and ``ds`` of each series in the ``hours`` hours from the one that holds ``start``."""
    ds = pd.date_range(start.floor("h"), periods=hours, freq="h")
    names = np.repeat(np.array(series, dtype=object), hours)
    return pd.DataFrame({"unique_id": names, "ds": ds.take(np.tile(np.arange(hours), len(series)))})


def hourly_gpus(traffic: pd.DataFrame, apps: Sequence[App], level: float) -> dict[str, np.ndarray]:
    """Return the GPUs that each app needs in each hour of a forecast of traffic, at one of its levels."""
    values, at = traffic[level].to_numpy(), traffic.groupby("unique_id").indices
    by_series = {str(key): values[rows] for key, rows in at.items()}
    return {app.id: gpus_needed(app, by_series[app.series]) for app in apps}


def demand_of(
    traffic: pd.DataFrame, by_hour: Mapping[str, np.ndarray], now: pd.Timestamp, policy: Policy
) -> Demand:
    """Turn GPUs an hour into each app's GPUs a step.

    A step that overlaps two hours takes the larger; steps are elapsed time, so a day with a clock change has as many
    steps as any other.

    Parameters
    ----------
    traffic
        The forecast.
    by_hour
        Its GPUs, as :func:`hourly_gpus` gives them, from now's hour to the last that a step touches.
    """
    first, last = hours_of(now, policy)
    gpus = {}
    for app, hourly in by_hour.items():
        whole = hourly[first]
        for further in range(1, int((last - first).max()) + 1):
            whole = np.maximum(whole, hourly[np.minimum(first + further, last)])
        gpus[app] = whole.astype(np.int64)
    return Demand(traffic, gpus)


def gpus_needed(app: App, units: npt.ArrayLike) -> np.ndarray:
    """Return the GPUs that an app needs for its share of its series' demand.

    Where the app declares no throughput, demand says nothing about its GPUs: it needs what it keeps.

    Parameters
    ----------
    units
        Demand of the series, units an hour; shape (hours,).
    """
    demand = np.asarray(units, dtype=float)
    capacity = capacity_of(app)
    if capacity is None:
        return np.full(demand.shape, kept_gpus(app), dtype=np.int64)
    return capacity.gpus(demand * app.share)


def kept_gpus(app: App) -> int:
    """Return the GPUs that an app is planned at where its demand is not known: what it holds, or its floor."""
    replica = app.capacity.gpus_per_replica
    return max(-(-len(app.held) // replica) * replica, app.capacity.floor)


def capacity_of(app: App) -> Capacity | None:
    """Return the capacity model that the cluster description declares for an app; None without a throughput."""
    if app.capacity.units_per_gpu_hour is None:
        return None
    return Capacity(**app.capacity.model_dump())
