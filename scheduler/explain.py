"""Why each job starts when it does, where realtime is at risk, and which GPUs stay idle.

Explanations are computed from the problem and the plan alone, so they hold for any mode, and for a plan
that was read from a file. They are made when asked for, outside the planners' time.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from tidegrid.errors import InputError
from tidegrid.scheduler.arrays import FAR, Arrays, arrays_of
from tidegrid.scheduler.clock import Clock, gpu_count, step_count
from tidegrid.scheduler.coverage import (
    coverage_risks,
    idle_windows,
    past_horizon,
    span,
    surplus,
    tail_use,
)
from tidegrid.scheduler.plan import Placement, Plan
from tidegrid.scheduler.problem import Job, Problem, Shape
from tidegrid.scheduler.refusals import refusal, shape_refusal
from tidegrid.scheduler.solve import BASELINES

State = Literal["running", "now", "later", "not in this horizon", "refused"]

#: Blockers named for a job: those that hold its block longest.
MOST_BLOCKERS = 8

_FIFO = ("fifo", "fifo_elastic")


def explain(problem: Problem, plan: Plan, timezone: str | None = None) -> Plan:
    """Return the plan with its explanations.

    Parameters
    ----------
    problem
        The input that the plan answers.
    plan
        A legal plan.
    timezone
        IANA zone of the clock times beside the steps, which a problem with a ``start`` has; UTC where None.

    Returns
    -------
    Plan
        With these further keys. ``explanations``: for each job ``job``, ``state`` (running, now, later, not
        in this horizon, refused), ``start`` and ``end`` in steps or None, ``reason`` in words, and
        ``blockers``, the tasks whose earlier end would let it start sooner. ``risks``: ``app``, ``from`` and
        ``to`` (exclusive) step, ``short`` GPUs, ``text``. ``idle_windows``: ``pool``, ``first_gpu``,
        ``last_gpu``, ``from``, ``to``, ``text``. ``surplus``: GPUs that an app holds beyond its demand.
    """
    view = _View(problem, plan, timezone)
    return plan.with_extra(
        explanations=[view.explain(job) for job in problem.jobs],
        risks=coverage_risks(problem, plan, view.clock),
        idle_windows=idle_windows(problem, plan, view.clock),
        surplus=surplus(problem, plan, view.clock),
    )


def explain_job(problem: Problem, plan: Plan, job: str, timezone: str | None = None) -> dict[str, Any]:
    """Return the explanation of one job, as in `explain`.

    Raises
    ------
    InputError
        The problem has no such job.
    """
    if job not in problem.job_by_id:
        known = ", ".join(list(problem.job_by_id)[:5])
        raise InputError(f"the problem has no job {job!r}", field="job", fix=f"name one of {known}, …")
    return _View(problem, plan, timezone).explain(problem.job_by_id[job])


class _View:
    """The plan's board, with every question that an explanation asks of it."""

    def __init__(self, problem: Problem, plan: Plan, timezone: str | None = None) -> None:
        # The loops are compiled; whoever never asks for a reason never waits for the compiler's import.
        from tidegrid.scheduler.baselines.engine import _earliest, _fit, _free_runs

        self._earliest, self._fit = _earliest, _fit
        self.problem, self.plan = problem, plan
        self.clock = Clock(problem, timezone)
        self.arrays: Arrays = arrays_of(problem)
        self.offset = np.concatenate([[0], np.cumsum(self.arrays.pool_gpus)])
        self.pool = {pool.id: i for i, pool in enumerate(problem.pools)}
        self.names = [job.id for job in problem.jobs] + [app.id for app in problem.apps]
        number = {name: i for i, name in enumerate(self.names)}
        self.owner = np.full((problem.steps, int(self.offset[-1])), -1, np.int32)
        for p in plan.placements:
            self.owner[p.start : p.end, self._columns(p.pool, p.first_gpu, p.gpus)] = number[p.job]
        for name, cells in plan.apps:
            low = self.offset[self.pool[problem.app_by_id[name].pool]]
            for t, held in enumerate(cells):
                self.owner[t, low + np.array(held, np.int64)] = number[name]
        self.run, _ = _free_runs(self.owner >= 0, self.offset)
        self.any_free = np.full((problem.steps, len(problem.pools)), 1 << 40, np.int64)
        self.tails = tail_use(problem, plan)
        # Long queues ask the same questions of the same board again and again.
        self.answers: dict[tuple[Any, ...], Any] = {}

    def _once(self, question: Callable[..., Any], *about: Any) -> Any:
        key = (question.__name__, *about)
        if key not in self.answers:
            self.answers[key] = question(*about)
        return self.answers[key]

    def _columns(self, pool: str, first: int, count: int) -> slice:
        low = int(self.offset[self.pool[pool]]) + first
        return slice(low, low + count)

    def explain(self, job: Job) -> dict[str, Any]:
        """Return the job's record."""
        placed = self.plan.placement_by_job.get(job.id)
        if placed is not None:
            return self._explain_placed(job, placed)
        reason = refusal(self.problem, job, self.clock)
        if reason:
            return _record(job, "refused", f"refused: {reason}")
        return self._explain_waiting(job)

    def _explain_placed(self, job: Job, placed: Placement) -> dict[str, Any]:
        if job.running:
            return _record(job, "running", f"it runs, {step_count(placed.steps)} to go", placed)
        where = f"on GPU {span(placed.first_gpu, placed.gpus)} of {placed.pool}"
        if placed.start == 0:
            return _record(job, "now", f"it starts now {where}", placed)
        if placed.start == job.earliest:
            return _record(job, "later", f"it may not start before {self.clock.step(job.earliest)}", placed)
        shape = Shape(pool=placed.pool, gpus=placed.gpus, steps=placed.steps)
        with _Without(self, placed):
            latest = self._latest_end(job)
            start, first = self._search(shape.pool, shape.gpus, shape.steps, job.earliest, latest)
            why = self._shortage(shape, job.earliest, start, first)
        if start < placed.start:
            block = span(placed.first_gpu, placed.gpus)
            why += f"; {self._choice()}it starts at {self.clock.step(placed.start)} ({block})"
            start, first = placed.start, placed.first_gpu
        return _record(job, "later", why, placed, self._blockers(job, shape, start, first))

    def _explain_waiting(self, job: Job) -> dict[str, Any]:
        state: State = "not in this horizon"
        if job.earliest >= self.problem.steps:
            return _record(job, state, f"its earliest, {self.clock.step(job.earliest)}, is past the horizon")
        shape = self._shape_in_question(job)
        never = shape_refusal(self.problem, job, shape, self.clock)
        if never:
            return _record(job, "refused", f"refused: {self.plan.mode} gives a job one size, and {never}")
        start, first = self._first_place(job, shape)
        shortage = self._once(self._shortage, shape, job.earliest, start, first)
        if start >= 0:
            if self._tail_costs_more(job, shape, start):
                why = "past the horizon it would leave realtime short, which costs more than it earns"
            else:
                why = self._choice() + "it has no start in this horizon"
            return _record(job, state, f"{shortage}; {why}", None, self._blockers(job, shape, start, first))
        start, first = self._least_blocked(job, shape)
        if start < 0:
            block = f"{gpu_count(shape.gpus)} for {step_count(shape.steps)}"
            why = f"{block} from {self.clock.step(job.earliest)} on end past the horizon, which it may not"
            return _record(job, state, why)
        why = f"{shortage}; no block of {shape.gpus} is free for {step_count(shape.steps)}"
        return _record(job, state, why, None, self._blockers(job, shape, start, first, shape.steps))

    def _shape_in_question(self, job: Job) -> Shape:
        """The shape that a baseline is bound to, or else one that has a place, or else the smallest."""
        if self.plan.mode in BASELINES:
            if job.requested is not None:
                return job.shapes[job.requested]
            pools = self.problem.pool_by_id
            usable = [s for s in job.shapes if pools[s.pool].allows(0, s.gpus)]
            return max(usable, key=lambda s: (s.gpus, -s.steps))
        usable = [s for s in job.shapes if not shape_refusal(self.problem, job, s)]
        with_place = [s for s in usable if self._first_place(job, s)[0] >= 0]
        return min(with_place or usable, key=lambda s: (s.gpus, s.steps))

    def _latest_end(self, job: Job) -> int:
        inside = self.problem.steps if job.finish_inside else FAR
        return inside if job.deadline is None else min(job.deadline, inside)

    def _first_place(self, job: Job, shape: Shape) -> tuple[int, int]:
        """First step and GPU of a free legal block for the whole of the shape; (−1, −1) for none."""
        return self._once(
            self._search, shape.pool, shape.gpus, shape.steps, job.earliest, self._latest_end(job)
        )

    def _search(self, pool: str, gpus: int, steps: int, earliest: int, latest_end: int) -> tuple[int, int]:
        p = self.pool[pool]
        low, high = int(self.offset[p]), int(self.offset[p + 1])
        node = int(self.arrays.pool_node[p])
        start, gpu = self._earliest(
            self.run, self.any_free, p, low, high, node, gpus, steps, earliest, latest_end
        )
        return int(start), int(gpu) - low if start >= 0 else -1

    def _block_at(self, t: int, pool: str, gpus: int, need: int = 1) -> int:
        p = self.pool[pool]
        low, high = int(self.offset[p]), int(self.offset[p + 1])
        gpu = self._fit(self.run[t], low, high, int(self.arrays.pool_node[p]), gpus, need, 0, 0, 0)
        return int(gpu) - low if gpu >= 0 else -1

    def _shortage(self, shape: Shape, t: int, start: int, first: int) -> str:
        """What is free at step t, a job's earliest, and where the first block for its shape is."""
        pool = self.problem.pool_by_id[shape.pool]
        free = int((self.run[t, self._columns(pool.id, 0, pool.gpus)] > 0).sum())
        at = "" if t == 0 else f" at {self.clock.step(t)}"
        what = f"first block of {shape.gpus}"
        if free == 0:
            text = f"no GPU free{at}"
        elif self._block_at(t, pool.id, shape.gpus) < 0:
            largest = next(
                (1 << k for k in range(free.bit_length(), -1, -1) if self._block_at(t, pool.id, 1 << k) >= 0),
                0,
            )
            text = f"{gpu_count(free)} free{at}, largest block {largest}"
        else:
            need = min(shape.steps, self.problem.steps - t)
            long = max(n for n in range(1, need + 1) if self._block_at(t, pool.id, shape.gpus, n) >= 0)
            block = span(self._block_at(t, pool.id, shape.gpus, long), shape.gpus)
            if long == need:
                return f"{gpu_count(free)} free{at}, block of {shape.gpus} ({block})"
            text = f"{gpu_count(free)} free{at}, block of {shape.gpus} ({block})"
            text += f" for {long} of {step_count(shape.steps)}"
            what += f" for {step_count(shape.steps)}"
        return (
            text if start < 0 else f"{text}; {what} at {self.clock.step(start)} ({span(first, shape.gpus)})"
        )

    def _choice(self) -> str:
        if self.plan.mode in _FIFO:
            return "first in, first out starts no job before its predecessor: "
        if self.plan.mode in BASELINES:
            return f"mode {self.plan.mode} serves its queue in its own order: "
        return f"mode {self.plan.mode} weighs the whole queue: "

    def _tail_costs_more(self, job: Job, shape: Shape, start: int) -> bool:
        """Whether the cells past the horizon would cost more shortfall than the cells inside it earn."""
        problem, end = self.problem, start + shape.steps
        if end <= problem.steps:
            return False
        longer = {pool: list(row) for pool, row in self.tails.items()}
        for t in range(problem.steps, min(end, problem.lookahead)):
            longer[shape.pool][t - problem.steps] += shape.gpus
        before = self._once(self._charges)
        after = sum(self._charge(risk) for risk in past_horizon(problem, longer))
        earned = self.arrays.weight_before[problem.steps] - self.arrays.weight_before[start]
        return after - before >= job.priority * shape.gpus * earned

    def _charges(self) -> float:
        return sum(
            self._charge(risk) for risk in past_horizon(self.problem, tail_use(self.problem, self.plan))
        )

    def _charge(self, risk: tuple[str, int, int]) -> float:
        app, t, short = risk
        problem = self.problem
        return problem.shortfall_weight * problem.app_by_id[app].priority * problem.decay**t * short

    def _least_blocked(self, job: Job, shape: Shape) -> tuple[int, int]:
        """The legal place with the fewest taken cells; (−1, −1) where time is too short."""
        # A start near the end is the least blocked by cutting the job short, which explains nothing.
        last = max(job.earliest, self.problem.steps - shape.steps)
        last = min(last, self._latest_end(job) - shape.steps)
        return self._once(self._fewest_taken, shape.pool, shape.gpus, shape.steps, job.earliest, last)

    def _fewest_taken(self, pool: str, gpus: int, steps: int, earliest: int, last: int) -> tuple[int, int]:
        taken, firsts = self._once(self._taken_before, pool), self._once(self._legal_firsts, pool, gpus)
        best, place = FAR, (-1, -1)
        for t in range(earliest, last + 1):
            rows = taken[min(t + steps, self.problem.steps)] - taken[t]
            cells = rows[firsts + gpus] - rows[firsts]
            if cells.min() < best:
                best, place = int(cells.min()), (t, int(firsts[cells.argmin()]))
        return place

    def _taken_before(self, pool: str) -> np.ndarray:
        """(T + 1, G + 1) taken cells at earlier steps on lower GPUs."""
        gpus = self.problem.pool_by_id[pool].gpus
        taken = np.zeros((self.problem.steps + 1, gpus + 1), np.int64)
        taken[1:, 1:] = (self.owner[:, self._columns(pool, 0, gpus)] >= 0).cumsum(axis=0).cumsum(axis=1)
        return taken

    def _legal_firsts(self, pool: str, gpus: int) -> np.ndarray:
        where = self.problem.pool_by_id[pool]
        return np.array([g for g in range(where.gpus - gpus + 1) if where.allows(g, gpus)], np.int64)

    def _blockers(
        self, job: Job, shape: Shape, start: int, first: int, length: int = 0
    ) -> list[dict[str, Any]]:
        """Who holds the block before ``start``, or for ``length`` steps from it on, and until when.

        The `MOST_BLOCKERS` that hold it longest are named.
        """
        since = start if length else job.earliest
        until = min(start + length, self.problem.steps)
        return self._once(self._holders, shape.pool, first, shape.gpus, since, until)

    def _holders(self, pool: str, first: int, gpus: int, since: int, until: int) -> list[dict[str, Any]]:
        cells = self.owner[since:until, self._columns(pool, first, gpus)]
        at, gpu = np.nonzero(cells >= 0)
        numbers, inverse = np.unique(cells[at, gpu], return_inverse=True)
        end = np.zeros(len(numbers), np.int64)
        np.maximum.at(end, inverse, since + at + 1)
        found = []
        for i in np.lexsort((numbers, -end))[:MOST_BLOCKERS]:
            mine = inverse == i
            low, high, name = int(gpu[mine].min()), int(gpu[mine].max()), self.names[numbers[i]]
            held = span(first + low, high - low + 1)
            text = self._blocking(name, held, int(end[i]))
            found.append({"task": name, "from": since + int(at[mine].min()), "to": int(end[i]), "text": text})
        return sorted(found, key=lambda item: (-item["to"], item["task"]))

    def _blocking(self, name: str, held: str, until: int) -> str:
        app = self.problem.app_by_id.get(name)
        if app is not None:
            most = max(app.demand[:until])
            return f"{name} holds GPU {held} until {self.clock.step(until)} (realtime, demand up to {most})"
        job = self.problem.job_by_id[name]
        how = "running" if job.running else f"priority {job.priority}"
        return f"{name} holds GPU {held} until {self.clock.step(until)} ({how})"


class _Without:
    """The board without one placement, for as long as the block lasts."""

    def __init__(self, view: _View, placed: Placement) -> None:
        self._run = view.run
        self._columns = view._columns(placed.pool, placed.first_gpu, placed.gpus)
        self._rows = slice(placed.start, placed.end)

    def __enter__(self) -> None:
        self._kept = self._run[:, self._columns].copy()
        run = self._run[:, self._columns]
        steps = len(run)
        for t in range(min(self._rows.stop, steps) - 1, -1, -1):
            free = (run[t] > 0) | (t >= self._rows.start)
            run[t] = np.where(free, 1 + (run[t + 1] if t + 1 < steps else 0), 0)

    def __exit__(self, *_: object) -> None:
        self._run[:, self._columns] = self._kept


def _record(
    job: Job,
    state: State,
    reason: str,
    placed: Placement | None = None,
    blockers: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    return {
        "job": job.id,
        "state": state,
        "start": placed.start if placed else None,
        "end": placed.end if placed else None,
        "reason": reason,
        "blockers": list(blockers),
    }
