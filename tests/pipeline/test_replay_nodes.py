"""Replays by node, with the GPU counts that were asked for, and with jobs of several sizes."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from replay_traces import busy, elastic, of_jobs

from tidegrid.data import write_table
from tidegrid.data.cluster import laid
from tidegrid.errors import InputError
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.replay import Trace, replay, trace_from_files
from tidegrid.pipeline.replay.measures import measure, value_limit
from tidegrid.pipeline.worlds.simulated import Played
from tidegrid.pipeline.worlds.trace import HOUR, Outage

POLICIES = ["fifo", "fifo_backfill", "easy", "easy_priority", "sjf_perfect", "rolling", "rolling_perfect"]


def legal(trace: Trace, out: Played) -> None:
    """Each GPU serves one job or app at a time, and each job lies evenly on as few nodes as its size has."""
    held = np.full((trace.gpus, int(trace.end_s // 60)), -1)
    for j, gpus in out.ids.items():
        size, nodes = laid(trace.pool, int(out.sizes(trace)[j]))
        assert len(gpus) == len(set(gpus)) == size
        on = np.bincount(np.array(gpus) // 8)
        assert (on[on > 0] == size // nodes).all()
        assert (on > 0).sum() == nodes
        begun, ended = out.start[j], min(out.start[j] + out.seconds(trace)[j], trace.end_s)
        assert begun >= trace.submit_s[j]
        # whole minutes that lie in its run
        span = held[list(gpus), math.ceil(begun / 60) : int(ended // 60)]
        assert (span == -1).all()
        held[list(gpus), math.ceil(begun / 60) : int(ended // 60)] = j
    assert len(out.ids) == np.isfinite(out.start).sum() > 0


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_each_gpu_once_and_jobs_what_they_ask_for(policy: str) -> None:
    trace = busy(placement="node")
    result = replay(trace, [policy])[0]
    legal(trace, result.outcome)
    assert set(trace.jobs["gpus"]) >= {3, 5, 6, 7}
    sizes = [len(gpus) for gpus in result.outcome.ids.values()]
    assert sizes == [int(trace.jobs["gpus"].iat[j]) for j in result.outcome.ids]
    assert 0 < result.figures["value"] <= result.figures["value_limit"] * (1 + 1e-9)
    assert result.figures["work_share"] == 1.0


def test_a_wide_job_starts_on_nodes_that_are_no_neighbours() -> None:
    jobs = [(0.0, 8, 5.0), (0.0, 8, 1.0), (0.0, 8, 5.0), (0.0, 8, 1.0), (2.0, 16, 1.0)]
    trace = of_jobs(jobs, gpus=32, placement="node")
    assert replay(trace, ["rolling_perfect"])[0].outcome.start[-1] == 2 * HOUR


def test_a_gpu_that_fails_takes_the_job_that_holds_it_whatever_its_place() -> None:
    trace = replace(
        of_jobs([(0.0, 3, 4.0), (0.0, 3, 4.0)], gpus=8, placement="node"),
        outages=(Outage(4, HOUR, 9 * HOUR),),
    )
    out = replay(trace, ["rolling"])[0].outcome
    struck = [j for j, gpus in out.ids.items() if 4 in gpus]
    assert len(struck) == 1
    assert out.ran_s[struck[0]] == HOUR
    assert measure(trace, out)["completed"] == 1


@pytest.mark.parametrize("placement", ["line", "node"])
def test_jobs_of_several_sizes_run_as_long_as_their_own_scaling_says(placement: str) -> None:
    trace = elastic(busy(placement=placement))  # type: ignore[arg-type]
    result = replay(trace, ["rolling"])[0]
    out = result.outcome
    assert trace.sizes is not None
    assert trace.exponent is not None
    asked = trace.jobs["gpus"].to_numpy()
    other = 0
    for j, gpus in out.ids.items():
        low, high = (laid(trace.pool, int(count))[0] for count in trace.sizes[j])
        assert low <= len(gpus) <= high
        other += len(gpus) != trace.size[j]
        expected = trace.duration_s[j] * (asked[j] / len(gpus)) ** trace.exponent[j]
        if len(gpus) == trace.size[j]:
            expected = trace.duration_s[j]
        assert out.ran_s[j] == pytest.approx(expected)
    assert other > 5
    assert 0 < result.figures["work_share"] <= 1
    assert result.figures["value"] <= value_limit(trace) * (1 + 1e-9)
    if placement == "node":
        legal(trace, out)


def test_queues_give_what_is_asked_for() -> None:
    trace = elastic(busy(placement="node"))
    one, plain = (replay(made, ["easy"])[0] for made in (trace, busy(placement="node")))
    assert (one.outcome.start == plain.outcome.start).all()
    assert one.figures["value"] == plain.figures["value"]
    assert one.figures["value_limit"] > plain.figures["value_limit"]
    assert one.figures["work_share"] < 1


def test_perfect_knowledge_knows_each_size() -> None:
    figures = replay(elastic(busy(placement="node")), ["rolling_perfect"])[0].figures
    assert figures["eta"]["coverage_80"] == 1.0
    assert figures["eta"]["within_10_min"] == 1.0


def test_fewer_gpus_that_take_a_job_past_its_limit_lose_its_work() -> None:
    """Two jobs of 8 GPUs for an hour on one node, with a limit of 90 minutes: on four GPUs each takes 2 h."""
    trace = elastic(of_jobs([(0.0, 8, 1.0), (0.0, 8, 1.0)], gpus=8, hours=6, placement="node"), 2)
    trace = replace(trace, exponent=np.ones(2), limit_s=np.full(2, 1.5 * HOUR))
    told = trace.jobs.assign(requested_walltime_s=1.5 * HOUR)
    assert trace.seconds(0, 4) == 2 * HOUR
    knowing = replay(replace(trace, jobs=told), ["rolling_perfect"])[0]
    assert sorted(len(gpus) for gpus in knowing.outcome.ids.values()) == [8, 8]
    assert knowing.figures["completed"] == 2
    # a planner that takes four GPUs to be as quick as eight runs both at once, and their limit ends both
    misled = replay(trace, ["rolling"], Policy(scaling=0.0))[0]
    assert sorted(len(gpus) for gpus in misled.outcome.ids.values()) == [4, 4]
    assert misled.outcome.ran_s.tolist() == [1.5 * HOUR] * 2
    assert misled.figures["completed"] == misled.figures["value"] == misled.figures["work_share"] == 0


def test_files_are_read_with_sizes_and_seed(tmp_path: Path) -> None:
    write_table(busy().jobs, tmp_path / "jobs.csv")

    def made(**options: object) -> Trace:
        return trace_from_files(tmp_path / "jobs.csv", None, gpus=16, placement="node", **options)  # type: ignore[arg-type]

    one, two, three = made(elastic=4), made(elastic=4), made(elastic=4, seed=1)
    assert one.digest() == two.digest() != three.digest()
    assert one.digest() != made().digest()
    assert one.sizes is not None
    assert one.exponent is not None
    assert (one.sizes[:, 0] <= one.jobs["gpus"]).all()
    assert (one.sizes[:, 1] >= one.jobs["gpus"]).all()
    assert (one.sizes[:, 1] <= 16).all()
    assert ((one.exponent >= 0.5) & (one.exponent <= 1)).all()


@pytest.mark.parametrize(
    ("options", "field"),
    [({"elastic": 0.5}, "elastic"), ({"placement": "node", "node_size": None}, "node_size"),
     ({"placement": "node", "node_size": 7}, "node_size")],
)  # fmt: skip
def test_what_makes_no_pool_is_refused(tmp_path: Path, options: dict[str, object], field: str) -> None:
    write_table(busy().jobs, tmp_path / "jobs.csv")
    with pytest.raises(InputError) as error:
        trace_from_files(tmp_path / "jobs.csv", None, gpus=16, **options)  # type: ignore[arg-type]
    assert error.value.field == field
