"""Expected start and end of each job, with a band: the plan's order replayed under drawn durations."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from tidegrid.data.nodelist import as_indices
from tidegrid.pipeline.arrivals import FUTURES, Arrivals
from tidegrid.pipeline.bands import Widths, widened
from tidegrid.pipeline.estimates import LEVELS
from tidegrid.scheduler import Job, Placement, Plan, Problem
from tidegrid.scheduler.limits import limits_of
from tidegrid.scheduler.problem import flat

DRAWS = FUTURES
"""Futures that are looked at; a job's own durations are an even grid of 200 levels in them, not a draw."""

AT_ONCE = 500
"""Jobs whose futures are looked at in one pass: it holds some tens of kB for each."""

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
    arrivals: Arrivals | None = None,
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
    arrivals
        What may arrive and go before jobs that wait; nothing where None.

    Returns
    -------
    DataFrame
        ``job``, ``pool``, ``first_gpu``, ``gpus``, ``gpu_ids`` (as text, such as ``0-3,6``), ``start`` and ``end``
        (planned, UTC; each in its band: a plan holds GPUs for whole steps, a job may end sooner), and ``start_q0.1`` …
        ``end_q0.9`` (UTC), ordered by planned start.
    """
    began = started or {}
    bands = bands_of(problem, plan, hours, seed, widths=widths, arrivals=arrivals)
    # both bands are stretched by themselves; at every level a job starts before it ends
    told = [(p, first, np.maximum(first, last)) for p, first, last in bands]
    if not told:
        return pd.DataFrame()
    placed = [p for p, _, _ in told]
    steps = np.array(
        [[p.start, *first, min(max(p.start + p.steps, last[0]), last[2]), *last] for p, first, last in told]
    )
    minutes = steps * problem.step_minutes
    instants = (start_of(problem) + pd.to_timedelta(minutes.ravel(), unit="min")).round("s")
    names = [f"{name}{level}" for name in ("start", "end") for level in ("", *(f"_q{q:g}" for q in BAND))]
    times = {name: list(instants[k :: len(names)]) for k, name in enumerate(names)}
    for row, p in enumerate(placed):
        if p.job in began:
            for name in names[: len(BAND) + 1]:
                times[name][row] = began[p.job]
    return pd.DataFrame(
        {
            "job": [p.job for p in placed],
            "pool": [p.pool for p in placed],
            "first_gpu": [p.first_gpu for p in placed],
            "gpus": [p.gpus for p in placed],
            "gpu_ids": [as_indices(p.ids) for p in placed],
            **{name: times[name] for name in ("start", "end", *(n for n in names if "_q" in n))},
        }
    )


def bands_of(
    problem: Problem,
    plan: Plan,
    hours: Mapping[tuple[str, str, int], np.ndarray],
    seed: int = 0,
    *,
    widths: Widths | None = None,
    only: Collection[str] | None = None,
    arrivals: Arrivals | None = None,
) -> Iterator[tuple[Placement, np.ndarray, np.ndarray]]:
    """Yield each placement (of the jobs in ``only``) with its start and its end at the levels of ``BAND``, in steps.

    The parameters are those of :func:`eta_table`.
    """
    stretch = widths or Widths()
    order = in_order(plan)
    if only is not None:
        # nothing that is placed later bears on those that are asked about
        last_asked = max((k for k, p in enumerate(order) if p.job in only), default=-1)
        order = order[: last_asked + 1]
    drawn = _drawn(order, hours, seed, problem.step_minutes)
    told = [one for one in follow(problem, plan, drawn, order) if only is None or one[0].job in only]
    if not told:
        return
    placed = [one[0] for one in told]
    times = np.array([[one[1] for one in told], [one[2] for one in told]])
    if arrivals is not None:
        times += _later(problem, plan, placed, times[0], arrivals)
    firsts, lasts = np.quantile(times, BAND, axis=2).transpose(1, 2, 0)
    for p, first, last in zip(placed, firsts, lasts, strict=True):
        if p.start > 0:
            first = widened(first, stretch.start, p.start)
            last = widened(last, stretch.end, p.start + p.steps)
        yield p, first, last


def _later(
    problem: Problem, plan: Plan, placed: Sequence[Placement], starts: np.ndarray, arrivals: Arrivals
) -> np.ndarray:
    """Return how many steps later jobs that wait start for what may arrive; shape (jobs, DRAWS)."""
    out, step_h, serving = np.zeros_like(starts), problem.step_minutes / 60, _serving(problem, plan)
    # jobs that the same share of newcomers goes before are held up alike, and looked at in one pass
    alike: dict[tuple[str, float], list[int]] = {}
    for k, p in enumerate(placed):
        if p.start > 0:
            alike.setdefault((p.pool, arrivals.ahead(problem.job_by_id[p.job].priority)), []).append(k)
    for (pool, share), every in alike.items():
        for rows in (every[k : k + AT_ONCE] for k in range(0, len(every), AT_ONCE)):
            later = arrivals.held_up(starts[rows] * step_h, pool, serving[pool], share)
            out[rows] = later / step_h - starts[rows]
    return out


def _drawn(
    order: Sequence[Placement],
    hours: Mapping[tuple[str, str, int], np.ndarray],
    seed: int,
    step_minutes: int,
) -> dict[str, np.ndarray]:
    """Return the steps that each placed job takes in each future, shape (DRAWS,); as planned where nothing is known."""
    known = [(p.job, hours[key]) for p in order if (key := (p.job, p.pool, p.gpus)) in hours]
    drawn = {p.job: np.full(DRAWS, float(p.steps)) for p in order}
    if known:
        logs = np.log(np.maximum([one for _, one in known], 1e-6))
        even = np.exp(logs[:, _LEFT] + np.diff(logs)[:, _LEFT] * _SHARE) / (step_minutes / 60)
        drawn |= {job: steps[_luck(job, seed)] for (job, _), steps in zip(known, even, strict=True)}
    return drawn


_EVEN = (np.arange(DRAWS) + 0.5) / DRAWS
_LEFT = np.clip(np.searchsorted(LEVELS, _EVEN, side="right") - 1, 0, len(LEVELS) - 2)
_SHARE = np.clip((_EVEN - np.array(LEVELS)[_LEFT]) / np.diff(LEVELS)[_LEFT], 0.0, 1.0)


def _serving(problem: Problem, plan: Plan) -> dict[str, float]:
    """Return the GPUs of each pool that apps leave to jobs, on average over the plan."""
    out = {pool.id: float(pool.gpus) for pool in problem.pools}
    for entry in plan.apps:
        counts = entry.counts()
        out[problem.app_by_id[entry.app].pool] -= sum(counts) / max(1, len(counts))
    return out


@lru_cache(maxsize=4096)
def _luck(job: str, seed: int) -> np.ndarray:
    """Return the order of its own in which a job goes through the drawn futures, shape (DRAWS,)."""
    key = int.from_bytes(hashlib.blake2b(f"{seed}:{job}".encode(), digest_size=8).digest(), "big")
    return np.random.default_rng(key).permutation(DRAWS)


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
    ends = {}
    if len(etas) and requests["deadline"].notna().any():
        columns = (etas[name].tolist() for name in ("job", "end_q0.5", "end_q0.9"))
        ends = {str(job): (middle, late) for job, middle, late in zip(*columns, strict=True)}
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
    """Return the placements by planned start."""
    return sorted(plan.placements, key=lambda p: (p.start, p.pool, p.first_gpu))


def follow(
    problem: Problem,
    plan: Plan,
    drawn: Mapping[str, np.ndarray],
    order: Sequence[Placement] | None = None,
) -> Iterator[tuple[Placement, np.ndarray, np.ndarray]]:
    """Yield each placement with its starts and ends, in steps, in futures where jobs take as long as drawn.

    Parameters
    ----------
    drawn
        For each placed job its durations (of a running job: the rest) in steps, shape (draws,).
    order
        The first placements as :func:`in_order` gives them; default all.
    """
    jobs = {job.id: job for job in problem.jobs}
    busy = _before(plan, problem)
    rules = _Rules(problem)
    draws = len(next(iter(drawn.values()))) if drawn else 0
    free_at = {pool.id: np.zeros((pool.gpus, draws)) for pool in problem.pools}
    for p in in_order(plan) if order is None else order:
        job = jobs[p.job]
        block = slice(p.first_gpu, p.first_gpu + p.gpus) if p.gpu_ids is None else list(p.ids)
        if job.running is not None:
            starts = np.zeros(draws)
        else:
            starts = np.maximum(free_at[p.pool][block].max(axis=0), float(job.earliest))
            starts = np.maximum(starts, rules.earliest(job, p, draws))
            if 0 < p.start <= problem.steps and busy[p.pool][block, p.start - 1].any():
                starts = np.maximum(starts, float(p.start))
        ends = starts + drawn[p.job]
        free_at[p.pool][block] = ends
        rules.note(job, p, ends)
        yield p, starts, ends


def instant_of(problem: Problem, step: float) -> pd.Timestamp:
    """Return the instant of a step, to the second."""
    return (start_of(problem) + pd.Timedelta(minutes=step * problem.step_minutes)).round("s")


def _before(plan: Plan, problem: Problem) -> dict[str, np.ndarray]:
    """Return by pool, shape (gpus, steps), where apps hold GPUs, and the last step of each window that ends."""
    out = {pool.id: np.zeros((pool.gpus, problem.steps), dtype=bool) for pool in problem.pools}
    for entry in plan.apps:
        cells = out[problem.app_by_id[entry.app].pool]
        for t, held in enumerate(entry.cells):
            cells[list(flat(held)), t] = True
    for pool in problem.pools:
        for closed in pool.closed or ():
            if closed.end <= problem.steps:
                out[pool.id][slice(*closed.gpus), closed.end - 1] = True
    return out


class _Rules:
    """What jobs that have ended set free beside GPUs: their followers, and their share of a limit."""

    def __init__(self, problem: Problem) -> None:
        self.limits = list(limits_of(problem))
        self.after = any(job.after for job in problem.jobs)
        self.ends: dict[str, np.ndarray] = {}
        # the ends that may still matter, by limit: amounts and instants, latest first, shape (jobs, draws)
        self.counted: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def earliest(self, job: Job, p: Placement, draws: int) -> np.ndarray:
        """Return the first instant, in steps, that order and limits allow in each future; shape (draws,)."""
        out = np.zeros(draws)
        for name in job.after or ():
            if name in self.ends:
                out = np.maximum(out, self.ends[name])
        for k in self._of(job, p):
            limit = self.limits[k]
            if k not in self.counted:
                continue
            amounts, ends = self.counted[k]
            # those that end last may go on together as long as there is room for this one beside them
            over = amounts.cumsum(axis=0) > limit.most - (p.gpus if limit.counts_gpus else 1)
            first = ends[over.argmax(axis=0), np.arange(draws)]
            out = np.maximum(out, np.where(over.any(axis=0), first, 0.0))
        return out

    def note(self, job: Job, p: Placement, ends: np.ndarray) -> None:
        """Note when a job ends in each future."""
        if self.after:
            self.ends[job.id] = ends
        for k in self._of(job, p):
            amounts = np.full((1, len(ends)), p.gpus if self.limits[k].counts_gpus else 1)
            self.counted[k] = self._latest(k, amounts, ends[None, :])

    def _latest(self, k: int, amounts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends counted in a limit and more, latest first, without those that no job will wait for."""
        if k in self.counted:
            amounts, ends = (
                np.concatenate(pair) for pair in zip(self.counted[k], (amounts, ends), strict=True)
            )
            latest = np.argsort(-ends, axis=0, kind="stable")
            amounts, ends = (np.take_along_axis(one, latest, axis=0) for one in (amounts, ends))
        # in each future a job waits at most for the first end with which the limit is full
        full = np.all(amounts.cumsum(axis=0) >= self.limits[k].most, axis=1)
        kept = int(full.argmax()) + 1 if full.any() else len(amounts)
        return amounts[:kept], ends[:kept]

    def _of(self, job: Job, p: Placement) -> list[int]:
        owners = {("tenant", job.tenant), ("group", job.group)}
        return [
            k
            for k, limit in enumerate(self.limits)
            if (limit.key, limit.owner) in owners and limit.pool in (None, p.pool)
        ]
