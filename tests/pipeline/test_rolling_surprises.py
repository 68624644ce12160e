"""Surprises in the rolling horizon, each with the right answer."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rolling_site import HOUR, START, Curve, Told, World

from tidegrid.data import Cluster, Pool
from tidegrid.errors import InputError
from tidegrid.estimators import Estimator
from tidegrid.pipeline.control import Settings, tick
from tidegrid.pipeline.hours import record_of
from tidegrid.pipeline.memory import Hour
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.rolling import StateStore, accuracy
from tidegrid.pipeline.worlds.files import Files
from tidegrid.scheduler import Plan, Problem, check

POLICY = Policy(horizon_hours=12, lookahead_hours=12)


def step(
    world: World, state: StateStore, *, write: dict[str, Any] | None = None, **answers: Any
) -> dict[str, Any]:
    told = {"recurring": Told(1.5), "realtime": Curve({a: app[2] for a, app in world.apps.items()})} | answers
    commit = tick(
        state, Files(world.write(**(write or {}))), world.now, Settings(policy=POLICY), estimators=told
    )
    kept = state.plan(commit.tick)
    assert kept is not None
    problem = Problem.from_dict(kept["problem"])
    assert check(problem, Plan.from_dict(kept["plan"]))[0] == []
    world.obey(commit.document)
    return commit.document


def kinds(document: dict[str, Any], subject: str) -> list[str]:
    return [event["kind"] for event in document["events"] if event["subject"] == subject]


@pytest.fixture
def state(tmp_path: Path) -> StateStore:
    return StateStore(tmp_path / "state.db")


def test_a_job_that_ends_early_gives_its_gpus_back_at_once(tmp_path: Path, state: StateStore) -> None:
    """Told 8 hours, takes a quarter of an hour: the next run, at its end, starts the job that waited."""
    world = World(tmp_path / "site", gpus=4)
    world.submit("short", 4, 0.25, 9, told=8)
    world.submit("next", 4, 2, 1)
    assert [s["job"] for s in step(world, state)["start"]] == ["short"]
    world.advance(15)
    document = step(world, state)
    assert kinds(document, "short") == ["early"]
    assert world.starts["next"] == START + pd.Timedelta(minutes=15)


def test_a_job_that_fails_is_an_outcome_and_frees_its_block(tmp_path: Path, state: StateStore) -> None:
    world = World(tmp_path / "site", gpus=4)
    world.submit("bad", 4, 1, 9)
    world.submit("next", 4, 2, 1)
    world.fates["bad"] = "failed"
    step(world, state)
    world.advance()
    assert kinds(step(world, state), "bad") == ["failed"]
    assert "next" in world.running
    assert [(o.job_id, o.status, o.hours) for o in state.outcomes()] == [("bad", "failed", 1.0)]
    assert accuracy(state).scored == 0  # a failure's end says nothing about a duration


def test_a_gpu_dies_its_job_is_lost_and_the_rest_goes_on(tmp_path: Path, state: StateStore) -> None:
    world = World(tmp_path / "site", gpus=8)
    world.run("left", 0, 4, 5)
    world.run("right", 4, 4, 5)
    world.submit("wide", 8, 1, 9)
    world.submit("four", 4, 2, 5)
    step(world, state)
    world.advance()
    world.down = (5,)
    document = step(world, state)
    assert document["lost"] == ["right"] and kinds(document, "right") == ["lost"]
    assert document["running"] == 1
    assert "left" not in document["lost"]
    # reported once, however long the site's file still lists it
    world.advance()
    again = step(world, state)
    assert again["lost"] == [] and [o.status for o in state.outcomes()] == ["lost"]
    del world.running["right"]
    for _ in range(8):
        world.advance()
        document = step(world, state)
        assert all(not s["first_gpu"] <= 5 < s["first_gpu"] + s["gpus"] for s in document["start"])
    assert "wide" not in world.starts and world.starts["four"] == START + 5 * HOUR


def test_a_lost_job_that_is_submitted_again_keeps_its_age(tmp_path: Path, state: StateStore) -> None:
    world = World(tmp_path / "site", gpus=2, now=START)
    world.run("job", 0, 2, 5)
    step(world, state)
    world.advance()
    world.down = (0, 1)
    step(world, state)
    row = world.running.pop("job")
    world.advance()
    world.waiting["job"] = {k: row[k] for k in ("job_id", "kind", "priority", "gpus", "name", "user")}
    world.waiting["job"]["submit_time"] = world.now.isoformat()
    step(world, state)
    entry = state.watched()["job"]
    assert (entry.state, entry.first_seen) == ("waiting", START.isoformat())


def test_a_node_dies_under_an_app(tmp_path: Path, state: StateStore) -> None:
    """The app's hold on the dead node is void; it grows on the living one as fast as its cap allows."""
    world = World(
        tmp_path / "site", gpus=8, node_size=4, apps={"chat": (9, 2, [3.6])}, held={"chat": [0, 1, 2, 3]}
    )
    step(world, state)
    world.advance()
    world.down = (0, 1, 2, 3)
    for expected in (2, 4, 4):
        document = step(world, state)
        (move,) = document["apps"]
        assert len(move["gpus"]) == expected and min(move["gpus"]) >= 4
        world.advance()


def test_a_down_gpu_outside_the_pool_or_twice_is_refused() -> None:
    for down in ((8,), (1, 1)):
        with pytest.raises(InputError, match="down"):
            Cluster.from_dict(
                {"pools": [{"id": "a", "gpus": 8, "gpu_type": "H100-SXM-80GB", "down": list(down)}]}
            )
    assert Pool(id="a", gpus=1, gpu_type="x").down == ()


def test_realtime_beyond_its_band_is_told_and_counted(tmp_path: Path, state: StateStore) -> None:
    world = World(
        tmp_path / "site", apps={"chat": (9, None, [2.0, 2.0, 6.0, 2.0, 2.0])}, held={"chat": [0, 1]}
    )
    seen = []
    for _ in range(5):
        document = step(world, state, realtime=Curve({"chat": [2.0]}))
        seen += kinds(document, "chat")
        world.advance()
    assert seen == ["no history", "above band"]  # at first there is no traffic yet
    found = accuracy(state)
    # the policy holds the 0.9 quantile, 2.2 units, so three GPUs: three of the six that were needed are missing
    assert (found.needed, found.unmet) == (12.0, 3.0)
    assert found.hours == 4 and found.hours_covered == 0.75


def test_a_burst_of_arrivals_is_planned_and_told(tmp_path: Path, state: StateStore) -> None:
    world = World(tmp_path / "site", gpus=8)
    world.run("r", 0, 1, 3)
    step(world, state)
    world.advance()
    for k in range(40):
        world.submit(f"b{k}", 1, 1, 3)
    document = step(world, state)
    assert kinds(document, "queue") == ["burst"] and len(document["start"]) == 7
    assert len(document["start"]) + len(document["waiting"]) == 40


def test_traffic_that_stops_coming_holds_the_forecast_and_is_told(tmp_path: Path, state: StateStore) -> None:
    world = World(tmp_path / "site", apps={"chat": (9, None, [3.0])}, held={"chat": [0, 1, 2]})
    for hour in range(5):
        document = step(world, state, write={"traffic_until": START + HOUR})
        assert len(document["apps"][0]["gpus"]) >= 3
        assert ("late history" in kinds(document, "chat")) == (hour > 3)
        world.advance()
    # late hours count when they come, against the GPUs that were held then
    step(world, state)
    assert accuracy(state).needed == 15.0 and accuracy(state).unmet == 0


def test_an_end_whose_record_is_late_is_missing_until_it_comes(tmp_path: Path, state: StateStore) -> None:
    world = World(tmp_path / "site", gpus=4)
    world.submit("a", 4, 1, 5)
    step(world, state)
    world.advance()
    document = step(world, state, write={"jobs": False})
    assert kinds(document, "a") == ["missing"] and kinds(document, "jobs") == ["no history"]
    world.advance()
    assert kinds(step(world, state, write={"jobs": False}), "a") == []
    world.advance()
    step(world, state)
    (outcome,) = state.outcomes()
    assert (outcome.ended, outcome.status) == ((START + HOUR).isoformat(), "completed")
    assert not state.watched()


def test_a_withdrawn_request_and_a_requeued_job_are_told(tmp_path: Path, state: StateStore) -> None:
    world = World(tmp_path / "site", gpus=2)
    world.run("r", 0, 2, 9)
    world.submit("w", 2, 1, 5)
    step(world, state)
    world.advance()
    del world.waiting["w"]
    world.waiting["r"] = {
        k: v for k, v in world.running.pop("r").items() if k not in ("pool", "first_gpu", "start_time")
    }
    document = step(world, state)
    assert kinds(document, "w") == ["withdrawn"] and kinds(document, "r") == ["requeued"]
    assert state.watched()["r"].first_seen == START.isoformat()


def test_a_job_in_both_files_runs(tmp_path: Path, state: StateStore) -> None:
    """The exporter wrote one file before the other."""
    world = World(tmp_path / "site", gpus=2)
    world.submit("j", 1, 3, 5)
    request = dict(world.waiting["j"])
    world.start("j", 0, 1)
    world.waiting["j"] = request
    document = step(world, state)
    assert kinds(document, "j") == ["in two files"] and document["start"] == [] and document["running"] == 1


class Broken(Told):
    """Raises whatever it is asked."""

    kind = "training"
    name = "training"
    features = ()

    def predict_quantiles(self, X: pd.DataFrame, levels: Any = (0.1, 0.5, 0.9)) -> pd.DataFrame:
        raise RuntimeError("out of ideas")


def test_a_duration_estimator_raises_and_history_answers_flagged(tmp_path: Path, state: StateStore) -> None:
    world = World(tmp_path / "site", gpus=4)
    world.submit("j", 4, 3, 5)
    document = step(world, state, training=Broken())
    assert kinds(document, "training") == ["fallback"] and document["start"][0]["job"] == "j"
    kept = state.plan(1)
    assert kept is not None
    told = kept["forecast"]["durations"]
    row = dict(zip(told["columns"], told["data"][0], strict=True))
    assert row["estimator"] == "recurring" and "out of ideas" in row["note"]


def test_the_last_fallback_raises_and_its_prior_answers(tmp_path: Path, state: StateStore) -> None:
    world = World(tmp_path / "site", gpus=4)
    world.submit("j", 4, 3, 5)
    document = step(world, state, recurring=Broken())
    assert kinds(document, "recurring") == ["fallback"] and document["start"][0]["job"] == "j"


class NoDemand(Curve):
    def predict_quantiles(self, X: pd.DataFrame, levels: Any = (0.1, 0.5, 0.9)) -> pd.DataFrame:
        if self.curves is None:
            raise RuntimeError("no idea")
        return super().predict_quantiles(X, levels) * float("nan")


@pytest.mark.parametrize("broken", [NoDemand(), NoDemand({"chat": [1.0]})])
def test_the_demand_estimator_raises_or_answers_nonsense(tmp_path: Path, broken: Estimator) -> None:
    """Without any history the app keeps what it holds; with a day of it, yesterday's hours come again."""
    for hours, least in ((0, 2), (26, 4)):
        folder = tmp_path / str(hours)
        folder.mkdir()
        world = World(folder / "site", apps={"chat": (9, None, [4.0])}, held={"chat": [0, 1]})
        world.now = START + hours * HOUR
        document = step(world, StateStore(folder / "state.db"), realtime=broken)
        assert "fallback" in kinds(document, "realtime")
        assert len(document["apps"][0]["gpus"]) == least


def test_a_swap_cap_counts_for_a_step_however_many_ticks_fall_into_it(
    tmp_path: Path, state: StateStore
) -> None:
    world = World(tmp_path / "site", apps={"chat": (9, 2, [8.0])}, held={"chat": [0]})
    held = []
    for _ in range(4):
        document = step(world, state)
        held.append(len(document["apps"][0]["gpus"]))
        world.advance(20)
    assert held == [3, 3, 3, 5]
    told = [event.kind for _, event in state.events() if event.subject == "chat"]
    assert told.count("swap put off") == 2


def test_gpus_that_an_app_may_not_enter_yet_are_kept_for_it(tmp_path: Path, state: StateStore) -> None:
    """The app needs all eight, has three and is to have five within the hour: a job that fits beside those starts."""
    world = World(tmp_path / "site", apps={"chat": (9, 2, [8.0])}, held={"chat": [0]})
    step(world, state)
    world.advance(20)
    world.submit("wide", 4, 1, 1)
    world.submit("short", 2, 1, 1)
    document = step(world, state)
    assert len(document["apps"][0]["gpus"]) == 3
    assert [start["job"] for start in document["start"]] == ["short"]
    assert [e["text"] for e in document["events"] if e["kind"] == "swap put off"] == [
        "chat gets 3 of 5 GPUs: 2 of 2 swaps of the step from 2026-03-02T00:00:00+00:00 are used"
    ]


def test_bands_are_recalibrated_from_a_day_of_recorded_hours_on() -> None:
    hours = [Hour("chat", (START + k * HOUR).isoformat(), 1.0, 2.0, 3.0, 9.0) for k in range(30)]
    assert record_of(hours[:23]).empty
    record = record_of([*hours, Hour("chat", (START + 40 * HOUR).isoformat(), 1.0, 2.0, 3.0)])
    assert len(record) == 30 and list(record.columns) == ["unique_id", "ds", "y", 0.1, 0.5, 0.9]


def test_a_start_that_the_site_did_not_make_is_told_and_planned_again(
    tmp_path: Path, state: StateStore
) -> None:
    world = World(tmp_path / "site", gpus=2)
    world.submit("j", 2, 3, 5)
    told = {"recurring": Told()}
    tick(state, Files(world.write()), world.now, Settings(policy=POLICY), estimators=told)
    world.now += HOUR
    document = step(world, state)
    assert kinds(document, "j") == ["not started"] and [s["job"] for s in document["start"]] == ["j"]
