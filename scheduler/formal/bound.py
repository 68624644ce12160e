"""An upper bound on the objective of every legal plan of a problem, proven where time allows."""

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import numpy as np

from tidegrid.scheduler.formal.terms import Terms
from tidegrid.scheduler.plan import Plan
from tidegrid.scheduler.problem import Problem

#: Columns up to which counts are handed to CP-SAT; beyond it prices bound the objective.
MAX_COLUMNS = 20_000
#: Relative room for the rounding of sums of floats, here and in whoever recomputes a plan's objective.
ROUNDING = 1e-9


@dataclass(frozen=True)
class Bound:
    """An upper bound of the objective.

    Attributes
    ----------
    value
        No legal plan is worth more, whatever the status.
    proven
        Whether the relaxation behind ``value`` was solved to its end: more time gives no better bound.
    status
        ``optimal`` (the relaxation is solved), ``feasible`` (the limit came first), ``prices`` (too large for
        CP-SAT, or no time for it: weak duality), ``trivial`` (every job earns its best), or ``failed: …``.
    columns
        Ways to run a job that the relaxation chooses from.
    """

    value: float
    proven: bool
    status: str
    columns: int

    def gap(self, objective: float) -> float:
        """How far an objective lies below the bound, as a share of the bound's size; 0 for the optimum."""
        return relative_gap(self.value, objective)


def relative_gap(bound: float, objective: float) -> float:
    """(bound − objective) / |bound|; 0 where they are equal up to the bound's own rounding."""
    difference = max(0.0, bound - objective)
    size = max(abs(bound), 1e-9)
    return 0.0 if difference <= 100 * ROUNDING * max(1.0, size) else difference / size


def padded(terms: Terms, value: float) -> float:
    """Raise a bound by what float sums may differ by."""
    return value + ROUNDING * max(1.0, abs(value), terms.objective_at_most)


def bound(
    problem: Problem,
    time_limit: float | None = 10.0,
    deterministic_time: float | None = None,
    *,
    seed: int = 0,
    start: Plan | None = None,
    progress: Callable[[str], None] | None = None,
) -> Bound:
    """Bound the objective of every legal plan from above.

    GPUs are counted in each step instead of named; CP-SAT proves the best counts, about a second at 8 GPUs.
    Problems of more than `MAX_COLUMNS` columns are bounded by prices of GPU-steps alone.

    Parameters
    ----------
    problem
        The input.
    time_limit
        Seconds; None for 10. Whatever the limit, a valid bound comes back.
    deterministic_time
        Limit in CP-SAT's deterministic time instead: the same input gives the same bound.
    seed
        CP-SAT's random seed.
    start
        A legal plan to start from.
    progress
        Called with one line at each step forward.
    """
    terms = Terms(problem)
    columns = terms.column_count
    best = Bound(padded(terms, terms.objective_at_most), False, "trivial", columns)
    seconds = 10.0 if time_limit is None else time_limit
    limit = seconds if deterministic_time is None else deterministic_time
    try:
        from tidegrid.scheduler.formal.lagrange import price_bound

        if limit > 0.0 or columns <= MAX_COLUMNS:
            end = monotonic() + seconds
            # Without a clock the rounds alone end the search for prices.
            prices = padded(
                terms, price_bound(terms, lambda: deterministic_time is not None or monotonic() < end)
            )
            if prices < best.value:
                best = Bound(prices, False, "prices", columns)
        if limit > 0.0 and columns <= MAX_COLUMNS:
            solved = _solve_counts(terms, seconds, deterministic_time, seed, start, progress)
            if solved is not None:
                value, optimal = solved
                status = "optimal" if optimal else "feasible"
                best = Bound(min(value, best.value), optimal, status, columns)
    except Exception as error:  # whatever fails in a solver, the bound found so far holds
        return Bound(best.value, False, f"failed: {type(error).__name__}: {error}", columns)
    return best


def _solve_counts(
    terms: Terms,
    seconds: float,
    deterministic: float | None,
    seed: int,
    start: Plan | None,
    progress: Callable[[str], None] | None,
) -> tuple[float, bool] | None:
    from tidegrid.scheduler.formal.model import CountModel, Facts
    from tidegrid.scheduler.formal.run import Budget, Run

    lowest = [float("inf")]
    said, told = "", -1

    def tick() -> None:
        nonlocal said, told
        line, second = f"bound {lowest[0]:.2f}", int(seconds - budget.left())
        if deterministic is None and second == told:
            return
        if progress is not None and np.isfinite(lowest[0]) and line != said:
            said, told = line, second
            progress(line)

    budget = Budget(seconds, deterministic, seed=seed, tick=tick)
    model = CountModel(terms)
    if start is not None:
        model.hint(Facts.of(terms, start))

    def lower(scaled: float) -> None:
        lowest[0] = min(lowest[0], scaled / terms.scale)

    answer = Run(model.cp, budget, budget.left(), on_bound=lower, slack=terms.rounding).answer()
    if answer.bound is None:
        return None
    return padded(terms, answer.bound / terms.scale), answer.optimal
