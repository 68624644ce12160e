"""The main job: a legal plan of a site, its problem, its expected times."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rolling_site import Curve

from tidegrid.data import App, Capacity, Cluster, Pool
from tidegrid.errors import InputError
from tidegrid.estimators import Estimator
from tidegrid.pipeline.decide import Decision, decide
from tidegrid.pipeline.demand import Demand
from tidegrid.pipeline.etas import deadline_risks
from tidegrid.pipeline.forecast import Estimating
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.problem import _due, steps_of
from tidegrid.pipeline.rolling.commit import decided
from tidegrid.pipeline.site import Site
from tidegrid.pipeline.state import State
from tidegrid.pipeline.tracesite import site_from_traces, user_priority
from tidegrid.pipeline.train import fit_all
from tidegrid.scheduler import check, solve


def judge(shared: Path, problem: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """Ask the contract's own checker."""
    spec = importlib.util.spec_from_file_location("check_plan", shared / "contract" / "check_plan.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    violations: list[str] = module.check(problem, plan)[0]
    return violations


def need(estimator: Estimator, site: Site, policy: Policy, now: pd.Timestamp | None = None) -> Demand:
    """What the apps of a site need, by its forecaster."""
    state = site.state() if now is None else replace(site.state(), now=now)
    bare = replace(state, requests=state.requests.head(0), running=state.running.head(0))
    return Estimating({"realtime": estimator}, site.history).forecast(bare, policy).demand


@pytest.mark.parametrize("mode", ["fast", "fifo", "fifo_backfill"])
def test_the_plan_of_a_site_is_legal_by_both_checkers(
    shared: Path, sample: Site, fitted: dict[str, Estimator], mode: str
) -> None:
    decision = decide(sample.state(), Estimating(fitted, sample.history), decider=mode)
    assert check(decision.problem, decision.plan)[0] == []
    plan = json.loads(json.dumps(decision.plan.to_dict()))
    assert judge(shared, decision.problem.to_dict(), plan) == []


def test_the_fast_plan_is_worth_more_than_fifo(decision: Decision) -> None:
    fast, fifo = (solve(decision.problem, mode).metrics for mode in ("fast", "fifo"))
    assert fast["objective"] > fifo["objective"]


def test_the_same_input_gives_the_same_decision(sample: Site, fitted: dict[str, Estimator]) -> None:
    once, again = (decide(sample.state(), Estimating(fitted, sample.history)) for _ in range(2))
    assert json.dumps(decided(once), sort_keys=True) == json.dumps(decided(again), sort_keys=True)


def test_a_problem_keeps_what_runs_where_it_is(sample: Site, decision: Decision) -> None:
    running = {job.id: job.running for job in decision.problem.jobs if job.running is not None}
    assert set(running) == set(sample.running["job_id"])
    for row in sample.running.to_dict("records"):
        block = running[row["job_id"]]
        assert block is not None
        assert (block.pool, block.first_gpu, block.gpus) == (row["pool"], row["first_gpu"], row["gpus"])


def of_requests(site: Site, fitted: dict[str, Estimator], requests: pd.DataFrame) -> Decision:
    """What is decided with another queue."""
    state = State.of(site.cluster, requests, site.running, site.now)
    return decide(state, Estimating(fitted, site.history))


def test_earliest_and_deadline_are_steps_from_now(sample: Site, fitted: dict[str, Estimator]) -> None:
    one = sample.requests.head(1).assign(
        earliest_time=sample.now + pd.Timedelta(minutes=90), deadline=sample.now + pd.Timedelta(minutes=660)
    )
    decision = of_requests(sample, fitted, one)
    job = decision.problem.job_by_id[str(one["job_id"].iloc[0])]
    assert job.earliest == 2
    hours = decision.forecast.estimates.at(0.5).tolist()
    for shape, long in zip(job.shapes, hours, strict=True):
        # the last allowed start is the last step from which it ends in real time
        assert job.deadline is not None
        assert job.deadline - shape.steps == int(np.floor(11 - long + 1e-9))


@given(
    left=st.floats(0.05, 30),
    hours=st.lists(st.floats(0.01, 20), min_size=1, max_size=4),
    minutes=st.sampled_from([15, 30, 60]),
)
def test_what_fits_in_real_time_is_allowed_and_nothing_else(
    left: float, hours: list[float], minutes: int
) -> None:
    """Rounding durations up and deadlines down must not refuse a job of 10 minutes that is due in 20."""
    steps, due = _due(left, hours, [steps_of(long, minutes) for long in hours], minutes)
    for long, taken in zip(hours, steps, strict=True):
        assert taken >= steps_of(long, minutes)
        for start in range(int(left * 60 / minutes) + 2):
            ends = start * minutes / 60 + long
            if abs(ends - left) > 1e-6:
                assert (start + taken <= due) == (ends < left)


def test_durations_are_rounded_up_to_whole_steps() -> None:
    assert [steps_of(h, 60) for h in (0.001, 1.0, 1.01, 24.0)] == [1, 1, 2, 24]
    assert steps_of(1.0, 30) == 2


def test_expected_times_are_ordered_and_planned_times_lie_inside_their_bands(
    sample: Site, decision: Decision
) -> None:
    """The 90 % expected time is never before the 50 % one; what runs started when it did."""
    etas = decision.etas
    assert set(etas["job"]) == {p.job for p in decision.plan.placements}
    for what in ("start", "end"):
        assert (etas[f"{what}_q0.1"] <= etas[f"{what}_q0.5"]).all()
        assert (etas[f"{what}_q0.5"] <= etas[f"{what}_q0.9"]).all()
    assert (etas["end_q0.1"] >= etas["start_q0.1"]).all()
    runs = etas["job"].isin(sample.running["job_id"])
    began = sample.running.set_index("job_id")["start_time"]
    assert (etas[runs].set_index("job")["start_q0.9"] == began.loc[etas[runs]["job"]]).all()
    for which in ("start", "end"):
        assert ((etas[f"{which}_q0.1"] <= etas[which]) & (etas[which] <= etas[f"{which}_q0.9"])).all()


def test_a_band_does_not_move_because_another_job_came(sample: Site, fitted: dict[str, Estimator]) -> None:
    """On an empty cluster each job starts at once; its end depends on its own name and durations alone."""
    two = sample.requests.head(2).assign(gpus=1, min_gpus=np.nan, max_gpus=np.nan)
    ends = []
    for queue in (two, two.head(1)):
        state = State.of(sample.cluster, queue, Site.no_running(), sample.now)
        etas = decide(state, Estimating(fitted, sample.history)).etas.set_index("job")
        ends.append(etas.loc[two["job_id"].iloc[0], ["end_q0.1", "end_q0.9"]].tolist())
    assert ends[0] == ends[1]


def test_deadlines_that_may_be_missed_are_told_in_local_time(
    sample: Site, fitted: dict[str, Estimator]
) -> None:
    """One is surely met, one ends in time only by the median, and one has no place at all."""
    four = sample.requests.head(1).iloc[[0] * 4].assign(job_id=["met", "tight", "none", "free"])
    four = four.assign(deadline=pd.Series([pd.NaT] * 4, dtype="datetime64[ns, UTC]").to_numpy())
    first = of_requests(sample, fitted, four)
    etas = first.etas.set_index("job")
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
    low, high = (need(fitted["realtime"], sample, Policy(demand_quantile=q)) for q in (0.5, 0.95))
    for app in sample.cluster.apps:
        assert (high.gpus[app.id] >= low.gpus[app.id]).all()


def test_a_demand_curve_covers_horizon_and_lookahead_at_every_step_length(
    sample: Site, fitted: dict[str, Estimator]
) -> None:
    for minutes in (15, 30, 60):
        demand = need(fitted["realtime"], sample, Policy(step_minutes=minutes))
        assert {len(curve) for curve in demand.gpus.values()} == {48 * 60 // minutes}


def test_a_step_across_two_hours_takes_the_larger(sample: Site, fitted: dict[str, Estimator]) -> None:
    at_hour = need(fitted["realtime"], sample, Policy())
    later = need(fitted["realtime"], sample, Policy(), sample.now + pd.Timedelta(minutes=30))
    for app, curve in at_hour.gpus.items():
        expected = np.maximum(curve[:-1], curve[1:])
        assert (later.gpus[app][: len(expected)] >= expected).all()


def serving(
    site: Site,
    need: float,
    *,
    held: tuple[int, ...] = (),
    left: int | None = None,
    pool: Pool | None = None,
    **more: Any,
) -> Decision:
    """What is decided for an app that holds some GPUs and needs so many for ever, with some swaps left."""
    one = pool or Pool(id="a", gpus=16, gpu_type="any")
    app = App(
        **{"id": "chat", "pool": "a", "held": held, "capacity": Capacity(units_per_gpu_hour=1.0)} | more
    )
    swaps = {} if left is None else {"chat": left}
    cluster = Cluster(pools=(one,), apps=(app,))
    state = State.of(cluster, site.requests.head(0), Site.no_running(), site.now, swaps_left=swaps)
    known = Curve({"chat": [need]})
    return decide(state, Estimating({"realtime": known}, site.history), Policy(demand_quantile=0.5))


@pytest.mark.parametrize(
    ("need", "held", "left", "after", "swaps"),
    [(6, 1, None, 3, 2), (6, 1, 1, 2, 1), (6, 1, 0, 1, 0), (1, 6, 1, 5, 1), (1, 6, 0, 6, 0)],
)
def test_an_app_moves_as_far_as_the_swaps_that_are_left_allow(
    sample: Site, need: float, held: int, left: int | None, after: int, swaps: int
) -> None:
    decision = serving(sample, need, held=tuple(range(held)), left=left, swap_cap=2)
    (move,) = decision.moves
    assert (len(move.after), move.swaps) == (after, swaps)
    told = [event.text for event in decision.events if event.kind == "swap put off"]
    assert bool(told) == (left is not None)
    assert all("of 2 swaps of the step from" in text for text in told)


def test_replicas_are_whole_and_on_one_node(sample: Site) -> None:
    """Fault of 15 GPUs of an app with 8 a replica, and of replicas over two nodes."""
    pool = Pool(id="a", gpus=24, gpu_type="any", node_size=8, placement="node")
    capacity = Capacity(units_per_gpu_hour=1.0, gpus_per_replica=4, min_replicas=1)
    decision = serving(sample, 10, held=(0, 1, 2, 3, 9), pool=pool, capacity=capacity)
    app = decision.problem.app_by_id["chat"]
    assert (app.replica, app.floor, app.demand[0], app.held_replicas) == (4, 4, 12, ((0, 1, 2, 3),))
    (move,) = decision.moves
    assert len(move.replicas) == 3 and (0, 1, 2, 3) in map(tuple, move.replicas)
    assert all(len({gpu // 8 for gpu in one}) == 1 for one in move.replicas)
    assert "GPUs 9, which are no whole replica" in decision.events[-1].text
    commit = decided(decision)["apps"][0]
    assert commit["replicas"] == move.replicas and commit["enter"] == sorted(
        set(move.after) - {0, 1, 2, 3, 9}
    )


def test_a_floor_is_held_while_nothing_is_asked_for(sample: Site) -> None:
    capacity = Capacity(units_per_gpu_hour=1.0, gpus_per_replica=2, min_replicas=1)
    decision = serving(sample, 0, capacity=capacity)
    assert min(decision.plan.apps[0].counts()) == 2 and not decision.risks


def test_an_app_keeps_the_gpus_that_it_holds_where_nothing_is_gained(sample: Site) -> None:
    decision = serving(sample, 2, held=(5, 11))
    assert {tuple(sorted(cells)) for cells in decision.plan.apps[0].cells} == {(5, 11)}
    assert decision.plan.metrics["swaps"] == 0


def test_need_that_a_cap_forbids_is_told_as_unmet_from_its_first_step(
    sample: Site,
) -> None:
    """An app that holds nothing and may gain one GPU a step, and needs nine: 36 GPU-steps short, by its cap."""
    decision = serving(sample, 9, swap_cap=1)
    assert decision.problem.app_by_id["chat"].demand[:3] == (9, 9, 9)
    assert [len(cells) for cells in decision.plan.apps[0].cells[:10]] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 9]
    assert decision.unmet == decision.plan.metrics["shortfall"] == sum(range(9))
    first = decision.risks[0]
    assert (first["app"], first["from"], first["short"], first["cause"]) == ("chat", 0, 8, "swap cap")
    assert "its swap cap is 1 GPU a step" in first["text"]


def test_two_apps_that_need_more_than_there_is_never_get_more(
    fitted: dict[str, Estimator], sample: Site
) -> None:
    """At most 8 GPUs in every step, and the shortfall is shown for each app."""
    pool = Pool(id="small", gpus=8, gpu_type="H100-SXM-80GB")
    series = list(dict.fromkeys(app.series for app in sample.cluster.apps))[:2]
    traffic = sample.history.traffic
    level = traffic[traffic["series_id"].isin(series)].groupby("series_id")["value"].mean()
    apps = tuple(
        App(id=s, pool="small", series_id=s, capacity=Capacity(units_per_gpu_hour=float(level[s]) / 6))
        for s in series
    )
    cluster = Cluster(timezone=sample.cluster.timezone, pools=(pool,), apps=apps)
    state = State.of(cluster, sample.requests.head(0), Site.no_running(), sample.now)
    decision = decide(state, Estimating(fitted, sample.history))
    for t in range(decision.problem.steps):
        assert sum(len(set(entry.cells[t])) for entry in decision.plan.apps) <= 8
    assert decision.unmet > 0
    assert {risk["app"] for risk in decision.risks} <= set(series)
    assert decision.risks


def test_an_app_without_throughput_is_planned_at_what_it_holds(
    sample: Site, fitted: dict[str, Estimator]
) -> None:
    bare = sample.cluster.apps[0].model_copy(update={"capacity": Capacity()})
    site = replace(sample, cluster=sample.cluster.model_copy(update={"apps": (bare,)}))
    assert set(need(fitted["realtime"], site, Policy()).gpus[bare.id]) == {len(bare.held)}


def test_a_policy_file_names_the_parameter_that_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text('{"decay": 1.5}')
    with pytest.raises(InputError, match=r"policy\.json, decay"):
        Policy.read(path)
    path.write_text('{"decai": 0.9}')
    with pytest.raises(InputError, match="decai: is unknown; use some of step_minutes"):
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
    decision = decide(site.state(), Estimating(fitted, site.history))
    plans = {"fast": decision.plan, "fifo": solve(decision.problem, "fifo")}
    for plan in plans.values():
        assert judge(shared, decision.problem.to_dict(), json.loads(json.dumps(plan.to_dict()))) == []
    assert plans["fast"].metrics["objective"] > plans["fifo"].metrics["objective"]
    assert plans["fast"].metrics["utilization"] >= plans["fifo"].metrics["utilization"]
