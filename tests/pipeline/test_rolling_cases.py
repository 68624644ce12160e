"""Small cases with a right answer, closed loop: plan, commit, let time pass, and plan again."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rolling_site import HOUR, START, Curve, Told, World

from tidegrid.estimators.realtime import RealtimeEstimator
from tidegrid.pipeline.control import Settings, tick
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.rolling import StateStore, accuracy
from tidegrid.pipeline.worlds.files import Files


def step(world: World, state: StateStore, policy: Policy, **answers: Any) -> dict[str, Any]:
    """One tick that the world obeys; what the commit says."""
    told = {"recurring": Told(), "realtime": Curve({a: app[2] for a, app in world.apps.items()})} | answers
    commit = tick(state, Files(world.write()), world.now, Settings(policy=policy), estimators=told)
    world.obey(commit.document)
    return commit.document


def planned(state: StateStore) -> dict[str, int]:
    """The start of each job in the last plan, in steps from now."""
    last = state.last()
    assert last is not None
    kept = state.plan(last.tick)
    assert kept is not None
    return {p["job"]: p["start"] for p in kept["plan"]["placements"]}


def test_a_wide_job_is_not_starved_by_newcomers(tmp_path: Path) -> None:
    """P1: BIG starts at 6 and never moves later; S1 and S2 fill 4–5; L and the newcomers start at 10 or later."""
    world, state = World(tmp_path / "site"), StateStore(tmp_path / "state.db")
    policy = Policy(horizon_hours=24, lookahead_hours=0, decay=1.0)
    world.run("R1", 0, 4, 4)
    world.run("R2", 4, 4, 6)
    for job, gpus, hours, priority in (("BIG", 8, 4, 9), ("S1", 2, 2, 1), ("S2", 2, 2, 1), ("L", 2, 6, 1)):
        world.submit(job, gpus, hours, priority)
    big = []
    for hour in range(11):
        if hour:
            world.submit(f"N{hour}", 2, 6, 1)
        step(world, state, policy)
        if "BIG" in planned(state) and "BIG" not in world.starts:
            big.append(hour + planned(state)["BIG"])
        world.advance()
    at = {job: (when - START) / HOUR for job, when in world.starts.items()}
    assert big == [6] * 6 and at["BIG"] == 6
    assert at["S1"] == at["S2"] == 4
    assert min(when for job, when in at.items() if job[0] in "LN") >= 10


def test_expected_starts_come_nearer_by_one_with_each_committed_step(tmp_path: Path) -> None:
    """P5: four jobs that fill the cluster start at 0, 3, 6, 9; the 0.9 expectation is never before the 0.5 one."""
    world, state = World(tmp_path / "site", gpus=4), StateStore(tmp_path / "state.db")
    for k in range(4):
        world.submit(f"j{k}", 4, 3, 5)
    policy = Policy(horizon_hours=24, lookahead_hours=0)
    before: dict[str, int] = {}
    for _ in range(10):
        document = step(world, state, policy)
        now = {job: at for job, at in planned(state).items() if job in world.waiting}
        assert all(before[job] - at == 1 for job, at in now.items() if job in before)
        for one in document["waiting"]:
            assert one["start"]["q0.1"] <= one["start"]["q0.5"] <= one["start"]["q0.9"]
        before = now
        world.advance()
    assert [(world.starts[f"j{k}"] - START) / HOUR for k in range(3)] == [0, 3, 6]
    told = accuracy(state)
    assert told.scored == 3 and told.within_10 == told.covered == 1.0


def test_a_job_longer_than_the_horizon_starts_and_is_held(tmp_path: Path) -> None:
    """P7: 48 steps, 60 hours: it starts at once, outruns the horizon and holds its GPU."""
    world, state = World(tmp_path / "site", gpus=1), StateStore(tmp_path / "state.db")
    world.submit("long", 1, 60, 5)
    policy = Policy(horizon_hours=48, lookahead_hours=24)
    for _ in range(3):
        step(world, state, policy)
        world.advance()
    assert world.starts == {"long": START} and "long" in world.running


@pytest.mark.parametrize("wide", [1, 2])
def test_shorter_jobs_do_not_starve_a_long_one_of_their_class(tmp_path: Path, wide: int) -> None:
    """P7: two GPUs, always more short jobs than fit; the long one starts within a day and a half."""
    world, state = World(tmp_path / "site", gpus=2), StateStore(tmp_path / "state.db")
    policy = Policy(horizon_hours=12, lookahead_hours=0)
    for k in range(3):
        world.submit(f"s0-{k}", 1, 2, 5)
    world.advance()
    world.submit("long", wide, 16, 5)
    for hour in range(36):
        for k in range(2):
            world.submit(f"s{hour + 1}-{k}", 1, 2, 5)
        step(world, state, policy)
        world.advance()
        if "long" in world.starts:
            break
    assert "long" in world.starts


@pytest.mark.parametrize(("aging", "starts"), [(0.0, False), (1.0, True)])
def test_waiting_ends_a_starvation_among_equals(tmp_path: Path, aging: float, starts: bool) -> None:
    """Two GPUs that fall free in turn: each time another short job is worth an hour more than the wide one."""
    world, state = World(tmp_path / "site", gpus=2), StateStore(tmp_path / "state.db")
    policy = Policy(horizon_hours=12, lookahead_hours=0, aging=aging)
    world.run("r0", 0, 1, 1)
    world.run("r1", 1, 1, 2)
    world.submit("wide", 2, 16, 5)
    for hour in range(10):
        world.submit(f"s{hour}", 1, 2, 5)
        step(world, state, policy)
        world.advance()
    assert ("wide" in world.starts) == starts


def test_waiting_never_lifts_a_job_to_the_next_class(tmp_path: Path) -> None:
    world, state = World(tmp_path / "site", gpus=1), StateStore(tmp_path / "state.db")
    world.submit("old", 1, 1, 4)
    world.now += pd.Timedelta(days=400)
    world.submit("new", 1, 1, 5)
    assert [start["job"] for start in step(world, state, Policy(aging=1.0))["start"]] == ["new"]


@pytest.mark.parametrize(("shortness", "first"), [(0.0, "long"), (0.5, "short")])
def test_shortness_lets_a_short_job_pass_a_long_one_of_a_higher_class(
    tmp_path: Path, shortness: float, first: str
) -> None:
    world, state = World(tmp_path / "site", gpus=1), StateStore(tmp_path / "state.db")
    world.submit("long", 1, 10, 5)
    world.submit("short", 1, 1, 4)
    document = step(world, state, Policy(shortness=shortness))
    assert [start["job"] for start in document["start"]] == [first]


def test_an_overrun_moves_the_others_and_is_never_done_in_the_past(tmp_path: Path) -> None:
    """P13: told 6 hours, takes 9: from hour 6 on it is expected to need at least one step more, each time."""
    world, state = World(tmp_path / "site", gpus=4), StateStore(tmp_path / "state.db")
    policy = Policy(horizon_hours=24, lookahead_hours=0)
    world.run("over", 0, 4, 9, told=6)
    world.submit("next", 4, 2, 5)
    kinds = []
    for hour in range(10):
        document = step(world, state, policy)
        kinds += [event["kind"] for event in document["events"]]
        if hour < 9:
            assert planned(state)["next"] == max(1, 6 - hour)
        world.advance()
    assert world.starts["next"] == START + 9 * HOUR
    assert kinds.count("overrun") == 1


def test_two_apps_never_get_more_than_there_is(tmp_path: Path) -> None:
    """R4: 8 GPUs, two apps need 6 and 6: at most 8 in every step, and the shortfall of each is told."""
    curves = [2.0, 2.0] + [6.0] * 10
    world = World(tmp_path / "site", apps={"a1": (5, 2, curves), "a2": (5, 2, curves)})
    world.held = {"a1": [0, 1], "a2": [6, 7]}
    state = StateStore(tmp_path / "state.db")
    policy = Policy(horizon_hours=6, lookahead_hours=2, demand_quantile=0.5)
    for _ in range(8):
        before = {app: set(gpus) for app, gpus in world.held.items()}
        document = step(world, state, policy)
        held = [set(move["gpus"]) for move in document["apps"]]
        assert len(held[0] | held[1]) == len(held[0]) + len(held[1]) <= 8
        assert all(len(before[m["app"]] ^ set(m["gpus"])) <= 2 for m in document["apps"])
        world.advance()
    assert any("short" in risk for risk in document["risks"])
    found = accuracy(state)
    short = {one.app: one.unmet for one in state.unmet() if one.hour == (START + 5 * HOUR).isoformat()}
    assert sum(short.values()) == pytest.approx(4.0) and found.unmet > 0


def test_a_day_with_a_clock_change_has_no_hole_and_no_double(tmp_path: Path) -> None:
    """R5: half-hour ticks through both clock changes in Berlin: 48 elapsed steps in 24 h, demand by the local hour."""
    for day in ("2026-03-28T22:00:00+00:00", "2026-10-24T22:00:00+00:00"):
        begin = pd.Timestamp(day)
        folder = tmp_path / day[:10]
        folder.mkdir()
        world = World(folder / "site", apps={"chat": (5, None, [1.0])}, timezone="Europe/Berlin", now=begin)
        state = StateStore(folder / "state.db")
        policy = Policy(step_minutes=30, horizon_hours=24, lookahead_hours=0)

        class Local(Curve):
            """One GPU, three from 8 to 10 by the local clock."""

            def predict_quantiles(self, X: pd.DataFrame, levels: Any = (0.1, 0.5, 0.9)) -> pd.DataFrame:
                hour = pd.to_datetime(X["ds"], utc=True).dt.tz_convert("Europe/Berlin").dt.hour
                units = np.where(hour.isin([8, 9]), 3.0, 1.0)
                return pd.DataFrame(dict.fromkeys(levels, units), index=X.index)

        starts, local = [], []
        for _ in range(8):
            step(world, state, policy, realtime=Local({"chat": [1.0]}))
            last = state.last()
            assert last is not None
            kept = state.plan(last.tick)
            assert kept is not None
            problem = kept["problem"]
            assert problem["steps"] == 48 and len(problem["apps"][0]["demand"]) == 48
            starts.append(pd.Timestamp(problem["start"]))
            peak = [t for t, gpus in enumerate(problem["apps"][0]["demand"]) if gpus == 3]
            instants = [world.now + pd.Timedelta(minutes=30 * t) for t in peak]
            local += [i.tz_convert("Europe/Berlin").hour for i in instants]
            world.advance(30)
        assert {b - a for a, b in pairwise(starts)} == {pd.Timedelta(minutes=30)}
        assert set(local) <= {7, 8, 9} and {8, 9} <= set(local)


@pytest.fixture(scope="module")
def weekly() -> tuple[pd.DataFrame, RealtimeEstimator]:
    """Five weeks, six units on working hours and one otherwise; a long weekend, and half a Wednesday lost."""
    ds = pd.date_range(
        START - pd.Timedelta(days=35), START + pd.Timedelta(days=2), freq="h", inclusive="left"
    )
    busy = (ds.day_of_week < 5) & (ds.hour >= 8) & (ds.hour < 18)
    y = pd.Series(np.where(busy, 6.0, 1.0) + 0.05 * np.sin(np.arange(len(ds))), index=ds)
    friday = START - pd.Timedelta(days=3)
    y[(ds >= friday) & (ds < friday + pd.Timedelta(days=1))] = 1.0
    lost = START - pd.Timedelta(days=5) + 6 * HOUR
    y[(ds >= lost) & (ds < lost + 12 * HOUR)] = np.nan
    frame = pd.DataFrame({"unique_id": "chat", "ds": ds, "y": y.to_numpy()})
    known = frame[(frame["ds"] < START).to_numpy()]
    return frame, RealtimeEstimator().fit(known[["unique_id", "ds"]], known["y"])


def test_a_long_weekend_and_an_outage_do_not_become_next_week(
    tmp_path: Path, weekly: tuple[pd.DataFrame, RealtimeEstimator]
) -> None:
    """R8: planned on Monday at midnight and on Tuesday at midnight, the working hours get their GPUs."""
    frame, fitted = weekly
    world = World(tmp_path / "site", apps={"chat": (9, None, [1.0])})
    state = StateStore(tmp_path / "state.db")
    policy = Policy(horizon_hours=24, lookahead_hours=0, demand_quantile=0.5)
    for day in (0, 1):
        world.now = START + pd.Timedelta(days=day)
        folder = world.write()
        known = frame[(frame["ds"] < world.now).to_numpy()]
        known.to_csv(folder / "traffic.csv", index=False)
        learnt = RealtimeEstimator.from_bundle(fitted.to_bundle())
        new = known[(known["ds"] >= START).to_numpy()]
        if len(new):
            learnt.update(new[["unique_id", "ds"]], new["y"])
        tick(
            state,
            Files(folder),
            world.now,
            Settings(policy=policy),
            estimators={"recurring": Told(), "realtime": learnt},
        )
        last = state.last()
        assert last is not None
        kept = state.plan(last.tick)
        assert kept is not None
        need = kept["forecast"]["gpus"]["chat"]
        assert min(need[9:17]) >= 6 and max(need[:7]) <= 2 and max(need[20:]) <= 2


@pytest.mark.parametrize(("lookahead", "unmet"), [(24.0, 0.0), (0.0, 16.0)])
def test_tails_past_the_horizon_are_priced(tmp_path: Path, lookahead: float, unmet: float) -> None:
    """The end-of-world guard: a 12-hour job late in the day against the morning peak that the horizon does not see."""
    curve = [0.0] * 8 + [8.0] * 4 + [0.0]
    world = World(tmp_path / "site", apps={"chat": (9, None, curve)})
    state = StateStore(tmp_path / "state.db")
    policy = Policy(horizon_hours=6, lookahead_hours=lookahead, demand_quantile=0.5)
    world.submit("tail", 4, 12, 5)
    for _ in range(14):
        step(world, state, policy)
        world.advance()
    assert accuracy(state).unmet == pytest.approx(unmet)
    assert world.starts["tail"] == (START if not lookahead else START + 12 * HOUR)
