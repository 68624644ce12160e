"""What a tick commits: starts, the apps' moves, what each job is told, and what it all rested on."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.pipeline.estimates import LEVELS
from tidegrid.pipeline.plan import Forecast
from tidegrid.pipeline.problem import is_down
from tidegrid.pipeline.rolling.learn import Learnt, iso
from tidegrid.pipeline.rolling.realtime import BAND
from tidegrid.pipeline.rolling.records import WAITING, Event, Hold, Watched
from tidegrid.pipeline.rolling.store import StateStore
from tidegrid.pipeline.site import Site
from tidegrid.scheduler import Plan, Problem
from tidegrid.swaps import ramp, swap_cost


def swaps_used(
    state: StateStore, now: pd.Timestamp, step_minutes: int
) -> tuple[pd.Timestamp, dict[str, int]]:
    """Return when the step that ``now`` lies in began, and each app's swaps since: a cap counts for a step."""
    window = now.floor(pd.Timedelta(minutes=step_minutes))
    used: dict[str, int] = {}
    for _, one in state.holds(iso(window)):
        used[one.app] = used.get(one.app, 0) + one.swaps
    return window, used


def keep_within_swaps(document: dict[str, Any], window: pd.Timestamp, used: Mapping[str, int]) -> list[Event]:
    """Keep each app's step 0 in a problem within the swaps that its step has left: the rest is for others.

    What it needs later is put off as far as it can be had from there, or the planner would enter GPUs ahead of need.
    """
    events = []
    for app in document["apps"]:
        cap = app["swap_cap"]
        if cap is None or not used.get(app["id"]):
            continue
        held, wanted = len(app["held"]), app["demand"][0]
        left = max(0, cap - used[app["id"]])
        first = min(max(wanted, held - left), held + left)
        app["demand"] = [first, *ramp(app["demand"][1:], cap, first)]
        if wanted > first:
            text = (
                f"{app['id']} gets {first} of {wanted} GPUs: {used[app['id']]} of {cap} swaps of the "
                f"step from {iso(window)} are used"
            )
            events.append(Event("swap put off", app["id"], text))
    return events


def app_moves(
    site: Site, problem: Problem, plan: Plan, window: pd.Timestamp, used: Mapping[str, int]
) -> tuple[list[Hold], list[dict[str, Any]], list[Event]]:
    """Return each app's GPUs from now on; a swap cap counts for a step, however many ticks fall into it."""
    holds, moves, events = [], [], []
    for entry in plan.apps:
        app = problem.app_by_id[entry.app]
        before, after = set(app.held_gpus), set(entry.cells[0])
        swaps = swap_cost(before, after)
        if app.swap_cap is not None and swaps and used.get(app.id, 0) + swaps > app.swap_cap:
            text = (
                f"{app.id} keeps its {len(before)} GPUs: {used.get(app.id, 0)} of {app.swap_cap} swaps of the step "
                f"from {iso(window)} are used, and {swaps} more were wanted"
            )
            events.append(Event("swap put off", app.id, text))
            after, swaps = before, 0
        holds.append(Hold(app.id, len(after), swaps))
        moves.append(
            {
                "app": app.id,
                "pool": app.pool,
                "gpus": sorted(after),
                "enter": sorted(after - before),
                "leave": sorted(before - after),
            }
        )
    return holds, moves, events


def starts_of(
    problem: Problem, plan: Plan, apps: list[dict[str, Any]], etas: pd.DataFrame
) -> list[dict[str, Any]]:
    """Return the jobs to start now, each with its block and expected end."""
    kept = {(move["pool"], gpu) for move in apps for gpu in move["gpus"]}
    times = _times(etas)
    out = []
    for p in sorted(plan.placements, key=lambda p: (p.pool, p.first_gpu)):
        free = all((p.pool, gpu) not in kept for gpu in range(p.first_gpu, p.first_gpu + p.gpus))
        if p.start == 0 and problem.job_by_id[p.job].running is None and free:
            end = {level: iso(times[p.job][f"end_q{level:g}"]) for level in BAND}
            out.append(
                {
                    "job": p.job,
                    "pool": p.pool,
                    "first_gpu": p.first_gpu,
                    "gpus": p.gpus,
                    "end": {f"q{level:g}": end[level] for level in BAND},
                }
            )
    return out


def waiting_of(plan: Plan, etas: pd.DataFrame, starts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the jobs that wait, each with its expected start (None: not in this horizon) and the reason."""
    now = {start["job"] for start in starts}
    times = _times(etas)
    out: list[dict[str, Any]] = []
    for told in plan.extra["explanations"]:
        job, state = told["job"], told["state"]
        if is_down(job) or job in now or state in ("running", "refused"):
            continue
        eta = times.get(job)
        expected = None if eta is None else {f"q{v:g}": iso(eta[f"start_q{v:g}"]) for v in BAND}
        out.append({"job": job, "start": expected, "reason": told["reason"]})
    return sorted(out, key=lambda one: str(one["job"]))


def refused_of(forecast: Forecast, plan: Plan) -> list[dict[str, str]]:
    """Return the jobs that cannot run as asked, with the reason."""
    out = [
        {"job": str(r["job_id"]), "reason": str(r["reason"])}
        for r in forecast.estimates.refused.to_dict("records")
    ]
    for told in plan.extra["explanations"]:
        if told["state"] == "refused":
            out.append({"job": told["job"], "reason": told["reason"]})
    return out


def told(
    learnt: Learnt,
    hours: Mapping[tuple[str, str, int], np.ndarray],
    plan: Plan,
    etas: pd.DataFrame,
    starts: list[dict[str, Any]],
    now: pd.Timestamp,
) -> list[Watched]:
    """Return the jobs under watch with the times that they are first told, and the durations they are planned with."""
    times = _times(etas)
    starting = {start["job"] for start in starts}
    low, high = LEVELS.index(0.1), LEVELS.index(0.9)
    out = []
    for job, entry in learnt.watched.items():
        eta, placed = times.get(job), plan.placement_by_job.get(job)
        if eta is not None and entry.told is None:
            entry = replace(
                entry,
                told=iso(now),
                start_low=iso(eta["start_q0.1"]),
                start_mid=iso(eta["start_q0.5"]),
                start_high=iso(eta["start_q0.9"]),
                end_low=iso(eta["end_q0.1"]),
                end_mid=iso(eta["end_q0.5"]),
                end_high=iso(eta["end_q0.9"]),
            )
        if placed is not None and (entry.state == WAITING or entry.est_high is None):
            quantiles = hours.get((job, placed.pool, placed.gpus))
            if quantiles is not None:
                ran = (
                    0.0
                    if entry.started is None
                    else (now - pd.Timestamp(entry.started)) / pd.Timedelta(hours=1)
                )
                entry = replace(
                    entry, est_low=float(ran + quantiles[low]), est_high=float(ran + quantiles[high])
                )
        out.append(replace(entry, committed=iso(now)) if job in starting else entry)
    return out


def _times(etas: pd.DataFrame) -> dict[str, dict[str, Any]]:
    return {
        str(row["job"]): {str(name): value for name, value in row.items()} for row in etas.to_dict("records")
    }


def rested_on(forecast: Forecast, etas: pd.DataFrame) -> dict[str, Any]:
    """Return the forecast that a plan rested on as JSON values."""
    traffic = forecast.demand.traffic
    return {
        "durations": json.loads(
            forecast.estimates.table().to_json(orient="split", date_format="iso", index=False)
        ),
        "remaining_h": [[float(v) for v in row] for row in forecast.remaining.to_numpy(dtype=float)],
        "traffic": json.loads(traffic.to_json(orient="split", date_format="iso", index=False)),
        "gpus": {app: [int(v) for v in curve] for app, curve in forecast.demand.gpus.items()},
        "etas": json.loads(etas.to_json(orient="split", date_format="iso", index=False)),
    }


def as_json(value: Any) -> str:
    """Return JSON text: the same values give the same bytes."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
