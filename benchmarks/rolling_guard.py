"""What a closed loop gains by pricing tails past the horizon, and what the length of a step costs.

One pool of 32 GPUs, an app whose demand peaks each morning, and jobs that arrive at any minute: long ones, about as
long as a horizon, for the guard; short ones, of half an hour, for the step. Durations and demand are known exactly, so
that only the horizon and the step differ. Each run plans at every arrival and end, and each hour.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.pipeline.policy import Policy
from tidegrid.scheduler import Problem, solve
from tidegrid.swaps import ramp

GPUS, CAP, PRIORITY = 32, 4, 9
"""The pool; GPUs that the app may gain or lose in an hour, however long a step is; the app's priority."""

APP = "chat"


@dataclass
class Job:
    """A job: block, hours that it takes, priority, when it arrives (hours), and when it started."""

    gpus: int
    hours: float
    priority: int
    arrives: float
    started: float = np.inf
    first: int = -1


def demand(days: int) -> list[int]:
    """GPUs that the app needs in each hour: 4 at night, up to 20 in the morning."""
    day = [4] * 7 + [10, 16, 20, 20, 18, 14, 12, 12, 10, 10, 8, 8, 8, 6, 6, 4, 4]
    return day * (days + 3)


LONG, SHORT = (18, 14.0, 0.5), (150, 0.5, 1.6)
"""Mixes of jobs: arrivals a day, median hours, spread of their logarithm."""


def queue(days: int, seed: int, mix: tuple[int, float, float]) -> list[Job]:
    """Arrivals all day long; at most 40 hours each."""
    rng = np.random.default_rng(seed)
    a_day, median, spread = mix
    n = a_day * days
    at = np.sort(rng.uniform(0, 24 * days, n))
    hours = np.clip(rng.lognormal(np.log(median), spread, n), 0.05, 40.0)
    sizes = rng.choice([1, 2, 4, 8], n, p=[0.4, 0.3, 0.2, 0.1])
    return [
        Job(int(g), float(h), int(rng.integers(1, 8)), float(t))
        for g, h, t in zip(sizes, hours, at, strict=True)
    ]


def closed_loop(policy: Policy, days: int, seed: int, mix: tuple[int, float, float]) -> dict[str, float]:
    """Live through the days; what was unmet, what the completed and running work was worth."""
    jobs, need = queue(days, seed, mix), demand(days)
    held: list[int] = list(range(GPUS - 4, GPUS))
    end, now, unmet, used, window = 24.0 * days, 0.0, 0.0, 0, -1
    step, cap = policy.step_minutes / 60, CAP * policy.step_minutes // 60
    plans = 0
    while now < end:
        if int(now / step + 1e-9) != window:
            window, used = int(now / step + 1e-9), 0
        busy = [j for j in jobs if j.started <= now < j.started + j.hours - 1e-9]
        waiting = [j for j in jobs if j.arrives <= now + 1e-9 and not np.isfinite(j.started)]
        problem, known = problem_of(policy, now, busy, waiting, need, held)
        plan = solve(problem, "fast", rounds=20)
        plans += 1
        cells = list(plan.apps[0].cells[0])
        swaps = len(set(cells) ^ set(held))
        if used + swaps <= cap:
            used, held = used + swaps, cells
        for p in plan.placements:
            if (
                p.start == 0
                and p.job in known
                and set(held).isdisjoint(range(p.first_gpu, p.first_gpu + p.gpus))
            ):
                known[p.job].started, known[p.job].first = now, p.first_gpu
        nexts = [float(int(now + 1e-9) + 1)]
        nexts += [j.arrives for j in jobs if j.arrives > now + 1e-9][:1]
        nexts += [j.started + j.hours for j in jobs if now + 1e-9 < j.started + j.hours < np.inf]
        # events inside a minute are taken together
        then = min(end, max(min(nexts), now + 1 / 60))
        hour = min(int(now + 1e-9), len(need) - 1)
        unmet += max(0, need[hour] - len(held)) * (then - now)
        now = then
    work = [(min(end, j.started + j.hours) - j.started, j) for j in jobs if np.isfinite(j.started)]
    total = sum(hours * j.gpus for hours, j in work)
    asked = sum(need[h] for h in range(24 * days))
    return {
        "unmet_gpu_h": unmet,
        "unmet_share": unmet / asked,
        "value": sum(hours * j.gpus * j.priority for hours, j in work),
        "batch_utilization": total / (GPUS * end - asked),
        "started": len(work) / len(jobs),
        "mean_wait_h": float(np.mean([j.started - j.arrives for _, j in work])),
        "plans": plans,
    }


def problem_of(
    policy: Policy, now: float, busy: list[Job], waiting: list[Job], need: list[int], held: list[int]
) -> tuple[Problem, dict[str, Job]]:
    """State the problem at an instant, every duration and every hour of demand known."""
    step = policy.step_minutes / 60
    known = {f"w{k}": job for k, job in enumerate(waiting)}
    jobs: list[dict[str, Any]] = []
    for k, job in enumerate(busy):
        left = max(1, int(np.ceil((job.started + job.hours - now) / step - 1e-6)))
        block = {"pool": "a", "first_gpu": job.first, "gpus": job.gpus, "remaining": left}
        jobs.append({"id": f"r{k}", "priority": job.priority, "order": k, "shapes": [], "running": block})
    for k, (name, job) in enumerate(known.items()):
        shape = {"pool": "a", "gpus": job.gpus, "steps": max(1, int(np.ceil(job.hours / step - 1e-6)))}
        jobs.append({"id": name, "priority": job.priority, "order": len(busy) + k, "shapes": [shape]})
    at = now + step * np.arange(policy.steps + policy.lookahead_steps)
    # a step that overlaps two hours needs the larger
    curve = [max(need[int(t + 1e-9)], need[int(t + step - 1e-6)]) for t in at]
    cap = CAP * policy.step_minutes // 60
    app = {"id": APP, "pool": "a", "priority": PRIORITY, "swap_cap": cap, "held": held}
    text = {
        "version": 1, "step_minutes": policy.step_minutes, "steps": policy.steps, "decay": policy.decay,
        "shortfall_weight": policy.shortfall_weight, "pools": [{"id": "a", "gpus": GPUS, "node_size": 8}],
        "jobs": jobs, "apps": [app | {"demand": ramp(curve, cap, len(held), patience=1)}],
    }  # fmt: skip
    return Problem.from_dict(text), known


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=int, default=4, help="days of a run (default 4)")
    parser.add_argument("--seeds", type=int, default=3, help="queues to average over (default 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.days < 1 or args.seeds < 1:
        raise InputError("nothing to do", field="--days, --seeds", fix="give 1 or more of each")
    cases = [("long", LONG, horizon, ahead, 60) for horizon in (6, 12, 24) for ahead in (0, 24)]
    cases += [("short", SHORT, 24, 24, minutes) for minutes in (60, 30, 15)]
    found = {}
    for name, mix, horizon, ahead, minutes in cases:
        policy = Policy(horizon_hours=horizon, lookahead_hours=ahead, step_minutes=minutes)
        runs = [closed_loop(policy, args.days, seed, mix) for seed in range(args.seeds)]
        title = f"{name} jobs, horizon {horizon} h, lookahead {ahead} h, steps of {minutes} min"
        found[title] = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
    if args.json:
        print(json.dumps(found))
        return
    frame = pd.DataFrame(found).T
    print("| plan | " + " | ".join(frame.columns) + " |\n| --- |" + " ---: |" * len(frame.columns))
    for name, row in frame.iterrows():
        print(f"| {name} | " + " | ".join(f"{value:.4g}" for value in row) + " |")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"rolling_guard: {error}", file=sys.stderr)
        sys.exit(2)
