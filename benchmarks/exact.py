"""Measure the formal model: full mode's gap to the bound, and how long CP-SAT alone needs for the fast plan.

    python benchmarks/exact.py                          20 problems of each family, 10 s each
    python benchmarks/exact.py --count 5 --deterministic 10 --skip-race
    python benchmarks/exact.py --families plain --gpus 16 16 --jobs 24 24 --json

Problems are random (synthetic), of 24 steps, 8 to 16 GPUs and 10 to 24 jobs:
  plain   one pool, apps with swap caps, running jobs, lookahead
  mixed   also node sizes, deadlines, late starts, jobs that must finish inside, caps of zero
  pools   two pools that share those GPUs, of the mixed kind
The gap is (bound - objective) / |bound|. The bound is the lowest that was proven: GPUs counted (`bound`), or the whole
model inside full mode; both are upper bounds for every legal plan. Case P4 (19 jobs, 4 GPUs, 96 steps, one cell to
spare) is solved at the end. The race gives CP-SAT the whole model without a hint, one worker, until it is as good as
the fast plan; times are processor time, and their ratio is of one run on one machine.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

from tidegrid.errors import InputError, TidegridError
from tidegrid.scheduler import Problem, check, solve
from tidegrid.scheduler.formal import bound, relative_gap, time_to_objective
from tidegrid.scheduler.generate import random_problem

FAMILIES: dict[str, dict[str, Any]] = {
    "plain": {"pools": (1, 1), "plain": True},
    "mixed": {"pools": (1, 1)},
    "pools": {"pools": (2, 2)},
}


def waves() -> Problem:
    """Case P4."""
    sizes = [(4, 16)] + [(2, 16)] * 6 + [(1, 16)] * 2 + [(1, steps) for steps in range(14, 4, -1)]
    jobs = [
        {"id": f"job-{i}", "kind": "training", "priority": 5, "order": i, "finish_inside": True,
         "shapes": [{"pool": "p", "gpus": gpus, "steps": steps}]}
        for i, (gpus, steps) in enumerate(sizes)
    ]  # fmt: skip
    pools = [{"id": "p", "gpus": 4}]
    return Problem.from_dict(
        {"steps": 96, "decay": 0.98, "shortfall_weight": 8, "pools": pools, "jobs": jobs, "apps": []}
    )


def problems(args: argparse.Namespace) -> list[tuple[str, int, Problem]]:
    made = []
    for family in args.families:
        options = FAMILIES[family]
        pools = options["pools"][1]
        gpus = tuple(max(1, g // pools) for g in args.gpus)
        for seed in range(args.seed, args.seed + args.count):
            problem = random_problem(
                seed, **{**options, "gpus": gpus}, steps=(24, 24), jobs=tuple(args.jobs), apps=(1, 2)
            )
            made.append((family, seed, problem))
    return made


def limits(args: argparse.Namespace) -> dict[str, float]:
    return {"deterministic_time": args.deterministic} if args.deterministic else {"time_limit": args.time}


def measure(problem: Problem, args: argparse.Namespace) -> dict[str, Any]:
    solve(problem)
    runs = []
    for _ in range(args.fast_runs):
        start = time.process_time()
        fast = solve(problem)
        runs.append(time.process_time() - start)
    start = time.process_time()
    full = solve(problem, mode="full", **limits(args))  # type: ignore[arg-type]
    full_seconds = time.process_time() - start
    if check(problem, full)[0]:
        raise InputError("full mode made an illegal plan", fix="report it with the seed")
    counted = bound(problem, **limits(args))
    best = min(counted.value, full.extra["solver"]["bound"])
    objective = full.metrics["objective"]
    row = {
        "fast_gap": relative_gap(best, fast.metrics["objective"]),
        "gap": relative_gap(best, objective),
        "gap_to_counts": relative_gap(counted.value, objective),
        "counts_proven": counted.proven,
        "status": full.extra["solver"]["status"],
        "trouble": full.extra["solver"]["trouble"],
        "objective": objective,
        "bound": best,
        "fast_seconds": statistics.median(runs),
        "full_seconds": full_seconds,
    }
    if not args.skip_race:
        needed = time_to_objective(
            problem, fast.metrics["objective"], args.race_limit, clock=time.process_time
        )
        row["race_seconds"] = needed
        row["ratio"] = (needed or args.race_limit) / row["fast_seconds"]
    return row


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {"problems": len(rows)}
    for name in ("fast_gap", "gap", "gap_to_counts"):
        gaps = [row[name] for row in rows]
        result[name] = {"mean": statistics.mean(gaps), "worst": max(gaps)}
    result["optimal"] = sum(row["status"] == "optimal" for row in rows)
    result["counts_proven"] = sum(row["counts_proven"] for row in rows)
    result["fallback"] = sum(row["trouble"] is not None for row in rows)
    if "ratio" in rows[0]:
        ratios = sorted(row["ratio"] for row in rows)
        result["ratio"] = {
            "least": ratios[0],
            "median": statistics.median(ratios),
            "not_reached": sum(row["race_seconds"] is None for row in rows),
        }
    return result


def show(args: argparse.Namespace, table: dict[str, dict[str, Any]], all_fit: dict[str, Any]) -> None:
    print(
        f"\n{'family':8} {'problems':>8} {'optimal':>8}   full gap mean, worst   fast gap mean, worst   counts proven"
    )
    for name, it in table.items():
        print(
            f"{name:8} {it['problems']:8} {it['optimal']:8}   {it['gap']['mean']:8.2%} {it['gap']['worst']:8.2%}"
            f"       {it['fast_gap']['mean']:8.2%} {it['fast_gap']['worst']:8.2%}       {it['counts_proven']:6}"
        )
        against = it["gap_to_counts"]
        print(
            f"{'':8} gap to the bound of counted GPUs alone: mean {against['mean']:.2%}, worst {against['worst']:.2%}"
        )
        if "ratio" in it:
            r = it["ratio"]
            print(
                f"{'':8} CP-SAT needs {r['median']:,.0f} × fast's time (median), {r['least']:,.0f} × at least;"
                f" {r['not_reached']} not reached in {args.race_limit:g} s and counted at that"
            )
    print(f"case P4: {all_fit['placed']} of 19 jobs placed, status {all_fit['status']}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=20, help="problems of each family (20)")
    parser.add_argument("--seed", type=int, default=0, help="first seed (0)")
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--gpus", nargs=2, type=int, default=(8, 16), metavar=("LEAST", "MOST"))
    parser.add_argument("--jobs", nargs=2, type=int, default=(10, 24), metavar=("LEAST", "MOST"))
    parser.add_argument("--time", type=float, default=10.0, help="seconds for full and for the bound (10)")
    parser.add_argument("--deterministic", type=float, help="CP-SAT's deterministic time instead of seconds")
    parser.add_argument("--fast-runs", type=int, default=21, help="runs of fast, of which the median (21)")
    parser.add_argument("--race-limit", type=float, default=30.0, help="seconds for CP-SAT alone (30)")
    parser.add_argument("--skip-race", action="store_true", help="leave the race out")
    parser.add_argument("--json", action="store_true", help="print every figure as JSON")
    args = parser.parse_args()
    for name in ("count", "fast_runs", "time", "race_limit"):
        if getattr(args, name) <= 0:
            raise InputError(f"{getattr(args, name)} is not above 0", field=f"--{name.replace('_', '-')}")
    for name in ("gpus", "jobs"):
        least, most = getattr(args, name)
        if not 1 <= least <= most:
            raise InputError(
                f"{least} {most} is not a range", field=f"--{name}", fix="write the least, then the most"
            )
    rows: dict[str, list[dict[str, Any]]] = {family: [] for family in args.families}
    for family, seed, problem in problems(args):
        row = {"family": family, "seed": seed, **measure(problem, args)}
        rows[family].append(row)
        if not args.json:
            race = f", CP-SAT {row['ratio']:,.0f} ×" if "ratio" in row else ""
            print(
                f"{family} {seed}: {row['status']}, gap {row['gap']:.2%}, fast {row['fast_gap']:.2%}"
                f" in {row['fast_seconds'] * 1e3:.1f} ms{race}",
                flush=True,
            )
    table = {family: summary(found) for family, found in rows.items()}
    table["all"] = summary([row for found in rows.values() for row in found])
    plan = solve(waves(), mode="full", **limits(args))  # type: ignore[arg-type]
    all_fit = {"placed": len(plan.placements), "status": plan.extra["solver"]["status"]}
    if args.json:
        print(json.dumps({"summary": table, "p4": all_fit, "problems": rows}))
    else:
        show(args, table, all_fit)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidegridError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
