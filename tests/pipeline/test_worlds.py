"""Any class that meets the protocol is a world: the loop reads it, decides, and has the last commit applied."""

from pathlib import Path

import pandas as pd
import pytest
from rolling_site import START, Told

from tidegrid.data import REQUESTS, RUNNING, Cluster, History, Pool, validate
from tidegrid.pipeline.control import Settings, tick
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.rolling import Commit, StateStore
from tidegrid.pipeline.state import State
from tidegrid.pipeline.worlds import Reading, World
from tidegrid.pipeline.worlds.files import Files
from tidegrid.scheduler import StalePlanError

SETTINGS = Settings(policy=Policy(horizon_hours=4, lookahead_hours=0))
HOUR = pd.Timedelta(hours=1)


class InMemory:
    """Four GPUs and a queue of jobs of one GPU; nothing of it is in a file."""

    name = "the jobs in memory"

    def __init__(self, *waiting: str, changing: bool = False) -> None:
        self.waiting, self.running, self.changing = list(waiting), dict[str, int](), changing
        self.versions, self.asked, self.applied = 0, list[pd.Timestamp | None](), list[Commit]()

    def version(self) -> str:
        self.versions += self.changing
        return f"{self.versions} {self.waiting} {self.running}"

    def read(self, now: pd.Timestamp, since: pd.Timestamp | None = None) -> Reading:
        self.asked.append(since)
        jobs = [*self.waiting, *self.running]
        common = pd.DataFrame({"job_id": jobs, "name": [f"{job}-9h" for job in jobs]}, dtype=object)
        common = common.assign(kind="training", priority=5, submit_time=START, gpus=1)
        waits = common["job_id"].isin(self.waiting)
        running = common[~waits].assign(pool="a", first_gpu=list(self.running.values()), start_time=START)
        cluster = Cluster(pools=(Pool(id="a", gpus=4, gpu_type="H100-SXM-80GB"),))
        state = State.of(cluster, validate(common[waits], REQUESTS), validate(running, RUNNING), now)
        return Reading(state, History(), History, notes=("nothing is known of the past",))

    def apply(self, commit: Commit) -> None:
        self.applied.append(commit)
        for start in commit.document["start"]:
            if start["job"] in self.waiting:
                self.waiting.remove(start["job"])
                self.running[start["job"]] = start["first_gpu"]


def step(state: StateStore, world: World, now: pd.Timestamp) -> Commit:
    return tick(state, world, now, SETTINGS, estimators={"recurring": Told()})


def test_the_loop_runs_on_a_world_that_it_does_not_know(tmp_path: Path) -> None:
    state, world = StateStore(tmp_path / "state.db"), InMemory("a", "b", "c", "d", "e")
    first = step(state, world, START)
    assert len(first.document["start"]) == 4 and len(world.running) == 4 and len(world.waiting) == 1
    assert first.document["notes"][0] == "nothing is known of the past"
    second = step(state, world, START + HOUR)
    assert second.document["start"] == [] and second.document["running"] == 4
    assert world.asked == [None, START] and world.applied == [first, second]


def test_a_commit_is_applied_again_and_not_made_again(tmp_path: Path) -> None:
    state, world = StateStore(tmp_path / "state.db"), InMemory("a", "b")
    first = step(state, world, START)
    # as after a kill between the store and the world
    world = InMemory("a", "b")
    assert step(state, world, START) == first
    assert world.applied == [first] and not world.asked and set(world.running) == {"a", "b"}


def test_a_world_that_changed_meanwhile_gets_no_commit(tmp_path: Path) -> None:
    state, world = StateStore(tmp_path / "state.db"), InMemory("a", changing=True)
    with pytest.raises(StalePlanError, match="the jobs in memory changed"):
        step(state, world, START)
    assert state.last() is None and not world.applied


def test_a_folder_read_in_another_zone_is_another_input(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text('{"pools": [{"id": "a", "gpus": 4, "gpu_type": "H100"}]}')
    zones = (None, "UTC", "Europe/Berlin")
    versions = {Files(tmp_path, zone).version() for zone in zones}
    assert len(versions) == len(zones)
