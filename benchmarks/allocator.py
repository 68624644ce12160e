"""Mode fast measured: legality, baselines, zero-waste boards, time, scale and growth; gaps have gaps.py.

    python benchmarks/allocator.py                     every table, some minutes
    python benchmarks/allocator.py legal boards        these tables only
    python benchmarks/allocator.py --problems 50       fewer problems

Times are CPU seconds, least of several warm runs. All problems are made up, from seeds. Exit code 1 where a
bar is missed, 2 where the input is wrong.
"""

import argparse
import importlib.util
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tidegrid.errors import InputError, TidegridError
from tidegrid.scheduler import BASELINES, Plan, Problem, check, solve
from tidegrid.scheduler.generate import random_problem

BOARDS = ((8, 24, 12), (8, 24, 20), (16, 24, 24), (16, 36, 30), (32, 48, 40), (32, 48, 60), (64, 48, 100))
GROWTH = (250, 500, 1000, 2000, 4000, 8000)


def day(seed: int, gpus: int | None = None, jobs: int | None = None, apps: int | None = None) -> Problem:
    """One pool over a day: apps with a daily curve that hold what step 0 wants, a queue that does not fit."""
    rng = np.random.default_rng(seed)
    gpus = gpus or int(rng.integers(8, 17))
    count = jobs or int(rng.integers(10, 25))
    steps = 24
    free = list(range(gpus))
    app_list: list[dict[str, Any]] = []
    for i in range(apps or int(rng.integers(1, 3))):
        top = gpus * float(rng.uniform(0.15, 0.35))
        hours = np.arange(steps + 8)
        curve = top * (0.55 + 0.45 * np.sin((hours - rng.integers(24)) / 24 * 2 * np.pi)) + rng.normal(
            0, 0.15, len(hours)
        )
        demand = np.maximum(0, np.round(curve)).astype(int).tolist()
        held = [free.pop() for _ in range(min(demand[0], len(free)))]
        app_list.append(
            {
                "id": f"app-{i}",
                "pool": "pool",
                "priority": int(rng.integers(4, 11)),
                "demand": demand,
                "swap_cap": [None, 2, 3, 4][int(rng.integers(4))],
                "held": held,
            }
        )
    job_list: list[dict[str, Any]] = []
    for i in range(count):
        work = float(rng.lognormal(np.log(gpus * steps / count * 1.1), 0.7))
        sizes = [1 << k for k in range(4) if 1 << k <= gpus // 2]
        low = int(rng.integers(len(sizes)))
        shapes = [
            {"pool": "pool", "gpus": g, "steps": max(1, round(work / g**0.9))}
            for g in sizes[low : low + int(rng.integers(1, 3))]
        ]
        job: dict[str, Any] = {
            "id": f"job-{i:05}",
            "priority": int(rng.integers(1, 11)),
            "order": i,
            "shapes": shapes,
            "finish_inside": bool(rng.random() < 0.3),
        }
        if rng.random() < 0.1:
            job["earliest"] = int(rng.integers(1, 8))
        if rng.random() < 0.1:
            job["deadline"] = int(rng.integers(12, 30))
        size = shapes[0]["gpus"]
        if rng.random() < 0.15 and set(range(size)) and len(free) > size + gpus // 3:
            first = free[0]
            if free[:size] == list(range(first, first + size)):
                job["running"] = {
                    "pool": "pool",
                    "first_gpu": first,
                    "gpus": size,
                    "remaining": int(rng.integers(1, 12)),
                }
                free = free[size:]
        job_list.append(job)
    return Problem.from_dict(
        {
            "version": 1,
            "steps": steps,
            "decay": 0.98,
            "shortfall_weight": float(rng.integers(5, 11)),
            "pools": [{"id": "pool", "gpus": gpus}],
            "jobs": job_list,
            "apps": app_list,
            "source": "synthetic",
        }
    )


def board(gpus: int, steps: int, pieces: int, seed: int) -> Problem:
    """Cut a board by guillotine into pieces with widths of powers of two, shuffled: all of them fit."""
    rng = np.random.default_rng(seed)
    parts = [(gpus, steps)]
    while len(parts) < pieces:
        area = np.array([w * h for w, h in parts], float)
        area[[w == 1 and h == 1 for w, h in parts]] = 0
        w, h = parts.pop(int(rng.choice(len(parts), p=area / area.sum())))
        if w > 1 and (h == 1 or rng.random() < 0.5):
            parts += [(w // 2, h), (w // 2, h)]
        else:
            cut = int(rng.integers(1, h))
            parts += [(w, cut), (w, h - cut)]
    rng.shuffle(parts)
    jobs = [
        {
            "id": f"piece-{i:03}",
            "priority": 5,
            "order": i,
            "shapes": [{"pool": "board", "gpus": int(w), "steps": int(h)}],
            "finish_inside": True,
        }
        for i, (w, h) in enumerate(parts)
    ]
    return Problem.from_dict(
        {
            "version": 1,
            "steps": steps,
            "decay": 1,
            "shortfall_weight": 8,
            "pools": [{"id": "board", "gpus": gpus}],
            "jobs": jobs,
            "apps": [],
            "source": "synthetic",
        }
    )


def cluster(gpus: int, jobs: int, steps: int, seed: int = 0) -> Problem:
    """A large pool in nodes of 8 with two capped apps and a queue of one job for each GPU or so."""
    rng = np.random.default_rng(seed)
    job_list = []
    for i in range(jobs):
        work, low = float(rng.lognormal(3.2, 1)), int(rng.integers(5))
        shapes = [
            {"pool": "pool", "gpus": 1 << k, "steps": max(1, int(np.ceil(work / (1 << k) ** 0.9)))}
            for k in (low, low + 1)
        ]
        job_list.append(
            {"id": f"job-{i:05}", "priority": int(rng.integers(1, 11)), "order": i, "shapes": shapes}
        )
    curve = 0.1 * gpus * (1 + 0.8 * np.sin(np.arange(steps) / 24 * 2 * np.pi))
    start = int(curve[0])
    apps = [
        {
            "id": f"app-{i}",
            "pool": "pool",
            "priority": 8,
            "demand": curve.astype(int).tolist(),
            "swap_cap": gpus // 20,
            "held": list(range(gpus - (i + 1) * start, gpus - i * start)),
        }
        for i in range(2)
    ]
    return Problem.from_dict(
        {
            "version": 1,
            "steps": steps,
            "decay": 0.98,
            "shortfall_weight": 8,
            "pools": [{"id": "pool", "gpus": gpus, "node_size": 8}],
            "jobs": job_list,
            "apps": apps,
            "source": "synthetic",
        }
    )


def any_kind(seed: int) -> Problem:
    """A problem of any kind: several pools, nodes, running jobs, tails, deadlines, caps of zero and up."""
    return random_problem(seed)


def any_kind_of_size(seed: int) -> Problem:
    """A problem of any kind with one pool of 8–16 GPUs and 10–24 jobs."""
    return random_problem(seed, pools=(1, 1), gpus=(8, 16), jobs=(10, 24), steps=(12, 24))


def contract_checker() -> Callable[[dict, dict], tuple[list[str], dict]] | None:
    """The contract's own checker, where it is there (TIDEGRID_SHARED)."""
    shared = Path(os.environ.get("TIDEGRID_SHARED", Path(__file__).parents[2] / "shared"))
    path = shared / "contract" / "check_plan.py"
    if not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location("check_plan", path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.check


def seconds(run: Callable[[], Plan], repeats: int) -> float:
    """Least CPU seconds of a number of runs after one to warm up."""
    run()
    best = np.inf
    for _ in range(repeats):
        begin = time.process_time()
        run()
        best = min(best, time.process_time() - begin)
    return float(best)


def legal_and_baselines(count: int) -> list[str]:
    """Every plan by both checkers, and its objective against every baseline's."""
    contract = contract_checker()
    missed = []
    print("| family | problems | illegal | below a baseline | median gain over the best baseline |")
    print("| --- | --- | --- | --- | --- |")
    for name, make, many in (
        ("any kind", any_kind, 4 * count),
        ("any kind, 8–16 GPUs", any_kind_of_size, count),
        ("a day, 8–16 GPUs", day, count),
    ):
        illegal = below = 0
        gains = []
        for seed in range(many):
            problem = make(seed)
            plan = solve(problem)
            bad = check(problem, plan)[0] or (
                contract(problem.to_dict(), plan.to_dict())[0] if contract is not None else []
            )
            illegal += bool(bad)
            best = max(solve(problem, mode).metrics["objective"] for mode in BASELINES)
            gain = plan.metrics["objective"] - best
            below += gain < -1e-9 * max(1.0, abs(best))
            if best > 0:
                gains.append(100 * gain / best)
        print(f"| {name} | {many} | {illegal} | {below} | {np.median(gains):+.1f} % |")
        if illegal:
            missed.append(f"{name}: {illegal} illegal plans")
        if below:
            missed.append(f"{name}: {below} plans below a baseline")
    print(f"\nBoth checkers: {'yes' if contract else 'no, the contract is not there'}.\n")
    return missed


def boards(count: int) -> list[str]:
    """Zero-waste boards: how much of them is filled."""
    print(
        "| board | pieces | filled, mean | worst | perfect | ms, median | first in, first out | best sort |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    missed = []
    for gpus, steps, pieces in BOARDS:
        filled, times, fifo, sorts = [], [], [], []
        for seed in range(count):
            problem = board(gpus, steps, pieces, seed)
            times.append(seconds(lambda problem=problem: solve(problem), 2))
            filled.append(100 * solve(problem).metrics["utilization"])
            fifo.append(100 * solve(problem, "fifo").metrics["utilization"])
            sorts.append(100 * max(solve(problem, m).metrics["utilization"] for m in BASELINES))
        mean, ms = float(np.mean(filled)), 1000 * float(np.median(times))
        print(
            f"| {gpus} × {steps} | {pieces} | {mean:.2f} % | {min(filled):.1f} % "
            f"| {sum(f > 100 - 1e-9 for f in filled)} of {count} | {ms:.1f} "
            f"| {np.mean(fifo):.0f} % | {np.mean(sorts):.0f} % |"
        )
        if mean < 98.5 or (gpus <= 32 and ms > 15):
            missed.append(f"board {gpus} × {steps}, {pieces}: {mean:.2f} % in {ms:.1f} ms")
    print()
    return missed


def timing(repeats: int) -> list[str]:
    """Warm time of a whole `solve`: arrays, search, plan, self-check."""
    print("| problem | ms, median of ten problems | worst | bar |")
    print("| --- | --- | --- | --- |")
    missed = []
    for gpus, jobs, bar in ((8, 14, 1.0), (16, 24, None), (64, 30, 2.5)):
        ms = []
        for seed in range(10):
            problem = day(seed, gpus, jobs)
            ms.append(1000 * seconds(lambda problem=problem: solve(problem), repeats))
        print(
            f"| {gpus} GPUs, {jobs} jobs, 24 steps | {np.median(ms):.2f} | {max(ms):.2f} | {bar or 'none'} |"
        )
        if bar is not None and np.median(ms) > bar:
            missed.append(f"time at {gpus} GPUs: {np.median(ms):.2f} ms")
    print()
    return missed


def scale(plot: Path | None) -> list[str]:
    """Whole `solve` of large problems, memory, and growth."""
    print("| problem | seconds | µs a job and step | placed | utilization | over the best baseline | MiB |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    missed, points = [], []
    for jobs in (*GROWTH, 10_000):
        steps = 24 if jobs == 10_000 else 48
        gpus = {1000: 1024, 10_000: 10_000}.get(jobs, jobs)
        problem = cluster(gpus, jobs, steps)
        plan = solve(problem)
        took = seconds(lambda problem=problem: solve(problem), 2)
        best = max(solve(problem, mode).metrics["objective"] for mode in BASELINES)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        m = plan.metrics
        print(
            f"| {gpus:,} GPUs, {jobs:,} jobs, {steps} steps | {took:.3f} | {1e6 * took / jobs / steps:.2f} "
            f"| {m['placed']:,} | {100 * m['utilization']:.1f} % "
            f"| {100 * (m['objective'] - best) / abs(best):+.1f} % | {peak:,.0f} |"
        )
        if jobs in GROWTH:
            points.append((jobs * steps, took))
        if (jobs == 1000 and took > 0.1) or (jobs == 10_000 and (took > 0.6 or peak > 250)):
            missed.append(f"{gpus:,} GPUs, {jobs:,} jobs: {took:.2f} s, {peak:,.0f} MiB")
    x, y = np.log(np.array(points)).T
    power = float(np.polyfit(x, y, 1)[0])
    print(f"\nTime grows with (jobs × steps)^{power:.2f}, GPUs growing with the jobs.\n")
    if plot is not None:
        _plot(points, power, plot)
    return missed


def _plot(points: list[tuple[int, float]], power: float, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5, 3.5))
    size, took = np.array(points).T
    axes.loglog(size, took, "o-", label=f"measured, power {power:.2f}")
    axes.loglog(size, took[0] * size / size[0], ":", label="linear")
    axes.set_xlabel("jobs × steps")
    axes.set_ylabel("CPU seconds")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    """Run the tables that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = ("legal", "boards", "time", "scale")
    parser.add_argument("table", nargs="*", help=f"any of {', '.join(tables)}; all where none is given")
    parser.add_argument("--problems", type=int, default=100, help="random problems of a family (100)")
    parser.add_argument("--plot", type=Path, help="write the growth as a picture")
    arguments = parser.parse_args()
    asked = arguments.table or list(tables)
    for table in asked:
        if table not in tables:
            raise InputError(
                f"{table!r} is not a table", field="table", fix=f"write any of {', '.join(tables)}"
            )
    if arguments.problems < 1:
        raise InputError("must be 1 or more", field="--problems", fix="write --problems 100")
    count = arguments.problems
    missed: list[str] = []
    for table in asked:
        if table == "legal":
            missed += legal_and_baselines(count)
        elif table == "boards":
            missed += boards(max(1, count // 5))
        elif table == "time":
            missed += timing(30)
        else:
            missed += scale(arguments.plot)
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidegridError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
