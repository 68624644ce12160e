"""A site whose truth is known, lived through tick by tick as an operator would, and what its users were told.

The site is made from the documentation alone: a folder with ``cluster.json`` and four tables. Three weeks of history
come from a queue that fills the GPUs first come, first served, with smaller jobs going ahead. Then tidegrid ticks every
30 minutes; the operator starts what ``commit.json`` says, ends jobs when they truly end (which no file tells before),
and writes the files again. Counted is what was told against what came of it.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.models import ModelStore
from tidegrid.pipeline.control import Settings, tick
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.rolling import StateStore
from tidegrid.pipeline.worlds.files import Files
from tidegrid.scheduler import Plan, Problem, explain, solve
from tidegrid.scheduler.advice import replanned

BEGIN = pd.Timestamp("2026-03-02T00:00:00+00:00")
"""When history begins: a Monday."""

EVERY = 30.0
"""Minutes between ticks."""

HOUR = pd.Timedelta(hours=1)


@dataclass(frozen=True)
class Pool:
    """A pool: GPUs, GPUs of a node, how jobs are placed, and how much faster than the other one it is."""

    id: str
    gpus: int
    node: int
    placement: str
    gpu_type: str
    speed: float


@dataclass(frozen=True)
class App:
    """An app: where it lives, its floor in replicas, GPUs of a replica, GPUs at its daily peak, its swap cap."""

    id: str
    pool: str
    floor: int
    replica: int
    peak: float
    cap: int


POOLS = (
    Pool("fast", 32, 8, "node", "H100-SXM-80GB", 1.6),
    Pool("wide", 64, 8, "line", "A100-SXM-80GB", 1.0),
)
APPS = (
    App("chat", "fast", 1, 2, 10.0, 4),
    App("code", "wide", 2, 1, 12.0, 6),
    App("search", "wide", 1, 1, 5.0, 2),
)
UNITS = 1000.0
"""Requests an hour that a GPU serves."""

RHYTHM = np.array([3, 2, 2, 2, 2, 3, 4, 6, 8, 9, 10, 10, 9, 10, 10, 9, 9, 8, 7, 7, 6, 6, 5, 4]) / 10


@dataclass
class Job:
    """A job, and what only the operator knows of it: how long it takes and how it ends."""

    id: str
    row: dict[str, Any]
    gpus: int
    submit: float
    hours: float
    status: str
    start: float = np.nan
    end: float = np.nan
    pool: str = ""
    held: tuple[int, ...] = ()


@dataclass
class Site:
    """The operator's site: all times are hours since ``BEGIN``."""

    folder: Path
    seed: int
    load: float = 1.0
    now: float = 0.0
    jobs: list[Job] = field(default_factory=list)
    waiting: dict[str, Job] = field(default_factory=dict)
    running: dict[str, Job] = field(default_factory=dict)
    ended: list[Job] = field(default_factory=list)
    apps: dict[str, list[int]] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)

    def live(self, days: float) -> None:
        """Live through so many days under the old queue."""
        rng = np.random.default_rng(self.seed)
        self.traffic = {app.id: self._traffic(app, rng, int(days * 24) + 24 * 6) for app in APPS}
        self.jobs = _arrivals(rng, days * 24 + 24 * 6, self.load)
        free = {pool.id: pool.gpus for pool in POOLS}
        for app in APPS:  # reserved for the peak, at the end of the pool
            count = int(np.ceil(app.peak / app.replica)) * app.replica
            free[app.pool] -= count
            self.apps[app.id] = list(range(free[app.pool], free[app.pool] + count))
        coming = list(self.jobs)
        while True:
            ends = [job.end for job in self.running.values()]
            then = min([*ends, coming[0].submit])
            if then >= days * 24:
                break
            self._until(then)
            while coming and coming[0].submit <= then:
                job = coming.pop(0)
                self.waiting[job.id] = job
            full: set[tuple[str, int]] = set()
            for job in list(self.waiting.values()):
                for pool in POOLS:
                    if job.row["gpu_type"] not in ("", pool.gpu_type) or (pool.id, job.gpus) in full:
                        continue
                    block = self._place(pool, job.gpus)
                    if block is not None:
                        self._start(job, pool, block)
                        break
                    full.add((pool.id, job.gpus))
        self._until(days * 24)

    def write(self) -> None:
        """Write the site's files as they are now."""
        cluster = {
            "timezone": "Europe/Berlin", "synthetic": True,
            "pools": [
                {"id": p.id, "gpus": p.gpus, "gpu_type": p.gpu_type, "node_size": p.node, "placement": p.placement}
                for p in POOLS
            ],
            "apps": [
                {"id": a.id, "pool": a.pool, "priority": 9, "swap_cap": a.cap, "held": self.apps[a.id],
                 "capacity": {"units_per_gpu_hour": UNITS, "gpus_per_replica": a.replica, "min_replicas": a.floor}}
                for a in APPS
            ],
        }  # fmt: skip
        (self.folder / "cluster.json").write_text(json.dumps(cluster))
        known = int(self.now)
        self._table(
            "traffic",
            [
                {"series_id": app, "timestamp": _iso(h), "value": round(value, 1)}
                for app, values in self.traffic.items()
                for h, value in enumerate(values[:known])
            ],
            ("series_id", "timestamp", "value"),
        )
        about = ("job_id", "kind", "submit_time", "user", "name", "gpus", "gpu_type", "requested_walltime_s")
        self._table(
            "requests",
            [job.row | {"submit_time": _iso(job.submit)} for job in self.waiting.values()],
            (*about, "priority"),
        )
        self._table("running", [self._row(job) for job in self.running.values()],
                    (*about, "priority", "start_time", "pool", "gpu_ids"))  # fmt: skip
        self._table("jobs", [self._row(job) for job in self.ended],
                    (*about, "start_time", "end_time", "status"))  # fmt: skip

    def act(self, commit: dict[str, Any]) -> None:
        """Do what a commit says."""
        taken = {(job.pool, gpu) for job in self.running.values() for gpu in job.held}
        for move in commit["apps"]:
            pool = next(app.pool for app in APPS if app.id == move["app"])
            if any((pool, gpu) in taken for gpu in move["gpus"]):
                self.refusals.append(f"{move['app']} at {self.now}")
            self.apps[move["app"]] = list(move["gpus"])
            taken |= {(pool, gpu) for gpu in move["gpus"]}
        for start in commit["start"]:
            job, pool = self.waiting[start["job"]], next(p for p in POOLS if p.id == start["pool"])
            block = tuple(
                start.get("gpu_ids") or range(start["first_gpu"], start["first_gpu"] + start["gpus"])
            )
            if any((pool.id, gpu) in taken for gpu in block):
                self.refusals.append(f"{job.id} at {self.now}")
                continue
            taken |= {(pool.id, gpu) for gpu in block}
            self._start(job, pool, block)

    def wait(self, minutes: float) -> None:
        """Let time pass: jobs arrive and end."""
        then = self.now + minutes / 60
        for job in self.jobs:
            if self.now < job.submit <= then:
                self.waiting[job.id] = job
        self._until(then)

    def _until(self, then: float) -> None:
        self.now = then
        for job in sorted(self.running.values(), key=lambda one: (one.end, one.id)):
            if job.end <= then:
                self.ended.append(self.running.pop(job.id))

    def _start(self, job: Job, pool: Pool, block: tuple[int, ...]) -> None:
        limit = job.row["requested_walltime_s"] / 3600
        hours = job.hours / pool.speed
        if hours >= limit:
            hours, job.status = limit, "timeout"
        job.start, job.end, job.pool, job.held = self.now, self.now + hours, pool.id, block
        job.row = {**job.row, "gpu_type": job.row["gpu_type"] or pool.gpu_type}
        self.running[job.id] = self.waiting.pop(job.id)

    def _place(self, pool: Pool, gpus: int) -> tuple[int, ...] | None:
        """Return free GPUs: in a line the tightest aligned block, else the fullest node with room."""
        busy = np.zeros(pool.gpus, dtype=bool)
        for job in self.running.values():
            if job.pool == pool.id:
                busy[list(job.held)] = True
        for app in APPS:
            if app.pool == pool.id:
                busy[self.apps[app.id]] = True
        size = gpus if pool.placement == "node" else 1 << (gpus - 1).bit_length()
        free = [np.flatnonzero(~busy[k : k + pool.node]) + k for k in range(0, pool.gpus, pool.node)]
        if size > pool.node:
            whole = [ids for ids in free if len(ids) == pool.node]
            if pool.placement == "line":
                for k in range(0, pool.gpus, size):
                    if not busy[k : k + size].any():
                        return tuple(range(k, k + size))
                return None
            nodes = -(-size // pool.node)
            return tuple(int(gpu) for ids in whole[:nodes] for gpu in ids) if len(whole) >= nodes else None
        if pool.placement == "node":
            room = [ids for ids in free if len(ids) >= size]
            return tuple(int(gpu) for gpu in min(room, key=len)[:size]) if room else None
        for k in range(0, pool.gpus, size):
            if not busy[k : k + size].any():
                return tuple(range(k, k + size))
        return None

    def _row(self, job: Job) -> dict[str, Any]:
        return job.row | {
            "submit_time": _iso(job.submit), "start_time": _iso(job.start), "end_time": _iso(job.end),
            "status": job.status, "gpus": job.row["gpus"] if job.end <= self.now else len(job.held),
            "pool": job.pool, "gpu_ids": _ranges(job.held),
        }  # fmt: skip

    def _table(self, name: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
        pd.DataFrame(rows, columns=list(columns)).to_csv(self.folder / f"{name}.csv", index=False)

    def _traffic(self, app: App, rng: np.random.Generator, hours: int) -> np.ndarray:
        local = (np.arange(hours) + 1) % 24
        day = (np.arange(hours) + 1) // 24 % 7
        noise = np.exp(0.08 * rng.standard_normal(hours))
        level = np.exp(np.cumsum(0.01 * rng.standard_normal(hours)))
        curve = app.peak * 0.85 * RHYTHM[local] * np.where(day < 5, 1.0, 0.6) * UNITS
        return np.asarray(curve * noise * np.clip(level, 0.7, 1.3))


def _arrivals(rng: np.random.Generator, hours: float, load: float) -> list[Job]:
    """Return jobs of families: a user's jobs of one name take about as long each time."""
    families = []
    for k in range(40):
        gpus = int(rng.choice([1, 2, 3, 4, 6, 8, 16], p=[0.3, 0.2, 0.06, 0.2, 0.06, 0.13, 0.05]))
        families.append(
            {"user": f"user{k % 14}", "name": f"run-{k}", "gpus": gpus,
             "kind": str(rng.choice(["training", "batch_inference", "quantization"], p=[0.6, 0.3, 0.1])),
             "gpu_type": str(rng.choice(["", "A100-SXM-80GB", "H100-SXM-80GB"], p=[0.4, 0.4, 0.2])),
             "median": float(np.clip(rng.lognormal(np.log(2.0), 1.0), 0.2, 24.0)),
             "spread": float(rng.uniform(0.1, 0.7)), "weight": float(rng.exponential())}
        )  # fmt: skip
    weights = np.array([one["weight"] for one in families])
    mean = sum(
        w * one["gpus"] * one["median"] * np.exp(one["spread"] ** 2 / 2)
        for w, one in zip(weights / weights.sum(), families, strict=True)
    )
    usable = sum(p.gpus * p.speed for p in POOLS) - sum(a.peak for a in APPS)
    at, jobs = 0.0, []
    while at < hours:
        # twice as many by day as by night
        rate = load * usable / mean * (1.0 if 7 <= at % 24 < 19 else 0.5) / 0.75 * 0.85
        at += float(rng.exponential(1 / rate))
        one = families[int(rng.choice(len(families), p=weights / weights.sum()))]
        true = one["median"] * float(np.exp(one["spread"] * rng.standard_normal()))
        status = str(rng.choice(["completed", "failed", "cancelled"], p=[0.9, 0.06, 0.04]))
        cut = 1.0 if status == "completed" else float(rng.uniform(0.02, 1.0))
        limit = 3600 * float(np.ceil(one["median"] * rng.choice([1.5, 3.0, 6.0])))
        row = {"job_id": f"j{len(jobs):05d}", "kind": one["kind"], "user": one["user"], "name": one["name"],
               "gpus": one["gpus"], "gpu_type": one["gpu_type"], "requested_walltime_s": limit,
               "priority": int(rng.integers(2, 8))}  # fmt: skip
        jobs.append(Job(row["job_id"], row, one["gpus"], at, max(true * cut, 0.02), status))
    return jobs


def _iso(hours: float) -> str:
    return (BEGIN + pd.Timedelta(seconds=round(hours * 3600))).isoformat()


def _ranges(gpus: tuple[int, ...]) -> str:
    return ",".join(str(gpu) for gpu in gpus)


@dataclass
class Counts:
    """What was told against what came of it."""

    first: dict[str, dict[str, Any]] = field(default_factory=dict)
    at_start: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: list[dict[str, Any]] = field(default_factory=list)
    outside_own_band: int = 0
    below_floor: int = 0
    planned_below_floor: int = 0
    advice: Counter[str] = field(default_factory=Counter)
    commits: int = 0
    refused: int = 0

    def note(self, site: Site, commit: dict[str, Any], kept: dict[str, Any]) -> None:
        """Note what a tick told."""
        self.commits += 1
        etas = kept["forecast"]["etas"]
        rows = [dict(zip(etas["columns"], row, strict=True)) for row in etas["data"]]
        times = [name for name in etas["columns"] if name.startswith(("start", "end"))]
        for row in rows:
            for name in times:
                row[name] = (pd.Timestamp(row[name]) - BEGIN) / HOUR
            if row["job"] not in site.waiting:
                continue
            self.outside_own_band += not row["start_q0.1"] - 1e-6 <= row["start"] <= row["start_q0.9"] + 1e-6
            row["now"] = site.now
            self.first.setdefault(row["job"], row)
            self.told.append(row)
        starting = {one["job"] for one in commit["start"]}
        self.at_start |= {row["job"]: row for row in rows if row["job"] in starting}
        for move in commit["apps"]:
            app = next(a for a in APPS if a.id == move["app"])
            self.below_floor += len(move["gpus"]) < app.floor * app.replica
        plan = Plan.from_dict(kept["plan"])
        floors = {a.id: a.floor * a.replica for a in APPS}
        for entry in plan.apps:
            self.planned_below_floor += sum(n < floors[entry.app] for n in entry.counts())

    def coverage(
        self, rows: list[dict[str, Any]], which: str, jobs: dict[str, Job], now: float
    ) -> tuple[int, int]:
        """Return (inside, counted) of the told bands; a band is decided when the event, or its end, is past."""
        inside = counted = 0
        for row in rows:
            job = jobs[row["job"]]
            if which == "end" and job.status in ("failed", "cancelled"):
                continue
            at = job.start if which == "start" else job.end
            low, high = row[f"{which}_q0.1"], row[f"{which}_q0.9"]
            if which == "start" and high <= row["now"] + 1e-6:
                continue  # it starts now: nothing is predicted
            if np.isnan(at):
                at = np.inf
            if at > now and high >= now:
                continue
            counted += 1
            inside += low - 1 / 3600 <= at <= high + 1 / 3600
        return inside, counted


def advice(problem: Problem, plan: Plan, most: int, rng: np.random.Generator) -> Counter[str]:
    """Ask why some jobs wait; plan again without what each is said to start sooner without, and see whether it does."""
    out: Counter[str] = Counter()
    waits = [one for one in explain(problem, plan).extra["explanations"] if one["blockers"]]
    picked = [waits[k] for k in rng.permutation(len(waits))[:most].tolist()]
    for one in replanned(problem, plan, picked):
        for blocker in one["blockers"]:
            out["in the way" if not blocker["sooner"] else "would start sooner"] += 1
            if not blocker["sooner"]:
                continue
            document = problem.to_dict()
            for kind in ("jobs", "apps"):
                document[kind] = [entry for entry in document[kind] if entry["id"] != blocker["task"]]
            before = problem.steps if one["start"] is None else one["start"]
            for seed, name in ((0, "starts sooner"), (7, "starts sooner under another seed")):
                spot = solve(Problem.from_dict(document), "fast", seed=seed).placement_by_job.get(one["job"])
                out[name] += spot is not None and spot.start < before
    return out


def tour(
    folder: Path, seed: int, ticks: int, after: int, days: float, load: float, lines: int, policy: Policy
) -> tuple[dict[str, Any], Site]:
    """Live through a tour of ``ticks``, and ``after`` more in which nothing new is counted."""
    site = Site(folder, seed, load)
    site.live(days)
    state, models = StateStore(folder / "state.db"), ModelStore(folder / "models")
    counts, rng = Counts(), np.random.default_rng(seed)
    settings = Settings(policy=policy, refit_hours=168.0)
    began = time.process_time()
    for k in range(ticks + after):
        site.write()
        world = Files(folder, out=folder / "commit.json")
        commit = tick(state, world, _iso(site.now), settings, models=models).document
        kept = state.plan(commit["tick"])
        if k < ticks:
            counts.note(site, commit, kept)
            counts.refused += len(commit["refused"])
            if lines and k % 10 == 5:
                counts.advice += advice(
                    Problem.from_dict(kept["problem"]), Plan.from_dict(kept["plan"]), lines, rng
                )
        site.act(commit)
        site.wait(EVERY)
    cpu = time.process_time() - began
    jobs = {job.id: job for job in site.jobs}
    done = {
        name: counts.coverage(rows, which, jobs, site.now)
        for name, rows, which in (
            ("starts, as first told", list(counts.first.values()), "start"),
            ("ends, as first told", list(counts.first.values()), "end"),
            ("ends, as told at the start", list(counts.at_start.values()), "end"),
            ("starts, all told", counts.told, "start"),
            ("ends, all told", counts.told, "end"),
        )
    }
    counts_ = {
        "coverage": done,
        "outside its own band": counts.outside_own_band,
        "told": len(counts.told),
        "below floor": counts.below_floor,
        "planned below floor": counts.planned_below_floor,
        "advice": dict(counts.advice),
        "refused": counts.refused,
        "operator refused": site.refusals,
        "waiting": len(site.waiting),
        "cpu": round(cpu, 1),
    }
    counts_["rows"] = counts
    return counts_, site


def main() -> None:
    """Run tours and print what they show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--ticks", type=int, default=30)
    parser.add_argument(
        "--after", type=int, default=30, help="further ticks, in which told jobs start and end"
    )
    parser.add_argument("--days", type=float, default=21.0, help="days of history")
    parser.add_argument("--load", type=float, default=1.0, help="work that arrives, as a share of what fits")
    parser.add_argument(
        "--lines", type=int, default=10, help="lines of advice that are tried, at every tenth tick"
    )
    parser.add_argument("--set", default="{}", help="policy, as JSON")
    wanted = parser.parse_args()
    for seed in wanted.seeds:
        with tempfile.TemporaryDirectory() as folder:
            found, _ = tour(
                Path(folder), seed, wanted.ticks, wanted.after, wanted.days, wanted.load, wanted.lines,
                Policy.of(json.loads(wanted.set)),
            )  # fmt: skip
            found.pop("rows")
            print(json.dumps({"seed": seed, **found}, default=str), flush=True)


if __name__ == "__main__":
    sys.exit(main())
