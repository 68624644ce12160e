"""Mode ``full``: the formal model, started from the fast plan; never a worse plan than that."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tidegrid.errors import InputError
from tidegrid.scheduler.formal.bound import relative_gap
from tidegrid.scheduler.formal.changes import changes
from tidegrid.scheduler.formal.run import Budget
from tidegrid.scheduler.formal.search import Search
from tidegrid.scheduler.plan import Plan
from tidegrid.scheduler.problem import Problem
from tidegrid.scheduler.solve import solve

DEFAULT_LIMIT = 10.0


def plan(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    deterministic_time: float | None = None,
    workers: int = 1,
    tolerance: float | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Plan:
    """Plan a problem with the formal model, starting from the fast plan.

    Parameters
    ----------
    problem
        The input.
    time_limit
        Seconds; None for 10.
    seed
        Seed of the fast planner, of CP-SAT and of the neighbourhoods.
    deterministic_time
        Limit in CP-SAT's deterministic time instead of seconds: the same input, seed and workers give the same bytes.
    workers
        CP-SAT's search workers (threads) for each model.
    tolerance
        Distance to the bound, in the unit of value, at which the plan is called optimal and the search ends; None for
        1e-5 of the plan's value.
    progress
        Called with one line at each step forward: objective, bound and gap.
    options
        Handed to the fast planner.

    Returns
    -------
    Plan
        Never worth less than the fast plan, and equal to it, flagged, where the solver failed. Its key
        ``solver`` holds ``status`` (``optimal``: the bound is at most ``tolerance`` above the objective; ``feasible``;
        ``interrupted``; ``fallback``: the solver failed), ``tolerance`` (in the unit of value), ``trouble`` (what
        failed, or None), ``bound``, ``gap`` (share of the bound), ``fast_objective``, ``gain``, ``course`` (``time``,
        ``objective`` and ``bound`` as the search went on) and ``changes`` (see `changes`).

    Raises
    ------
    InputError
        The deterministic time or the tolerance is negative or not finite, or there is no worker.
    """
    for name, value in (("deterministic_time", deterministic_time), ("tolerance", tolerance)):
        if value is not None and not 0.0 <= value < np.inf:
            raise InputError(f"{value} is out of range", field=name, fix="write a number of 0 or more")
    if workers < 1:
        raise InputError(f"{workers} is out of range", field="workers", fix="write 1 or more")
    fast = solve(problem, mode="fast", seed=seed, **options)
    seconds = DEFAULT_LIMIT if time_limit is None else time_limit
    budget = Budget(seconds, deterministic_time, workers, seed)
    search = Search(problem, fast, budget, progress, tolerance)
    trouble = None
    try:
        search.improve()
        search.tell(ended=True)
    except KeyboardInterrupt:
        search.budget.interrupted = True
    except Exception as error:  # any trouble of the solver gives back the best plan so far, flagged
        trouble = f"{type(error).__name__}: {error}"
    if budget.total() <= 0.0:
        trouble = trouble or "no time to search: the limit is 0"
    return _result(search, trouble)


def _result(search: Search, trouble: str | None) -> Plan:
    """The best plan with what the search knows about it."""
    problem, fast, best = search.problem, search.fast, search.best
    if best is search.start:
        answered = {"OPTIMAL", "FEASIBLE"} & set(search.statuses)
        if search.statuses and not answered:
            trouble = trouble or f"the solver gave no answer: {search.statuses[-1]}"
        if search.trouble:
            trouble = trouble or search.trouble[0]
    if search.proven():
        status = "optimal"
    elif search.budget.interrupted:
        status = "interrupted"
    else:
        status = "feasible" if trouble is None else "fallback"
    worth = fast.metrics["objective"]
    solver = {
        "status": status,
        "tolerance": search.allowed(),
        "trouble": trouble,
        "bound": search.bound,
        "gap": relative_gap(search.bound, search.objective),
        "fast_objective": worth,
        "gain": search.objective - worth,
        "course": search.course,
        "changes": changes(problem, fast, best),
    }
    extra = fast.extra if best is fast else {}
    return Plan.of(problem, "full", best.placements, best.apps, **{**extra, "solver": solver})
