"""Sweeps of replays: the same results in one process, in two, and on a Dask scheduler with two worker processes."""

from collections.abc import Iterator
from typing import Any

import pytest
from replay_traces import busy

from tidegrid.app.commands.replay import engine
from tidegrid.errors import InputError
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.replay import Result, sweep
from tidegrid.pipeline.replay.measures import digest
from tidegrid.pipeline.replay.tuning import tune

TRACES = {f"seed {seed}": busy(seed, jobs=20, hours=10) for seed in range(4)}
POLICIES = ["easy_priority", "rolling"]


@pytest.fixture(scope="module")
def alone() -> dict[tuple[str, str], Result]:
    """Eight replays, one after the other in this process."""
    return sweep(TRACES, POLICIES)


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a Dask scheduler with two worker processes on this machine."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


def same(one: dict[tuple[str, str], Result], two: dict[tuple[str, str], Result]) -> bool:
    return list(one) == list(two) and all(
        digest(one[key].outcome) == digest(two[key].outcome) and one[key].figures == two[key].figures
        for key in one
    )


def test_two_dask_workers_give_the_results_of_one_process(
    alone: dict[tuple[str, str], Result], scheduler: str
) -> None:
    distributed: Any = pytest.importorskip("distributed")
    with distributed.Client(scheduler) as client:
        before = client.run(lambda dask_worker: dask_worker.state.executed_count)
        counted: list[int] = []
        found = sweep(TRACES, POLICIES, backend="dask", each=counted.append)
        after = client.run(lambda dask_worker: dask_worker.state.executed_count)
    assert len(found) == 8
    assert counted == list(range(1, 9))
    assert same(alone, found)
    done = [after[worker] - before[worker] for worker in after]
    assert len(done) == 2 and min(done) > 0
    # what joblib does inside a replay stays in its worker
    assert sum(done) == 8


def test_the_command_line_connects_to_a_scheduler_by_its_address(
    alone: dict[tuple[str, str], Result], scheduler: str
) -> None:
    with engine(None, scheduler) as backend:
        assert backend == "dask"
        found = sweep({"seed 0": TRACES["seed 0"]}, ["rolling"], backend=backend)
        parameters = {"job_quantile": (0.4, 0.5)}
        tuned = tune(TRACES["seed 0"], parameters, name="rolling_perfect_demand", backend=backend)
    assert digest(found["seed 0", "rolling"].outcome) == digest(alone["seed 0", "rolling"].outcome)
    assert tuned.table.equals(tune(TRACES["seed 0"], parameters, name="rolling_perfect_demand").table)


def test_two_processes_give_the_results_of_one(alone: dict[tuple[str, str], Result]) -> None:
    assert same(alone, sweep(TRACES, POLICIES, jobs=2))


def test_parameters_reach_every_replay() -> None:
    trace = {"": TRACES["seed 1"]}
    usual = sweep(trace, ["rolling_perfect"])["", "rolling_perfect"]
    other = sweep(trace, ["rolling_perfect"], Policy(step_minutes=15), rounds=3)["", "rolling_perfect"]
    assert digest(usual.outcome) != digest(other.outcome)


def test_a_backend_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match="ray"):
        sweep(TRACES, ["fifo"], backend="ray")
    with pytest.raises(InputError, match="magic"):
        sweep(TRACES, ["magic"])
