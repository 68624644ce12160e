"""Expected start and end of each job, with a band: the plan's order replayed under drawn durations."""

import hashlib
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache

import numpy as np
import pandas as pd

from tidegrid.pipeline.bands import Widths, widened
from tidegrid.pipeline.estimates import LEVELS
from tidegrid.pipeline.problem import is_down
from tidegrid.scheduler import Placement, Plan, Problem

DRAWS = 200
"""Futures that are looked at; a job's own durations are an even grid of 200 levels in them, not a draw."""

BAND = (0.1, 0.5, 0.9)
"""The levels of expected times: an 80 % band and its middle."""


def start_of(problem: Problem) -> pd.Timestamp:
    """Return the instant of step 0 in UTC; 1970 for a problem that does not state it."""
    return pd.Timestamp(problem.start or "1970-01-01T00:00:00+00:00").tz_convert("UTC")


def eta_table(
    problem: Problem,
    plan: Plan,
    hours: Mapping[tuple[str, str, int], np.ndarray],
    seed: int = 0,
    *,
    widths: Widths | None = None,
    started: Mapping[str, pd.Timestamp] | None = None,
) -> pd.DataFrame:
    """Return when each placed job is expected to start and end.

    The plan fixes who follows whom on each GPU. Each of ``DRAWS`` futures draws one duration a job from its own
    quantiles; a job starts when all that the plan puts before it on its GPUs has ended, and not before its earliest
    step or, where an app gives way to it, its planned step. Within one future all quantities are in steps. A job's
    luck depends on its name and the seed alone, so that its band does not move because another job came or went.

    Parameters
    ----------
    hours
        For (job, pool, GPUs) the quantiles of the duration (of a running job: of the rest) in hours at
        :data:`tidegrid.pipeline.estimates.LEVELS`.
    widths
        How far bands of jobs that wait are stretched; the planned start always lies inside its band.
    started
        When running jobs started: their start is known, and its band has no width.

    Returns
    -------
    DataFrame
        ``job``, ``pool``, ``first_gpu``, ``gpus``, ``start`` and ``end`` (planned, UTC), and ``start_q0.1`` …
        ``end_q0.9`` (UTC), ordered by planned start.
    """
    began = started or {}
    rows = []
    for p, first, last in bands_of(problem, plan, hours, seed, widths=widths):
        row = {
            "job": p.job,
            "pool": p.pool,
            "first_gpu": p.first_gpu,
            "gpus": p.gpus,
            "start": began[p.job] if p.job in began else instant_of(problem, p.start),
            "end": instant_of(problem, p.start + p.steps),
        }
        for name, band in (("start", first), ("end", last)):
            for level, when in zip(BAND, band.tolist(), strict=True):
                known = name == "start" and p.job in began
                row[f"{name}_q{level:g}"] = began[p.job] if known else instant_of(problem, when)
        rows.append(row)
    return pd.DataFrame(rows)


def bands_of(
    problem: Problem,
    plan: Plan,
    hours: Mapping[tuple[str, str, int], np.ndarray],
    seed: int = 0,
    *,
    widths: Widths | None = None,
    only: Collection[str] | None = None,
) -> Iterator[tuple[Placement, np.ndarray, np.ndarray]]:
    """Yield each placement (of the jobs in ``only``) with its start and its end at the levels of ``BAND``, in steps.

    The parameters are those of :func:`eta_table`.
    """
    step_h, stretch = problem.step_minutes / 60, widths or Widths()
    drawn = {}
    for p in in_order(plan):
        known = hours.get((p.job, p.pool, p.gpus))
        if known is None:
            drawn[p.job] = np.full(DRAWS, float(p.steps))
        else:
            logs = np.log(np.maximum(known, 1e-6))
            drawn[p.job] = np.exp(np.interp(_luck(p.job, seed), LEVELS, logs)) / step_h
    for p, starts, ends in follow(problem, plan, drawn):
        if only is not None and p.job not in only:
            continue
        first, last = np.quantile(np.stack([starts, ends]), BAND, axis=1).T
        if p.start > 0:
            first = widened(first, stretch.start, p.start)
            last = widened(last, stretch.end, p.start + p.steps)
        yield p, first, last


@lru_cache(maxsize=4096)
def _luck(job: str, seed: int) -> np.ndarray:
    """Return a job's levels in the drawn futures, shape (DRAWS,): an even grid in an order of its own."""
    key = int.from_bytes(hashlib.blake2b(f"{seed}:{job}".encode(), digest_size=8).digest(), "big")
    return (np.random.default_rng(key).permutation(DRAWS) + 0.5) / DRAWS


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


def instant_of(problem: Problem, step: float) -> pd.Timestamp:
    """Return the instant of a step, to the second."""
    return (start_of(problem) + pd.Timedelta(minutes=step * problem.step_minutes)).round("s")


def _app_cells(plan: Plan, problem: Problem) -> set[tuple[str, int, int]]:
    pools = {app.id: app.pool for app in problem.apps}
    return {
        (pools[entry.app], gpu, t)
        for entry in plan.apps
        for t, cells in enumerate(entry.cells)
        for gpu in cells
    }
