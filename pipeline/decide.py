"""The one pure function that decides: a state and a forecaster in, what starts and what moves out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.pipeline.bands import Widths
from tidegrid.pipeline.continuity import Kept, continued
from tidegrid.pipeline.demand import Demand, planned_gpus
from tidegrid.pipeline.etas import deadline_risks, eta_table
from tidegrid.pipeline.forecast import Forecast, Forecaster
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.problem import build_problem, not_stated
from tidegrid.pipeline.records import Event, iso
from tidegrid.pipeline.risks import coverage, unmet
from tidegrid.pipeline.state import State
from tidegrid.scheduler import Plan, Problem, explain, solve
from tidegrid.swaps import swap_cost


@dataclass(frozen=True)
class Start:
    """A job to start now, and its block."""

    job: str
    pool: str
    first_gpu: int
    gpus: int


@dataclass(frozen=True)
class Move:
    """An app's GPUs before and from now on, and the swaps that this takes."""

    app: str
    pool: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    swaps: int


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
            self.problem, self.plan, self.durations, self.seed, widths=self.widths, started=self.started
        )

    @cached_property
    def started(self) -> dict[str, pd.Timestamp]:
        """When each running job started."""
        running = self.state.running
        return dict(zip(running["job_id"].astype(str), running["start_time"], strict=True))

    @cached_property
    def explained(self) -> Plan:
        """The plan with its explanations in the cluster's time zone; its risks count the true need."""
        zone = self.state.cluster.timezone
        return explain(self.problem, self.plan, zone).with_extra(risks=self.risks)

    @cached_property
    def risks(self) -> list[dict[str, Any]]:
        """Where apps are short of what they truly need."""
        return coverage(self.problem, self.plan, self.forecast.demand, self.state)

    @property
    def unmet(self) -> int:
        """GPU-steps of true need inside the horizon that the plan leaves unmet."""
        return unmet(self.problem, self.plan, self.forecast.demand)

    @cached_property
    def refused(self) -> list[tuple[str, str]]:
        """Jobs that cannot run as asked, with the reason."""
        estimates = self.forecast.estimates.refused
        out = [
            (str(job), str(reason))
            for job, reason in zip(estimates["job_id"], estimates["reason"], strict=True)
        ]
        out += [
            (told["job"], told["reason"].removeprefix("refused: "))
            for told in self.explained.extra["explanations"]
            if told["state"] == "refused"
        ]
        return out

    @cached_property
    def not_looked_at(self) -> list[str]:
        """Waiting jobs that were left out because more go first than one decision looks at."""
        known = {*self.problem.job_by_id, *self.forecast.estimates.refused["job_id"].astype(str)}
        return [job for job in self.state.requests["job_id"].astype(str) if job not in known]

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
        As the mode takes them.
    candidates
        Waiting jobs that are looked at, the first by their raised priorities; all where None. Those behind
        them are told no time: fewer cost less.
    last
        The decision before: while nothing but time has passed, what it told keeps its time.
    widths
        How far the bands of expected times reach, as learnt from earlier ones.
    """
    how = policy or Policy()
    forecast = forecaster.forecast(state, how)
    problem = build_problem(state, forecast, how, candidates)
    options: dict[str, Any] = {} if rounds is None else {"rounds": rounds}
    plan = None
    if decider == "fast" and last is not None:
        plan = continued(last, state.now, problem, seed, options)
    if plan is None:
        plan = solve(problem, decider, time_limit=time_limit, seed=seed, **options)
    moves, put_off = _moves(state, problem, plan, forecast.demand)
    events = [*forecast.events, *put_off]
    unheeded = not_stated(state)
    if unheeded:
        text = f"not planned by yet, though the site states it: {'; '.join(unheeded)}"
        events.append(Event("not heeded", "site", text))
    starts = _starts(problem, plan, moves)
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


def _moves(state: State, problem: Problem, plan: Plan, demand: Demand) -> tuple[list[Move], list[Event]]:
    """Return each app's GPUs from now on, within the swaps that are left, and what was put off.

    An app without swaps left keeps its GPUs, and so does one that was to get some of those.
    """
    before = {app.id: set(state.holds(app)) for app in state.cluster.apps}
    pool = {app.id: app.pool for app in state.cluster.apps}
    left = {app.id: state.may_swap(app) for app in state.cluster.apps}
    after = {entry.app: set(entry.cells[0]) for entry in plan.apps}
    events = []
    for app in state.cluster.apps:
        cap, most = app.swap_cap, left[app.id]
        if cap is None or most is None:
            continue
        swaps, used = (
            swap_cost(before[app.id], after[app.id]),
            f"{cap - most} of {cap} swaps of the step from ",
        )
        used += f"{iso(state.now.floor(pd.Timedelta(minutes=problem.step_minutes)))} are used"
        need = demand.gpus[app.id].tolist()
        wanted, gets = planned_gpus(need, cap, len(before[app.id]))[0], problem.app_by_id[app.id].demand[0]
        if swaps > most:
            text = f"{app.id} keeps its {len(before[app.id])} GPUs: {used}, and {swaps} more were wanted"
            events.append(Event("swap put off", app.id, text))
            after[app.id] = before[app.id]
        elif wanted > gets:
            text = f"{app.id} gets {gets} of {wanted} GPUs: {used}"
            events.append(Event("swap put off", app.id, text))
    while True:
        kept = [app for app in after if after[app] == before[app]]
        refused = [
            app
            for app, gpus in after.items()
            if app not in kept
            and any(pool[other] == pool[app] and not before[other].isdisjoint(gpus) for other in kept)
        ]
        if not refused:
            break
        for name in refused:
            text = f"{name} keeps its GPUs: another app keeps some that it was to get"
            events.append(Event("swap put off", name, text))
            after[name] = before[name]
    return [
        Move(
            name,
            pool[name],
            tuple(sorted(before[name])),
            tuple(sorted(after[name])),
            swap_cost(before[name], after[name]),
        )
        for name in after
    ], events


def _starts(problem: Problem, plan: Plan, moves: Sequence[Move]) -> list[Start]:
    kept = {(move.pool, gpu) for move in moves for gpu in move.after}
    return [
        Start(p.job, p.pool, p.first_gpu, p.gpus)
        for p in sorted(plan.placements, key=lambda p: (p.pool, p.first_gpu))
        if p.start == 0
        and problem.job_by_id[p.job].running is None
        and not any((p.pool, gpu) in kept for gpu in range(p.first_gpu, p.first_gpu + p.gpus))
    ]
