"""Expected start and end of each job, with a band: the plan's order replayed under drawn durations."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from tidegrid.pipeline.problem import is_down
from tidegrid.scheduler import Plan, Problem

DRAWS = 400
"""Drawn futures; the 5th and 95th percentile of 400 draws have a standard error of about one percent in level."""


def start_of(problem: Problem) -> pd.Timestamp:
    """Return the instant of step 0 in UTC; 1970 for a problem that does not state it."""
    return pd.Timestamp(problem.start or "1970-01-01T00:00:00+00:00").tz_convert("UTC")


def eta_table(
    problem: Problem,
    plan: Plan,
    hours: Mapping[tuple[str, str, int], np.ndarray],
    levels: Sequence[float],
    seed: int = 0,
) -> pd.DataFrame:
    """Return when each placed job is expected to start and end.

    The plan fixes who follows whom on each GPU. Each of ``DRAWS`` futures draws one duration a job from its own
    quantiles; a job starts when all that the plan puts before it on its GPUs has ended, and not before its earliest
    step or, where an app gives way to it, its planned step. Within one future all quantities are in steps.

    Parameters
    ----------
    hours
        For (job, pool, GPUs) the quantiles of the duration (of a running job: of the rest) in hours at ``levels``.

    Returns
    -------
    DataFrame
        ``job``, ``pool``, ``first_gpu``, ``gpus``, ``start`` and ``end`` (planned, UTC), and ``start_q0.1`` …
        ``end_q0.9`` (UTC), ordered by planned start.
    """
    rng = np.random.default_rng(seed)
    step_h = problem.step_minutes / 60
    jobs = {job.id: job for job in problem.jobs}
    working = (p for p in plan.placements if not is_down(p.job))
    placements = sorted(working, key=lambda p: (p.start, p.pool, p.first_gpu))
    app_busy = _app_cells(plan, problem)
    free_at: dict[tuple[str, int], np.ndarray] = {}
    rows = []
    for p in placements:
        job = jobs[p.job]
        known = hours.get((p.job, p.pool, p.gpus))
        uniform = rng.random(DRAWS)
        if known is None:
            durations = np.full(DRAWS, float(p.steps))
        else:
            durations = np.exp(np.interp(uniform, levels, np.log(np.maximum(known, 1e-6)))) / step_h
        if job.running is not None:
            starts = np.zeros(DRAWS)
        else:
            starts = np.full(DRAWS, float(job.earliest))
            for gpu in range(p.first_gpu, p.first_gpu + p.gpus):
                before = free_at.get((p.pool, gpu))
                if before is not None:
                    starts = np.maximum(starts, before)
                if p.start > 0 and (p.pool, gpu, p.start - 1) in app_busy:
                    starts = np.maximum(starts, float(p.start))
        ends = starts + durations
        for gpu in range(p.first_gpu, p.first_gpu + p.gpus):
            free_at[p.pool, gpu] = ends
        row = {
            "job": p.job,
            "pool": p.pool,
            "first_gpu": p.first_gpu,
            "gpus": p.gpus,
            "start": _instant(problem, p.start),
            "end": _instant(problem, p.start + p.steps),
        }
        for name, drawn in (("start", starts), ("end", ends)):
            for level in (0.1, 0.5, 0.9):
                row[f"{name}_q{level:g}"] = _instant(problem, float(np.quantile(drawn, level)))
        rows.append(row)
    return pd.DataFrame(rows)


def _instant(problem: Problem, step: float) -> pd.Timestamp:
    return (start_of(problem) + pd.Timedelta(minutes=step * problem.step_minutes)).round("s")


def _app_cells(plan: Plan, problem: Problem) -> set[tuple[str, int, int]]:
    pools = {app.id: app.pool for app in problem.apps}
    return {
        (pools[entry.app], gpu, t)
        for entry in plan.apps
        for t, cells in enumerate(entry.cells)
        for gpu in cells
    }
