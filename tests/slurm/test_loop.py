"""``tidegrid slurm run`` on a real Slurm, in each of the three ways, ended by ``kill -9`` in the middle."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, zip_longest
from pathlib import Path

import pandas as pd
import pytest
from cluster import Cluster
from jobs import Submitted, submit

from tidegrid.pipeline.rolling import StateStore
from tidegrid.pipeline.worlds.slurm.handover import log_lines
from tidegrid.pipeline.worlds.slurm.read import jobs_of

POLICY = {"step_minutes": 1, "horizon_hours": 1.0, "lookahead_hours": 0}


def site_of(folder: Path, **rule: object) -> Path:
    folder.mkdir()
    said = {"dry_run": False, "hold_minutes": 5, "verify_seconds": 2, "history_days": 1}
    (folder / "slurm.json").write_text(json.dumps(said | rule))
    (folder / "policy.json").write_text(json.dumps(POLICY))
    return folder


@contextmanager
def running(cluster: Cluster, site: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The loop as a process of its own; whatever happens, it ends."""
    words = [sys.executable, "-m", "tidegrid", "slurm", "run", str(site), "--every", "2"]
    environment = os.environ | cluster.environment
    with (site / "out.txt").open("ab") as out:
        process = subprocess.Popen(words, env=environment, stdout=out, stderr=out)
        try:
            yield process
        finally:
            process.kill()
            process.wait(30)


def attempts(cluster: Cluster) -> pd.DataFrame:
    fields = "JobID,State,Start,End,NodeList,AllocTRES,Submit"
    text = cluster.text("sacct", "-a", "-n", "-P", "-X", "-D", f"--format={fields}")
    return pd.DataFrame([line.split("|") for line in text.splitlines()], columns=fields.split(","))


def waiting(cluster: Cluster) -> set[str]:
    text = cluster.text("squeue", "-h", "-r", "-t", "PD", "-o", "%F_%K %i")
    return {word for line in text.splitlines() for word in line.split()}


def left(cluster: Cluster) -> int:
    return len(cluster.text("squeue", "-h", "-r", "-o", "%i").split())


def played(
    cluster: Cluster, site: Path, jobs: Submitted, meanwhile: Callable[[], None] = lambda: None
) -> None:
    """Run the loop until all jobs have ended, and kill it once when a third have begun and it has changed some."""
    total, end = left(cluster), time.monotonic() + 360
    with running(cluster, site) as process:
        while left(cluster) and time.monotonic() < end:
            assert process.poll() is None, (site / "out.txt").read_text()
            if len(waiting(cluster)) < total * 2 // 3 and (site / "slurm-commands.jsonl").exists():
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.3)
    with running(cluster, site) as process:
        while left(cluster) and time.monotonic() < end:
            assert process.poll() is None, (site / "out.txt").read_text()
            meanwhile()
            time.sleep(1)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    rest = cluster.text("squeue", "-h", "-r", "-o", "%i %j %T %r %S %Q")
    assert not rest, rest + (site / "out.txt").read_text()[-3000:]
    found = attempts(cluster).set_index("JobID")
    ended = found.loc[jobs.all()]
    states = Counter(state.split()[0] for state in ended["State"])
    assert states == {"COMPLETED": len(ended) - 1, "FAILED": 1}, ended[ended["State"] != "COMPLETED"]
    # nothing was started twice
    assert len(ended) == len(jobs.all()) and len(jobs.all()) >= 60


def changes_of(site: Path, code: int | None = 0) -> list[dict[str, str]]:
    """The successful changes of jobs, oldest first: fields by name."""
    out = []
    for line in log_lines(site / "slurm-commands.jsonl"):
        if line["code"] == code:
            out.append(dict(word.split("=", 1) for word in line["command"][2:]) | {"at": line["at"]})
    return out


@pytest.fixture(autouse=True)
def _empty(cluster: Cluster) -> None:
    for user in ("user1", "user2", "user3", "user4", "user5"):
        cluster.call("scancel", "-u", user, check=False)
    end = time.monotonic() + 30
    while left(cluster):
        assert time.monotonic() < end
        time.sleep(0.5)


def test_started_jobs_run_once_on_the_nodes_that_the_plan_names(cluster: Cluster, tmp_path: Path) -> None:
    site = site_of(tmp_path / "site", mode="start")
    jobs = submit(cluster)
    gated = {name for name in jobs.all() if name not in (jobs.ids["cpus"], jobs.ids["no limit"])}
    played(cluster, site, jobs)
    found = attempts(cluster).set_index("JobID")
    pins: dict[str, str] = {}
    for change in changes_of(site):
        if change.get("StartTime") == "now" and change.get("ReqNodeList"):
            pins[change["JobId"]] = change["ReqNodeList"]
    state = StateStore(site / "state.db")
    decided = {one["job"]: one["nodes"] for commit in state.commits() for one in commit.document["start"]}
    # the kill may have struck while one command ran, before it was logged
    unlogged = gated - set(pins)
    assert len(unlogged) <= 1
    pins |= {name: ",".join(decided[name]) for name in unlogged}
    # all that the gate held was started by a decision, and lay where it says
    assert set(pins) == gated <= set(decided)
    for name, nodes in pins.items():
        listed = cluster.text("scontrol", "show", "hostnames", found.loc[name, "NodeList"]).split()
        assert set(listed) == set(nodes.split(",")), name
    for what, gpus in (("two-nodes", 8), ("two-whole-nodes", 16), ("three", 3), ("wide-0", 8), ("tasks", 4)):
        assert f"gres/gpu={gpus}" in found.loc[jobs.ids[what], "AllocTRES"], what


BEGINNING = pd.Timestamp("2000-01-01T00:00Z")
SPAN = pd.Timedelta(seconds=12)
"""How long before a start Slurm may have looked at the ranks by which it made it: several rounds of its scheduler."""


def plans(site: Path, jobs: Sequence[str], since: pd.Timestamp, until: pd.Timestamp) -> list[dict[str, str]]:
    """The expected starts of jobs in each turn whose ranks Slurm may have had from one instant to before another.

    The ranks of a turn reach Slurm after its instant and before that of the next one, and last until those of the
    next one have.
    """
    commits = StateStore(site / "state.db").commits()
    out = []
    for commit, following in zip_longest(commits, commits[1:]):
        replaced = following is not None and pd.Timestamp(following.now) < since
        if pd.Timestamp(commit.now) < until and not replaced:
            waits = {one["job"]: one["start"]["q0.5"] for one in commit.document["waiting"] if one["start"]}
            told = waits | {one["job"]: commit.now for one in commit.document["start"]}
            out.append({name: told[name] for name in jobs if name in told})
    return out


def agreed(turns: list[dict[str, str]], jobs: Sequence[str]) -> list[str]:
    """The order of jobs in all turns; empty where turns differ, leave a job out, or let two start together."""
    orders = {tuple(sorted(turn, key=turn.__getitem__)) for turn in turns}
    apart = all(len(turn) == len(set(turn.values())) == len(jobs) for turn in turns)
    return list(orders.pop()) if apart and len(orders) == 1 else []


def test_ranked_jobs_run_in_the_planned_order(cluster: Cluster, tmp_path: Path) -> None:
    cluster.gate(on=False)
    on_one_node = ("-w", "a3", "-t", "3")
    blocker = cluster.submit("user5", "-w", "a3", "-t", "12", "--gres=gpu:a100:7", run="sleep 600")
    end = time.monotonic() + 30
    while blocker in waiting(cluster):
        assert time.monotonic() < end
        time.sleep(0.5)
    order: list[str] = []
    try:
        site = site_of(tmp_path / "site", mode="rank")
        jobs = submit(cluster)
        # no two of these fit on the node at once; Slurm by itself would start the first submitted, the smallest, first
        alike = [
            cluster.submit("user5", *on_one_node, f"--gres=gpu:a100:{gpus}", run="sleep 2")
            for gpus in (5, 6, 7, 8)
        ]

        def free_the_node() -> None:
            """Once nothing else waits and the turns agree on an order, which Slurm then has too."""
            if order:
                return
            text = cluster.text("squeue", "-h", "-r", "-t", "PD", "-o", "%i %Q")
            ranks = {line.split()[0]: int(line.split()[1]) for line in text.splitlines()}
            now = pd.Timestamp.now(tz="UTC")
            # of four turns at least one has been handed over whole, whenever the loop was killed
            lately = plans(site, alike, now - SPAN, now) + plans(site, alike, BEGINNING, now)[-4:]
            if set(ranks) == set(alike) and len(lately) > 4 and (found := agreed(lately, alike)):
                told = [ranks[name] for name in found]
                assert told == sorted(set(told), reverse=True), (found, ranks)
                order.extend(found)
                cluster.call("scancel", blocker)

        played(cluster, site, jobs, free_the_node)
    finally:
        cluster.call("scancel", blocker, check=False)
        cluster.gate(on=True)
    ranked = [change for change in changes_of(site) if "Nice" in change]
    assert ranked and all(int(change["Nice"]) >= 0 for change in ranked)
    ran = attempts(cluster).set_index("JobID")
    begun = {name: pd.Timestamp(ran.loc[name, "Start"], tz="UTC") for name in alike}
    # tidegrid did say it: the widest first
    assert order == alike[::-1]
    checked = 0
    for pair in combinations(alike, 2):
        first = min(begun[name] for name in pair)
        turns = plans(site, pair, first - SPAN, first)
        # a turn that leaves one out has read the queue after its start, and cannot have ranked it
        if found := agreed([turn for turn in turns if len(turn) == len(pair)], pair):
            assert begun[found[0]] < begun[found[1]], (found, begun, order)
            checked += 1
    assert checked >= 3, (begun, order)


def test_advice_changes_nothing_but_comments_and_eta_tells_it(cluster: Cluster, tmp_path: Path) -> None:
    cluster.gate(on=False)
    try:
        site = site_of(tmp_path / "site", mode="advise", write_eta=True)
        jobs = submit(cluster)
        late = cluster.submit("user1", "-b", "now+30minutes", "--gpus=a100:1")
        with running(cluster, site):
            end = time.monotonic() + 90
            while not any(change["JobId"] == late for change in changes_of(site)):
                assert time.monotonic() < end, (site / "out.txt").read_text()
                time.sleep(1)
        queue = {job.id: job for job in jobs_of(cluster.text("squeue", "--json"))[0]}
        assert re.fullmatch(r"expected start \d{4}-\d\d-\d\dT\d\d:\d\dZ", queue[late].admin_comment)
        told = subprocess.run(
            [sys.executable, "-m", "tidegrid", "eta", late, "--state", str(site / "state.db")],
            env=os.environ | cluster.environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert told.returncode == 0 and f"{late}: waiting" in told.stdout, told.stderr + told.stdout
        cluster.call("scancel", late)
        played(cluster, site, jobs)
    finally:
        cluster.gate(on=True)
    assert {name for change in changes_of(site) for name in change} <= {"JobId", "AdminComment", "at"}
