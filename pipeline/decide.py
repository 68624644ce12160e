"""The one pure function that decides: a state and a forecaster in, what starts and what moves out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data.nodelist import as_indices
from tidegrid.pipeline.bands import Widths
from tidegrid.pipeline.continuity import Kept, continued, promised
from tidegrid.pipeline.etas import deadline_risks, eta_table
from tidegrid.pipeline.forecast import Forecast, Forecaster
from tidegrid.pipeline.memory import Event, iso
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.problem import build_problem, held_back
from tidegrid.pipeline.state import State
from tidegrid.scheduler import Plan, Problem, explain, solve
from tidegrid.scheduler.clock import Clock
from tidegrid.scheduler.coverage import coverage_risks
from tidegrid.scheduler.explain import refusals

SEARCH_MS, MANY_JOBS = 30.0, 1000
"""Milliseconds that fast searches for a decision of at most so many jobs: a decision stands for half an hour, and the
default of some milliseconds leaves some per cent of its value. With more jobs the default is as long."""


@dataclass(frozen=True)
class Start:
    """A job to start now, and its GPUs.

    Attributes
    ----------
    first_gpu, gpus
        The lowest index, and how many: a block where placement is in a line.
    gpu_ids
        All of them as indices in the pool, ascending.
    nodes
        The names of the nodes that they lie on, in order; empty where the pool's nodes have no names.
    """

    job: str
    pool: str
    first_gpu: int
    gpus: int
    gpu_ids: tuple[int, ...]
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Move:
    """An app's GPUs before and from now on, replica after replica, and the swaps that this takes."""

    app: str
    pool: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    swaps: int
    replica: int = 1

    @property
    def replicas(self) -> list[list[int]]:
        """The replicas from now on, each as its GPUs."""
        return [list(self.after[i : i + self.replica]) for i in range(0, len(self.after), self.replica)]


@dataclass(frozen=True)
class Decision:
    """What was decided, and all that it rests on; what is only shown is worked out when it is asked for.

    Attributes
    ----------
    state, forecast, problem, plan
        The facts, what is expected, what was to be decided, and the plan.
    starts, moves
        Step 0, the only part that is acted on.
    events
        What is to be told: fallbacks, stale sources, swaps that were put off.
    """

    state: State
    forecast: Forecast
    problem: Problem
    plan: Plan
    starts: tuple[Start, ...]
    moves: tuple[Move, ...]
    events: tuple[Event, ...] = ()
    widths: Widths = field(default_factory=Widths)
    seed: int = 0

    @cached_property
    def durations(self) -> dict[tuple[str, str, int], np.ndarray]:
        """Quantiles of hours of each (job, pool, GPUs); of a running job, of what is left of it."""
        return self.forecast.durations(self.state.running)

    @cached_property
    def etas(self) -> pd.DataFrame:
        """When each placed job is expected to start and end: see :func:`tidegrid.pipeline.etas.eta_table`."""
        return eta_table(
            self.problem,
            self.plan,
            self.durations,
            self.seed,
            widths=self.widths,
            started=self.started,
            arrivals=self.forecast.arrivals,
        )

    @cached_property
    def started(self) -> dict[str, pd.Timestamp]:
        """When each running job started."""
        running = self.state.running
        return dict(zip(running["job_id"].astype(str), running["start_time"], strict=True))

    @cached_property
    def explained(self) -> Plan:
        """The plan with its explanations in the cluster's time zone."""
        return explain(self.problem, self.plan, self.state.cluster.timezone)

    @cached_property
    def risks(self) -> list[dict[str, Any]]:
        """Where apps are short or below their floor, and which jobs may not survive."""
        return coverage_risks(self.problem, self.plan, Clock(self.problem, self.state.cluster.timezone))

    @cached_property
    def unmet(self) -> int:
        """GPU-steps of need inside the horizon that the plan leaves unmet."""
        demand = {app.id: app.demand for app in self.problem.apps}
        return sum(
            max(0, need - held)
            for entry in self.plan.apps
            for need, held in zip(demand[entry.app], entry.counts(), strict=False)
        )

    @cached_property
    def refused(self) -> list[tuple[str, str]]:
        """Jobs that cannot run as asked, with the reason."""
        estimates = self.forecast.estimates.refused
        out = [
            (str(job), str(reason))
            for job, reason in zip(estimates["job_id"], estimates["reason"], strict=True)
        ]
        return out + list(refusals(self.problem, self.plan, self.state.cluster.timezone).items())

    @cached_property
    def not_looked_at(self) -> list[str]:
        """Waiting jobs that were left out because more go first than one decision looks at."""
        known = {*self.problem.job_by_id, *self.forecast.estimates.refused["job_id"].astype(str)}
        known |= set(self.held_back)
        return [job for job in self.state.requests["job_id"].astype(str) if job not in known]

    @cached_property
    def held_back(self) -> dict[str, str]:
        """Waiting jobs that were left out because one that they come after is, and which that is."""
        return held_back(self.state, self.problem.job_by_id)

    @cached_property
    def deadlines(self) -> list[str]:
        """A line for each waiting job that may miss its deadline."""
        return deadline_risks(self.state.requests, self.problem, self.etas, self.state.cluster.timezone)


def decide(
    state: State,
    forecaster: Forecaster,
    policy: Policy | None = None,
    decider: str = "fast",
    *,
    time_limit: float | None = None,
    seed: int = 0,
    rounds: int | None = None,
    workers: int = 1,
    progress: Callable[[str], None] | None = None,
    candidates: int | None = None,
    last: Kept | None = None,
    widths: Widths | None = None,
) -> Decision:
    """Decide what starts now, which GPUs apps hold, and when the rest is expected.

    Parameters
    ----------
    state
        What is.
    forecaster
        What is expected of it.
    policy
        The planner's parameters.
    decider
        A mode of :func:`tidegrid.scheduler.solve`: the planner, or a queue discipline.
    time_limit, seed, rounds
        As the mode takes them. Where ``rounds`` is None, fast searches for `SEARCH_MS`, or its default with more than
        `MANY_JOBS` jobs.
    workers, progress
        Threads of mode full's solver, and what it calls with a line at each step.
    candidates
        Waiting jobs that are looked at, the first by their raised priorities; all where None. Those behind
        them are told no time: fewer cost less.
    last
        The decision before: while nothing but time has passed, what it told keeps its time; else moving it later
        has the policy's ``promise_price``.
    widths
        How far the bands of expected times reach, as learnt from earlier ones.
    """
    how = policy or Policy()
    forecast = forecaster.forecast(state, how)
    problem = build_problem(state, forecast, how, candidates)
    options: dict[str, Any] = {}
    if rounds is not None:
        options["rounds"] = rounds
    elif decider == "fast" and len(problem.jobs) <= MANY_JOBS:
        options["budget_ms"] = SEARCH_MS
    if decider == "full":
        options |= {"workers": workers, "progress": progress}
    plan = None
    if decider == "fast" and last is not None:
        plan = continued(last, state.now, problem, seed, options)
        if how.promise_price > 0:
            told = promised(last, state.now, problem)
            options |= {"promises": told, "promise_price": how.promise_price}
    if plan is None:
        plan = solve(problem, decider, time_limit=time_limit, seed=seed, **options)
    moves, put_off = _moves(state, problem, plan)
    events = [*forecast.events, *put_off]
    starts = _starts(state, problem, plan, moves)
    if state.age() > pd.Timedelta(hours=how.stale_hours):
        starts = []
        text = (
            f"the newest thing that the files tell of is of {iso(state.known_until or state.now)}, more than "
            f"{how.stale_hours:g} h ago: nothing is started on them"
        )
        events.insert(0, Event("stale", "files", text))
    return Decision(
        state, forecast, problem, plan, tuple(starts), tuple(moves), tuple(events), widths or Widths(), seed
    )


def _moves(state: State, problem: Problem, plan: Plan) -> tuple[list[Move], list[Event]]:
    """Return each app's GPUs from now on, as far as the swaps that are left allow, and what was put off."""
    before = {app.id: [tuple(one) for one in state.working(app)] for app in state.cluster.apps}
    after = {entry.app: _replicas(entry.cells[0]) for entry in plan.apps}
    pool = {app.id: app.pool for app in state.cluster.apps}
    events = [
        Event(
            "loose GPUs",
            name,
            f"{name} holds GPUs {as_indices(gpus)}, which are no whole replica: they are freed",
        )
        for name, gpus in state.loose().items()
    ]
    forced = {app.id: _forced(problem, app.pool, before[app.id]) for app in state.cluster.apps}
    for app in state.cluster.apps:
        cap, most, size = app.swap_cap, state.may_swap(app), app.capacity.gpus_per_replica
        old, new = before[app.id], after[app.id]
        if cap is None or most is None or _swaps(old, new, forced[app.id], size) <= most:
            continue
        after[app.id] = _partly(old, new, forced[app.id], most // size)
        window = iso(state.now.floor(pd.Timedelta(minutes=problem.step_minutes)))
        have, wanted = size * len(after[app.id]), size * len(new)
        did = (
            f"gets {have} of {wanted} GPUs" if have < wanted else f"keeps {have} GPUs, {wanted} were planned"
        )
        text = f"{app.id} {did}: {cap - most} of {cap} swaps of the step from {window} are used"
        events.append(Event("swap put off", app.id, text))
    events += _settled(before, after, pool)
    return [
        Move(
            app.id,
            app.pool,
            tuple(gpu for gpu in app.held if gpu not in state.cluster.pool(app.pool).down),
            tuple(gpu for one in after[app.id] for gpu in one),
            _swaps(before[app.id], after[app.id], forced[app.id], app.capacity.gpus_per_replica),
            app.capacity.gpus_per_replica,
        )
        for app in state.cluster.apps
    ], events


Replica = tuple[int, ...]


def _replicas(cells: Sequence[Any]) -> list[Replica]:
    return [(one,) if isinstance(one, int) else tuple(one) for one in cells]


def _forced(problem: Problem, pool: str, held: Sequence[Replica]) -> set[Replica]:
    """Return the replicas that have to leave now because a GPU of theirs is closed."""
    shut = [c.gpus for c in problem.pool_by_id[pool].closed or () if c.kind == "down" and c.start == 0]
    return {one for one in held if any(first <= gpu < last for first, last in shut for gpu in one)}


def _swaps(before: Sequence[Replica], after: Sequence[Replica], forced: set[Replica], size: int) -> int:
    """Return the GPUs that enter and leave; what has to leave costs nothing."""
    old, new = {frozenset(one) for one in before}, {frozenset(one) for one in after}
    free = {frozenset(one) for one in forced}
    return size * (len(new - old) + len(old - new - free))


def _partly(
    before: Sequence[Replica], after: Sequence[Replica], forced: set[Replica], most: int
) -> list[Replica]:
    """Return the replicas after at most so many have entered or left, nearest to the number that was planned."""
    kept = [one for one in before if one not in forced]
    if len(after) > len(kept):
        new = [one for one in after if one not in before]
        return kept + new[: min(most, len(after) - len(kept))]
    going = [one for one in kept if one not in after][: min(most, len(kept) - len(after))]
    return [one for one in kept if one not in going]


def _settled(
    before: Mapping[str, Sequence[Replica]], after: dict[str, list[Replica]], pool: Mapping[str, str]
) -> list[Event]:
    """Let no app enter a GPU that another one was to leave and keeps; it keeps one of its own instead."""
    events: dict[str, Event] = {}
    again = True
    while again:
        again = False
        for name, wanted in after.items():
            taken = {
                gpu
                for other, held in after.items()
                if other != name and pool[other] == pool[name]
                for one in held
                if one in before[other]
                for gpu in one
            }
            stuck = [one for one in wanted if one not in before[name] and not taken.isdisjoint(one)]
            if not stuck:
                continue
            again = True
            kept = [one for one in before[name] if one not in wanted][: len(stuck)]
            after[name] = [one for one in wanted if one not in stuck] + kept
            text = (
                f"{name} enters {sum(map(len, stuck))} GPUs later: another app keeps those that it was to get"
            )
            events[name] = Event("swap put off", name, text)
    return list(events.values())


def _starts(state: State, problem: Problem, plan: Plan, moves: Sequence[Move]) -> list[Start]:
    kept: dict[str, set[int]] = {}
    for move in moves:
        kept.setdefault(move.pool, set()).update(move.after)
    out = []
    for p in sorted(plan.placements, key=lambda p: (p.pool, p.first_gpu)):
        if (
            p.start
            or problem.job_by_id[p.job].running is not None
            or not kept.get(p.pool, set()).isdisjoint(p.ids)
        ):
            continue
        pool, ids = state.cluster.pool(p.pool), tuple(p.ids)
        nodes = tuple(dict.fromkeys(pool.node_of(gpu) for gpu in ids)) if pool.nodes else ()
        out.append(Start(p.job, p.pool, p.first_gpu, p.gpus, ids, nodes))
    return out
