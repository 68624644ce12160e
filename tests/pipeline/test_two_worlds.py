"""One loop in two worlds: a simulated day, and the same day written out as files, give the same decisions."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from replay_traces import START, elastic

from tidegrid.data import History, write_cluster, write_table
from tidegrid.pipeline.bands import Widths
from tidegrid.pipeline.control import Settings, tick
from tidegrid.pipeline.decide import Decision
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.replay import Trace, trace_from_files
from tidegrid.pipeline.replay.run import forecaster_of, play
from tidegrid.pipeline.rolling import StateStore
from tidegrid.pipeline.rolling.commit import decided
from tidegrid.pipeline.worlds.files import Files
from tidegrid.pipeline.worlds.simulated import Simulated
from tidegrid.pipeline.worlds.trace import HOUR, WARM_UP_HOURS, Outage, RealtimeApp

SETTINGS = Settings(policy=Policy(horizon_hours=12, lookahead_hours=12), refit_hours=None)


def made_up(hours: int = 14, jobs: int = 60, gpus: int = 16) -> Trace:
    """Jobs of which one in five fails, an app that swaps, and a GPU that dies under a job."""
    rng = np.random.default_rng(5)
    submit = np.sort(rng.uniform(0, (hours - 3) * HOUR, jobs)).round()
    user = rng.integers(0, 4, jobs)
    length = np.exp(rng.normal(np.log(1800.0 * (1 + user)), 0.8)).round() + 60
    block = 2 ** rng.integers(0, 4, jobs)
    table = pd.DataFrame(
        {
            "job_id": [f"j{i}" for i in range(jobs)],
            "kind": "training",
            "status": np.where(rng.random(jobs) < 0.2, "failed", "completed"),
            "submit_time": START + pd.to_timedelta(submit, unit="s"),
            "duration_s": length,
            "gpus": block,
            "user": [f"u{u}" for u in user],
        }
    )
    at = np.arange(WARM_UP_HOURS + hours)
    traffic = (100 * (1.2 + np.sin(2 * np.pi * at / 8)) + rng.normal(0, 5, len(at))).round(1)
    return Trace(
        start=START,
        gpus=gpus,
        node_size=8,
        jobs=History(table).jobs,
        submit_s=submit,
        duration_s=length,
        size=block,
        priority=1 + 2 * user,
        limit_s=np.full(jobs, np.nan),
        apps=(RealtimeApp("chat", 8, 1, traffic, 18.0),),
        end_s=hours * HOUR,
        outages=(Outage(2, 3.25 * HOUR, 30 * HOUR),),
    )


def both(trace: Trace, folder: Path, how: Settings = SETTINGS) -> list[tuple[Decision, dict[str, Any]]]:
    """Play a trace hour by hour, write each hour's facts as a site's files, and tick on these."""
    site, state = folder / "site", StateStore(folder / "state.db")
    site.mkdir()
    beside = forecaster_of(trace)
    found = []

    def each(played: Simulated, decision: Decision) -> None:
        history = played.history()
        # the state as it is before the decision is applied, without anything that the loop itself remembers
        write_cluster(decision.state.cluster, site / "cluster.json")
        for name, table in (
            ("jobs", history.jobs),
            ("traffic", history.traffic),
            ("requests", decision.state.requests),
            ("running", decision.state.running),
        ):
            (site / f"{name}.csv").unlink(missing_ok=True)
            if len(table):
                write_table(table, site / f"{name}.csv")
        commit = tick(state, Files(site), decision.state.now, how, forecaster=beside)
        found.append((decision, commit.document))

    play(trace, forecaster_of(trace), how, every_event=False, each=each)
    return found


def same(found: list[tuple[Decision, dict[str, Any]]]) -> None:
    for decision, document in found:
        ours = decided(decision)
        theirs = {name: document[name] for name in ours}
        assert json.dumps(theirs) == json.dumps(ours)
        assert document["problem_sha256"] == decision.problem.sha256


def test_a_day_with_failures_swaps_and_a_dead_gpu_is_decided_alike(tmp_path: Path) -> None:
    trace = made_up()
    found = both(trace, tmp_path)
    same(found)
    assert sum(len(decision.starts) for decision, _ in found) > 10
    assert sum(move.swaps for decision, _ in found for move in decision.moves) > 2
    assert any(decision.state.cluster.pools[0].down for decision, _ in found)
    assert len({document["unmet_gpu_steps"] for _, document in found}) > 1
    # the bands have moved by what came of them, alike
    assert found[-1][0].widths.start != Widths().start


def test_a_day_by_node_with_odd_and_several_sizes_is_decided_alike(tmp_path: Path) -> None:
    trace = replace(made_up(), placement="node")
    odd = np.random.default_rng(1).integers(1, 9, len(trace.jobs))
    trace = replace(trace, jobs=trace.jobs.assign(gpus=odd), size=odd)
    found = both(
        elastic(trace, 2), tmp_path, replace(SETTINGS, policy=Policy(horizon_hours=12, scaling=0.75))
    )
    same(found)
    starts = [one for decision, _ in found for one in decision.starts]
    assert len(starts) > 10
    assert any(one.gpu_ids != tuple(range(one.first_gpu, one.first_gpu + one.gpus)) for one in starts)


@pytest.mark.realdata
def test_a_day_of_a_public_trace_is_decided_alike(tmp_path: Path, shared_data: Path) -> None:
    trace = trace_from_files(
        shared_data / "traces" / "helios_venus15k.csv.gz",
        shared_data / "traffic" / "servegen_totals.csv.gz",
        gpus=96,
        days=10 / 24,
        skip_days=20,
    )
    found = both(trace, tmp_path)
    same(found)
    assert sum(len(decision.starts) for decision, _ in found) > 10
