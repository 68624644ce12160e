"""All planners on one problem, side by side: what planning is worth, and how far from the proven bound."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegrid.errors import InputError
from tidegrid.scheduler import BASELINES, Plan, Problem, modes, solve

Step = Callable[[str], None]
Clock = Callable[[], float]

#: Order of the tables: the two planners, then what clusters run today.
MODES = ("fast", "full", *BASELINES)


@dataclass(frozen=True)
class Comparison:
    """One problem planned by several modes.

    Parameters
    ----------
    name
        What the problem is called.
    problem
        The problem.
    plans
        Plans by mode.
    seconds
        For each mode the seconds of every run after the first; empty where it ran once.
    bound
        Proven upper bound of every legal plan's objective; None where it was not asked for.
    bound_status
        How the bound was found.
    solver_ratio
        CP-SAT's time to the fast plan's objective over the fast mode's time, both in this run; None where it
        was not asked for or the fast mode did not run.
    solver_reached
        Whether CP-SAT reached the objective; where it did not, the ratio is a lower limit.
    """

    name: str
    problem: Problem
    plans: dict[str, Plan]
    seconds: dict[str, list[float]] = field(default_factory=dict)
    bound: float | None = None
    bound_status: str = ""
    solver_ratio: float | None = None
    solver_reached: bool = False

    def gap(self, mode: str) -> float | None:
        """How far a plan's objective lies below the bound, as a share of the bound's size."""
        if self.bound is None:
            return None
        missing = max(0.0, self.bound - self.plans[mode].metrics["objective"])
        return missing / max(abs(self.bound), 1e-9)

    def gain(self, mode: str, over: str) -> float | None:
        """By what share a mode's value exceeds another's; None where that one is worth nothing or did not run."""
        base = self.plans[over].metrics["value"] if over in self.plans else 0.0
        return self.plans[mode].metrics["value"] / base - 1 if base > 0 else None

    def rows(self) -> list[dict[str, Any]]:
        """Return one record a mode: figures, gap to the bound, gain over each baseline, median seconds."""
        rows = []
        for mode, plan in self.plans.items():
            runs = self.seconds.get(mode)
            rows.append(
                {
                    "mode": mode,
                    **plan.metrics,
                    "gap": self.gap(mode),
                    "gain": {name: self.gain(mode, name) for name in BASELINES if name in self.plans},
                    "seconds": statistics.median(runs) if runs else None,
                    "runs": len(runs) if runs else 1,
                }
            )
        return rows

    def record(self) -> dict[str, Any]:
        """Return the comparison as one JSON object."""
        return {
            "name": self.name,
            "problem_sha256": self.problem.sha256,
            "rebuilt": (self.problem.model_extra or {}).get("source"),
            "bound": self.bound,
            "bound_status": self.bound_status,
            "modes": self.rows(),
            "solver_time_ratio": self.solver_ratio,
            "solver_reached": self.solver_reached,
        }


def compare(
    problem: Problem,
    chosen: Sequence[str] | None = None,
    *,
    name: str = "problem",
    time_limit: float | None = 5.0,
    bound_limit: float | None = 5.0,
    workers: int = 1,
    seed: int = 0,
    repeats: int = 0,
    race: bool = False,
    clock: Clock = time.perf_counter,
    step: Step = lambda text: None,
) -> Comparison:
    """Plan a problem with several modes.

    Parameters
    ----------
    problem
        The input.
    chosen
        Modes to run; all of `MODES` by default.
    name
        What to call the problem.
    time_limit
        Seconds for the modes that search until a limit.
    bound_limit
        Seconds for the proven bound; None for no bound.
    workers
        Threads of the solver in mode ``full``.
    seed
        Seed of every mode.
    repeats
        Further timed runs of each mode but ``full``; the first run, which may compile, is never counted.
    race
        Whether to measure CP-SAT's time to the fast plan's objective.
    clock
        What counts as time: `time.process_time` on a busy machine.
    step
        Called with a line at each step.

    Raises
    ------
    InputError
        A mode is not known.
    """
    names = list(chosen or MODES)
    for mode in names:
        if mode not in modes():
            raise InputError(
                f"{mode!r} is not a mode", field="mode", fix=f"write one of {', '.join(modes())}"
            )
    plans: dict[str, Plan] = {}
    seconds: dict[str, list[float]] = {}
    for mode in names:
        step(f"{name}: {mode}")
        options: dict[str, Any] = {}
        if mode == "full":
            options = {"progress": lambda text: step(f"{name}: full: {text}"), "workers": workers}
        plans[mode] = solve(problem, mode=mode, time_limit=time_limit, seed=seed, **options)
        if repeats and mode != "full":
            seconds[mode] = [_timed(problem, mode, seed, clock) for _ in range(repeats)]
    bound, status = None, ""
    if bound_limit is not None:
        step(f"{name}: proven bound")
        bound, status = _bound(problem, bound_limit, plans.get("full"), lambda text: step(f"{name}: {text}"))
    ratio, reached = None, False
    if race and "fast" in plans and seconds.get("fast"):
        step(f"{name}: CP-SAT to the same objective")
        fast_seconds = statistics.median(seconds["fast"])
        ratio, reached = _race(problem, plans["fast"], fast_seconds, time_limit, clock)
    return Comparison(name, problem, plans, seconds, bound, status, ratio, reached)


def _timed(problem: Problem, mode: str, seed: int, clock: Clock) -> float:
    # A fresh copy each time: what is cached with a problem would flatter the later runs.
    fresh = Problem.from_dict(problem.to_dict())
    began = clock()
    solve(fresh, mode=mode, seed=seed)
    return clock() - began


def _bound(problem: Problem, limit: float, full: Plan | None, step: Step) -> tuple[float, str]:
    from tidegrid.scheduler.formal import bound

    found = bound(problem, limit, progress=step)
    value, status = found.value, found.status
    solver = full.extra.get("solver") if full is not None else None
    if solver and solver.get("bound") is not None and solver["bound"] < value:
        value, status = solver["bound"], f"full: {solver['status']}"
    return value, status


def _race(
    problem: Problem, fast: Plan, fast_seconds: float, limit: float | None, clock: Clock
) -> tuple[float, bool]:
    """CP-SAT's seconds to the fast plan's objective over the fast mode's, and whether it got there."""
    from tidegrid.scheduler.formal import time_to_objective

    seconds = 30.0 if limit is None else max(limit, 1.0)
    began = clock()
    taken = time_to_objective(problem, fast.metrics["objective"], seconds, clock=clock)
    return (clock() - began if taken is None else taken) / fast_seconds, taken is not None


@dataclass(frozen=True)
class Bench:
    """The seven scenarios, each planned by every mode."""

    comparisons: list[Comparison]

    def mean_gain(self, over: str = "fifo") -> float | None:
        """Mean gain of the fast mode's value over the contended scenarios that were run."""
        from tidegrid.scheduler.scenarios import CONTENDED

        gains = [c.gain("fast", over) for c in self.comparisons if c.name in CONTENDED and "fast" in c.plans]
        known = [gain for gain in gains if gain is not None]
        return sum(known) / len(known) if known else None


def bench(
    names: Sequence[str] | None = None,
    chosen: Sequence[str] | None = None,
    *,
    time_limit: float | None = 5.0,
    bound_limit: float | None = 5.0,
    seed: int = 0,
    repeats: int = 21,
    race: bool = True,
    view: str = "work",
    clock: Clock = time.perf_counter,
    step: Step = lambda text: None,
) -> Bench:
    """Run every mode on the seven scenarios in a view; further parameters as in `compare`.

    Raises
    ------
    InputError
        A scenario, a view or a mode is not known.
    """
    from tidegrid.scheduler.scenarios import SCENARIOS, scenario

    problems = {name: scenario(name, view) for name in names or SCENARIOS}
    return Bench(
        [
            compare(
                problem, chosen, name=name, time_limit=time_limit, bound_limit=bound_limit, seed=seed,
                repeats=repeats, race=race, clock=clock, step=step,
            )
            for name, problem in problems.items()
        ]
    )  # fmt: skip
