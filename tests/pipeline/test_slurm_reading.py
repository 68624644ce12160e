"""Slurm's output, both dialects, becomes records; nothing in a name is ever run."""

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegrid.errors import InputError
from tidegrid.pipeline.worlds.slurm.commands import Slurm, SlurmError
from tidegrid.pipeline.worlds.slurm.entities import MARK, QueueJob, allows
from tidegrid.pipeline.worlds.slurm.handover import (
    Memory,
    Start,
    log_lines,
    rank,
    renew,
    start,
)
from tidegrid.pipeline.worlds.slurm.read import (
    fields_of,
    hours_of,
    jobs_of,
    nodes_in,
    number,
    partitions_in,
    reservations_in,
)
from tidegrid.pipeline.worlds.slurm.site import SlurmSite

NOW = pd.Timestamp("2026-12-01T00:00Z")


def record(**changes: object) -> dict[str, object]:
    """A pending job as 24.11 prints it."""

    def at(value: float) -> dict[str, object]:
        return {"set": True, "infinite": False, "number": value}

    return {
        "job_id": 7, "job_state": ["PENDING"], "state_reason": "Priority", "name": "sft", "user_name": "ann",
        "account": "nlp", "qos": "normal", "partition": "gpu", "submit_time": at(1796078562), "time_limit": at(30),
        "eligible_time": at(1796082162), "start_time": at(0), "tres_req_str": "cpu=1,node=1,gres/gpu=4,gres/gpu:a100=4",
        "tres_alloc_str": "", "tres_per_node": "", "node_count": at(1), "nodes": "", "cpus": at(8), "priority": at(900),
        "nice": 0, "array_job_id": at(0), "array_task_id": {"set": False, "infinite": False, "number": 0},
        "array_task_string": "", "gres_detail": [], "memory_per_cpu": at(1000), "admin_comment": MARK, "hold": False,
    } | changes  # fmt: skip


def job(**changes: object) -> QueueJob:
    """The same as a record."""
    jobs, problems = jobs_of(json.dumps({"jobs": [record(**changes)]}))
    assert not problems
    return jobs[0]


@pytest.mark.parametrize(
    ("text", "hours"),
    [("30", 0.5), ("4:00", 4 / 60), ("4:00:00", 4), ("2-12", 60), ("2-12:30", 60.5), ("2-12:30:30", 60.5 + 30 / 3600),
     ("UNLIMITED", math.inf), ("Partition_Limit", math.inf)],
)  # fmt: skip
def test_time_limits_are_read_as_slurm_writes_them(text: str, hours: float) -> None:
    assert hours_of(text) == pytest.approx(hours)


def test_numbers_of_both_dialects_are_the_same() -> None:
    assert number(5) == number({"set": True, "infinite": False, "number": 5}) == 5
    assert number(None) is None and number({"set": False, "infinite": False, "number": 9}) is None
    assert number({"set": True, "infinite": True, "number": 0}) == math.inf


@pytest.mark.realdata
@pytest.mark.parametrize(("version", "waiting", "busy"), [("22.05.8", 7, 6), ("24.11.5", 6, 3)])
def test_a_real_queue_is_read_whole(shared_data: Path, version: str, waiting: int, busy: int) -> None:
    folder = shared_data.parent / "slurm" / "fixtures" / f"slurm-{version}"
    if not folder.is_dir():
        pytest.skip("the outputs of a real Slurm are not here")
    jobs, problems = jobs_of((folder / "squeue.json").read_text())
    assert not problems
    assert [sum(job.is_pending for job in jobs), sum(job.is_running for job in jobs)] == [waiting, busy]
    by_name = {job.name: job for job in jobs}
    assert by_name["sft-run"].gpu_ids == {"a1": (2, 3, 4, 5)} and by_name["sft-run"].gpus_per_node == 4
    assert by_name["three"].gpus == 3 and by_name["three"].gpus_per_node is None
    array = next(job for job in jobs if job.tasks)
    assert array.tasks == (2, 3, 4, 5) and array.task_limit == 2 and array.stands_for(f"{array.id}_3")
    nodes = {node.name: node for node in nodes_in((folder / "nodes_o.txt").read_text())}
    assert dict(nodes["a1"].gpus) == {"a100": 8} and dict(nodes["v1"].gpus) == {"v100": 4}
    assert nodes["v2"].is_drained and nodes["v2"].reason == "fan | noisy" and not nodes["v2"].is_down
    partitions = {part.name: part for part in partitions_in((folder / "part_o.txt").read_text())}
    assert partitions["gpu"].nodes == ("a1", "a2", "a3", "v1", "v2") and partitions["gpu"].limit_h == 24
    assert partitions["gpu"].is_default and math.isinf(partitions["long"].limit_h)
    maintenance = next(r for r in reservations_in((folder / "res_o.txt").read_text()) if r.name == "maint")
    assert maintenance.maintenance and maintenance.nodes == ("a2", "v1")
    assert maintenance.end - maintenance.start == pd.Timedelta(hours=2)


def test_a_job_that_cannot_be_read_is_told_and_the_others_are_read() -> None:
    text = json.dumps({"jobs": [record(job_id=1), record(job_id=2, nodes="a[1-"), record(job_id=3)]})
    jobs, problems = jobs_of(text)
    assert [one.id for one in jobs] == ["1", "3"]
    assert len(problems) == 1 and "job 2" in problems[0]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"jobs": 3}', '{"jobs": [3]}', "[" * 10_000])
def test_what_is_not_slurms_json_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="squeue --json"):
        jobs_of(text)


def test_a_reason_cannot_forge_the_state_of_a_node() -> None:
    line = "NodeName=a1 Gres=gpu:a100:8(S:0-1) State=IDLE CPUTot=8 Reason=x State=DOWN NodeName=b [root@now]"
    assert fields_of(line)["State"] == "IDLE" and fields_of(line)["NodeName"] == "a1"
    (node,) = nodes_in(line)
    assert dict(node.gpus) == {"a100": 8} and not node.is_down


@pytest.mark.parametrize(
    ("state", "down", "drained"),
    [("IDLE", 0, 0), ("MIXED+PLANNED", 0, 0), ("MIXED-", 0, 0), ("MIXED+COMPLETING", 0, 0), ("IDLE~", 0, 0),
     ("IDLE+CLOUD+POWERED_DOWN", 0, 0), ("MIXED+DRAIN", 0, 1), ("IDLE+MAINTENANCE+RESERVED", 0, 1),
     ("ALLOCATED+REBOOT_REQUESTED", 0, 1), ("IDLE+POWERING_DOWN", 0, 1), ("MIXED*", 1, 0), ("DOWN*", 1, 0),
     ("IDLE+NOT_RESPONDING", 1, 0), ("DOWN+DRAIN", 1, 1), ("DOWN+CLOUD+POWERED_DOWN", 1, 0)],
)  # fmt: skip
def test_states_of_nodes_say_what_works_and_what_starts_nothing_new(
    state: str, down: bool, drained: bool
) -> None:
    (node,) = nodes_in(f"NodeName=a1 Gres=gpu:a100:8 CPUTot=8 State={state} Reason=x")
    assert (node.is_down, node.is_drained) == (down, drained)


def test_cpus_and_memory_that_a_node_keeps_for_itself_are_no_jobs() -> None:
    told = "CPUAlloc=4 CPUEfctv=30 CPUTot=32 RealMemory=200000 AllocMem=1000 MemSpecLimit=8000 State=MIXED"
    (node,) = nodes_in(f"NodeName=a1 Gres=gpu:a100:8 {told}")
    assert (node.cpus, node.free_cpus, node.memory_mb, node.free_memory_mb) == (30, 26, 192_000, 191_000)


@pytest.mark.parametrize(
    ("wanted", "has"),
    [("", True), ("a100", True), ("a100&nvme", True), ("a100,ib", False), ("v100|a100", True), ("v100&ib|h100", False),
     ("[rack1*2]", None), ("(a100|v100)&nvme", None)],
)  # fmt: skip
def test_constraints_are_decided_where_one_node_can(wanted: str, has: bool | None) -> None:
    assert allows(wanted, frozenset({"a100", "nvme"})) is has


class Recorder:
    """Runs nothing: answers with the queue that it is given, and keeps what it was asked."""

    def __init__(self, *jobs: dict[str, object]) -> None:
        self.jobs, self.asked = jobs, []

    def __call__(self, words: Sequence[str], timeout: float) -> tuple[int, str, str]:
        self.asked.append(tuple(words))
        return 0, json.dumps({"jobs": list(self.jobs)}) if words[0] == "squeue" else "", ""


RULE = SlurmSite(mode="start", dry_run=False, verify_seconds=0)


def test_a_job_on_one_node_is_pinned_and_one_with_gpus_by_node_keeps_its_number_of_nodes(
    tmp_path: Path,
) -> None:
    run = Recorder(record(), record(job_id=8, tres_per_node="gres/gpu:a100:4"))
    slurm = Slurm(tmp_path / "log", dry_run=False, run=run)
    jobs = {"7": job(), "8": job(job_id=8, tres_per_node="gres/gpu:a100:4")}
    start(slurm, [Start("7", ("a2",)), Start("8", ("a1", "a3"))], jobs, RULE, Memory(), NOW)
    changes = [words for words in run.asked if words[0] == "scontrol"]
    assert changes[0] == ("scontrol", "update", "JobId=7", "StartTime=now", "ReqNodeList=a2", "NumNodes=1-1")
    assert changes[1] == ("scontrol", "update", "JobId=8", "StartTime=now", "ReqNodeList=a1,a3")


def test_a_start_that_does_not_come_about_is_taken_back_and_backs_off_ever_longer(tmp_path: Path) -> None:
    run = Recorder(record(state_reason="Resources"))
    slurm, memory = Slurm(None, dry_run=False, run=run), Memory()
    at = NOW
    waits = []
    for _ in range(4):
        (told,) = start(slurm, [Start("7", ("a2",))], {"7": job()}, RULE, memory, at)
        assert (told.state, told.reason) == ("not started", "Resources")
        (again,) = start(slurm, [Start("7", ("a2",))], {"7": job()}, RULE, memory, at)
        assert again.state == "backing off"
        following = pd.Timestamp(memory.attempts["7"].not_before)
        waits.append((following - at) / pd.Timedelta(minutes=1))
        at = following
    assert waits == [1, 2, 4, 8]
    memory.path = tmp_path / "memory.json"
    memory.save()
    assert Memory.read(tmp_path / "memory.json") == memory


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "is not a JSON object"),
        ('{"attempts": {"7": {"times": "often"}}}', r"attempts\.7\.times: \"often\" is not a whole number"),
        ('{"attempts": {"7": {"not_before": "soon"}}}', r"attempts\.7\.not_before: 'soon' is not a time"),
        ('{"pinned": [1]}', r"pinned: \[1\] is not a JSON object"),
    ],
)
def test_a_memory_that_is_not_what_was_written_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "memory.json").write_text(text)
    with pytest.raises(InputError, match=rf"memory\.json.*{said}.*; mend it, or delete it"):
        Memory.read(tmp_path / "memory.json")


def test_only_marked_batch_jobs_are_started_or_renewed() -> None:
    jobs = [
        job(job_id=1), job(job_id=2, admin_comment="mine"), job(job_id=3, batch_flag=False),
        job(job_id=4, het_job_id={"set": True, "infinite": False, "number": 4}), job(job_id=5, job_state=["RUNNING"]),
        job(job_id=6, eligible_time={"set": True, "infinite": False, "number": 1796199999}), job(job_id=7),
    ]  # fmt: skip
    assert [one.id for one in jobs if one.gated] == ["1", "6", "7"]
    run = Recorder()
    assert renew(Slurm(None, dry_run=False, run=run), jobs, ["7"], RULE, NOW) == 1
    assert run.asked == [("scontrol", "update", "JobId=1", "StartTime=now+60minutes")]


@given(st.lists(st.integers(1, 50), min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_ranks_give_the_planned_order_by_lowering_priorities_only(priorities: list[int], rng: object) -> None:
    jobs = [
        job(job_id=100 + k, priority=1000 + value, admin_comment="") for k, value in enumerate(priorities)
    ]
    order = [one.id for one in jobs]
    rng.shuffle(order)  # type: ignore[attr-defined]
    run = Recorder()
    rank(Slurm(None, dry_run=False, run=run), jobs, order, SlurmSite(mode="rank"), Memory())
    after = {one.id: one.priority for one in jobs}
    for words in run.asked:
        name, nice = words[2].removeprefix("JobId="), int(words[3].removeprefix("Nice="))
        assert nice > 0
        after[name] -= nice
    told = [after[name] for name in order]
    assert told == sorted(told, reverse=True) and len(set(told)) == len(told)


def test_a_dry_run_runs_nothing_that_changes_anything(tmp_path: Path) -> None:
    run = Recorder(record())
    slurm = Slurm(tmp_path / "log", dry_run=True, run=run)
    assert start(slurm, [Start("7", ("a2",))], {"7": job()}, RULE, Memory(), NOW)[0].state == "dry run"
    assert not run.asked and [line["code"] for line in log_lines(tmp_path / "log")] == [None]


def test_a_failing_command_says_what_slurm_said() -> None:
    slurm = Slurm(run=lambda words, timeout: (1, "", "slurm_load_jobs error:\n no controller"))
    with pytest.raises(SlurmError, match="no controller"):
        slurm.snapshot()


def test_a_file_of_rules_with_an_unknown_field_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "slurm.json").write_text('{"mode": "rank", "partition": "gpu"}')
    with pytest.raises(InputError, match=r"slurm\.json, partition: is unknown; use some of mode, dry_run"):
        SlurmSite.read(tmp_path / "slurm.json")
    assert SlurmSite.read(tmp_path / "none.json") == SlurmSite()


@pytest.mark.parametrize(
    "text", ["\x00N\x00o\x00d\x00e", "CPUTot=x", "NodeName=a1 CPUTot=many Gres=gpu:a100:8", "<html>"]
)
def test_output_that_is_no_list_of_nodes_is_one_line(text: str) -> None:
    """A wrapper or another version may print anything."""

    def run(words: Sequence[str], timeout: float) -> tuple[int, str, str]:
        return 0, '{"jobs": []}' if words[0] == "squeue" else text if "node" in words else "", ""

    with pytest.raises(SlurmError, match=r"^scontrol show node -o: what it prints cannot be read \("):
        Slurm(run=run).snapshot()


def test_limits_that_cannot_be_read_are_told_and_the_rest_is_planned() -> None:
    def run(words: Sequence[str], timeout: float) -> tuple[int, str, str]:
        return 0, '{"jobs": []}' if words[0] == "squeue" else "No|such\nx|y\n" if "qos" in words else "", ""

    assert "no limits of QOS and accounts are known: sacctmgr" in Slurm(run=run).snapshot().problems[0]
