"""What would be if: answers name what changes, and asking changes nothing."""

import pickle
from pathlib import Path

import pandas as pd
import pytest
from rolling_site import HOUR, START, Curve, Told, World

from tidegrid.errors import InputError
from tidegrid.pipeline.control import Settings, remembered, tick
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.resident import Resident
from tidegrid.pipeline.rolling import StateStore
from tidegrid.pipeline.whatif import Basis, NewJob, Node, Question, Scaled
from tidegrid.pipeline.worlds.files import Files

HOW = Settings(policy=Policy(horizon_hours=12, lookahead_hours=0))


@pytest.fixture
def basis(tmp_path: Path) -> Basis:
    """Sixteen GPUs in two nodes: one job on the first node, three that wait, an app that needs two GPUs."""
    curve = [2.0] * 48
    world = World(tmp_path / "site", gpus=16, node_size=8, apps={"chat": (9, None, curve)})
    world.run("r", 0, 8, 6)
    world.submit("a", 4, 2, 5)
    world.submit("b", 4, 4, 4)
    world.submit("c", 8, 3, 3)
    files, store = Files(world.write()), StateStore(tmp_path / "state.db")
    history = files.read(world.now).history()
    forecaster = Resident(
        {"recurring": Told(1.3), "realtime": Curve({"chat": curve})}, history, learnt=world.now
    )
    tick(store, files, world.now, HOW, forecaster=forecaster)
    memory = remembered(store, world.now, HOW)
    return Basis(forecaster, HOW, memory.last, memory.widths)


def test_what_is_compared_with_is_the_plan_that_holds(basis: Basis) -> None:
    assert basis.last is not None
    assert sorted(basis.decision.plan.placements) == sorted(basis.last.plan.placements)


@pytest.mark.parametrize(
    "question",
    [
        Question(job=NewJob(gpus=2, name="x-2h")),
        Question(nodes=(Node(pool="a", node="0"),)),
        Question(apps=(Scaled(app="chat", factor=2),)),
        Question(policy={"step_minutes": 30, "demand_quantile": 0.5}),
        Question(without=("a",)),
    ],
)
def test_asking_changes_nothing_and_gives_the_same_answer_again(basis: Basis, question: Question) -> None:
    _ = basis.decision
    told = {job: times.copy() for job, times in basis.forecaster._told.whole.items()}  # type: ignore[union-attr]
    waiting = set(basis.forecaster._told.waiting)  # type: ignore[union-attr]
    hours, state = dict(basis.forecaster.hours), basis.state
    first = basis.ask(question)
    assert basis.ask(question) == first
    assert basis.forecaster._told is not None
    assert basis.forecaster._told.waiting == waiting
    assert set(basis.forecaster._told.whole) == set(told)
    assert basis.forecaster.hours == hours
    assert basis.state is state
    # in another process too
    assert pickle.loads(pickle.dumps(basis)).ask(question) == first


def test_a_new_job_is_told_when_it_would_start(basis: Basis) -> None:
    answer = basis.ask(Question(job=NewJob(gpus=2, name="x-2h", priority=10)))
    expected = answer["job"]["expected"]
    start, end = (pd.Timestamp(expected[name]["q0.5"]) for name in ("start", "end"))
    assert start >= START
    assert abs(end - start - 2 * HOUR) < pd.Timedelta(minutes=5)
    assert answer["after"]["jobs"] == answer["before"]["jobs"] + 1


def test_a_job_that_fits_nowhere_is_refused_with_the_reason(basis: Basis) -> None:
    job = basis.ask(Question(job=NewJob(gpus=32)))["job"]
    assert job["refused"]
    assert job["expected"] is None
    assert job["reason"]


def test_a_node_that_is_taken_away_loses_what_runs_on_it(basis: Basis) -> None:
    answer = basis.ask(Question(nodes=(Node(pool="a", node="0"),)))
    assert answer["lost"] == ["r"]
    assert answer["after"]["jobs"] == answer["before"]["jobs"] - 1
    moved = {one["job"]: one for one in answer["moved"]}
    assert moved["r"]["after"] is None
    # a node whose GPUs are free or an app's loses no job
    assert basis.ask(Question(nodes=(Node(pool="a", node="1"),)))["lost"] == []


def test_twice_the_traffic_needs_twice_the_gpus(basis: Basis) -> None:
    answer = basis.ask(Question(apps=(Scaled(app="chat", factor=2),)))
    (app,) = answer["apps"]
    assert [2 * need for need in app["need_before"]] == pytest.approx(app["need_after"], abs=1)
    assert sum(app["gpus_after"]) > sum(app["gpus_before"])


def test_a_withdrawn_job_gives_way(basis: Basis) -> None:
    answer = basis.ask(Question(without=("a",)))
    moved = {one["job"]: one for one in answer["moved"]}
    assert moved["a"]["after"] is None
    assert answer["after"]["placed"] >= answer["before"]["placed"] - 1


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (Question(), "question: changes nothing"),
        (Question(policy={"decay": HOW.policy.decay}), "question: changes nothing"),
        (Question(nodes=(Node(pool="z", node="0"),)), "pool: there is no pool 'z'"),
        (Question(nodes=(Node(pool="a", node="2"),)), "pool 'a' has no node '2'; name one of 0 to 1"),
        (Question(nodes=(Node(pool="a", node="-1"),)), "pool 'a' has no node '-1'"),
        (Question(apps=(Scaled(app="z", factor=2),)), "there is no app 'z'; the apps are: chat"),
        (Question(without=("r",)), "no job 'r' waits"),
        (Question(job=NewJob(job="a")), "there is a job 'a'"),
        (Question(job=NewJob(job="chat")), "an app is called 'chat' too"),
        (Question(job=NewJob(features={"zz": 1})), "features.zz: there is no such feature"),
        (Question(job=NewJob(features={"epochs": -1})), "epochs: '-1' is not positive"),
        (Question(job=NewJob(gpus=4, max_gpus=2)), "max_gpus is below gpus"),
        (Question(policy={"estimators": 1}), "policy.estimators: there is no such parameter"),
        (Question(policy={"decay": 2}), "decay: 2 is out of range"),
    ],
)
def test_what_is_not_there_or_cannot_be_is_refused_by_name(
    basis: Basis, question: Question, said: str
) -> None:
    with pytest.raises(InputError) as told:
        basis.ask(question)
    assert said in str(told.value)


def test_a_resident_learns_each_fact_once(tmp_path: Path) -> None:
    """A tick that failed after it had learnt is made again, and its news are told again."""

    class Counting(Told):
        seen = 0

        def update(self, X: pd.DataFrame, y: object, **more: object) -> "Counting":
            Counting.seen += len(X)
            return self

    world = World(tmp_path / "site", gpus=8)
    world.run("r", 0, 8, 1)
    files = Files(world.write())
    start = files.read(world.now)
    made = Resident({"recurring": Counting()}, start.history(), learnt=world.now)
    world.advance()
    world.write()
    later = files.read(world.now, START)
    for _ in range(3):
        made.learn(later.news, world.now, later.history)
    assert Counting.seen == 1
