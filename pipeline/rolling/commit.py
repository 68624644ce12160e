"""A decision as JSON values: what starts, the apps' moves, what each job is told, and what it all rested on."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from tidegrid.errors import InputError
from tidegrid.pipeline.decide import Decision, Start
from tidegrid.pipeline.estimates import LEVELS
from tidegrid.pipeline.etas import BAND
from tidegrid.pipeline.memory import WAITING, Hold, Watched, iso

MOST_TOLD = 20
"""The rows set aside that a commit tells one by one."""


def decided(decision: Decision) -> dict[str, Any]:
    """Return what a decision says, whatever world it was made for."""
    times = times_of(decision)
    starting = {one.job for one in decision.starts}
    waiting = []
    for told in decision.explained.extra["explanations"]:
        job, state = told["job"], told["state"]
        if job in starting or state in ("running", "refused"):
            continue
        eta = times.get(job)
        expected = None if eta is None else {f"q{v:g}": iso(eta[f"start_q{v:g}"]) for v in BAND}
        waiting.append({"job": job, "start": expected, "reason": told["reason"]})
    waiting += [
        {"job": job, "start": None, "reason": f"it comes after {other}, which is not planned"}
        for job, other in decision.held_back.items()
    ]
    waiting += [
        {"job": job, "start": None, "reason": "more jobs go first than one decision looks at"}
        for job in decision.not_looked_at
    ]
    return {
        "start": [
            {
                "job": one.job,
                "pool": one.pool,
                "first_gpu": one.first_gpu,
                "gpus": one.gpus,
                **_on_nodes(decision, one),
                "end": {f"q{v:g}": iso(times[one.job][f"end_q{v:g}"]) for v in BAND},
            }
            for one in decision.starts
        ],
        "apps": [
            {
                "app": move.app,
                "pool": move.pool,
                "gpus": list(move.after),
                **({"replicas": move.replicas} if move.replica > 1 else {}),
                "enter": sorted(set(move.after) - set(move.before)),
                "leave": sorted(set(move.before) - set(move.after)),
            }
            for move in decision.moves
        ],
        "running": len(decision.state.running),
        "waiting": sorted(waiting, key=lambda one: str(one["job"])),
        "refused": [{"job": job, "reason": reason} for job, reason in decision.refused],
        "risks": [risk["text"] for risk in decision.risks],
        "unmet_gpu_steps": decision.unmet,
        "deadlines": decision.deadlines,
    }


def _on_nodes(decision: Decision, start: Start) -> dict[str, Any]:
    """Return what a commit adds where placement is by node: the GPUs, and by node as running jobs are told."""
    pool = decision.state.cluster.pool(start.pool)
    if pool.placement != "node" and not pool.nodes:
        return {}
    out: dict[str, Any] = {"gpu_ids": list(start.gpu_ids)}
    if pool.nodes:
        out |= {"nodes": list(start.nodes), "held": pool.held(start.gpu_ids)}
    return out


def aside_notes(aside: Sequence[InputError]) -> list[str]:
    """Return a line for each row that was set aside, without the folder, of which a commit does not depend."""
    lines = []
    for problem in aside[:MOST_TOLD]:
        told = problem if problem.file is None else problem.in_file(Path(problem.file).name)
        lines.append(f"set aside: {told}")
    if len(aside) > MOST_TOLD:
        lines.append(f"set aside: and {len(aside) - MOST_TOLD:,} more; history check tells each")
    return lines


def holds_of(decision: Decision) -> list[Hold]:
    """Return what each app holds from now on, and the swaps that this took."""
    return [Hold(move.app, len(move.after), move.swaps) for move in decision.moves]


def told(decision: Decision, watched: dict[str, Watched]) -> list[Watched]:
    """Return the jobs under watch with the times that they are first told, and the durations they are planned with."""
    times, now = times_of(decision), decision.state.now
    starting = {start.job for start in decision.starts}
    low, high = LEVELS.index(BAND[0]), LEVELS.index(BAND[-1])
    out = []
    for job, entry in sorted(watched.items()):
        eta, placed = times.get(job), decision.plan.placement_by_job.get(job)
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
            quantiles = decision.durations.get((job, placed.pool, placed.gpus))
            if quantiles is not None:
                ran = 0.0
                if entry.started is not None:
                    ran = (now - pd.Timestamp(entry.started)) / pd.Timedelta(hours=1)
                entry = replace(
                    entry, est_low=float(ran + quantiles[low]), est_high=float(ran + quantiles[high])
                )
        out.append(replace(entry, committed=iso(now)) if job in starting else entry)
    return out


def times_of(decision: Decision) -> dict[str, dict[str, Any]]:
    """Return the expected times of each placed job by its id."""
    return {
        str(row["job"]): {str(name): value for name, value in row.items()}
        for row in decision.etas.to_dict("records")
    }


def rested_on(decision: Decision) -> dict[str, Any]:
    """Return the forecast that a decision rested on as JSON values."""
    forecast = decision.forecast

    def values(frame: pd.DataFrame) -> Any:
        return json.loads(frame.to_json(orient="split", date_format="iso", index=False))

    return {
        "durations": values(forecast.estimates.table()),
        "remaining_h": [[float(v) for v in row] for row in forecast.remaining],
        "traffic": values(forecast.demand.traffic),
        "gpus": {app: [int(v) for v in curve] for app, curve in forecast.demand.gpus.items()},
        "etas": values(decision.etas),
    }


def as_json(value: Any) -> str:
    """Return JSON text: the same values give the same bytes."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
