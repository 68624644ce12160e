"""Is it waste that jobs occupy slow GPUs? Work done by occupied GPU-steps, and what a price of these changes.

    python benchmarks/occupation.py plan tidegrid-demo/problem.json    one plan by prices of a GPU-step (gpu_cost)
    python benchmarks/occupation.py queue --loads 0.6 0.9 1.2          a week of arrivals, played hour by hour

The contract counts a job's work at the most efficient of all its shapes: on a slower type of GPU most of what is
occupied then counts as waste. Beside it stands work at the speed of the pool where the job lies, which falls where a
job is spread over more GPUs than it uses well. `queue` plays made-up jobs of several sizes on 32 H100 and 32 A100
(2.5 times slower) with a realtime app in each, their lengths known: what a plan leaves free can serve those that come
later, and so a price that is worth its while shows in the work that is done in the week.
"""

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tidegrid.errors import InputError, TidegridError
from tidegrid.scheduler import Plan, Problem, solve

PRICES = (0.0, 0.5, 1.0, 2.0)
SLOWER = {"h100": 1.0, "a100": 2.5}
GPUS, WEEK, SEEN = 32, 168, 60  # GPUs of a pool, hours of arrivals, jobs that a plan looks at
#: Ways to plan: mode, its options, price, what share of a job's best work a GPU-step its sizes must reach, whether the
#: size that was asked for is the only one.
WAYS: dict[str, tuple[str, dict[str, Any], float, float, bool]] = {
    "fast": ("fast", {}, 0.0, 0.0, False),
    **{f"gpu_cost {price:g}": ("fast", {}, price, 0.0, False) for price in PRICES[1:]},
    **{f"sizes from {share:g} of the best": ("fast", {}, 0.0, share, False) for share in (0.35, 0.5, 0.8)},
    "fast, 30 ms": ("fast", {"budget_ms": 30.0}, 0.0, 0.0, False),
    "fast at the size asked for": ("fast", {}, 0.0, 0.0, True),
    "easy_priority at the size asked for": ("easy_priority", {}, 0.0, 0.0, True),
}


def shares(problem: Problem, plan: Plan) -> tuple[float, float]:
    """Work done by the GPU-steps that jobs occupy: as the contract counts, and at the speed of their pool."""
    jobs = {job.id: job for job in problem.jobs}
    occupied = own = 0.0
    for p in plan.placements:
        job, inside = jobs[p.job], max(0, min(p.end, problem.steps) - p.start)
        occupied += p.gpus * inside
        # shapes that the limit is likely to kill are no measure of what is efficient
        least = [s.gpus * s.steps for s in job.shapes if s.pool == p.pool and s.success >= 0.5]
        own += (p.gpus * p.steps if job.running or not least else min(least)) * inside / p.steps
    return plan.metrics["work"] / occupied, own / occupied


def one_plan(path: Path) -> None:
    """Plan a problem at each price."""
    data = Problem.read(path).to_dict() | {"version": 2}
    print(
        "| plan | value | unmet | utilization | work ÷ occupied | at its pool's speed | placed |\n|"
        + " --- |" * 7
    )
    for mode, price in [("fast", price) for price in PRICES] + [("fifo", 0.0), ("easy_priority", 0.0)]:
        problem = Problem.from_dict(data | {"gpu_cost": price})
        plan = solve(problem, mode, **({"budget_ms": 30.0} if mode == "fast" else {}))
        m, (work, own) = plan.metrics, shares(problem, plan)
        print(
            f"| {mode}, gpu_cost {price:g} | {m['value']:.0f} | {m['shortfall']:g} | {100 * m['utilization']:.1f} % "
            f"| {work:.2f} | {own:.2f} | {m['placed']:g} |"
        )


def stream(seed: int, load: float) -> list[dict[str, Any]]:
    """Jobs of a week whose work, at their best, is ``load`` times what both pools can do."""
    rng = np.random.default_rng(seed)
    left = load * WEEK * sum(GPUS / slower for slower in SLOWER.values())
    jobs: list[dict[str, Any]] = []
    while left > 0:
        work = float(np.clip(rng.lognormal(2.6, 1.1), 1.0, 300.0))
        top = int(rng.integers(0, 5))
        low = int(rng.integers(0, top + 1)) if rng.random() < 0.7 else top
        lost = float(rng.uniform(0.02, 0.25))  # with each doubling of the GPUs
        pools = ("h100", "a100") if rng.random() < 0.7 else ("h100",)
        shapes = [
            {
                "pool": pool,
                "gpus": 1 << k,
                "steps": max(1, math.ceil(SLOWER[pool] * work / (1 << k) * 2 ** ((k - low) * lost))),
            }
            for pool in pools
            for k in range(low, top + 1)
        ]
        jobs.append(
            {
                "id": f"job-{len(jobs):05}",
                "priority": int(rng.integers(1, 10)),
                "shapes": shapes,
                "work": min(s["gpus"] * s["steps"] for s in shapes),
                "asked": int(rng.integers(len(shapes))),
            }
        )
        left -= work
    for job, hour in zip(jobs, np.sort(rng.integers(0, WEEK, len(jobs))), strict=True):
        job["hour"] = int(hour)
    return jobs


def play(jobs: list[dict[str, Any]], way: str) -> list[float]:
    """Plan every hour and keep the first step; share of the value done in the week, both figures, waits."""
    mode, options, price, least, asked = WAYS[way]
    coming, waiting = list(jobs), []
    running: dict[str, tuple[dict[str, Any], Any]] = {}
    held: dict[str, list[int]] = {pool: [] for pool in SLOWER}
    ended: dict[str, int] = {}
    done = occupied = work = 0.0
    for t in range(3 * WEEK):
        while coming and coming[0]["hour"] <= t:
            waiting.append(coming.pop(0))
        if t >= WEEK and not waiting and not running:
            break
        listed = [_waiting(job, i, least, asked) for i, job in enumerate(waiting[:SEEN])]
        for job, p in running.values():
            block = {"pool": p.pool, "first_gpu": p.first_gpu, "gpus": p.gpus, "remaining": p.end - t}
            listed.append(_waiting(job, 10_000, 0.0, False) | {"running": block})
        curve = {
            pool: [4 + int(3 * math.sin((t + k + 5 * i) / 24 * 2 * math.pi)) for k in range(36)]
            for i, pool in enumerate(SLOWER)
        }
        apps = [
            {"id": f"app-{pool}", "pool": pool, "priority": 9, "demand": curve[pool], "held": held[pool]}
            for pool in SLOWER
        ]
        problem = Problem.from_dict(
            {
                "version": 2, "steps": 24, "decay": 0.98, "shortfall_weight": 8.0, "gpu_cost": price,
                "pools": [{"id": pool, "gpus": GPUS, "node_size": 8} for pool in SLOWER],
                "jobs": listed, "apps": apps,
            }
        )  # fmt: skip
        plan = solve(problem, mode, **options)
        by_id = {job["id"]: job for job in waiting}
        for p in plan.placements:
            if p.start == 0 and p.job in by_id:
                running[p.job] = by_id[p.job], p._replace(start=t)
                waiting.remove(by_id[p.job])
        held = {app.app.removeprefix("app-"): list(app.cells[0]) for app in plan.apps}
        for job, p in list(running.values()):
            if t < WEEK:
                occupied += p.gpus
                work += job["work"] / p.steps
                done += job["priority"] * job["work"] / p.steps
            if p.end == t + 1:
                ended[p.job] = t + 1
                del running[p.job]
    waits = np.array([ended.get(job["id"], 3 * WEEK) - job["hour"] for job in jobs])
    total = sum(job["priority"] * job["work"] for job in jobs)
    return [100 * done / total, work / occupied, float(waits.mean()), float(np.median(waits))]


def _waiting(job: dict[str, Any], order: int, least: float, asked: bool) -> dict[str, Any]:
    shapes = [s for s in job["shapes"] if job["work"] / (s["gpus"] * s["steps"]) >= least]
    out = {key: job[key] for key in ("id", "priority", "work")}
    return out | {"order": order, "shapes": [job["shapes"][job["asked"]]] if asked else shapes}


def queue(loads: list[float], seeds: int) -> None:
    """Play every way at every load."""
    print(
        "| load | way | value done, of all | work ÷ occupied | JCT h, mean | median | CPU s |\n|"
        + " --- |" * 7
    )
    for load in loads:
        for way in WAYS:
            began = time.process_time()
            rows = [play(stream(seed, load), way) for seed in range(seeds)]
            done, work, mean, median = np.mean(rows, axis=0)
            took = time.process_time() - began
            print(
                f"| {load:g} | {way} | {done:.1f} % | {work:.2f} | {mean:.1f} | {median:.1f} | {took:.0f} |",
                flush=True,
            )


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("plan").add_argument("problem", type=Path, help="a problem file")
    played = commands.add_parser("queue")
    played.add_argument(
        "--loads", type=float, nargs="+", default=[0.6, 0.9, 1.2], help="of what both pools can do"
    )
    played.add_argument("--seeds", type=int, default=3, help="weeks of each load (3)")
    arguments = parser.parse_args()
    if arguments.command == "plan":
        one_plan(arguments.problem)
        return 0
    if arguments.seeds < 1 or min(arguments.loads) <= 0:
        raise InputError("must be above 0", field="--loads, --seeds", fix="write --loads 0.9 --seeds 3")
    queue(arguments.loads, arguments.seeds)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidegridError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
