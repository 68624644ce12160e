"""Parts of a problem to search anew: some jobs freed, all else kept.

Small problems free jobs that are near each other in time; large ones those that lie in a window: some neighbouring
GPUs of a pool, over all steps.
"""

from collections.abc import Iterator

import numpy as np

from tidegrid.scheduler.formal.model import Facts, Part
from tidegrid.scheduler.formal.places import Column
from tidegrid.scheduler.formal.terms import Terms
from tidegrid.scheduler.plan import Plan
from tidegrid.scheduler.problem import Pool, Problem, flat

#: GPUs of a window, in turn: narrow ones are soon solved, wide ones see more.
WIDTHS = (16, 32)
#: Waiting jobs that a window may take in: the first by priority, and as many others in turn.
FIRST_WAITING, OTHER_WAITING = 3, 3
#: Steps × GPUs of all columns in a window up to which jobs are freed: more takes longer to write down than to solve.
WINDOW_CELLS = 50_000

Window = tuple[str, int, int]


def free_jobs(terms: Terms, plan: Plan, free: set[int]) -> Part:
    """Free some jobs, by index, and the apps."""
    return Part({j: terms.columns[j] for j in free}, kept=Facts.of(terms, plan))


def neighbours(terms: Terms, plan: Plan, rng: np.random.Generator, waiting: list[int], size: int) -> set[int]:
    """Jobs to free: near a random job in time, or any; jobs that wait unplaced are always among them."""
    jobs, placed = terms.problem.jobs, plan.placement_by_job
    centre = placed.get(jobs[int(rng.choice(waiting))].id)
    out = [j for j in waiting if jobs[j].id not in placed]
    rng.shuffle(out)
    inside = [j for j in waiting if jobs[j].id in placed]
    if centre is None or rng.random() < 0.3:
        rng.shuffle(inside)
    else:
        distance = {j: abs(placed[jobs[j].id].start - centre.start) + rng.random() for j in inside}
        inside.sort(key=lambda j: distance[j])
    return set(inside[:size]) | set(out[: max(4, size // 2)])


def segments(pool: Pool, width: int, shift: int) -> Iterator[tuple[int, int]]:
    """Yield (first GPU, first GPU after) of windows that cut no node which a legal place could span."""
    node = pool.node_size or pool.gpus
    if pool.by_node or node < width:
        width, shift = max(node, width // node * node), shift // node * node
        node = pool.gpus
    for begin in range(0, pool.gpus, node):
        end = min(begin + node, pool.gpus)
        for low in range(begin + (shift if end - begin > width else 0), end, width):
            yield low, min(low + width, end)


def windows(problem: Problem, plan: Plan, sweep: int) -> list[Window]:
    """Return the windows of a sweep, those with the most idle weight first."""
    width = WIDTHS[sweep % len(WIDTHS)]
    shift = width // 2 * (sweep // len(WIDTHS) % 2)
    weight = np.array([float(problem.decay) ** t for t in range(problem.steps)])
    scored = []
    for pool in problem.pools:
        idle = np.ones((problem.steps, pool.gpus), bool)
        for p in plan.placements:
            if p.pool == pool.id:
                idle[p.start : p.end, list(p.ids)] = False
        for name, cells in plan.apps:
            if problem.app_by_id[name].pool == pool.id:
                for t, held in enumerate(cells):
                    idle[t, list(flat(held))] = False
        earned = np.concatenate([[0.0], (idle * weight[:, None]).sum(axis=0).cumsum()])
        for low, high in segments(pool, width, shift):
            scored.append((-round(float(earned[high] - earned[low]), 6), pool.id, low, high))
    return [(pool, low, high) for _, pool, low, high in sorted(scored)]


def window(terms: Terms, plan: Plan, where: Window, turn: int, rng: np.random.Generator) -> Part | None:
    """Free jobs that wait, and those inside a window that are nearest to a random step; None where there are none.

    ``turn`` decides which of the waiting jobs are taken in beside the first ones. The apps stay.
    """
    name, low, high = where
    index = {job.id: j for j, job in enumerate(terms.problem.jobs)}
    centre = rng.integers(terms.steps)
    near = sorted(
        (abs(p.start - centre), index[p.job])
        for p in plan.placements
        if p.pool == name and min(p.ids) >= low and max(p.ids) < high
    )
    columns: dict[int, list[Column]] = {}
    cells = 0
    for j in _waiting(terms, plan, name, turn) + [j for _, j in near]:
        job = terms.problem.jobs[j]
        mine = [] if job.running else [c for c in terms.columns_of(job) if c.pool == name]
        cells += sum(min(c.steps, terms.steps - c.start) for c in mine) * (high - low)
        if columns and cells > WINDOW_CELLS:
            break
        if mine:
            columns[j] = mine
    if not columns:
        return None
    return Part(columns, kept=Facts.of(terms, plan), apps=False, reach=where)


def _waiting(terms: Terms, plan: Plan, pool: str, turn: int) -> list[int]:
    jobs = terms.problem.jobs
    waiting = [
        j
        for j, job in enumerate(jobs)
        if not job.running
        and job.id not in plan.placement_by_job
        and any(shape.pool == pool for shape in job.shapes)
    ]
    waiting.sort(key=lambda j: (-jobs[j].priority, min(s.gpus * s.steps for s in jobs[j].shapes)))
    first, others = waiting[:FIRST_WAITING], waiting[FIRST_WAITING:]
    at = turn * OTHER_WAITING % len(others) if others else 0
    return first + (others[at:] + others[:at])[:OTHER_WAITING]
