"""Expected start and end of each job, with a band: the plan's order replayed under drawn durations."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from tidegrid.pipeline.problem import is_down
from tidegrid.scheduler import Placement, Plan, Problem

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
    drawn = {}
    for p in in_order(plan):
        known = hours.get((p.job, p.pool, p.gpus))
        uniform = rng.random(DRAWS)
        if known is None:
            drawn[p.job] = np.full(DRAWS, float(p.steps))
        else:
            drawn[p.job] = np.exp(np.interp(uniform, levels, np.log(np.maximum(known, 1e-6)))) / step_h
    rows = []
    for p, starts, ends in follow(problem, plan, drawn):
        row = {
            "job": p.job,
            "pool": p.pool,
            "first_gpu": p.first_gpu,
            "gpus": p.gpus,
            "start": _instant(problem, p.start),
            "end": _instant(problem, p.start + p.steps),
        }
        for name, when in (("start", starts), ("end", ends)):
            for level in (0.1, 0.5, 0.9):
                row[f"{name}_q{level:g}"] = _instant(problem, float(np.quantile(when, level)))
        rows.append(row)
    return pd.DataFrame(rows)


def deadline_risks(requests: pd.DataFrame, problem: Problem, etas: pd.DataFrame, timezone: str) -> list[str]:
    """Return a line for each waiting job that has no place before its deadline, or may well end after it.

    Parameters
    ----------
    requests
        The queue, with ``deadline``.
    problem
        What was planned; jobs that are not in it are refused, and not told here.
    etas
        As :func:`eta_table` gives them.
    timezone
        IANA zone of the times told.
    """
    ends = {str(row["job"]): (row["end_q0.5"], row["end_q0.9"]) for row in etas.to_dict("records")}
    due = requests[requests["deadline"].notna()].sort_values(["deadline", "job_id"], kind="stable")
    out = []
    for job, deadline in zip(due["job_id"].astype(str), due["deadline"], strict=True):
        if job not in problem.job_by_id:
            continue
        until = _told(deadline, timezone)
        if job not in ends:
            out.append(f"{job} has no place before its deadline, {until}")
        elif ends[job][1] > deadline:
            middle, late = (_told(end, timezone) for end in ends[job])
            out.append(
                f"{job} may miss its deadline, {until}: it ends about {middle}, nine times in ten by {late}"
            )
    return out


def _told(instant: pd.Timestamp, timezone: str) -> str:
    return f"{instant.tz_convert(timezone):%a %Y-%m-%d %H:%M %Z}"


def in_order(plan: Plan) -> list[Placement]:
    """Return the placements of jobs by planned start; GPUs that are down are none."""
    working = (p for p in plan.placements if not is_down(p.job))
    return sorted(working, key=lambda p: (p.start, p.pool, p.first_gpu))


def follow(
    problem: Problem, plan: Plan, drawn: Mapping[str, np.ndarray]
) -> Iterator[tuple[Placement, np.ndarray, np.ndarray]]:
    """Yield each placement with its starts and ends, in steps, in futures where jobs take as long as drawn.

    Parameters
    ----------
    drawn
        For each placed job its durations (of a running job: the rest) in steps, shape (draws,).
    """
    jobs = {job.id: job for job in problem.jobs}
    app_busy = _app_cells(plan, problem)
    draws = len(next(iter(drawn.values()))) if drawn else 0
    free_at = {pool.id: np.zeros((pool.gpus, draws)) for pool in problem.pools}
    for p in in_order(plan):
        job = jobs[p.job]
        block = slice(p.first_gpu, p.first_gpu + p.gpus)
        if job.running is not None:
            starts = np.zeros(draws)
        else:
            starts = np.maximum(free_at[p.pool][block].max(axis=0), float(job.earliest))
            if p.start > 0 and any(
                (p.pool, gpu, p.start - 1) in app_busy for gpu in range(p.first_gpu, p.first_gpu + p.gpus)
            ):
                starts = np.maximum(starts, float(p.start))
        ends = starts + drawn[p.job]
        free_at[p.pool][block] = ends
        yield p, starts, ends


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
