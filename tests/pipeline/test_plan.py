"""The main job: a legal plan of a site, its problem, its expected times."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tidegrid.data import App, Capacity, Cluster, Pool
from tidegrid.errors import InputError
from tidegrid.estimators import Estimator
from tidegrid.pipeline.decide import Decision, decide
from tidegrid.pipeline.demand import Demand, planned_gpus
from tidegrid.pipeline.etas import deadline_risks
from tidegrid.pipeline.forecast import Estimating
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.problem import steps_of
from tidegrid.pipeline.site import Site
from tidegrid.pipeline.state import State
from tidegrid.pipeline.tracesite import site_from_traces, user_priority
from tidegrid.pipeline.train import fit_all
from tidegrid.scheduler import check


def judge(shared: Path, problem: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """Ask the contract's own checker."""
    spec = importlib.util.spec_from_file_location("check_plan", shared / "contract" / "check_plan.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    violations: list[str] = module.check(problem, plan)[0]
    return violations


@pytest.mark.parametrize("mode", ["fast", "fifo", "fifo_backfill"])
def test_the_plan_of_a_site_is_legal_by_both_checkers(
    shared: Path, sample: Site, forecast: Forecast, mode: str
) -> None:
    planned = make_plan(forecast, sample.running, mode)
    assert check(forecast.problem, planned.plan)[0] == []
    plan = json.loads(json.dumps(planned.plan.to_dict()))
    assert judge(shared, forecast.problem.to_dict(), plan) == []


def test_the_fast_plan_is_worth_more_than_fifo(sample: Site, forecast: Forecast) -> None:
    fast, fifo = (make_plan(forecast, sample.running, mode).plan.metrics for mode in ("fast", "fifo"))
    assert fast["objective"] > fifo["objective"]


def test_the_same_input_gives_the_same_plan(sample: Site, forecast: Forecast) -> None:
    once, again = (make_plan(forecast, sample.running).plan.to_dict() for _ in range(2))
    assert json.dumps(once, sort_keys=True) == json.dumps(again, sort_keys=True)


def test_a_problem_keeps_what_runs_where_it_is(sample: Site, forecast: Forecast) -> None:
    running = {job.id: job.running for job in forecast.problem.jobs if job.running is not None}
    assert set(running) == set(sample.running["job_id"])
    for row in sample.running.to_dict("records"):
        block = running[row["job_id"]]
        assert block is not None
        assert (block.pool, block.first_gpu, block.gpus) == (row["pool"], row["first_gpu"], row["gpus"])


def test_earliest_and_deadline_are_steps_from_now(sample: Site, fitted: dict[str, Estimator]) -> None:
    one = sample.requests.head(1).assign(
        earliest_time=sample.now + pd.Timedelta(minutes=90), deadline=sample.now + pd.Timedelta(minutes=630)
    )
    problem = make_forecast(one, sample.running, sample.cluster, fitted, sample.now).problem
    job = problem.job_by_id[str(one["job_id"].iloc[0])]
    assert (job.earliest, job.deadline) == (2, 10)


def test_durations_are_rounded_up_to_whole_steps() -> None:
    assert [steps_of(h, 60) for h in (0.001, 1.0, 1.01, 24.0)] == [1, 1, 2, 24]
    assert steps_of(1.0, 30) == 2


def test_expected_times_are_ordered_and_the_late_one_is_not_the_early_one(
    sample: Site, forecast: Forecast
) -> None:
    """P5: the 90 % expected time is never before the 50 % one; what runs starts now."""
    planned = make_plan(forecast, sample.running)
    etas = planned.etas
    assert set(etas["job"]) == {p.job for p in planned.plan.placements}
    for what in ("start", "end"):
        assert (etas[f"{what}_q0.1"] <= etas[f"{what}_q0.5"]).all()
        assert (etas[f"{what}_q0.5"] <= etas[f"{what}_q0.9"]).all()
    assert (etas["end_q0.1"] >= etas["start_q0.1"]).all()
    now = etas[etas["job"].isin(sample.running["job_id"])]
    assert (now["start_q0.9"] == sample.now).all()


def test_deadlines_that_may_be_missed_are_told_in_local_time(
    sample: Site, fitted: dict[str, Estimator]
) -> None:
    """One is surely met, one ends in time only by the median, and one has no place at all."""
    four = sample.requests.head(1).iloc[[0] * 4].assign(job_id=["met", "tight", "none", "free"])
    four = four.assign(deadline=pd.Series([pd.NaT] * 4, dtype="datetime64[ns, UTC]").to_numpy())
    first = make_forecast(four, sample.running, sample.cluster, fitted, sample.now)
    etas = make_plan(first, sample.running).etas.set_index("job")
    assert {"met", "tight", "none", "free"} <= set(etas.index)
    between = (
        etas.loc["tight", "end_q0.5"] + (etas.loc["tight", "end_q0.9"] - etas.loc["tight", "end_q0.5"]) / 2
    )
    due = [etas.loc["met", "end_q0.9"], between, sample.now + pd.Timedelta(hours=1), pd.NaT]
    told = deadline_risks(
        four.assign(deadline=pd.Series(due, dtype="datetime64[ns, UTC]").to_numpy()),
        first.problem,
        etas.drop(index="none").reset_index(),
        "Europe/Berlin",
    )
    assert len(told) == 2 and all("CE" in line for line in told)
    assert told[0].startswith("none has no place before its deadline, ")
    assert told[1].startswith("tight may miss its deadline, ") and " nine times in ten by " in told[1]


def test_a_larger_demand_quantile_never_asks_for_fewer_gpus(
    sample: Site, fitted: dict[str, Estimator]
) -> None:
    low, high = (
        forecast_demand(fitted["realtime"], sample.cluster, sample.now, Policy(demand_quantile=q))
        for q in (0.5, 0.95)
    )
    for app in low.ramped:
        assert (high.gpus[app] >= low.gpus[app]).all()
        assert (high.ramped[app] >= low.ramped[app]).all()


def test_a_demand_curve_covers_horizon_and_lookahead_at_every_step_length(
    sample: Site, fitted: dict[str, Estimator]
) -> None:
    for minutes in (15, 30, 60):
        policy = Policy(step_minutes=minutes)
        demand = forecast_demand(fitted["realtime"], sample.cluster, sample.now, policy)
        assert {len(curve) for curve in demand.ramped.values()} == {48 * 60 // minutes}


def test_a_step_across_two_hours_takes_the_larger(sample: Site, fitted: dict[str, Estimator]) -> None:
    at_hour = forecast_demand(fitted["realtime"], sample.cluster, sample.now, Policy())
    later = forecast_demand(
        fitted["realtime"], sample.cluster, sample.now + pd.Timedelta(minutes=30), Policy()
    )
    for app, curve in at_hour.gpus.items():
        expected = np.maximum(curve[:-1], curve[1:])
        assert (later.gpus[app][: len(expected)] >= expected).all()


def test_two_apps_that_need_more_than_there_is_never_get_more(
    fitted: dict[str, Estimator], sample: Site
) -> None:
    """R4: at most 8 GPUs in every step, and the shortfall is shown for each app."""
    pool = Pool(id="small", gpus=8, gpu_type="H100-SXM-80GB")
    series = list(dict.fromkeys(app.series for app in sample.cluster.apps))[:2]
    apps = tuple(
        App(id=s, pool="small", series_id=s, capacity=Capacity(units_per_gpu_hour=1e-9, min_replicas=1))
        for s in series
    )
    traffic = sample.history.traffic
    level = traffic[traffic["series_id"].isin(series)].groupby("series_id")["value"].mean()
    apps = tuple(
        app.model_copy(update={"capacity": Capacity(units_per_gpu_hour=float(level[app.id]) / 6)})
        for app in apps
    )
    cluster = Cluster(timezone=sample.cluster.timezone, pools=(pool,), apps=apps)
    forecast = make_forecast(sample.requests.head(0), Site.no_running(), cluster, fitted, sample.now)
    plan = make_plan(forecast, Site.no_running()).plan
    for t in range(forecast.problem.steps):
        assert sum(len(set(entry.cells[t])) for entry in plan.apps) <= 8
    assert plan.metrics["shortfall"] > 0
    assert {risk["app"] for risk in plan.extra["risks"]} <= set(series)
    assert plan.extra["risks"]


def test_an_app_without_throughput_is_refused_by_name(sample: Site, fitted: dict[str, Estimator]) -> None:
    bare = sample.cluster.apps[0].model_copy(update={"capacity": Capacity()})
    cluster = sample.cluster.model_copy(update={"apps": (bare,)})
    with pytest.raises(InputError, match="units_per_gpu_hour"):
        forecast_demand(fitted["realtime"], cluster, sample.now, Policy())


def test_a_policy_file_names_the_knob_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text('{"decay": 1.5}')
    with pytest.raises(InputError, match=r"policy\.json, decay"):
        Policy.read(path)
    path.write_text('{"decai": 0.9}')
    with pytest.raises(InputError, match="the knobs are"):
        Policy.read(path)


def test_a_users_priority_is_the_same_everywhere() -> None:
    assert [user_priority(u) for u in ("u001", "u002", "u003")] == [9, 2, 4]
    drawn = {user_priority(f"u{i:03}") for i in range(200)}
    assert drawn == set(range(1, 11))


@pytest.mark.realdata
def test_a_day_of_helios_with_hosted_traffic_is_planned_legally(shared: Path, shared_data: Path) -> None:
    """The main job on real input: queue and history from one trace, realtime from another, 64 GPUs."""
    site = site_from_traces(
        shared_data / "traces" / "helios_venus15k.csv.gz",
        shared_data / "traffic" / "servegen_totals.csv.gz",
        "2020-06-10",
        gpus=64,
        limit=150,
    )
    fitted = fit_all(site.history, ["recurring", "realtime"])
    forecast = make_forecast(site.requests, site.running, site.cluster, fitted, site.now)
    plans = {mode: make_plan(forecast, site.running, mode).plan for mode in ("fast", "fifo")}
    for plan in plans.values():
        assert judge(shared, forecast.problem.to_dict(), json.loads(json.dumps(plan.to_dict()))) == []
    assert plans["fast"].metrics["objective"] > plans["fifo"].metrics["objective"]
    assert plans["fast"].metrics["utilization"] > plans["fifo"].metrics["utilization"]
