"""What the page and the API show after a commit: plain values, made once a tick from what the store knows."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.app.service.fared import by_kind, by_series, models_of
from tidegrid.app.service.savings import savings_of, tenants_of
from tidegrid.app.service.shadowing import Shadow
from tidegrid.data import Cluster, History
from tidegrid.models import ModelStore
from tidegrid.pipeline.memory import iso
from tidegrid.pipeline.rolling import Commit, StateStore, accuracy
from tidegrid.pipeline.state import State
from tidegrid.scheduler import Plan, Problem, solve

BY_NODE_ABOVE = 512
"""GPUs above which the plan is drawn by node: below one pixel a row nothing can be read."""

PAST_HOURS = 48
"""Hours of traffic that has come which are shown beside the forecast."""

MOST_EVENTS = 500
"""The latest events that are kept at hand."""

MOVES = 48
"""Ticks over which it is told how expected times moved."""

LEVELS = ("q0.1", "q0.5", "q0.9")

KINDS = ("training", "batch_inference", "quantization", "realtime", "down")


@dataclass(frozen=True)
class View:
    """All that is shown of a commit.

    Attributes
    ----------
    tick, now, timezone
        The commit's number and instant, and the site's zone.
    head
        What the state says in short: GPUs, steps, whether the data is made up.
    commit
        The commit's document.
    pools, nodes, apps
        The cluster: pools; nodes with what is on them; apps with need, plan, forecast and past.
    jobs
        Every job by its id, those that run first, then by expected start.
    grid
        Who gets which GPU when: see :func:`grid_of`.
    figures
        The plan's figures, and those of first come, first served on the same problem.
    fared
        How forecasts and expected times fared.
    savings
        GPU-hours against peak reservation by week, and usage by tenant.
    models
        Which model answers.
    events
        The latest events, the newest first.
    shadow
        In shadow mode, what happened day by day beside what would have; None in others.
    """

    tick: int
    now: str
    timezone: str
    head: dict[str, Any]
    commit: dict[str, Any]
    pools: list[dict[str, Any]]
    nodes: list[dict[str, Any]]
    apps: list[dict[str, Any]]
    jobs: dict[str, dict[str, Any]]
    grid: dict[str, Any]
    figures: dict[str, Any]
    fared: dict[str, Any]
    savings: dict[str, Any]
    models: list[dict[str, Any]]
    events: list[dict[str, Any]]
    shadow: list[dict[str, Any]] | None = None


@dataclass
class Moves:
    """How the expected start and end of each job moved over the last ticks."""

    ticks: deque[tuple[int, str, dict[str, list[str]]]] = field(default_factory=lambda: deque(maxlen=MOVES))

    def follow(self, store: StateStore, commit: Commit) -> None:
        """Take in the ticks up to a commit that were not seen yet."""
        seen = self.ticks[-1][0] if self.ticks else 0
        for one in [*store.commits(MOVES)]:
            kept = store.plan(one.tick) if seen < one.tick <= commit.tick else None
            if kept is not None:
                self.ticks.append((one.tick, one.now, _medians(kept["forecast"]["etas"])))

    def of(self, job: str) -> list[dict[str, Any]]:
        """Return the expected start (with its band) and end that a job was told, wherever they changed."""
        out: list[dict[str, Any]] = []
        last = None
        for number, now, told in self.ticks:
            times = told.get(job)
            if times is None or times == last:
                continue
            last = times
            out.append(
                {"tick": number, "now": now, **dict(zip(("start", "low", "high", "end"), times, strict=True))}
            )
        return out


def _medians(etas: Mapping[str, Any]) -> dict[str, list[str]]:
    names = ("job", "start_q0.5", "start_q0.1", "start_q0.9", "end_q0.5")
    if not set(names).issubset(etas["columns"]):
        return {}
    at = [etas["columns"].index(name) for name in names]
    return {str(row[at[0]]): [_utc(row[k]) for k in at[1:]] for row in etas["data"]}


def _utc(text: str) -> str:
    return text.replace(".000Z", "+00:00").replace("Z", "+00:00")


def view_of(
    store: StateStore,
    commit: Commit,
    state: State,
    history: History,
    models: ModelStore,
    moves: Moves,
    seconds: float,
    shadow: Shadow | None = None,
) -> View:
    """Return what is shown of a commit.

    Parameters
    ----------
    store
        Holds the commit's plan and forecast.
    state, history
        What was decided on, and what is known: names, users, queues, and what ran.
    models
        The model store.
    moves
        How expected times moved; brought up to date.
    seconds
        How long the tick took.
    shadow
        The turns that nobody followed, brought up to date; None where commits are handed over.
    """
    document, kept = commit.document, store.plan(commit.tick)
    if kept is None:
        raise store.damaged(commit.tick, "its plan is not there")
    problem, plan = Problem.from_dict(kept["problem"]), Plan.from_dict(kept["plan"])
    cluster, forecast = state.cluster, kept["forecast"]
    moves.follow(store, commit)
    jobs = _jobs(document, state, problem, plan, forecast["etas"], moves)
    held = {one["app"]: one["gpus"] for one in document["apps"]}
    fifo = solve(problem, "fifo")
    return View(
        commit.tick,
        commit.now,
        cluster.timezone,
        {
            "gpus": cluster.gpus,
            "gpus_down": sum(len(pool.down) for pool in cluster.pools),
            "running": len(state.running),
            "waiting": len(state.requests),
            "lost": [str(job) for job in state.lost["job_id"]] if len(state.lost) else [],
            "steps": problem.steps,
            "step_minutes": problem.step_minutes,
            "synthetic": cluster.synthetic,
            "seconds": round(seconds, 3),
            "aged_hours": round(state.age() / pd.Timedelta(hours=1), 3),
        },
        document,
        [
            {
                "pool": p.id,
                "gpus": p.gpus,
                "gpu_type": p.gpu_type,
                "node_size": p.node_size,
                "down": len(p.down),
            }
            for p in cluster.pools
        ],
        nodes_of(cluster, state.running.to_dict("records"), document["start"], held, jobs),
        _apps(cluster, problem, plan, forecast, held, store, commit.now),
        jobs,
        grid_of(problem, plan),
        {"plan": dict(plan.metrics), "fifo": dict(fifo.metrics)},
        {
            "overall": asdict(accuracy(store)),
            "series": by_series(store, commit.now),
            "kinds": by_kind(store, history, commit.now),
        },
        savings_of(store, cluster, commit.now) | {"tenants": tenants_of(history, state, commit.now)},
        models_of(models),
        [
            {"now": now, "kind": e.kind, "subject": e.subject, "text": e.text}
            for now, e in reversed(store.events()[-MOST_EVENTS:])
        ],
        None if shadow is None else _shadowed(shadow, store, commit, cluster.timezone),
    )


def _shadowed(shadow: Shadow, store: StateStore, commit: Commit, zone: str) -> list[dict[str, Any]]:
    shadow.follow(store, commit)
    return shadow.days(store, zone, commit.now)


def _jobs(
    document: Mapping[str, Any],
    state: State,
    problem: Problem,
    plan: Plan,
    etas: Mapping[str, Any],
    moves: Moves,
) -> dict[str, dict[str, Any]]:
    times = {}
    for row in etas["data"]:
        one = dict(zip(etas["columns"], row, strict=True))
        times[str(one["job"])] = one
    waiting = {one["job"]: one for one in document["waiting"]}
    refused = {one["job"]: one["reason"] for one in document["refused"]}
    starts = {one["job"] for one in document["start"]}
    out = []
    for lost, frame in ((False, state.running), (True, state.lost), (None, state.requests)):
        for row in frame.to_dict("records") if len(frame) else ():
            job = str(row["job_id"])
            eta = times.get(job)
            placed = plan.placement_by_job.get(job)
            if lost is None:
                state_ = "refused" if job in refused else "starting" if job in starts else "waiting"
            else:
                state_ = "lost" if lost else "running"
            where = ""
            if placed is not None and state_ in ("running", "starting"):
                where = f"{placed.pool} {_spans(placed.ids)}"
            reason = refused.get(job) or waiting.get(job, {}).get("reason") or _said(state_, where)
            out.append(
                {
                    "job": job,
                    "state": state_,
                    "kind": row["kind"],
                    "name": _text(row.get("name")),
                    "user": _text(row.get("user")),
                    "tenant": _text(row.get("tenant") or row.get("group")),
                    "priority": int(row["priority"]),
                    "planned_priority": None
                    if job not in problem.job_by_id
                    else float(problem.job_by_id[job].priority),
                    "gpus": int(row["gpus"]) if placed is None else placed.gpus,
                    "gpus_asked": int(row["gpus"]),
                    "pool": None if placed is None else placed.pool,
                    "place": where or None,
                    "submitted": _instant(row.get("submit_time")),
                    "started": _instant(row.get("start_time")),
                    "deadline": _instant(row.get("deadline")),
                    "start": None if eta is None else {q: _utc(eta[f"start_{q}"]) for q in LEVELS},
                    "end": None if eta is None else {q: _utc(eta[f"end_{q}"]) for q in LEVELS},
                    "reason": reason,
                    "moves": moves.of(job),
                }
            )
    order = ("lost", "running", "starting", "waiting", "refused")
    late = "9999"
    out.sort(
        key=lambda one: (
            order.index(one["state"]),
            one["start"]["q0.5"] if one["start"] and one["state"] == "waiting" else late,
            one["job"],
        )
    )
    return {one["job"]: one for one in out}


def _said(state: str, where: str) -> str:
    return {
        "running": f"it runs on {where}" if where else "it runs",
        "starting": f"it starts now on {where}",
        "lost": "a GPU of its block is down",
    }.get(state, "")


def _text(value: Any) -> str:
    return "" if value is None or value != value else str(value)


def _instant(value: Any) -> str | None:
    return None if value is None or pd.isna(value) else iso(value)


def runs(gpus: Iterable[int]) -> list[tuple[int, int]]:
    """Return GPUs as stretches of neighbours: (first, count)."""
    out: list[list[int]] = []
    for gpu in sorted(gpus):
        if out and sum(out[-1]) == gpu:
            out[-1][1] += 1
        else:
            out.append([gpu, 1])
    return [(first, count) for first, count in out]


def _spans(gpus: Iterable[int]) -> str:
    return ", ".join(str(a) if n == 1 else f"{a}–{a + n - 1}" for a, n in runs(gpus))


def nodes_of(
    cluster: Cluster,
    running: Iterable[Mapping[Any, Any]],
    starts: Iterable[Mapping[str, Any]],
    held: Mapping[str, Iterable[int]],
    jobs: Mapping[str, Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return each node with what is on it once the commit is acted on: jobs that run or start, apps, what is down."""
    on: dict[str, dict[int, tuple[str, str]]] = {pool.id: {} for pool in cluster.pools}
    for pool in cluster.pools:
        on[pool.id].update(dict.fromkeys(pool.down, ("down", "down")))
    for app in cluster.apps:
        on[app.pool].update(dict.fromkeys(held.get(app.id, ()), (app.id, "realtime")))
    for row in (*running, *starts):
        job = str(row.get("job_id", row.get("job")))
        kind = str(jobs[job]["kind"]) if job in jobs else "training"
        ids = row.get("gpu_ids")
        first = row["first_gpu"]
        if isinstance(ids, (list, tuple)) and ids:
            gpus: Iterable[int] = ids
        else:
            gpus = range(int(first), int(first) + int(row["gpus"]))
        on[str(row["pool"])].update(dict.fromkeys(gpus, (job, kind)))
    out = []
    for pool in cluster.pools:
        size = pool.node_size or pool.gpus_per_node or pool.gpus
        for k in range(-(-pool.gpus // size)):
            first, last = k * size, min(pool.gpus, (k + 1) * size)
            tasks: list[dict[str, Any]] = []
            free = 0
            for gpu in range(first, last):
                task, kind = on[pool.id].get(gpu, ("", ""))
                free += not task
                if tasks and tasks[-1]["task"] == task:
                    tasks[-1]["gpus"] += 1
                else:
                    tasks.append({"task": task, "kind": kind, "first_gpu": gpu, "gpus": 1})
            name = pool.node_of(first) if pool.nodes else str(k)
            out.append({"pool": pool.id, "node": name, "gpus": last - first, "free": free, "tasks": tasks})
    return out


def _apps(
    cluster: Cluster,
    problem: Problem,
    plan: Plan,
    forecast: Mapping[str, Any],
    held: Mapping[str, list[int]],
    store: StateStore,
    now: str,
) -> list[dict[str, Any]]:
    traffic = forecast["traffic"]
    names = list(traffic["columns"])
    hours: dict[str, list[dict[str, Any]]] = {}
    for row in traffic["data"]:
        one = dict(zip(names, row, strict=True))
        told = {f"q{level}": one.get(level, one.get(float(level))) for level in ("0.1", "0.5", "0.9")}
        hours.setdefault(str(one["unique_id"]), []).append(
            {"hour": _utc(one["ds"]), "basis": one["basis"], **told}
        )
    since = iso(pd.Timestamp(now) - pd.Timedelta(hours=PAST_HOURS))
    past: dict[str, list[dict[str, Any]]] = {}
    for hour in store.hours(since):
        past.setdefault(hour.series, []).append(asdict(hour))
    holds: dict[str, list[dict[str, Any]]] = {}
    for at, hold in store.holds(since):
        holds.setdefault(hold.app, []).append({"now": at, "gpus": hold.gpus})
    planned = {entry.app: entry.counts() for entry in plan.apps}
    return [
        {
            "app": app.id,
            "pool": app.pool,
            "priority": app.priority,
            "series": app.series,
            "swap_cap": app.swap_cap,
            "held_before": len(app.held),
            "held": len(held.get(app.id, ())),
            "need": [int(v) for v in forecast["gpus"].get(app.id, [])[: problem.steps]],
            "planned": planned.get(app.id, []),
            "forecast": hours.get(app.series, []),
            "past": past.get(app.series, []),
            "held_past": holds.get(app.id, []),
        }
        for app in cluster.apps
    ]


def grid_of(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Return who gets which GPU when, inside the horizon.

    Returns
    -------
    dict
        ``by`` is ``"gpu"`` or, above :data:`BY_NODE_ABOVE` GPUs, ``"node"``. ``tasks``: names. ``kinds``: the kind of
        each task, a position in ``kind_names``. By GPU, ``blocks`` lists ``[task, pool, first GPU, GPUs, first step,
        steps]`` with positions in ``tasks`` and ``pools``. By node, ``nodes`` lists ``[pool, node, GPUs, stretches]``,
        and a stretch is ``[steps, GPUs in use by kind…]``, one after the other from step 0.
    """
    tasks: dict[str, int] = {}
    kinds: list[int] = []
    blocks: list[list[int]] = []
    places = {pool.id: k for k, pool in enumerate(problem.pools)}

    def number(task: str, kind: str) -> int:
        if task not in tasks:
            tasks[task] = len(tasks)
            kinds.append(KINDS.index(kind))
        return tasks[task]

    for of_pool in problem.pools:
        for window in of_pool.closed or ():
            (first, last), end = window.gpus, min(window.end, problem.steps)
            if window.kind == "down" and window.start < end:
                cells = [first, last - first, window.start, end - window.start]
                blocks.append([number("down", "down"), places[of_pool.id], *cells])
    for p in plan.placements:
        task = number(p.job, problem.job_by_id[p.job].kind)
        steps = min(p.end, problem.steps) - p.start
        blocks += [[task, places[p.pool], a, n, p.start, steps] for a, n in runs(p.ids) if steps > 0]
    for entry in plan.apps:
        task, pool = number(entry.app, "realtime"), places[problem.app_by_id[entry.app].pool]
        open_: dict[tuple[int, int], int] = {}
        for t in range(problem.steps + 1):
            now = set(runs(entry.gpus(t))) if t < problem.steps and t < len(entry.cells) else set()
            for run in sorted(open_.keys() - now):
                begun = open_.pop(run)
                blocks.append([task, pool, *run, begun, t - begun])
            for run in now:
                open_.setdefault(run, t)
    out: dict[str, Any] = {
        "by": "gpu",
        "start": problem.start,
        "step_minutes": problem.step_minutes,
        "steps": problem.steps,
        "pools": [
            {"pool": pool.id, "gpus": pool.gpus, "node_size": pool.node_size} for pool in problem.pools
        ],
        "kind_names": list(KINDS),
        "tasks": list(tasks),
        "kinds": kinds,
        "blocks": blocks,
    }
    if sum(pool.gpus for pool in problem.pools) > BY_NODE_ABOVE:
        out |= {"by": "node", "nodes": _by_node(problem, blocks, kinds)}
    return out


def _by_node(problem: Problem, blocks: list[list[int]], kinds: list[int]) -> list[list[Any]]:
    used = [np.zeros((pool.gpus, problem.steps), np.int8) for pool in problem.pools]
    for task, place, first, gpus, start, steps in blocks:
        used[place][first : first + gpus, start : start + steps] = kinds[task] + 1
    out: list[list[Any]] = []
    for k, pool in enumerate(problem.pools):
        size = pool.node_size or min(pool.gpus, 8)
        edges = np.arange(0, pool.gpus, size)
        counts = np.stack(
            [
                np.add.reduceat(used[k] == kind + 1, edges, axis=0, dtype=np.int64)
                for kind in range(len(KINDS))
            ],
            axis=2,
        )
        for node, first in enumerate(edges.tolist()):
            changes = np.any(counts[node][1:] != counts[node][:-1], axis=1)
            cuts = [0, *(np.flatnonzero(changes) + 1).tolist(), problem.steps]
            stretches = [[b - a, *counts[node][a].tolist()] for a, b in pairwise(cuts)]
            out.append([k, node, min(size, pool.gpus - first), stretches])
    return out
