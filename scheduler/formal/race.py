"""How long CP-SAT needs, on its own, for what the fast planner finds."""

from collections.abc import Callable
from time import perf_counter

from tidegrid.scheduler.formal.named import NamedModel
from tidegrid.scheduler.formal.run import Budget, Run
from tidegrid.scheduler.formal.terms import Terms
from tidegrid.scheduler.problem import Problem


def time_to_objective(
    problem: Problem,
    target: float,
    time_limit: float = 60.0,
    *,
    seed: int = 0,
    workers: int = 1,
    clock: Callable[[], float] = perf_counter,
) -> float | None:
    """Return the seconds that CP-SAT needs, without a hint, for a plan worth at least ``target``.

    The whole model is used, with the parameters that full mode found best for it; writing it down counts.

    Parameters
    ----------
    problem, target
        The input, and the objective to reach.
    time_limit
        Seconds of wall clock for the search.
    seed, workers
        CP-SAT's random seed and workers.
    clock
        What counts as time: `time.process_time` on a busy machine.

    Returns
    -------
    float or None
        None where the limit came first, or where no plan is worth that much.
    """
    start = clock()
    terms = Terms(problem)
    model = NamedModel(terms)
    scaled = target * terms.scale
    run = Run(model.cp, Budget(time_limit, seed=seed, workers=workers), time_limit, target=scaled, named=True)
    answer = run.answer()
    seconds = clock() - start
    return seconds if answer.value is not None and answer.value >= scaled else None
