"""Policies side by side on the same events, one process a policy."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import process_time
from typing import Any

import numpy as np

from tidegrid.errors import InputError
from tidegrid.estimators import Estimator
from tidegrid.pipeline.champions import fit_all
from tidegrid.pipeline.control import Memory, Settings, turn
from tidegrid.pipeline.decide import Decision
from tidegrid.pipeline.estimates import LEVELS
from tidegrid.pipeline.forecast import Estimating
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.replay.measures import measure
from tidegrid.pipeline.replay.queues import CONSERVATIVE, EASY, STRICT, Board, simulate
from tidegrid.pipeline.replay.truths import MedianDurations, PeakDemand, PerfectDemand, PerfectDurations
from tidegrid.pipeline.worlds.simulated import MINUTE, Played, Simulated
from tidegrid.pipeline.worlds.trace import HOUR, SCALING, Trace, at_far_end

REFIT_HOURS = 24.0
"""How old a fit of durations may grow in a replay; between fits, estimators are updated with every job that ends."""

CANDIDATES = 120
"""Waiting jobs that each decision of a replay looks at: one with so many before it does not start in step 0."""

ROUNDS = 2
"""Rounds of the planner's search at each plan of a replay: they gain about 1 % of the value. A tick searches longer:
:data:`tidegrid.pipeline.decide.SEARCH_MS`."""

AGE_WEIGHT = 1.0 / (7 * 24 * HOUR)
"""Slurm's age factor rises from 0 to 1 in seven days (``PriorityMaxAge``); here it weighs as much as the whole range of
priorities, 1 to 10."""


@dataclass(frozen=True)
class Result:
    """A policy's outcome and figures on one trace, and the CPU seconds that it took."""

    policy: str
    outcome: Played
    figures: Mapping[str, Any]
    cpu_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class _Queue:
    """A baseline: a queue's mode, its order, and what it plans with."""

    mode: int
    order: str = "arrival"
    estimate: str = "forecast"


@dataclass(frozen=True)
class _Loop:
    """A rolling allocator: what it is told."""

    durations: str = "forecast"
    demand: str = "forecast"


POLICIES: dict[str, _Queue | _Loop] = {
    "fifo": _Queue(STRICT),
    "fifo_backfill": _Queue(CONSERVATIVE),
    "fifo_backfill_limits": _Queue(CONSERVATIVE, estimate="limit"),
    "easy": _Queue(EASY),
    "easy_limits": _Queue(EASY, estimate="limit"),
    "easy_perfect": _Queue(EASY, estimate="perfect"),
    "easy_priority": _Queue(EASY, "priority"),
    "easy_priority_limits": _Queue(EASY, "priority", "limit"),
    "sjf": _Queue(EASY, "length"),
    "sjf_perfect": _Queue(EASY, "length", "perfect"),
    "rolling": _Loop(),
    "rolling_perfect": _Loop("perfect", "perfect"),
    "rolling_perfect_durations": _Loop("perfect", "forecast"),
    "rolling_perfect_demand": _Loop("forecast", "perfect"),
    "rolling_medians": _Loop("medians", "forecast"),
    "rolling_peak": _Loop("forecast", "peak"),
}
"""Policies by name. Baselines reserve realtime's peak; ``_limits`` plan with the requested time limits,
``_perfect`` with the truth, the others with our estimates. ``rolling`` is the allocator with our forecasts; its
variants swap one part."""


def run_one(
    trace: Trace, name: str, policy: Policy | None = None, rounds: int = ROUNDS, candidates: int = CANDIDATES
) -> Result:
    """Replay a trace under one policy.

    Parameters
    ----------
    policy
        The rolling allocator's parameters. Where jobs may have several sizes and no ``scaling`` is given, it is the
        mean of what the truth is drawn from.
    rounds, candidates
        Rounds of the fast planner's search at each plan, and the waiting jobs that it looks at.
    """
    kind, began = POLICIES[name], process_time()
    if isinstance(kind, _Queue):
        outcome = _queue(trace, kind)
    else:
        how = policy or Policy()
        if trace.sizes is not None and how.scaling is None:
            how = how.model_copy(update={"scaling": sum(SCALING) / 2})
        settings = Settings(policy=how, rounds=rounds, candidates=candidates)
        outcome = play(trace, forecaster_of(trace, kind.durations, kind.demand), settings)
    return Result(name, outcome, measure(trace, outcome), process_time() - began)


def play(
    trace: Trace,
    forecaster: Estimating,
    how: Settings,
    *,
    every_event: bool = True,
    each: Callable[[Simulated, Decision], None] | None = None,
) -> Played:
    """Run the loop on a simulated world until its end.

    Parameters
    ----------
    trace
        What really happens.
    forecaster
        What the loop is told of it.
    how
        How it decides: what :func:`tidegrid.pipeline.control.tick` takes.
    every_event
        Whether it decides at each arrival and end that may let a job start, taken together within a minute, as well
        as each hour; otherwise each hour alone.
    each
        Called with the trace and each decision before it is applied.
    """
    played, memory, hour = Simulated(trace), Memory(), -1
    while True:
        event = played.next_event(hour) if every_event else (hour + 1) * HOUR
        if event >= trace.end_s:
            break
        next_hour = (hour + 1) * HOUR
        now = min(float(np.ceil(event / MINUTE)) * MINUTE, next_hour) if event < next_hour else event
        new, over = played.advance(now)
        whole = now >= next_hour
        if whole:
            hour = int(now // HOUR)
        if whole or played.can_start(played.waiting if over else new):
            memory.widths = played.learn_widths()
            decision = turn(played.read(played.now), forecaster, memory, how)
            if each is not None:
                each(played, decision)
            played.apply(decision)
    played.advance(trace.end_s)
    return played.played


def forecaster_of(trace: Trace, durations: str = "forecast", demand: str = "forecast") -> Estimating:
    """Return what a loop is told of a trace: forecasts, ``perfect`` knowledge, ``medians``, or the ``peak``."""
    history = Simulated(trace).history()
    answers: dict[str, Estimator] = {}
    names = [name for name, what in (("recurring", durations), ("realtime", demand)) if what == "forecast"]
    if not trace.apps:
        names = [name for name in names if name != "realtime"]
    if names:
        answers = fit_all(history, names, timezone=trace.timezone, country=trace.country)
    if durations != "forecast":
        answers["recurring"] = PerfectDurations(trace) if durations == "perfect" else MedianDurations()
    if demand != "forecast" and trace.apps:
        answers["realtime"] = PerfectDemand(trace) if demand == "perfect" else PeakDemand(trace)
    refit = REFIT_HOURS if durations == "forecast" else None
    return Estimating(answers, history, refit_hours=refit, brief=True)


def _queue(trace: Trace, kind: _Queue) -> Played:
    peak = trace.demand().max(axis=1) if trace.apps else np.zeros(0, np.int64)
    estimate = estimates(trace, kind.estimate)
    key = {
        "arrival": np.arange(len(trace.jobs), dtype=float),
        "length": estimate,
        # all ages grow alike, so the order of multifactor priorities never changes while jobs wait
        "priority": -(trace.priority - 1) / 9 + trace.submit_s * AGE_WEIGHT,
    }[kind.order]
    board = Board(trace.pool, trace.gpus - int(peak.sum()))
    start, ids = simulate(
        trace.submit_s, trace.duration_s, estimate, trace.size, key, board, kind.mode, trace.end_s
    )
    held = np.repeat(peak[:, None].astype(float), trace.hours, axis=1)
    cells = [(0.0, k, tuple(gpus)) for k, gpus in enumerate(at_far_end(trace.gpus, peak.tolist()))]
    return Played(start, held, np.zeros_like(held), ids=ids, cells=cells)


def estimates(trace: Trace, what: str) -> np.ndarray:
    """Return what a queue plans with, in seconds: the truth, the requested limits, or our medians.

    Our medians for a baseline are told as of each submit, as if every job before had started at once: a baseline is
    given more than it could know, never less.

    Raises
    ------
    InputError
        Limits are asked for and the trace has none.
    """
    if what == "perfect":
        return trace.duration_s
    if what == "limit":
        if np.isnan(trace.limit_s).all():
            raise InputError(
                "the trace has no requested time limits", field="policy", fix="use a policy without _limits"
            )
        return np.where(np.isnan(trace.limit_s), np.nanmax(trace.limit_s), trace.limit_s)
    import pandas as pd

    from tidegrid.data import request_features
    from tidegrid.estimators.recurring import RecurringJobEstimator

    hours = pd.Series(trace.duration_s / HOUR)
    known = trace.jobs["submit_time"] + pd.to_timedelta(trace.duration_s, unit="s")
    told = RecurringJobEstimator(outcome="occupancy").replay(
        request_features(trace.jobs), hours, (LEVELS[5],), known_at=known
    )
    return np.fmin(told.to_numpy()[:, 0] * HOUR, trace.limit_s)
