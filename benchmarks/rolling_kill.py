"""Kill a rolling run with kill -9 at random moments, restart it, and compare it with an undisturbed one.

A synthetic site lives through hours of arrivals, ends, failures, a dead GPU and refits; every tick reads its files,
brings champions up to date, plans and commits. A run that was killed and restarted has to end with the same commits,
the same tables and the same commit.json, to the byte.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import zlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data import App, Cluster, History, Pool, write_cluster, write_table
from tidegrid.data.synth import SampleCluster, synthesise
from tidegrid.errors import InputError
from tidegrid.models import ModelStore
from tidegrid.pipeline.control import Settings, tick
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.rolling import StateStore
from tidegrid.pipeline.train import train
from tidegrid.pipeline.worlds.files import Files

MINUTES = (30, 30, 7, 23, 60)
"""From a tick to the next: half hours, a run at an arrival, the rest of its half hour, an hour."""

REFIT_HOURS = 6.0


@dataclass
class Truth:
    """What happens at the site, as a function of the sample and of what was committed."""

    sample: SampleCluster
    start: pd.Timestamp
    now: pd.Timestamp
    waiting: dict[str, dict[str, Any]] = field(default_factory=dict)
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    done: list[dict[str, Any]] = field(default_factory=list)
    held: dict[str, list[int]] = field(default_factory=dict)
    number: int = 0

    def begin(self) -> None:
        """Take in what arrives with this tick."""
        queue = self.sample.requests
        for k in range(2 if self.number % 4 else 3):
            row = queue.iloc[(3 * self.number + k) % len(queue)].to_dict()
            name = f"{row['job_id']}-{self.number}"
            self.waiting[name] = {
                **row,
                "job_id": name,
                "submit_time": self.now,
                "deadline": pd.NaT,
                "earliest_time": pd.NaT,
            }

    def obey(self, commit: dict[str, Any]) -> None:
        """Start what the commit starts, give apps their GPUs, and let time pass to the next tick."""
        for start in commit["start"]:
            row = self.waiting.pop(start["job"])
            block = {"pool": start["pool"], "first_gpu": start["first_gpu"], "gpus": start["gpus"]}
            self.running[start["job"]] = {**row, **block, "start_time": self.now}
        for move in commit["apps"]:
            self.held[move["app"]] = move["gpus"]
        for job in commit["lost"]:
            self.running.pop(job, None)
        self.now += pd.Timedelta(minutes=MINUTES[self.number % len(MINUTES)])
        self.number += 1
        for job, row in list(self.running.items()):
            luck = np.random.default_rng(zlib.crc32(job.encode()))
            end = row["start_time"] + pd.Timedelta(hours=float(luck.lognormal(0.3, 0.8)))
            if end <= self.now:
                status = "failed" if luck.random() < 0.2 else "completed"
                del self.running[job]
                self.done.append({**row, "status": status, "end_time": end})

    def write(self, folder: Path) -> None:
        """Write the site's files."""
        folder.mkdir(exist_ok=True)
        known = self.sample.history.as_of(self.start)
        jobs = pd.concat(
            [known.jobs[known.jobs["status"] != "running"], pd.DataFrame(self.done)], ignore_index=True
        )
        keep = [c for c in known.jobs.columns if c not in ("known_at", "known_at_estimated")]
        jobs = History(
            jobs[keep].assign(duration_s=(jobs["end_time"] - jobs["start_time"]).dt.total_seconds())
        ).jobs
        write_table(jobs, folder / "jobs.csv")
        write_table(self.sample.history.as_of(self.now).traffic, folder / "traffic.csv")
        # the site has no empty table: one without rows is a file less
        for name, rows in (("requests", self.waiting), ("running", self.running)):
            (folder / f"{name}.csv").unlink(missing_ok=True)
            if rows:
                frame = pd.DataFrame(list(rows.values()))
                drop = ["earliest_time", "deadline"] + (["min_gpus", "max_gpus"] if name == "running" else [])
                write_table(frame.drop(columns=drop), folder / f"{name}.csv")
        cluster = self.sample.cluster
        down = (0,) if self.number >= 10 else ()
        pools = tuple(
            Pool(**{**p.model_dump(), "down": down if i == 0 else ()}) for i, p in enumerate(cluster.pools)
        )
        apps = tuple(App(**{**a.model_dump(), "held": tuple(self.held.get(a.id, []))}) for a in cluster.apps)
        write_cluster(
            Cluster(timezone=cluster.timezone, pools=pools, apps=apps, synthetic=True),
            folder / "cluster.json",
        )


def live(folder: Path, sample: SampleCluster, ticks: int) -> None:
    """Tick until there are so many commits, from wherever the store stands."""
    state = StateStore(folder / "state.db")
    start = sample.now - pd.Timedelta(hours=36)
    truth = Truth(sample, start, start)
    commits = state.commits()
    # the last tick is repeated: it may have died before its file was written
    for commit in commits[:-1]:
        truth.begin()
        truth.obey(commit.document)
    settings = Settings(policy=Policy(step_minutes=30), refit_hours=REFIT_HOURS)
    models = ModelStore(folder / "models")
    while truth.number < ticks:
        truth.begin()
        truth.write(folder / "site")
        commit = tick(
            state, Files(folder / "site", out=folder / "commit.json"), truth.now, settings, models=models
        )
        truth.obey(commit.document)


def forked(work: Any, *args: Any) -> int:
    """Run in a process of its own; returns its id."""
    process = os.fork()
    if process:
        return process
    try:
        work(*args)
        os._exit(0)
    except BaseException as error:
        os.write(2, f"a run failed: {type(error).__name__}: {error}\n".encode())
        os._exit(3)


def waited(process: int) -> int:
    _, status = os.waitpid(process, 0)
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def content(folder: Path) -> dict[str, Any]:
    """Return all that a run left: commits, plans, tables, and the commit's file."""
    state = StateStore(folder / "state.db")
    commits = state.commits()
    return {
        "commits": [asdict(c) for c in commits],
        "plans": [state.plan(c.tick) for c in commits],
        "watched": [asdict(w) for w in state.watched().values()],
        "outcomes": [asdict(o) for o in state.outcomes()],
        "hours": [asdict(h) for h in state.hours()],
        "unmet": [asdict(u) for u in state.unmet()],
        "events": [(now, asdict(e)) for now, e in state.events()],
        "commit.json": (folder / "commit.json").read_text(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="how many times to kill (default 100)")
    parser.add_argument("--ticks", type=int, default=24, help="ticks of a run (default 24)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the site and of the moments")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.kills < 1 or not 1 <= args.ticks <= 60:
        raise InputError(
            "nothing to do", field="--kills, --ticks", fix="give 1 or more kills and 1 to 60 ticks"
        )
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), args.kills, args.ticks, args.seed)
    if args.json:
        print(json.dumps(found))
    else:
        print("| measure | figure |\n| --- | --- |")
        for name, value in found.items():
            print(f"| {name} | {value} |")
    sys.exit(1 if any(value for name, value in found.items() if name.startswith("different")) else 0)


def run(root: Path, kills: int, ticks: int, seed: int) -> dict[str, Any]:
    sample = synthesise(seed, days=23, gpus=16, queue=12)
    start = sample.now - pd.Timedelta(hours=36)

    def prepare() -> None:
        (root / "models").mkdir()
        names = ["recurring", "realtime", "training", "quantization"]
        train(sample.history.as_of(start - pd.Timedelta(hours=2)), ModelStore(root / "models"), names,
              now=start - pd.Timedelta(hours=2), timezone=sample.cluster.timezone)  # fmt: skip

    def fresh(name: str) -> Path:
        folder = root / name
        shutil.copytree(root / "models", folder / "models")
        return folder

    # the parent only waits: a process that has used threads must not fork
    if waited(forked(prepare)):
        raise InputError("the estimators could not be trained")
    folder = fresh("whole")
    begun = time.monotonic()
    if waited(forked(live, folder, sample, ticks)):
        raise InputError("the undisturbed run failed")
    each = (time.monotonic() - begun) / ticks
    whole = content(folder)
    moments = random.Random(seed)
    found: dict[str, Any] = {
        "kills": 0, "runs compared": 0, "commits compared": 0, "events in a run": len(whole["events"]),
        "outcomes in a run": len(whole["outcomes"]), "refits in a run": sum(
            any(note.startswith("refit: ") for note in json.loads(c["text"])["notes"]) for c in whole["commits"]
        ),
        **{f"different {name}": 0 for name in whole},
    }  # fmt: skip
    number = 0
    while found["kills"] < kills:
        folder = fresh(f"run{number}")
        while True:
            process = forked(live, folder, sample, ticks)
            if found["kills"] < kills:
                time.sleep(moments.uniform(0.0, 3.0 * each))
                os.kill(process, signal.SIGKILL)
            code = waited(process)
            found["kills"] += code == -signal.SIGKILL
            if code == 0:
                break
            if code != -signal.SIGKILL:
                raise InputError(f"a run failed with code {code}")
        left = content(folder)
        found["runs compared"] += 1
        found["commits compared"] += len(left["commits"])
        for name, value in left.items():
            found[f"different {name}"] += value != whole[name]
        shutil.rmtree(folder)
        number += 1
    return found


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"rolling_kill: {error}", file=sys.stderr)
        sys.exit(2)
