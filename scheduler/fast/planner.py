"""Mode ``fast``: the problem in, a legal plan out, in milliseconds."""

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from typing import Any

import numpy as np

from tidegrid.errors import InputError
from tidegrid.scheduler.checker import check
from tidegrid.scheduler.fast.interface import Found, Settings, Warm, input_of, search
from tidegrid.scheduler.plan import AppCells, Placement, Plan
from tidegrid.scheduler.problem import Problem

# Up to ``HOT_JOBS`` jobs the temperature starts at `Settings.heat`, with more it starts lower. From ``HOT_JOBS`` to
# ``MANY_PLACES`` jobs the chance rises to ``MOST_EJECT`` that a round displaces others for a waiting job.
HOT_JOBS, MANY_PLACES, MOST_EJECT = 20, 60, 0.5


def plan(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    rounds: int | None = None,
    budget_ms: float | None = None,
    warm_start: Plan | None = None,
    promises: Mapping[str, int] | None = None,
    promise_price: float = 0.0,
    threads: int = 1,
    settings: Mapping[str, Any] | None = None,
    **_: Any,
) -> Plan:
    """Plan a problem: greedy starts, then ruin and recreate for a number of rounds.

    Parameters
    ----------
    problem
        The input.
    time_limit
        Ignored: the budget is counted in rounds, so that the same input gives the same plan anywhere.
    seed
        The same input, seed and budget give the same plan.
    rounds
        Rounds of search; None for as many as ``budget_ms`` buys.
    budget_ms
        Milliseconds of search on an ordinary core, turned into rounds from the problem's size; None for the
        default, which grows with the size.
    warm_start
        A plan, such as yesterday's. Where it is legal for this problem, the result is never worth less, and
        it is the same plan unless a better one was found.
    promises
        Starts that were told to waiting jobs, by id. A job that is not in the problem is ignored.
    promise_price
        What each step costs that a told start moves later, as a share of what a step of the job earns. It guides
        the search alone: figures know nothing of it.
    threads
        Threads of the search; the plan is the same for any number.
    settings
        Settings of the search in place of those of `Settings`.

    Returns
    -------
    Plan
        Legal, without metrics.

    Raises
    ------
    InputError
        ``rounds``, ``budget_ms`` or ``promise_price`` is negative.
    """
    for name, value in (("rounds", rounds), ("budget_ms", budget_ms), ("promise_price", promise_price)):
        if value is not None and not value >= 0:
            raise InputError(f"{value} is out of range", field=name, fix="write a number of 0 or more")
    warm, kept = None, None
    if warm_start is not None:
        warm, kept = _warm(problem, warm_start)
    found = _plan(
        problem,
        search(
            input_of(problem),
            seed=seed,
            rounds=None if rounds is None else int(rounds),
            budget_ms=budget_ms,
            settings=_tuned(sum(job.running is None for job in problem.jobs))._replace(**(settings or {})),
            warm=warm,
            told=_told(problem, promises) if promises and promise_price > 0 else None,
            promise=promise_price,
            threads=threads,
        ),
    )
    if kept is not None and warm_start is not None:
        better = check(problem, found)[1]["objective"] - kept
        if better <= 1e-9 * max(1.0, abs(kept)):
            return Plan.of(problem, "fast", warm_start.placements, warm_start.apps)
    return found


def _tuned(jobs: int) -> Settings:
    usual = Settings()
    crowd = min(1.0, max(0.0, (jobs - HOT_JOBS) / (MANY_PLACES - HOT_JOBS)))
    return usual._replace(
        heat=usual.heat * min(1.0, HOT_JOBS / max(1, jobs)),
        eject=usual.eject + (MOST_EJECT - usual.eject) * crowd,
    )


def _told(problem: Problem, promises: Mapping[str, int]) -> np.ndarray:
    told = (promises.get(job.id, -1) for job in problem.jobs)
    return np.array([step if 0 <= step < problem.steps else -1 for step in told], np.int64)


def _warm(problem: Problem, plan: Plan) -> tuple[Warm | None, float | None]:
    """Return a plan's placements as the search reads them, and its objective, or None where it is not legal."""
    bad, figures = check(problem, plan.with_metrics({}))
    if bad:
        return None, None
    rows = np.full((len(problem.jobs), 5), -1, np.int64)
    gpus: list[Sequence[int]] = [()] * len(rows)
    jobs = {job.id: i for i, job in enumerate(problem.jobs)}
    pools = {pool.id: i for i, pool in enumerate(problem.pools)}
    for p in plan.placements:
        rows[jobs[p.job]] = pools[p.pool], p.gpus, p.steps, p.start, p.first_gpu
        gpus[jobs[p.job]] = p.ids
    start = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(ids) for ids in gpus], out=start[1:])
    return Warm(1, rows, start, np.array(list(chain.from_iterable(gpus)), np.int64)), figures["objective"]


def _plan(problem: Problem, found: Found) -> Plan:
    jobs = [job.id for job in problem.jobs]
    pools = [pool.id for pool in problem.pools]
    by_node = [pool.by_node for pool in problem.pools]
    placements = []
    at = 0
    for job, pool, first, gpus, start, steps in found.placements:
        if by_node[pool]:
            ids = found.gpus[at : at + gpus]
            placements.append(Placement.on(jobs[job], pools[pool], ids, start, steps))
            at += gpus
        else:
            placements.append(Placement(jobs[job], pools[pool], first, gpus, start, steps))
    steps = problem.steps
    cells = [tuple(found.cells[i:j]) for i, j in pairwise(found.cells_start)]
    apps = [
        AppCells(app.id, _in_replicas(cells[a * steps : (a + 1) * steps], app.replica))
        for a, app in enumerate(problem.apps)
    ]
    return Plan.of(problem, "fast", placements, sorted(apps, key=lambda app: app.app))


def _in_replicas(cells: list[tuple[int, ...]], size: int) -> tuple[tuple[Any, ...], ...]:
    if size == 1:
        return tuple(cells)
    return tuple(tuple(held[i : i + size] for i in range(0, len(held), size)) for held in cells)
