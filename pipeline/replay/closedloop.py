"""The rolling allocator in a replay: planned again at every arrival and end, forecasts renewed each hour."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tidegrid.pipeline.estimates import LEVELS, interpolate
from tidegrid.pipeline.etas import follow
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.precedence import raised
from tidegrid.pipeline.replay.oracles import Demand, Durations, remaining_hours
from tidegrid.pipeline.replay.queues import find_block
from tidegrid.pipeline.replay.world import HOUR, World, at_far_end
from tidegrid.scheduler import Plan, Problem, solve
from tidegrid.swaps import ramp, swap_cost

MINUTE = 60.0
CANDIDATES = 120
"""Waiting jobs that one plan looks at, the first by their raised priorities: more would not start in its first step."""
DRAWS = 100
"""Futures that an expected end at submission is taken from."""
WIDTH_STEP = 0.03
"""Step of the bands' width at an end, on its logarithm (adaptive conformal inference, Gibbs and Candès 2021)."""


@dataclass
class Outcome:
    """What a policy did.

    Attributes
    ----------
    start : ndarray of shape (jobs,)
        Seconds; infinity for a job that did not start.
    held : ndarray of shape (apps, hours)
        GPUs that each app held, averaged over the hour.
    unmet : ndarray of shape (apps, hours)
        GPU-hours of demand that were not served.
    swaps
        GPUs that entered or left an app.
    eta : ndarray of shape (jobs, 3)
        Expected end in seconds at 0.1, 0.5 and 0.9, told when the job started; NaN where it did not.
    plans
        Plans made.
    first : ndarray of shape (jobs,)
        The first GPU of each job's block; -1 where it did not start.
    eta_submit : ndarray of shape (jobs, 3) or empty
        Expected ends told at submission, or at the first plan after it; NaN where none was told.
    cells
        Each change of an app's GPUs: the instant in seconds, the app's number, its GPUs from then on.
    """

    start: np.ndarray
    held: np.ndarray
    unmet: np.ndarray
    swaps: int = 0
    eta: np.ndarray = field(default_factory=lambda: np.empty((0, 3)))
    plans: int = 0
    eta_submit: np.ndarray = field(default_factory=lambda: np.empty((0, 3)))
    first: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    cells: list[tuple[float, int, tuple[int, ...]]] = field(default_factory=list)


class Rolling:
    """The rolling allocator.

    Parameters
    ----------
    world
        What happens.
    durations, demand
        What the planner is told.
    policy
        The planner's knobs.
    rounds
        Rounds of the fast planner's search at each plan.
    """

    def __init__(
        self,
        world: World,
        durations: Durations,
        demand: Demand | None,
        policy: Policy,
        rounds: int = 0,
    ) -> None:
        self.world, self.durations, self.demand, self.policy = world, durations, demand, policy
        self.rounds = rounds
        n, apps = len(world.jobs), len(world.apps)
        self.start = np.full(n, np.inf)
        self.first = np.full(n, -1, np.int64)
        self.busy = np.zeros(world.gpus, np.bool_)
        self.budget = [0] * apps
        self.waiting: list[int] = []
        self.running: list[int] = []
        self.curve = np.zeros((apps, 0), np.int64)
        self.hour = -1
        self.outcome = Outcome(
            self.start,
            np.zeros((apps, world.hours)),
            np.zeros((apps, world.hours)),
            eta=np.full((n, 3), np.nan),
            eta_submit=np.full((n, 3), np.nan),
            first=self.first,
        )
        # a job's luck, drawn once: what its duration is in each of the futures that an ETA looks at
        self.luck = np.random.default_rng(0).random((n, DRAWS))
        self.width = 1.0
        self.waited: set[int] = set()
        self.true = world.demand()
        self.told_until = 0.0
        # apps ran before the replay began
        self.held = at_far_end(world.gpus, [app.gpus_before() for app in world.apps])
        self.outcome.cells += [(0.0, k, tuple(cells)) for k, cells in enumerate(self.held)]

    def run(self) -> Outcome:
        """Play the trace to the replay's end."""
        world = self.world
        n, arrived = len(world.jobs), 0
        end = np.full(n, np.inf)
        while True:
            upcoming = [(self.hour + 1) * HOUR]
            if arrived < n:
                upcoming.append(float(world.submit_s[arrived]))
            if self.running:
                upcoming.append(float(min(end[j] for j in self.running)))
            now = min(upcoming)
            if now >= world.end_s:
                break
            self._serve(now)
            # events inside a minute are taken together
            now = (
                min(np.ceil(now / MINUTE) * MINUTE, (self.hour + 1) * HOUR)
                if now < (self.hour + 1) * HOUR
                else now
            )
            over = [j for j in self.running if end[j] <= now]
            if over:
                for j in over:
                    self.busy[self.first[j] : self.first[j] + world.block[j]] = False
                gone = set(over)
                self.running = [j for j in self.running if j not in gone]
                self.durations.ended(np.array(over), now)
                self._learn_width(over, now)
            new = []
            while arrived < n and world.submit_s[arrived] <= now:
                if world.block[arrived] <= world.gpus:
                    new.append(arrived)
                arrived += 1
            if new:
                self.durations.arrived(np.array(new), now)
                self.waiting += new
            tick = now >= (self.hour + 1) * HOUR
            if tick:
                self._tick(now)
            if tick or ((new or over) and self._can_start(new, bool(over))):
                for j in self._plan(now, tick):
                    end[j] = now + world.duration_s[j]
        self._serve(world.end_s)
        return self.outcome

    def _tick(self, now: float) -> None:
        self.hour = int(now // HOUR)
        self.durations.renew(np.array(self.waiting, np.int64), now)
        if self.demand is not None:
            self.curve = self.demand.gpus(self.hour)
        self.budget = [self.world.gpus if app.swap_cap is None else app.swap_cap for app in self.world.apps]

    def _can_start(self, new: list[int], freed: bool) -> bool:
        """Whether some waiting job fits a block that is free now: where none does, no plan could start one."""
        taken = self.busy.copy()
        for cells in self.held:
            taken[cells] = True
        candidates = self.waiting if freed else new
        if not candidates:
            return False
        smallest = int(self.world.block[candidates].min())
        node = self.world.node_size or self.world.gpus
        return bool(find_block(taken, smallest, node) >= 0)

    def _plan(self, now: float, tick: bool) -> list[int]:
        """Plan, and commit step 0: return the jobs that start."""
        problem, chosen = self._problem(now)
        plan = solve(problem, "fast", rounds=self.rounds)
        self.outcome.plans += 1
        planned = [sorted(entry.cells[0]) for entry in plan.apps]
        swaps = [swap_cost(old, new) for old, new in zip(self.held, planned, strict=True)]
        moves = {k: cells for k, cells in enumerate(planned) if 0 < swaps[k] <= self.budget[k]}
        # an app whose swaps are used up keeps its GPUs, and so does one that was to get some of these
        while True:
            keep = {g for k, cells in enumerate(self.held) if k not in moves for g in cells}
            refused = [k for k, cells in moves.items() if not keep.isdisjoint(cells)]
            if not refused:
                break
            for k in refused:
                del moves[k]
        for k, cells in moves.items():
            self.budget[k] -= swaps[k]
            self.outcome.swaps += swaps[k]
            self.held[k] = cells
            self.outcome.cells.append((now, k, tuple(cells)))
            keep.update(cells)
        started = []
        for p in plan.placements:
            if p.start == 0 and p.job in chosen:
                j = chosen[p.job]
                block = range(p.first_gpu, p.first_gpu + p.gpus)
                if keep.isdisjoint(block):
                    started.append(j)
                    self.start[j] = now
                    self.first[j] = p.first_gpu
                    self.busy[p.first_gpu : p.first_gpu + p.gpus] = True
        self._tell(now, problem, plan, chosen)
        if started:
            told = self.durations.hours[started][:, [LEVELS.index(level) for level in (0.1, 0.5, 0.9)]]
            self.outcome.eta[started] = now + told * HOUR
            gone = set(started)
            self.waiting = [j for j in self.waiting if j not in gone]
            self.running += started
        return started

    def _tell(self, now: float, problem: Problem, plan: Plan, chosen: dict[str, int]) -> None:
        """Tell each waiting job when it will end, at the first plan that has a place for it."""
        placed = [p.job for p in plan.placements if p.job in chosen]
        new = {name for name in placed if np.isnan(self.outcome.eta_submit[chosen[name], 1])}
        if not new:
            return
        step = problem.step_minutes * MINUTE
        running = np.array(self.running, np.int64)
        drawn = {}
        if len(running):
            elapsed = (now - self.start[running]) / HOUR
            quantiles = self.durations.hours[running]
            rest = np.stack(
                [remaining_hours(quantiles, np.array(LEVELS), elapsed, x) for x in LEVELS], axis=1
            )
            drawn = {f"r{j}": self._draw(j, rest[k]) * HOUR / step for k, j in enumerate(self.running)}
        for name in placed:
            drawn[name] = self._draw(chosen[name], self.durations.hours[chosen[name]]) * HOUR / step
        for p, _, ends in follow(problem, plan, drawn):
            if p.job in new:
                j = chosen[p.job]
                low, middle, high = now + step * np.quantile(ends, (0.1, 0.5, 0.9))
                if p.start > 0:
                    # who comes later may go first: how far bands of jobs that wait must reach is learnt from their ends
                    low, high = (
                        max(now, middle - (middle - low) * self.width),
                        middle + (high - middle) * self.width,
                    )
                    self.waited.add(j)
                self.outcome.eta_submit[j] = low, middle, high

    def _learn_width(self, ended: list[int], now: float) -> None:
        """Widen the bands of jobs that wait at each end outside its band, narrow them at each inside."""
        for j in [j for j in ended if j in self.waited]:
            low, _, high = self.outcome.eta_submit[j]
            outside = not low <= now <= high
            self.width *= float(np.exp(WIDTH_STEP * (outside - 0.2)))
        self.waited.difference_update(ended)

    def _draw(self, job: int, hours: np.ndarray) -> np.ndarray:
        return np.exp(np.interp(self.luck[job], LEVELS, np.log(np.maximum(hours, 1e-6))))

    def _problem(self, now: float) -> tuple[Problem, dict[str, int]]:
        world, policy = self.world, self.policy
        step_h = policy.step_minutes / 60
        running = np.array(self.running, np.int64)
        jobs: list[dict[str, Any]] = []
        if len(running):
            elapsed = (now - self.start[running]) / HOUR
            rest = remaining_hours(
                self.durations.hours[running], np.array(LEVELS), elapsed, policy.job_quantile
            )
            steps = np.maximum(1, np.ceil(rest / step_h - 1e-9)).astype(int)
            for j, left in zip(self.running, steps.tolist(), strict=True):
                block = {"pool": "gpus", "gpus": int(world.block[j])}
                jobs.append(
                    {
                        "id": f"r{j}", "kind": "training", "priority": int(world.priority[j]), "order": j,
                        "shapes": [], "running": {**block, "first_gpu": int(self.first[j]), "remaining": left},
                    }
                )  # fmt: skip
        waiting = np.array(self.waiting, np.int64)
        chosen: dict[str, int] = {}
        if len(waiting):
            hours = interpolate(self.durations.hours[waiting], policy.job_quantile)
            days = (now - world.submit_s[waiting]) / (24 * HOUR)
            weight = raised(world.priority[waiting], days, hours, policy)
            best = np.lexsort((waiting, -weight))[:CANDIDATES]
            steps = np.maximum(1, np.ceil(hours[best] / step_h - 1e-9)).astype(int)
            for k, length in zip(best, steps.tolist(), strict=True):
                j = int(waiting[k])
                chosen[f"w{j}"] = j
                shape = {"pool": "gpus", "gpus": int(world.block[j]), "steps": length}
                jobs.append(
                    {
                        "id": f"w{j}", "kind": "training", "priority": float(weight[k]), "order": j,
                        "shapes": [shape], "requested": 0,
                    }
                )  # fmt: skip
        total = policy.steps + policy.lookahead_steps
        hour = ((now / HOUR + np.arange(total) * step_h) - self.hour).astype(int)
        hour = np.minimum(hour, max(0, self.curve.shape[1] - 1))
        apps = []
        for k, app in enumerate(world.apps):
            need = ramp(self.curve[k][hour].tolist(), app.swap_cap, len(self.held[k]), patience=1)
            apps.append(
                {
                    "id": app.id, "pool": "gpus", "priority": app.priority, "demand": need,
                    "swap_cap": app.swap_cap, "held": self.held[k],
                }
            )  # fmt: skip
        return (
            Problem.from_dict(
                {
                    "version": 1, "start": None, "step_minutes": policy.step_minutes, "steps": policy.steps,
                    "decay": policy.decay, "shortfall_weight": policy.shortfall_weight,
                    "pools": [{"id": "gpus", "gpus": world.gpus, "node_size": world.node_size}],
                    "jobs": jobs, "apps": apps,
                }
            ),
            chosen,
        )  # fmt: skip

    def _serve(self, until: float) -> None:
        """Account for what apps held since the last event."""
        at = self.told_until
        while at < until:
            hour = int(at // HOUR)
            stop = min(until, (hour + 1) * HOUR)
            share = (stop - at) / HOUR
            for k in range(len(self.world.apps)):
                held = len(self.held[k])
                self.outcome.held[k, hour] += held * share
                self.outcome.unmet[k, hour] += max(0, int(self.true[k, hour]) - held) * share
            at = stop
        self.told_until = max(self.told_until, until)
