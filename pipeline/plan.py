"""The main job: history in, a legal plan out, with what it rests on."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tidegrid.data import Cluster, request_features
from tidegrid.estimators import Estimator
from tidegrid.pipeline.demand import Demand, forecast_demand
from tidegrid.pipeline.estimates import LEVELS, Estimates, estimate_jobs, remaining
from tidegrid.pipeline.etas import eta_table
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.problem import build_problem
from tidegrid.scheduler import Plan, Problem, explain, solve


@dataclass(frozen=True)
class Forecast:
    """What the planner is told: estimates of the queue, remaining times, demand, and the problem made of them."""

    estimates: Estimates
    remaining: pd.DataFrame
    demand: Demand
    problem: Problem


@dataclass(frozen=True)
class Planned:
    """A plan and what it rests on; ``etas`` has each placed job's expected start and end with a band."""

    forecast: Forecast
    plan: Plan
    etas: pd.DataFrame


def make_forecast(
    requests: pd.DataFrame,
    running: pd.DataFrame,
    cluster: Cluster,
    estimators: Mapping[str, Estimator],
    now: pd.Timestamp,
    policy: Policy | None = None,
) -> Forecast:
    """Forecast durations, remaining times and demand, and state the problem.

    Parameters
    ----------
    requests, running, cluster
        The queue, what runs, and the cluster, as :mod:`tidegrid.data` reads them.
    estimators
        By name, fitted on what was known at ``now``: ``"realtime"`` where the cluster has apps, ``"recurring"``
        always, and those of the other workload kinds where there are any. One that takes note of open jobs is told
        of these.
    now
        The start of step 0, in UTC.
    """
    knobs = policy or Policy()
    under_way = pd.concat([request_features(requests), request_features(running)], ignore_index=True)
    for estimator in estimators.values():
        note_open = getattr(estimator, "note_open", None)
        if note_open is not None:
            note_open(under_way)
    estimates = estimate_jobs(requests, cluster, estimators)
    rest = remaining(running, cluster, estimators, now)
    demand = (
        forecast_demand(estimators["realtime"], cluster, now, knobs)
        if cluster.apps
        else Demand(pd.DataFrame(), {}, {})
    )
    problem = build_problem(requests, running, cluster, estimates, rest, demand, now, knobs)
    return Forecast(estimates, rest, demand, problem)


def make_plan(
    forecast: Forecast,
    running: pd.DataFrame,
    mode: str = "fast",
    time_limit: float | None = None,
    seed: int = 0,
    timezone: str | None = None,
) -> Planned:
    """Solve the forecast's problem and say when each job is expected to start and end.

    Explanations tell the times of an IANA zone; UTC where ``timezone`` is None.
    """
    plan = solve(forecast.problem, mode=mode, time_limit=time_limit, seed=seed)
    plan = explain(forecast.problem, plan, timezone)
    return Planned(
        forecast, plan, eta_table(forecast.problem, plan, durations(forecast, running), LEVELS, seed)
    )


def durations(forecast: Forecast, running: pd.DataFrame) -> dict[tuple[str, str, int], np.ndarray]:
    """Return the quantiles of hours, at the estimates' levels, of every (job, pool, GPUs) of a forecast."""
    shapes = forecast.estimates.shapes
    out = {
        (str(job), str(pool), int(gpus)): hours
        for job, pool, gpus, hours in zip(
            shapes["job_id"], shapes["pool"], shapes["gpus"], forecast.estimates.hours.to_numpy(), strict=True
        )
    }
    for i, row in zip(running.index, running.to_dict("records"), strict=True):
        out[str(row["job_id"]), str(row["pool"]), int(row["gpus"])] = forecast.remaining.loc[i].to_numpy(
            dtype=float
        )
    return out
