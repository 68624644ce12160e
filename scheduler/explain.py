"""Why each job starts when it does, where realtime is at risk, and which GPUs stay idle.

Explanations are computed from the problem and the plan alone, so they hold for any mode, and for a plan
that was read from a file. They are made when asked for, outside the planners' time. What a reason says of free
GPUs, and of tasks without which a job would start sooner, is asked of the plan's board.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from tidegrid.errors import InputError
from tidegrid.scheduler.arrays import FAR, arrays_of
from tidegrid.scheduler.baselines import chosen_shape
from tidegrid.scheduler.baselines.board import Ask, Place
from tidegrid.scheduler.baselines.places import gpus_of, runs
from tidegrid.scheduler.clock import Clock, gpu_count, step_count
from tidegrid.scheduler.coverage import (
    closing_text,
    coverage_risks,
    idle_windows,
    killed_text,
    past_horizon,
    span,
    surplus,
    tail_use,
)
from tidegrid.scheduler.plan import Placement, Plan
from tidegrid.scheduler.planned import PlanBoard
from tidegrid.scheduler.problem import Job, Problem, Shape
from tidegrid.scheduler.refusals import refusal, shape_refusal
from tidegrid.scheduler.solve import BASELINES

State = Literal["running", "now", "later", "not in this horizon", "refused"]

#: Blockers named for a job: those that hold its GPUs longest.
MOST_BLOCKERS = 8
#: Stretches of neighbouring GPUs, and shapes that a time limit kills, that a reason lists.
MOST_LISTED = 4

_FIFO = ("fifo", "fifo_elastic")
_BY_ARRIVAL = (*_FIFO, "fifo_backfill", "easy")


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
        in this horizon, refused), ``start`` and ``end`` in steps or None, ``expected`` (a start past the horizon where
        the plan has one, else None), ``reason`` in words, and ``blockers``. A blocker is a task without which the
        job would start sooner (``alone``), or one of those without which it would only if all of them were not
        there: ``task``, ``alone``, ``from`` and ``to`` (exclusive) step, ``text``. ``risks``: see `coverage_risks`.
        ``idle_windows``: ``pool``, ``first_gpu``, ``last_gpu``, ``from``, ``to``, ``text``. ``surplus``: GPUs that an
        app holds beyond its demand.
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


def refusals(problem: Problem, plan: Plan, timezone: str | None = None) -> dict[str, str]:
    """Return the jobs that `explain` says are refused, and why, without explaining the others."""
    rest = [job for job in problem.jobs if job.id not in plan.placement_by_job]
    if not rest:
        return {}
    view = _View(problem, plan, timezone)
    found = {job.id: view.refused(job) for job in rest}
    return {name: text for name, text in found.items() if text}


def gpu_span(gpus: Sequence[int]) -> str:
    """Return "0–3, 6": GPUs, ascending, as stretches of neighbours."""
    told, rest = [], list(gpus)
    while rest:
        count = next((k for k, gpu in enumerate(rest) if gpu != rest[0] + k), len(rest))
        told.append(span(rest[0], count))
        rest = rest[count:]
    more = len(told) - MOST_LISTED
    return ", ".join(told[:MOST_LISTED]) + (f" and {more} more stretches" if more > 0 else "")


class _View:
    """The plan's board, with every question that an explanation asks of it."""

    def __init__(self, problem: Problem, plan: Plan, timezone: str | None = None) -> None:
        self.problem, self.plan = problem, plan
        self.clock = Clock(problem, timezone)
        self.board = PlanBoard(problem, plan)
        self.tails = tail_use(problem, plan)
        self.expected = {
            one["job"]: one["start"]
            for one in plan.extra.get("expected") or ()
            if isinstance(one, dict) and isinstance(one.get("start"), int) and "job" in one
        }

    def explain(self, job: Job) -> dict[str, Any]:
        """Return the job's record."""
        placed = self.plan.placement_by_job.get(job.id)
        if placed is not None:
            record = self._explain_placed(job, placed)
            chosen = (placed.pool, placed.gpus, placed.steps)
        else:
            reason = self.refused(job)
            if reason:
                return self._record(job, "refused", f"refused: {reason}")
            record = self._explain_waiting(job)
            chosen = None
        if record["state"] not in ("running", "refused") and (killed := self._killed(job, chosen)):
            record["reason"] += f"; {killed}"
        return record

    def refused(self, job: Job) -> str:
        """Say why a job without a place is refused; "" where it is not."""
        reason = refusal(self.problem, job, self.clock)
        if reason or job.earliest >= self.problem.steps:
            return reason or ""
        _, ready = self._waits_for(job)
        if ready >= self.problem.steps:
            return ""
        never = shape_refusal(self.problem, job, self._shape_in_question(job, ready), self.clock)
        return f"{self.plan.mode} gives a job one size, and {never}" if never else ""

    # --- jobs that have a place ---

    def _explain_placed(self, job: Job, placed: Placement) -> dict[str, Any]:
        if job.running:
            return self._record(job, "running", f"it runs, {step_count(placed.steps)} to go", placed)
        if placed.start == 0:
            where = f"on GPU {gpu_span(placed.ids)} of {placed.pool}"
            return self._record(job, "now", f"it starts now {where}", placed)
        ask = self._ask_of(job, placed)
        with self.board.without(job.id):
            parts, ready = self._waits_for(job)
            if not parts and placed.start == job.earliest:
                parts = [f"it may not start before {self.clock.step(job.earliest)}"]
            blockers: list[dict[str, Any]] = []
            if placed.start > ready:
                place = self.board.earliest(ask, ready, placed.start) or Place(
                    placed.start, self.board.hold_of(placed).mask
                )
                parts.append(self._shortage(ask, ready, place))
                if place.start < placed.start:
                    at = f"{self.clock.step(placed.start)} ({gpu_span(placed.ids)})"
                    parts.append(f"{self._choice()}it starts at {at}")
                else:
                    blockers = self._blockers(job, ask, place, (ready, placed.start), ready, placed.start)
        return self._record(job, "later", "; ".join(parts), placed, blockers)

    def _ask_of(self, job: Job, placed: Placement) -> Ask:
        """What a placed job asks for: its shape there, with the nodes on which it lies."""
        node = self.board.layout[placed.pool].node
        nodes = len({gpu // node for gpu in placed.ids})
        asks = [
            ask
            for shape in job.shapes
            if (shape.pool, shape.gpus, shape.steps) == (placed.pool, placed.gpus, placed.steps)
            and (ask := self.board.ask(job, shape)) is not None
        ]
        lies = self.board.hold_of(placed).mask
        return next((ask for ask in asks if ask.nodes in (nodes, 1) and not lies & ~ask.allowed), asks[0])

    def _waits_for(self, job: Job) -> tuple[list[str], int]:
        """Say which job that it comes after ends last, and from when on it may start (`FAR`: not in this plan)."""
        last, name = job.earliest, None
        for other in job.after or ():
            if other in self.problem.job_by_id:
                placed = self.plan.placement_by_job.get(other)
                end = placed.end if placed else FAR
                if end > last:
                    last, name = end, other
        if name is None:
            return [], last
        if last == FAR:
            return [f"waits for {name}, which has no place in this horizon"], last
        past = ", past the horizon" if last >= self.problem.steps else ""
        return [f"waits for {name}, which ends at {self.clock.step(last)}{past}"], last

    # --- jobs that have none ---

    def _explain_waiting(self, job: Job) -> dict[str, Any]:
        state: State = "not in this horizon"
        steps = self.problem.steps
        if job.earliest >= steps:
            text = f"its earliest, {self.clock.step(job.earliest)}, is past the horizon"
            return self._record(job, state, text)
        parts, ready = self._waits_for(job)
        if ready >= steps:
            return self._record(job, state, "; ".join(parts))
        shape = self._shape_in_question(job, ready)
        ask = self.board.ask(job, shape)
        assert ask is not None, "a shape that is not refused fits the empty pool"
        place = self._first(ask, ready)
        if place is not None:
            if self._tail_costs_more(job, shape, place.start):
                why = "past the horizon it would leave realtime short, which costs more than it earns"
            else:
                why = self._choice() + "it has no start in this horizon"
            return self._record(job, state, "; ".join([*parts, self._shortage(ask, ready, place), why]))
        late = self._first(ask._replace(latest_end=FAR), ready)
        if late is not None:
            parts.append(self._shortage(ask._replace(latest_end=FAR), ready, late))
            parts.append(self._too_late(job, late.start + shape.steps))
            return self._record(job, state, "; ".join(parts), None, self._in_the_way(job, ask, ready))
        what = f"block of {shape.gpus}" if not self._by_node(ask) else f"place for {self._wanted(ask)}"
        parts.append(self._shortage(ask, ready, None))
        if self._first(ask._replace(limits=(), latest_end=FAR), ready) is None:
            parts.append(f"no {what} is free for {step_count(shape.steps)} from any step of this horizon on")
        return self._record(job, state, "; ".join(parts), None, self._in_the_way(job, ask, ready))

    def _first(self, ask: Ask, ready: int) -> Place | None:
        """The first free place that starts inside the horizon."""
        return self.board.once(self._search, ask._replace(job="", earliest=0), ready)

    def _search(self, ask: Ask, ready: int) -> Place | None:
        return self.board.earliest(ask, ready, self.problem.steps)

    def _too_late(self, job: Job, end: int) -> str:
        if job.deadline is not None and end > job.deadline:
            return (
                f"it would end at {self.clock.step(end)}, past its deadline, {self.clock.step(job.deadline)}"
            )
        return f"it would end at {self.clock.step(end)}, past the horizon, in which it must end"

    def _shape_in_question(self, job: Job, ready: int) -> Shape:
        """The shape that a baseline is bound to, or else one that has a place, or else the smallest."""
        if self.plan.mode in BASELINES:
            return chosen_shape(self.board, job) or job.shapes[job.requested or 0]
        usable = [s for s in job.shapes if not shape_refusal(self.problem, job, s)]
        with_place = [
            s for s in usable if (ask := self.board.ask(job, s)) and self._first(ask, ready) is not None
        ]
        return min(with_place or usable, key=lambda s: (-s.success, s.gpus, s.steps))

    def _in_the_way(self, job: Job, ask: Ask, ready: int) -> list[dict[str, Any]]:
        """The tasks without which the job would have a start in this horizon."""
        steps = self.problem.steps
        least = self.board.once(self.board.least_taken, ask._replace(job="", earliest=0), ready, steps)
        if least is None:
            return []
        stop = min(least.start + ask.steps, max(steps, least.start + 1))
        return self._blockers(job, ask, least, (least.start, stop), ready, steps)

    def _tail_costs_more(self, job: Job, shape: Shape, start: int) -> bool:
        """Whether the cells past the horizon would cost more shortfall than the cells inside it earn."""
        problem, end = self.problem, start + shape.steps
        if end <= problem.steps:
            return False
        longer = {pool: list(row) for pool, row in self.tails.items()}
        for t in range(problem.steps, min(end, problem.lookahead)):
            longer[shape.pool][t - problem.steps] += shape.gpus
        before, after = (self._charges(used) for used in (self.tails, longer))
        weight = arrays_of(problem).weight_before
        rate: float = shape.gpus
        if problem.pays_for_work:
            rate = job.least_work / shape.steps * shape.success
        earned = (job.priority * rate - problem.gpu_cost * shape.gpus) * (
            weight[problem.steps] - weight[start]
        )
        return bool(after - before >= earned)

    def _charges(self, used: dict[str, list[int]]) -> float:
        problem = self.problem
        return sum(
            problem.shortfall_weight * problem.app_by_id[app].priority * problem.decay**t * short
            for app, t, short in past_horizon(problem, used)
        )

    # --- what is free ---

    def _by_node(self, ask: Ask) -> bool:
        return self.board.layout[ask.pool].by_node

    def _wanted(self, ask: Ask) -> str:
        return gpu_count(ask.gpus) + (f" on {ask.nodes} nodes" if ask.nodes > 1 else "")

    def _shortage(self, ask: Ask, t: int, place: Place | None) -> str:
        """Say what keeps a job from starting at step t, and where its first place is; `place` None: nowhere."""
        return str(self.board.once(self._shortage_text, ask._replace(job="", earliest=0), t, place))

    def _shortage_text(self, ask: Ask, t: int, place: Place | None) -> str:
        limited = self._limited(ask, t)
        until = self.problem.steps if place is None else place.start
        parts = [limited] if limited else []
        if limited:  # what limits it may not be all: look again from where the limits allow it
            over = self.board.over(ask, t)
            while over is not None and over < until:
                t, over = over, self.board.over(ask, over)
            if over is not None:
                return self._with_place(limited, self._named(ask), place)
        if not limited or t < until:
            parts.append(self._free_text(ask, t))
        short = self.board.at(ask._replace(limits=(), latest_end=FAR), t) == 0
        parts += [
            closing_text(self.problem.pool_by_id[ask.pool], self.clock, self._closed(ask, k))
            for k in (self.board.closings_in_the_way(ask, t, until) if short else ())
        ]
        if place is not None and place.start == t and not limited:
            return "; ".join(parts)
        named = self._named(ask)
        if short and self.board.at(ask._replace(steps=1, limits=(), latest_end=FAR), t):
            named += f" for {step_count(ask.steps)}"
        return self._with_place("; ".join(parts), named, place)

    def _closed(self, ask: Ask, k: int) -> Any:
        return (self.problem.pool_by_id[ask.pool].closed or ())[k]

    def _named(self, ask: Ask) -> str:
        return f"first place for {self._wanted(ask)}" if self._by_node(ask) else f"first block of {ask.gpus}"

    def _with_place(self, text: str, named: str, place: Place | None) -> str:
        if place is None:
            return text
        return f"{text}; {named} at {self.clock.step(place.start)} ({gpu_span(gpus_of(place.mask))})"

    def _limited(self, ask: Ask, t: int) -> str:
        """Say which limit a job would be over if it started at step t."""
        for k, amount in ask.limits:
            limit, use = self.board.limits[k], self.board.use[k]
            i = use.at(t)
            while i < len(use.times) and use.times[i] < t + ask.steps:
                if use.values[i] + amount > limit.most:
                    when = max(t, use.times[i])
                    at = "" if when == 0 else f" at {self.clock.step(when)}"
                    if not limit.counts_gpus:
                        return f"waits for {limit.owner}: {use.values[i]} of at most {limit.most} run{at}"
                    of = "" if limit.pool is None else f" of {limit.pool}"
                    return f"{limit.owner} holds {use.values[i]} of its {gpu_count(limit.most)}{of}{at}"
                i += 1
        return ""

    def _free_text(self, ask: Ask, t: int) -> str:
        """Say what is free at step t for a job, and for how long where that is enough for a while."""
        board, layout = self.board, self.board.layout[ask.pool]
        free = board.free(ask.pool, t, t + 1) & ask.allowed
        at = "" if t == 0 else f" at {self.clock.step(t)}"
        among = "" if ask.allowed == layout.every else f" of GPUs {gpu_span(gpus_of(ask.allowed))}"
        if not free:
            return f"no GPU free{among}{at}"
        text = f"{gpu_count(free.bit_count())} free{among}{at}"
        alone = ask._replace(limits=(), latest_end=FAR)
        if not board.at(alone._replace(steps=1), t):
            return f"{text}, {self._too_scattered(ask, free)}"
        low, high = (
            1,
            ask.steps,
        )  # the longest for which a place is free: whoever fits for longer fits for less
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if board.at(alone._replace(steps=middle), t) else (low, middle - 1)
        where = gpu_span(gpus_of(board.at(alone._replace(steps=low), t)))
        text += f", {f'room for {self._wanted(ask)}' if layout.by_node else f'block of {ask.gpus}'} ({where})"
        return text if low == ask.steps else f"{text} for {low} of {step_count(ask.steps)}"

    def _too_scattered(self, ask: Ask, free: int) -> str:
        layout = self.board.layout[ask.pool]
        if layout.by_node:
            each = ask.gpus // ask.nodes
            counts = [bits.bit_count() for _, bits in layout.nodes(free)]
            if ask.nodes == 1:
                return f"at most {max(counts)} on one node"
            have = sum(count >= each for count in counts)
            return f"{have} of the {ask.nodes} nodes that it needs have {gpu_count(each)} free"
        longest = max(length for _, length in runs(free))
        largest = next(
            (1 << k for k in range(longest.bit_length() - 1, -1, -1) if layout.blocks(free, 1 << k)), 0
        )
        return f"largest block {largest}"

    # --- who is in the way, and who goes first ---

    def _choice(self) -> str:
        if self.plan.mode in _FIFO:
            return "first in, first out starts no job of a pool before its predecessor: "
        if self.plan.mode in BASELINES:
            return f"mode {self.plan.mode} serves its queue in its own order: "
        return f"mode {self.plan.mode} weighs the whole queue: "

    def _blockers(
        self, job: Job, ask: Ask, place: Place, span_of: tuple[int, int], start: int, until: int
    ) -> list[dict[str, Any]]:
        """Say without which of the tasks that hold a place in a span of steps the job would start before ``until``."""
        key = ask._replace(job="", earliest=0)
        holders = self.board.once(self.board.holders, key, place.mask, *span_of)
        alone, together = self.board.once(self._needed, key, tuple(holders), start, until)
        found = []
        for task in (alone or together)[:MOST_BLOCKERS]:
            stop = max(until, min(place.start + ask.steps, self.problem.steps))
            held = self.board.held(task, ask.pool, place.mask, start, stop)
            since, end = (held[1], held[2]) if held else self._span(task)
            text = self._blocking(job, ask, task, held[0] if held else 0, end)
            found.append({"task": task, "alone": bool(alone), "from": since, "to": end, "text": text})
        found.sort(key=lambda item: (-item["to"], item["task"]))
        if together and found:
            more = len(together) - len(found)
            others = f" and {more} more" if more else ""
            names = ", ".join(item["task"] for item in found) + others
            for item in found:
                item["text"] += f" (only jointly: {names})" if len(together) > 1 else ""
        return found

    def _needed(
        self, ask: Ask, holders: tuple[str, ...], start: int, until: int
    ) -> tuple[list[str], list[str]]:
        return self.board.alone_or_together(ask, list(holders), start, until)

    def _span(self, task: str) -> tuple[int, int]:
        holds = self.board.holds[task]
        return holds[0].start, holds[-1].end

    def _blocking(self, job: Job, ask: Ask, name: str, mask: int, until: int) -> str:
        end = self.clock.step(until)
        what = f"holds GPU {gpu_span(gpus_of(mask))}" if mask else "runs"
        app = self.problem.app_by_id.get(name)
        if app is not None:
            most = max(app.demand[:until])
            when = f"until {end}" if until < self.problem.steps else "to the end of the horizon"
            return f"{name} {what} {when} (realtime, demand up to {most})"
        other = self.problem.job_by_id[name]
        how = (
            "running"
            if other.running
            else f"priority {round(other.priority, 1):g}{self._goes_first(job, ask, other)}"
        )
        return f"{name} {what} until {end} ({how})"

    def _goes_first(self, job: Job, ask: Ask, other: Job) -> str:
        """Say why a job of lower priority has what this one waits for."""
        if other.priority >= job.priority:
            return ""
        placed = self.plan.placement_by_job[other.id]
        if self.plan.mode in _BY_ARRIVAL and (other.order, other.id) < (job.order, job.id):
            return ", it came first"
        reasons = []
        if placed.gpus < ask.gpus:
            reasons.append(f"smaller, {placed.gpus} against {gpu_count(ask.gpus)}")
        if placed.steps < ask.steps:
            reasons.append(f"shorter, {placed.steps} against {step_count(ask.steps)}")
        if not reasons and job.earliest > placed.start:
            reasons.append("it may start earlier")
        return f", goes first: {'; '.join(reasons)}" if reasons else ", worth more in the plan as a whole"

    def _killed(self, job: Job, chosen: tuple[str, int, int] | None) -> str:
        """Say which other shapes of a job its time limit likely kills."""
        told = [
            f"{gpu_count(s.gpus)} of {s.pool}: {killed_text(s.success)}"
            for s in job.shapes
            if s.success < 0.5 and (s.pool, s.gpus, s.steps) != chosen
        ]
        return "; ".join(told[:MOST_LISTED])

    def _record(
        self,
        job: Job,
        state: State,
        reason: str,
        placed: Placement | None = None,
        blockers: Iterable[dict[str, Any]] = (),
    ) -> dict[str, Any]:
        expected = self.expected.get(job.id) if placed is None else None
        if expected is not None and state == "not in this horizon":
            reason += f"; expected at {self.clock.step(expected)}, past the horizon"
        return {
            "job": job.id,
            "state": state,
            "start": placed.start if placed else None,
            "end": placed.end if placed else None,
            "expected": expected,
            "reason": reason,
            "blockers": list(blockers),
        }
