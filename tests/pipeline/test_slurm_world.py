"""A Slurm as a world: what a snapshot says in a site's words, turns of the loop on it, and what a user is told."""

import json
import re
import sqlite3
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_slurm_reading import NOW, Recorder, job, record

from tidegrid.app.cli import main
from tidegrid.data import gpu_ids
from tidegrid.data.nodelist import as_nodes, nodes_of
from tidegrid.pipeline.outlook import Outlook, kept_in
from tidegrid.pipeline.worlds.slurm.commands import SACCT, Saved, Slurm
from tidegrid.pipeline.worlds.slurm.entities import MARK, QueueJob, Snapshot
from tidegrid.pipeline.worlds.slurm.facts import Facts, facts_of, priorities
from tidegrid.pipeline.worlds.slurm.handover import Memory, Start, advise, recover, release_all, start
from tidegrid.pipeline.worlds.slurm.limits import Tenants
from tidegrid.pipeline.worlds.slurm.read import jobs_of, limits_in, nodes_in, partitions_in, reservations_in
from tidegrid.pipeline.worlds.slurm.site import SlurmSite

NODES = """\
NodeName=a1 CPUAlloc=0 CPUTot=32 ActiveFeatures=a100,nvme Gres=gpu:a100:8(S:0-1) RealMemory=200000 AllocMem=0 \
State=IDLE Partitions=gpu
NodeName=a2 CPUAlloc=30 CPUTot=32 ActiveFeatures=a100 Gres=gpu:a100:8 RealMemory=200000 AllocMem=0 \
State=MIXED Partitions=gpu,long AllocTRES=cpu=30,gres/gpu=2
NodeName=a3 CPUAlloc=0 CPUTot=32 ActiveFeatures=a100 Gres=gpu:a100:8 RealMemory=200000 AllocMem=0 \
State=IDLE+DRAIN Partitions=gpu,long Reason=fan [root@now]
NodeName=v1 CPUAlloc=0 CPUTot=16 ActiveFeatures=v100 Gres=gpu:v100:4 RealMemory=100000 AllocMem=0 \
State=DOWN Partitions=gpu
NodeName=c1 CPUAlloc=0 CPUTot=16 Gres=(null) RealMemory=100000 AllocMem=0 State=IDLE Partitions=cpu
"""
PARTITIONS = """\
PartitionName=gpu Default=YES MaxTime=1-00:00:00 Nodes=a[1-3],v1 State=UP
PartitionName=long Default=NO MaxTime=UNLIMITED Nodes=a[2-3] State=UP
PartitionName=shut Default=NO MaxTime=UNLIMITED Nodes=a[1-3] State=DOWN
"""
RESERVATION = (
    "ReservationName=maint StartTime={start} EndTime={end} Nodes=a1 Flags=MAINT,SPEC_NODES TRES=cpu=32 Users=root "
    "Accounts=(null)"
)


def running(**changes: object) -> QueueJob:
    told = {
        "job_id": 90, "job_state": ["RUNNING"], "nodes": "a2", "gres_detail": ["gpu:a100:2(IDX:1,6)"],
        "tres_alloc_str": "gres/gpu=2,gres/gpu:a100=2", "admin_comment": "",
        "start_time": {"set": True, "infinite": False, "number": NOW.timestamp() - 600},
    }  # fmt: skip
    return job(**told | changes)


def snapshot(*jobs: QueueJob, reservations: str = "", qos: str = "", nodes: str = NODES) -> Snapshot:
    return Snapshot(
        NOW, tuple(nodes_in(nodes)), tuple(partitions_in(PARTITIONS)), tuple(reservations_in(reservations)),
        jobs, tuple(limits_in(qos, "")[0]),
    )  # fmt: skip


def facts(*jobs: QueueJob, **more: str) -> Facts:
    return facts_of(snapshot(running(), *jobs, **more), SlurmSite(), NOW)


def where(told: Facts, name: str = "7") -> set[str]:
    """The nodes on which a request may start: all of its type where none are named."""
    row = told.requests.set_index("job_id").loc[name]
    listed = row.get("allowed_nodes", "")
    return set(nodes_of(listed)) if isinstance(listed, str) and listed else {"a1", "a2", "a3"}


def test_pools_are_gpu_types_with_their_nodes_and_running_jobs_hold_the_gpus_that_slurm_gave() -> None:
    told = facts()
    pools = {pool.id: pool for pool in told.cluster.pools}
    assert pools["a100"].nodes == ("a1", "a2", "a3") and pools["a100"].placement == "node"
    assert pools["v100"].down == (0, 1, 2, 3)
    assert gpu_ids(told.running) == [[9, 14]] and told.running["start_time"].iloc[0] == NOW - pd.Timedelta(
        minutes=10
    )
    drained = [window for window in told.cluster.maintenance if window.kind == "drain"]
    assert [window.nodes for window in drained] == [("a3",)] and drained[0].reason == "fan"


def test_a_job_may_start_where_partition_features_lists_and_memory_allow() -> None:
    few = {"cpus": {"set": True, "infinite": False, "number": 1}}
    assert where(facts(job(**few))) == {"a1", "a2", "a3"}
    assert where(facts(job(**few, partition="long"))) == {"a2", "a3"}
    assert where(facts(job(**few, features="nvme"))) == {"a1"}
    assert where(facts(job(**few, required_nodes="a2"))) == {"a2"}
    assert where(facts(job(**few, excluded_nodes="a[1-2]"))) == {"a3"}
    much = {"memory_per_cpu": {"set": True, "infinite": False, "number": 300_000}}
    assert facts(job(**few, **much)).waits == {
        "7": "too few nodes have its partition, features, CPUs, memory and GPUs"
    }
    assert facts(job(**few, partition="shut")).waits == {"7": "partition shut is down"}


def test_a_node_whose_cpus_others_hold_is_not_started_on_now() -> None:
    # eight CPUs are asked for; a2 has six free GPUs and two free CPUs
    assert where(facts(job())) == {"a1", "a3"}
    told = facts(job(required_nodes="a2"))
    assert told.requests["earliest_time"].iloc[0] == NOW + pd.Timedelta(minutes=5)


def test_a_time_limit_that_reaches_into_maintenance_keeps_a_node_out() -> None:
    soon = RESERVATION.format(start="2026-12-01T00:20:00", end="2026-12-01T02:20:00")
    late = RESERVATION.format(start="2026-12-01T00:40:00", end="2026-12-01T02:40:00")
    one = job(cpus={"set": True, "infinite": False, "number": 1})
    assert where(facts(one, reservations=soon)) == {"a2", "a3"} and "a1" in where(
        facts(one, reservations=late)
    )
    told = facts(job(required_nodes="a1"), reservations=soon)
    assert told.requests["earliest_time"].iloc[0] == pd.Timestamp("2026-12-01T02:20Z")
    window = next(one for one in told.cluster.maintenance if one.kind == "down")
    assert window.nodes == ("a1",) and window.end - window.start == pd.Timedelta(hours=2)


def test_arrays_order_begin_times_and_what_cannot_be_planned() -> None:
    def at(value: float) -> dict[str, object]:
        return {"set": True, "infinite": False, "number": value}

    array = {"array_job_id": at(50), "array_task_string": "2-4%2", "array_max_tasks": at(2), "job_id": 50}
    far = NOW.timestamp() + 7200
    told = facts(
        job(**array), job(job_id=60, dependency="afterok:50_*(unfulfilled),afterany:90(unfulfilled)"),
        job(job_id=61, dependency="afterok:50:1(unfulfilled)"), job(job_id=62, eligible_time=at(far), admin_comment=""),
        job(job_id=63, eligible_time=at(NOW.timestamp() + 3000)), job(job_id=64, priority=at(0), hold=True),
        job(job_id=65, het_job_id=at(65)), job(job_id=66, tres_req_str="gres/gpu:a100=1,gres/gpu:v100=1,gres/gpu=2"),
        job(job_id=67, name="same"), job(job_id=68, name="same", dependency="singleton(unfulfilled)"),
    )  # fmt: skip
    rows = told.requests.set_index("job_id")
    assert {"50_2", "50_3", "50_4"} <= set(rows.index) and set(
        rows.loc["50_3", ["array", "array_limit"]]
    ) == {"50", 2}
    assert rows.loc["60", "after"].split() == ["50_2", "50_3", "50_4", "90"]
    assert rows.loc["61", "after"].split() == ["50_2", "50_3", "50_4"] and rows.loc["68", "after"] == "67"
    # a user's own begin time holds; the one that the gate sets is tidegrid's
    assert rows.loc["62", "earliest_time"] == pd.Timestamp(far, unit="s", tz="UTC")
    assert pd.isna(rows.loc["63", "earliest_time"])
    assert set(told.waits) == {"64", "65", "66"} and "held" in told.waits["64"]


def test_the_tightest_limit_that_covers_a_job_is_its_tenants() -> None:
    qos = "Name|GrpTRES|MaxTRESPU|MaxTRESPA|MaxJobsPU\nnormal|gres/gpu=16|gres/gpu=4||3\nlow||gres/gpu:a100=2||\n"
    told = facts(job(), job(job_id=8, user_name="bob", qos="low"), job(job_id=9, qos="free"), qos=qos)
    rows = told.requests.set_index("job_id")["tenant"].to_dict()
    assert rows == {"7": "qos normal user ann", "8": "qos low user bob", "9": "no limit"}
    limits = {tenant.id: tenant.limit for tenant in told.cluster.tenants}
    assert limits == {"qos normal user ann": 4, "qos low user bob": {"a100": 2}}
    # a job of QOS normal counts in its limit for all and in that for each user
    (said,) = (note for note in told.notes if "several limits" in note)
    assert said.startswith("a job that counts in several limits is planned by the tightest of them")
    assert limits_in(qos, "")[1] == ["MaxJobsPU of sacctmgr, 1 times, is not planned by"]


def test_limits_of_accounts_above_and_of_a_partitions_qos_hold_and_those_on_other_gpus_do_not() -> None:
    qos = "Name|GrpTRES|MaxTRESPU\nwhole|gres/gpu=6|\nnormal||gres/gpu:v100=1\n"
    accounts = (
        "Account|ParentName|User|GrpTRES\nroot|||\nlab|root||gres/gpu=12\nnlp|lab||\nnlp||ann|gres/gpu=40\n"
        "vision|root||gres/gpu=9\n"
    )
    partitions = PARTITIONS.replace("PartitionName=long", "PartitionName=long QoS=whole")
    limits = tuple(limits_in(qos, accounts)[0])
    jobs = (
        job(), job(job_id=8, partition="long"), job(job_id=9, account="vision"), job(job_id=10, account="other"),
        job(job_id=11, account="other", tres_req_str="gres/gpu=1,gres/gpu:v100=1"),
    )  # fmt: skip
    seen = replace(snapshot(*jobs), limits=limits, partitions=tuple(partitions_in(partitions)))
    tenants = Tenants(seen)
    assert [tenants.of(one) for one in jobs] == [
        "account lab", "qos whole", "account vision", "no limit", "qos normal user ann",
    ]  # fmt: skip
    # the limit of GPUs of another type says nothing of a job on an A100
    assert [len(tenants.binding(one)) for one in jobs] == [2, 3, 1, 0, 1]
    told = {tenant.id: tenant.limit for tenant in facts_of(seen, SlurmSite(), NOW).cluster.tenants}
    assert told == {
        "account lab": 12, "qos whole": 6, "account vision": 9, "qos normal user ann": {"v100": 1},
    }  # fmt: skip


def test_what_is_not_planned_by_is_told_and_what_slurm_never_starts_is_not_planned() -> None:
    def at(value: float) -> dict[str, object]:
        return {"set": True, "infinite": False, "number": value}

    ends = NOW.timestamp() + 36_000
    told = facts(
        job(deadline=at(ends)), job(job_id=8, licenses="matlab:1"),
        job(job_id=9, state_reason="QOSMaxGRESPerUser"), job(job_id=10, state_reason="QOSMaxGRESPerJob"),
        job(job_id=11, state_reason="AssocMaxWallDurationPerJobLimit"),
        job(job_id=12, state_reason="PartitionTimeLimit"), job(job_id=13, tres_req_str="cpu=1,gres/shard=2"),
    )  # fmt: skip
    rows = told.requests.set_index("job_id")
    assert rows.loc["7", "deadline"] == pd.Timestamp(ends, unit="s", tz="UTC")
    assert set(rows.index) == {"7", "8", "9"} and pd.isna(rows.loc["8", "deadline"])
    assert set(told.waits) == {"10", "11", "12"} and "(PartitionTimeLimit)" in told.waits["12"]
    assert "the licenses of a job are not planned by" in told.notes
    assert any("parts of GPUs" in note for note in told.notes)


@pytest.mark.realdata
def test_all_that_a_real_24_11_says_is_planned_by_or_told(shared_data: Path) -> None:
    folder = shared_data.parent / "slurm" / "fixtures" / "slurm-24.11.5"
    if not folder.is_dir():
        pytest.skip("the outputs of a real Slurm are not here")
    queue, nodes, partitions, reservations = (
        (folder / name).read_text() for name in ("squeue.json", "nodes_o.txt", "part_o.txt", "res_o.txt")
    )
    now = pd.Timestamp("2026-11-30T22:42:58Z")
    seen = Snapshot(
        now, tuple(nodes_in(nodes)), tuple(partitions_in(partitions)), tuple(reservations_in(reservations)),
        tuple(jobs_of(queue)[0]),
    )  # fmt: skip
    told = facts_of(seen, SlurmSite(), now)
    rows = told.requests.set_index("job_id")
    # a begin time, GPUs by node on two nodes, and the nodes that maintenance leaves
    assert rows.loc["144", "earliest_time"] == pd.Timestamp("2026-11-30T22:44:52Z")
    assert tuple(rows.loc["144", ["gpus", "nodes", "gpu_type", "allowed_nodes"]]) == (4, 2, "a100", "a[1-2]")
    # the tasks of an array that still wait, and how many may run at once
    assert [name for name in rows.index if name.startswith("146_")] == [f"146_{k}" for k in range(2, 6)]
    assert set(rows.loc["146_2":"146_5", "array_limit"]) == {2}
    assert rows.loc["151", "after"] == "143" and rows.loc["151", "requested_walltime_s"] == 3600
    assert rows.loc["144", "priority"] > rows.loc["146_2", "priority"]
    assert "held" in told.waits["153"] and "heterogeneous" in told.waits["154"]
    assert set(told.waits) == {"153", "154", "155"}
    held = dict(zip(told.running["job_id"], gpu_ids(told.running), strict=True))
    assert held == {"143": [2, 3, 4, 5], "145": [4, 5, 6], "146_0": [0]}
    assert dict(zip(told.running["job_id"], told.running["array"], strict=True))["146_0"] == "146"
    windows = {(window.kind, window.nodes): window for window in told.cluster.maintenance}
    assert set(windows) == {("drain", ("v2",)), ("down", ("a2", "v1")), ("down", ("a3",))}
    assert windows["drain", ("v2",)].reason == "fan | noisy"
    assert windows["down", ("a3",)].end == pd.Timestamp("2026-11-30T23:12:47Z")
    assert [note.split(",")[0] for note in told.notes] == [
        "reservation gpures keeps 2 GPUs of v1", "reservation gpures2 keeps 2 GPUs of v1", "preemption",
        "1 GPUs of v1 are in use by no job that can be read",
    ]  # fmt: skip


def test_gpus_in_use_by_what_cannot_be_read_are_closed() -> None:
    used = NODES.replace(
        "State=IDLE Partitions=gpu\n", "State=MIXED Partitions=gpu AllocTRES=gres/gpu=3\n", 1
    )
    told = facts(nodes=used)
    assert told.cluster.pool("a100").down == (5, 6, 7) and any("3 GPUs of a1" in note for note in told.notes)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=40))
def test_priorities_become_ranks_in_their_order(values: list[int]) -> None:
    jobs = [job(job_id=k + 1, priority=value) for k, value in enumerate(values)]
    ranks = priorities(jobs)
    assert all(1 <= rank <= 10 for rank in ranks.values())
    for a, b in pairwise(jobs):
        assert a.priority != b.priority or ranks[a.id] == ranks[b.id]
        assert a.priority >= b.priority or ranks[a.id] <= ranks[b.id]
    if len(set(values)) == len(values) >= 10:
        assert set(ranks.values()) == set(range(1, 11))


@given(st.sets(st.from_regex(r"[a-c][0-9]{1,3}|x", fullmatch=True), min_size=1, max_size=30))
def test_names_of_nodes_become_a_list_and_back(names: set[str]) -> None:
    assert set(nodes_of(as_nodes(sorted(names)))) == names


RULE = SlurmSite(mode="start", dry_run=False, verify_seconds=0)


class Dies(Recorder):
    """Is killed while a start is asked for."""

    def __call__(self, words: Sequence[str], timeout: float) -> tuple[int, str, str]:
        if words[0] == "scontrol" and "StartTime=now" in words:
            raise KeyboardInterrupt
        return super().__call__(words, timeout)


def test_a_start_that_a_kill_cut_short_is_taken_back_by_the_next_process(tmp_path: Path) -> None:
    memory, waits = Memory(tmp_path / "memory.json"), record(required_nodes="a[1-2]")
    with pytest.raises(KeyboardInterrupt):
        start(
            Slurm(None, dry_run=False, run=Dies(waits)),
            [Start("7", ("a2",))],
            {"7": job()},
            RULE,
            memory,
            NOW,
        )
    again, run = Memory.read(tmp_path / "memory.json"), Recorder(waits)
    assert again.pinned == {"7": "a1,a2"}
    (told,) = recover(Slurm(None, dry_run=False, run=run), {"7": job()}, RULE, again, NOW)
    assert told.state == "not started"
    assert ("scontrol", "update", "JobId=7", "ReqNodeList=a1,a2", "StartTime=now+60minutes") in run.asked
    assert Memory.read(tmp_path / "memory.json").pinned == {}


def test_release_all_gives_back_what_users_asked_for(tmp_path: Path) -> None:
    run, memory = Recorder(), Memory(tmp_path / "m.json", ranked={"8": 50, "gone": 1}, pinned={"7": "a1"})
    told = release_all(Slurm(None, dry_run=False, run=run), [job(), job(job_id=8, admin_comment="")], memory)
    assert told == {"released": 1, "ranks taken back": 1}
    assert [words[2:] for words in run.asked] == [
        ("JobId=7", "ReqNodeList=a1"), ("JobId=7", "StartTime=now"), ("JobId=7", "AdminComment="),
        ("JobId=8", "Nice=50"),
    ]  # fmt: skip
    assert Memory.read(tmp_path / "m.json") == Memory(tmp_path / "m.json")


class Operator(Recorder):
    """Answers as Slurm answers an operator: admin comments are not its to write."""

    def __call__(self, words: Sequence[str], timeout: float) -> tuple[int, str, str]:
        refused = any(word.startswith("AdminComment=") for word in words)
        return (1, "", "Access/permission denied") if refused else super().__call__(words, timeout)


def test_an_operator_can_give_jobs_back_but_not_write_admin_comments() -> None:
    run = Operator()
    slurm = Slurm(None, dry_run=False, run=run)
    rule = SlurmSite(mode="start", dry_run=False, write_eta=True)
    assert advise(slurm, [job(), job(job_id=8)], {"7": NOW, "8": NOW}, rule) == 0
    assert slurm.failures == ["Access/permission denied"]
    told = release_all(slurm, [job(), job(job_id=8)], Memory())
    assert told["released"] == 2 and told["marks left, which only an administrator may remove"] == 2
    assert ("scontrol", "update", "JobId=7,8", "StartTime=now") in run.asked


# the commands, on saved output -----------------------------------------------------------------------

HOSTILE = (
    "$(touch owned)",
    "a;reboot",
    "`id`",
    "<script>alert(1)</script>",
    "line1\nline2",
    "x|y",
    "\x1b[31mred",
    "%s%n",
)


def saved(folder: Path, count: int = 6) -> Path:
    folder.mkdir()
    waiting = [record(job_id=k + 1, name=HOSTILE[k % len(HOSTILE)], comment=HOSTILE[k % len(HOSTILE)],
                      user_name=HOSTILE[(k + 1) % len(HOSTILE)]) for k in range(count)]  # fmt: skip
    busy = record(
        job_id=90, job_state=["RUNNING"], nodes="a2", gres_detail=["gpu:a100:2(IDX:1,6)"], admin_comment="",
        tres_alloc_str="gres/gpu=2,gres/gpu:a100=2",
        start_time={"set": True, "infinite": False, "number": NOW.timestamp() - 600},
    )  # fmt: skip
    held = record(job_id=91, hold=True, priority=0)
    (folder / "squeue.json").write_text(json.dumps({"jobs": [*waiting, busy, held]}))
    (folder / "nodes.txt").write_text(NODES)
    (folder / "partitions.txt").write_text(PARTITIONS)
    (folder / "reservations.txt").write_text("No reservations in the system\n")
    header = SACCT[-1].removeprefix("--format=").replace(",", "|")
    ends = [int(NOW.timestamp()) - 4000 * k for k in range(1, 30)]
    rows = [
        f"{k}|ann|nlp|normal|gpu|COMPLETED|{end - 2000}|{end - 1800}|{end}|1800|00:00:00|60|1|4|4G|gres/gpu=2|"
        f"gres/gpu=2,gres/gpu:a100=2|a1||sft"
        for k, end in enumerate(ends, 1000)
    ]
    (folder / "sacct.txt").write_text("\n".join([header, *rows]) + "\n")
    return folder


def call(*words: object) -> int:
    before, sys.argv = sys.argv, ["tidegrid", *map(str, words)]
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    finally:
        sys.argv = before
    return 0


def test_a_dry_turn_on_saved_output_names_starts_and_runs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, site = saved(tmp_path / "saved"), tmp_path / "site"
    site.mkdir()
    (site / "slurm.json").write_text('{"mode": "start", "dry_run": false, "write_eta": true}')
    told = ("--from", folder, "--now", NOW.isoformat())
    assert call("slurm", "check", site, *told) == 0
    shown = capsys.readouterr().out
    assert "6 of 7 waiting GPU jobs can be planned" in shown and "it is held" in shown
    assert call("slurm", "tick", site, *told, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["start"] and all(one["nodes"] for one in document["start"])
    # saved output is never acted on, whatever the file says
    assert document["handed_over"]["dry_run"] and document["handed_over"]["starts"]
    log = [json.loads(line) for line in (site / "slurm-commands.jsonl").read_text().splitlines()]
    assert log and all(line["code"] is None for line in log)
    assert not (site / "slurm-memory.json").exists() and not list(tmp_path.glob("owned"))
    # the same turn again commits nothing new
    assert call("slurm", "tick", site, *told, "--json") == 0
    assert json.loads(capsys.readouterr().out)["tick"] == document["tick"]
    # what a user is told
    state = site / "state.db"
    assert call("eta", "91", "--state", state) == 0
    assert "91: waiting" in (shown := capsys.readouterr().out) and "it is held" in shown
    assert call("eta", document["start"][0]["job"], "--state", state) == 0
    assert "starting" in capsys.readouterr().out
    assert call("eta", "4711", "--state", state) == 1 and "unknown" in capsys.readouterr().out
    assert call("eta", "--state", state) == 2 and call("eta", "1", "--gpus", 2, "--state", state) == 2
    assert call("eta", "--gpus", "4", "--time", "soon", "--state", state) == 2
    assert call("eta", "1", "--state", tmp_path / "none.db") == 2
    capsys.readouterr()


def test_an_offer_starts_behind_all_others_and_fewer_gpus_or_a_shorter_limit_sooner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, site = saved(tmp_path / "saved", count=14), tmp_path / "site"
    assert call("slurm", "tick", site, "--from", folder, "--now", NOW.isoformat(), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert call("eta", "--gpus", "8", "--time", "2:00:00", "--state", site / "state.db", "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)["jobs"]
    assert told["start"] is not None and pd.Timestamp(told["start"]["q0.5"]) > NOW
    assert told["sooner"] and all(
        pd.Timestamp(way["start"]) < pd.Timestamp(told["start"]["q0.5"]) for way in told["sooner"]
    )
    assert told["end"] is None and pd.Timestamp(told["by"]) >= pd.Timestamp(told["start"]["q0.9"])
    # how long such jobs have run tells when it ends; none runs past its limit
    kept = kept_in(str(site / "state.db"))
    past = [{"gpus": 8, "hours": float(h)} for h in np.linspace(0.5, 4, 15)]
    offer = Outlook(replace(kept, outcomes=past)).offered(8, 2.0)
    assert offer.start is not None and offer.end is not None and offer.by is not None
    ran = [(last - first).total_seconds() / 3600 for first, last in zip(offer.start, offer.end, strict=True)]
    assert ran == pytest.approx([0.75, 2.0, 2.0]) and offer.end[2] <= offer.by
    assert offer.notes == ("its end is told by the last 15 jobs on 8 GPUs",)
    other = Outlook(replace(kept, outcomes=past)).offered(4, 2.0)
    assert other.notes == ("its end is told by the last 15 jobs of any size",)
    waiting = next(one["job"] for one in document["waiting"] if one["start"])
    outlook = Outlook(kept_in(str(site / "state.db")))
    (mine,) = outlook.told(waiting)
    assert mine.state == "waiting" and mine.start is not None and mine.end is not None and mine.reason
    assert mine.start[0] <= mine.start[1] <= mine.start[2] <= mine.end[2]


def test_a_store_is_read_alike_with_and_without_sqlalchemy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, site = saved(tmp_path / "saved"), tmp_path / "site"
    assert call("slurm", "tick", site, "--from", folder, "--now", NOW.isoformat(), "--json") == 0
    capsys.readouterr()
    path = site / "state.db"
    assert kept_in(str(path)) == kept_in(f"sqlite:///{path}")
    path.chmod(0o444)
    assert kept_in(str(path)).document["tick"] == 1
    with sqlite3.connect(tmp_path / "empty.db") as db:
        db.execute("CREATE TABLE x (y)")
    assert call("eta", "1", "--state", tmp_path / "empty.db") == 2
    capsys.readouterr()


def test_a_trial_sets_what_the_site_ran_beside_what_would_have_been(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "saved")
    assert (
        call("slurm", "trial", "--days", "0.5", "--from", folder, "--out", tmp_path / "t.html", "--json") == 0
    )
    found = json.loads(capsys.readouterr().out)["gpu_types"]
    told = next(one["policies"] for one in found if one["gpu_type"] == "a100")
    assert set(told) == {"the site", "easy_limits", "rolling"}
    assert told["the site"]["jobs"] == told["rolling"]["jobs"] == told["rolling"]["completed"]
    # on a cluster that is nearly empty nothing waits, but at the site each job waited 200 s
    assert told["the site"]["wait_h"]["median"] == pytest.approx(200 / 3600, abs=0.01)
    assert told["rolling"]["wait_h"]["median"] < 0.02
    page = (tmp_path / "t.html").read_text()
    figures = re.findall(r'<div id="([^"]+)" class="plotly', page)
    assert len(figures) == len(set(figures)) >= 6 * len(found)
    assert "<script>alert(1)" not in page and "Trial: the last 0.5 days of a100" in page


def test_a_trial_plays_each_gpu_type_by_node_and_with_the_gpus_that_were_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = saved(tmp_path / "saved")
    head, *rows = (folder / "sacct.txt").read_text().splitlines()
    more = ["9" + row.replace("gpu:a100", "gpu:h100") for row in rows if "gpu:a100" in row]
    (folder / "sacct.txt").write_text("\n".join([head, *rows, *more, ""]))
    call("slurm", "trial", "--days", "0.5", "--from", folder, "--out", tmp_path / "t.html", "--json")
    found = {one["gpu_type"]: one["policies"] for one in json.loads(capsys.readouterr().out)["gpu_types"]}
    assert set(found) == {"a100", "h100"}
    assert found["a100"]["the site"]["jobs"] == found["h100"]["the site"]["jobs"] > 0
    figures = re.findall(r'<div id="([^"]+)" class="plotly', (tmp_path / "t.html").read_text())
    assert len(figures) == len(set(figures)) >= 12
    assert call("slurm", "trial", "--from", folder, "--gpus", "8", "--out", tmp_path / "u.html") == 2
    assert "add --gpu-type" in capsys.readouterr().err
    assert not (tmp_path / "u.html").exists()


def test_only_output_that_is_saved_is_answered(tmp_path: Path) -> None:
    run = Saved(saved(tmp_path / "saved"))
    assert run(("scontrol", "update", "JobId=1"), 1.0)[0] == 1
    assert (
        run(("squeue", "--json"), 1.0)[0] == 0 and run(("env", "SLURM_TIME_FORMAT=%s", *SACCT), 1.0)[0] == 0
    )


def test_gated_jobs_are_marked_ones() -> None:
    assert job(admin_comment=f"{MARK}; expected start").gated and not job(admin_comment="").gated
