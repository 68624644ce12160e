"""The three ways to hand over, on a real Slurm: what is told, ordered and started is what Slurm then does."""

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest
from cluster import Cluster

from tidegrid.pipeline.worlds.slurm.commands import Slurm
from tidegrid.pipeline.worlds.slurm.entities import MARK, QueueJob
from tidegrid.pipeline.worlds.slurm.handover import (
    Memory,
    Start,
    advise,
    log_lines,
    rank,
    release_all,
    renew,
    start,
)
from tidegrid.pipeline.worlds.slurm.site import SlurmSite

RULE = SlurmSite(mode="start", dry_run=False, hold_minutes=5, verify_seconds=4)
HOSTILE = ["$(touch /tmp/owned)", "a;reboot", "`id`", "x|y", "--json", "it's", "a b", "\u200b=1+1", "%s%n"]


@pytest.fixture
def slurm(cluster: Cluster, tmp_path: Path) -> Slurm:
    def run(words: Sequence[str], timeout: float) -> tuple[int, str, str]:
        done = subprocess.run(
            list(words), env=cluster.environment, capture_output=True, text=True, timeout=timeout
        )
        return done.returncode, done.stdout, done.stderr

    return Slurm(tmp_path / "log.jsonl", dry_run=False, run=run)


@pytest.fixture(autouse=True)
def _empty(cluster: Cluster) -> None:
    cluster.call("scancel", "--state=PENDING", "--full", "-u", "user1,user2,user3,user4,user5", check=False)
    cluster.call("scancel", "-u", "user1", "-u", "user2", check=False)
    for user in ("user1", "user2", "user3", "user4", "user5"):
        cluster.call("scancel", "-u", user, check=False)
    _until(lambda: not cluster.text("squeue", "-h").strip(), 30)


def _until(true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.5)


def _now() -> pd.Timestamp:
    return pd.Timestamp.now(tz="UTC")


def _queue(slurm: Slurm) -> dict[str, QueueJob]:
    jobs = {}
    for job in slurm.snapshot().jobs:
        jobs[job.id] = job
        jobs |= {f"{job.array_job}_{task}": job for task in job.tasks}
    return jobs


def test_the_gate_marks_batch_jobs_and_leaves_interactive_ones(cluster: Cluster, slurm: Slurm) -> None:
    gated = cluster.submit("user1", "--gpus=a100:1")
    both = cluster.submit("user1", "-p", "gpu,long", "--gpus=a100:1")
    free = cluster.submit("user2", "-p", "cpu", run="sleep 20")
    own = cluster.submit("user2", "--gpus=1", "-b", "now+3hours")
    asked = subprocess.run(
        ["runuser", "-u", "user3", "--", "srun", "--gpus=1", "-t", "1", "true"],
        env=cluster.environment, cwd="/tmp", capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr
    jobs = _queue(slurm)
    assert [jobs[name].gated for name in (gated, both, free, own)] == [True, True, False, True]
    later = jobs[own].eligible
    assert later is not None and later > _now() + pd.Timedelta(hours=2)
    # a user may not start what tidegrid starts
    denied = cluster.call("scontrol", "update", f"JobId={gated}", "StartTime=now", user="user1", check=False)
    assert denied.returncode != 0


def test_jobs_start_on_the_nodes_that_are_named_and_no_other(cluster: Cluster, slurm: Slurm) -> None:
    names = {
        "total": cluster.submit("user1", "--gpus=a100:4", run="sleep 30"),
        "by node": cluster.submit("user2", "-N2", "--gpus-per-node=a100:4", run="sleep 30"),
        "array": cluster.submit("user4", "-a", "0-2", "--gpus=a100:1", run="sleep 30"),
        "waits": cluster.submit("user5", "--gpus=a100:1", run="sleep 30"),
    }
    wanted = [
        Start(names["total"], ("a2",)), Start(names["by node"], ("a1", "a3")),
        Start(f"{names['array']}_1", ("a3",)),
    ]  # fmt: skip
    memory = Memory()
    jobs = _queue(slurm)
    renew(slurm, slurm.snapshot().jobs, [w.job for w in wanted], RULE, _now())
    told = start(slurm, wanted, jobs, RULE, memory, _now())
    assert [one.state for one in told] == ["started"] * 3, told
    now = _queue(slurm)
    assert now[names["total"]].node_names == ("a2",) and now[names["total"]].gpus == 4
    assert set(now[names["by node"]].node_names) == {"a1", "a3"} and now[names["by node"]].gpus == 8
    assert now[f"{names['array']}_1"].node_names == ("a3",)
    assert now[f"{names['array']}_0"].is_pending and now[f"{names['array']}_2"].is_pending
    assert now[names["waits"]].is_pending
    # asked again, nothing is started twice
    again = start(slurm, wanted, jobs, RULE, memory, _now())
    assert [one.state for one in again] == ["gone"] * 3


def test_a_job_that_slurm_will_not_start_waits_again_with_slurms_reason_and_backs_off(
    cluster: Cluster, slurm: Slurm
) -> None:
    blocker = cluster.submit("user1", "-p", "long", "--gpus=a100:8", "-w", "a3", run="sleep 60")
    job = cluster.submit("user2", "--gpus=a100:8", run="sleep 5")
    _until(lambda: _queue(slurm)[blocker].is_running, 30)
    memory = Memory()
    told = start(slurm, [Start(job, ("a3",))], _queue(slurm), RULE, memory, _now())
    assert told[0].state == "not started" and told[0].reason
    waits = _queue(slurm)[job]
    assert waits.is_pending and not waits.required_nodes
    assert waits.eligible is not None and waits.eligible > _now() + pd.Timedelta(minutes=2)
    again = start(slurm, [Start(job, ("a3",))], _queue(slurm), RULE, memory, _now())
    assert again[0].state == "backing off"


def test_ranked_jobs_run_in_the_planned_order_and_it_can_be_taken_back(
    cluster: Cluster, slurm: Slurm
) -> None:
    full = [cluster.submit("user1", "-p", "long", "--gpus=a100:8", "-w", "a3", run="sleep 12")]
    _until(lambda: _queue(slurm)[full[0]].is_running, 30)
    waiting = [
        cluster.submit("user3", "-p", "long", "--gpus=a100:8", "-w", "a3", run="sleep 2") for _ in range(3)
    ]
    order = [waiting[2], waiting[0], waiting[1]]
    memory = Memory()
    assert rank(slurm, slurm.snapshot().jobs, order, RULE, memory) >= 1
    time.sleep(2)
    queue = _queue(slurm)
    told = [queue[name].priority for name in order]
    assert told == sorted(told, reverse=True) and len(set(told)) == 3
    assert rank(slurm, slurm.snapshot().jobs, order, RULE, memory) == 0
    _until(lambda: not set(order) & set(_queue(slurm)), 90)
    began = {
        line.split("|")[0]: line.split("|")[1]
        for line in cluster.text("sacct", "-a", "-n", "-P", "-X", "-o", "JobID,Start").splitlines()
    }
    assert sorted(order, key=lambda name: began[name]) == order


def test_without_tidegrid_the_waiting_jobs_run_within_the_hold(cluster: Cluster, slurm: Slurm) -> None:
    job = cluster.submit("user1", "--gpus=a100:1", run="sleep 1")
    assert _queue(slurm)[job].is_pending
    _until(lambda: job not in (queue := _queue(slurm)) or queue[job].is_running, 110)


def test_release_all_undoes_everything(cluster: Cluster, slurm: Slurm) -> None:
    jobs = [cluster.submit("user2", "--gpus=a100:1", run="sleep 20") for _ in range(3)]
    renew(slurm, slurm.snapshot().jobs, [], RULE, _now())
    assert release_all(slurm, slurm.snapshot().jobs, Memory())["released"] == 3
    _until(lambda: not any(name in jobs and not one.is_running for name, one in _queue(slurm).items()), 30)


def test_advice_is_written_where_asked_and_hostile_names_run_nothing(cluster: Cluster, slurm: Slurm) -> None:
    owned = Path("/tmp/owned")
    owned.unlink(missing_ok=True)
    jobs = [
        cluster.submit("user1", f"--job-name={name}", f"--comment={name}", "--gpus=1") for name in HOSTILE
    ]
    at = pd.Timestamp("2026-12-24T12:00Z")
    rule = SlurmSite(mode="advise", dry_run=False, write_eta=True)
    queue = [job for job in slurm.snapshot().jobs if job.id in jobs]
    assert advise(slurm, queue, dict.fromkeys(jobs, at), rule) == len(jobs)
    told = {job.id: job for job in slurm.snapshot().jobs}
    assert all(told[name].admin_comment == f"{MARK}; expected start 2026-12-24T12:00Z" for name in jobs)
    assert not owned.exists()
    assert len(log_lines(slurm.log)) >= len(jobs)  # type: ignore[arg-type]


def test_a_dry_run_changes_nothing_and_logs_everything(
    cluster: Cluster, slurm: Slurm, tmp_path: Path
) -> None:
    job = cluster.submit("user1", "--gpus=a100:1")
    dry = Slurm(tmp_path / "dry.jsonl", dry_run=True, run=slurm.run)
    told = start(dry, [Start(job, ("a1",))], _queue(slurm), RULE, Memory(), _now())
    assert [one.state for one in told] == ["dry run"]
    assert _queue(slurm)[job].is_pending and not _queue(slurm)[job].required_nodes
    (line,) = log_lines(tmp_path / "dry.jsonl")
    assert line["code"] is None and "StartTime=now" in line["command"]
