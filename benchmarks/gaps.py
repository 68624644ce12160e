"""Measure the gap of mode fast to a proven bound: problems of a day, of any kind, and version 2 family by family.

    python benchmarks/gaps.py --bounds bounds.json             every family, 24 problems each
    python benchmarks/gaps.py day nodes --count 8 --deterministic 5
    python benchmarks/gaps.py --bounds bounds.json --known     no bound is looked for: seconds, to try a planner out

The bound of a problem is the lowest that `bound` (GPUs counted) and mode full have proven, each in so much of CP-SAT's
deterministic time: what the machine does beside has no part in it. Bounds are kept in a file; a later run with more
time lowers those that are not met. The gap is (bound - objective) ÷ |bound|. It says nothing where the bound lies near
zero, as where a large value meets a demand that cannot be served; so the same difference ÷ the larger of |bound| and
the plan's value stands beside it, and is held against the bars. Plans pass both checkers, and are held against fifo's.
Exit code 1 where a bar is missed, 2 where the input is wrong.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from allocator import any_kind_of_size, contract_checker, day

from tidegrid.errors import InputError, TidegridError
from tidegrid.scheduler import Problem, check, solve
from tidegrid.scheduler.formal import bound, relative_gap
from tidegrid.scheduler.generate_clusters import FAMILIES, random_cluster

#: Mean and worst gap that are aimed at, in %.
DAY_BAR, CLUSTER_BAR = (1.2, 4.0), (1.5, 5.0)
EXTRA_ROUNDS = 5000


def cluster_of(family: str) -> Callable[[int], Problem]:
    """Problems of a family with one pool of two or three nodes and a queue that does not fit."""
    return lambda seed: random_cluster(
        seed, family, pools=(1, 1), nodes=(2, 3), jobs=(10, 20), steps=(16, 24)
    )


MADE: dict[str, tuple[Callable[[int], Problem], tuple[float, float] | None]] = {
    "day": (day, DAY_BAR),
    "any": (any_kind_of_size, None),
    **{family: (cluster_of(family), CLUSTER_BAR) for family in FAMILIES},
}


class Bounds:
    """The lowest bound and the best objective known of each problem, kept in a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            self._known = json.loads(path.read_text())

    def find(self, problem: Problem, limit: float) -> dict[str, Any] | None:
        """Return what is known, after a search of ``limit`` where it may still find more; None where nothing is."""
        known = self._known.get(problem.sha256)
        if limit > 0.0 and (known is None or (known["status"] != "optimal" and known["limit"] < limit)):
            known = self._search(problem, limit, known)
            self._known[problem.sha256] = known
            if self._path is not None:
                self._path.write_text(json.dumps(self._known, indent=0))
        return known

    def _search(self, problem: Problem, limit: float, known: dict[str, Any] | None) -> dict[str, Any]:
        plan = solve(problem, "full", deterministic_time=limit)
        solver = plan.extra["solver"]
        if solver["trouble"]:
            raise TidegridError(f"mode full: {solver['trouble']}")
        values = [solver["bound"]]
        if solver["status"] != "optimal":
            values.append(bound(problem, deterministic_time=limit).value)
        objective = plan.metrics["objective"]
        if known is not None:
            values.append(known["bound"])
            objective = max(objective, known["objective"])
        lowest = min(values)
        met = lowest - objective <= solver["tolerance"]
        return {
            "bound": lowest,
            "objective": objective,
            "status": "optimal" if met else "feasible",
            "limit": limit,
            # what counting alone would have said of the best plan: where places cost something
            "full": plan.metrics["objective"],
        }


def measure(name: str, seeds: range, bounds: Bounds, limit: float, each: bool) -> dict[str, Any]:
    """Plan the problems of a family and compare with their bounds."""
    make, bar = MADE[name]
    contract = contract_checker()
    gaps, shares, extra, fulls, ms = [], [], [], [], []
    illegal = below = proven = 0
    for seed in seeds:
        problem = make(seed)
        known = bounds.find(problem, limit)
        if known is None:
            continue
        began = time.process_time()
        plan = solve(problem)
        ms.append(1000 * (time.process_time() - began))
        bad = check(problem, plan)[0]
        if contract is not None:
            bad = bad or contract(problem.to_dict(), plan.to_dict())[0]
        illegal += bool(bad)
        objective, value = plan.metrics["objective"], plan.metrics["value"]
        fifo = solve(problem, "fifo").metrics["objective"]
        below += objective < fifo - 1e-9 * max(1.0, abs(fifo))
        longer = solve(problem, rounds=EXTRA_ROUNDS).metrics["objective"]
        gaps.append(100 * relative_gap(known["bound"], objective))
        size = max(abs(known["bound"]), value, 1e-9)
        shares.append(gaps[-1] * abs(known["bound"]) / size)
        extra.append(100 * relative_gap(known["bound"], longer))
        fulls.append(100 * relative_gap(known["bound"], known["objective"]))
        proven += known["status"] == "optimal"
        if each:
            print(
                f"{name} {seed}: {known['status']}, bound {known['bound']:.2f}, best {known['objective']:.2f}, fast "
                f"{objective:.2f}, gap {gaps[-1]:.2f} %, {shares[-1]:.2f} % of the larger",
                flush=True,
            )
    if not gaps:
        raise InputError(f"no bound of {name} is known", field="--known", fix="leave it out")
    print(
        f"| {name} | {len(gaps)} | {proven} | {np.mean(gaps):.2f} % | {np.median(gaps):.2f} % | {max(gaps):.1f} % "
        f"| {np.mean(shares):.2f} % | {max(shares):.1f} % | {np.mean(extra):.2f} % | {np.mean(fulls):.2f} % "
        f"| {max(fulls):.1f} % | {illegal} | {below} | {np.median(ms):.1f} |",
        flush=True,
    )
    missed = bar is not None and (np.mean(shares) > bar[0] or max(shares) > bar[1])
    return {"missed": missed or illegal > 0 or below > 0}


def main() -> int:
    """Run the families that are asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("family", nargs="*", help=f"any of {', '.join(MADE)}; all where none is given")
    parser.add_argument("--count", type=int, default=24, help="problems of a family (24)")
    parser.add_argument("--seed", type=int, default=0, help="first seed (0)")
    parser.add_argument(
        "--deterministic", type=float, default=10.0, help="deterministic time of a bound (10)"
    )
    parser.add_argument("--bounds", type=Path, help="file that keeps the bounds")
    parser.add_argument("--known", action="store_true", help="use the bounds of the file alone")
    parser.add_argument("--each", action="store_true", help="print every problem")
    arguments = parser.parse_args()
    for name in arguments.family:
        if name not in MADE:
            raise InputError(
                f"{name!r} is not a family", field="family", fix=f"write any of {', '.join(MADE)}"
            )
    if arguments.count < 1:
        raise InputError("must be 1 or more", field="--count", fix="write --count 24")
    bounds = Bounds(arguments.bounds)
    limit = 0.0 if arguments.known else arguments.deterministic
    print(
        "| family | problems | optimum proven | gap, mean | median | worst | of the larger, mean | worst "
        f"| {EXTRA_ROUNDS} rounds | best plan known, mean gap | worst | illegal | below fifo | ms, median |\n"
        f"|{' --- |' * 14}"
    )
    seeds = range(arguments.seed, arguments.seed + arguments.count)
    missed = [
        name
        for name in arguments.family or MADE
        if measure(name, seeds, bounds, limit, arguments.each)["missed"]
    ]
    for name in missed:
        print(f"missed: {name}")
    return 1 if missed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TidegridError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
