"""Who holds which GPUs when, past the horizon too, and the first place that a job finds there."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tidegrid.scheduler.arrays import FAR
from tidegrid.scheduler.baselines.places import layouts, mask_of, span_mask
from tidegrid.scheduler.limits import Limit, limits_of
from tidegrid.scheduler.problem import Job, Problem, Shape


class Timeline:
    """A whole number that changes with time: it holds from each of ``times`` to the next, the last one for ever."""

    def __init__(self) -> None:
        self.times = [0]
        self.values = [0]

    def at(self, t: int) -> int:
        """Return the index of the stretch that step t lies in."""
        return bisect_right(self.times, t) - 1

    def split(self, t: int) -> int:
        """Let a stretch begin at step t, and return its index; past every stretch for `FAR`."""
        if t >= FAR:
            return len(self.times)
        i = self.at(t)
        if self.times[i] != t:
            i += 1
            self.times.insert(i, t)
            self.values.insert(i, self.values[i - 1])
        return i

    def after(self, t: int) -> int:
        """Return the first change after step t; `FAR` where there is none."""
        i = self.at(t) + 1
        return self.times[i] if i < len(self.times) else FAR


class Ask(NamedTuple):
    """What a job asks for in one of its shapes; ``limits`` are (limit, what it counts there) pairs."""

    job: str
    pool: str
    gpus: int
    nodes: int
    steps: int
    allowed: int
    earliest: int
    latest_end: int
    limits: tuple[tuple[int, int], ...] = ()

    @property
    def kind(self) -> tuple[str, int, int, int]:
        """What decides where it fits, whatever its length."""
        return self.pool, self.gpus, self.nodes, self.allowed


class Closing(NamedTuple):
    """GPUs that are closed from ``start`` to ``end`` (exclusive)."""

    start: int
    end: int
    mask: int
    down: bool


class Place(NamedTuple):
    """Where and when a job lies."""

    start: int
    mask: int


class Board:
    """The taken GPUs of each pool and the use of each limit, over time without an end.

    A new board has the problem's closed GPUs on it, and what runs.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.layout = layouts(problem)
        self.taken = {pool.id: Timeline() for pool in problem.pools}
        self.closed: dict[str, list[Closing]] = {
            pool.id: [
                Closing(c.start, c.end, span_mask(*c.gpus), c.kind == "down") for c in pool.closed or ()
            ]
            for pool in problem.pools
        }
        for pool, closings in self.closed.items():
            for one in closings:
                self.taken[pool].split(one.start)
                self.taken[pool].split(one.end)
        self.limits: list[Limit] = list(limits_of(problem))
        self.use = [Timeline() for _ in self.limits]
        self._of: dict[tuple[str, str], list[int]] = {}
        for k, limit in enumerate(self.limits):
            self._of.setdefault((limit.key, limit.owner), []).append(k)
        for job in problem.jobs:
            if job.running is not None:
                r = job.running
                counted = self.counted(job, r.pool, r.gpus)
                self.take(r.pool, mask_of(r.ids), 0, r.remaining, counted)

    def counted(self, job: Job, pool: str, gpus: int) -> tuple[tuple[int, int], ...]:
        """Return the limits that a job counts in on so many GPUs of a pool, and how much."""
        found = []
        for key, owner in (("tenant", job.tenant), ("group", job.group)):
            for k in self._of.get((key, owner), ()) if owner is not None else ():
                limit = self.limits[k]
                if limit.pool in (None, pool):
                    found.append((k, gpus if limit.counts_gpus else 1))
        return tuple(found)

    def ask(self, job: Job, shape: Shape) -> Ask | None:
        """Return what a job asks for in one of its shapes; None where the empty pool has no place for it."""
        layout = self.layout[shape.pool]
        nodes, allowed = layout.nodes_of(shape), layout.within(shape)
        if not nodes or not layout.fits(allowed, shape.gpus, nodes):
            return None
        latest = self.problem.steps if job.finish_inside else FAR
        if job.deadline is not None:
            latest = min(latest, job.deadline)
        limits = self.counted(job, shape.pool, shape.gpus)
        return Ask(job.id, shape.pool, shape.gpus, nodes, shape.steps, allowed, job.earliest, latest, limits)

    def take(
        self, pool: str, mask: int, start: int, end: int, limits: Iterable[tuple[int, int]] = ()
    ) -> None:
        """Take GPUs, and count in limits, from ``start`` to ``end`` (exclusive; `FAR` for ever)."""
        line = self.taken[pool]
        for i in range(line.split(start), line.split(end)):
            line.values[i] |= mask
        for k, amount in limits:
            use = self.use[k]
            for i in range(use.split(start), use.split(end)):
                use.values[i] += amount

    def give(
        self, pool: str, mask: int, start: int, end: int, limits: Iterable[tuple[int, int]] = ()
    ) -> None:
        """Undo `take`."""
        line = self.taken[pool]
        for i in range(line.split(start), line.split(end)):
            line.values[i] &= ~mask
        for k, amount in limits:
            use = self.use[k]
            for i in range(use.split(start), use.split(end)):
                use.values[i] -= amount

    def put(self, ask: Ask, place: Place) -> None:
        """Take a job's place."""
        self.take(ask.pool, place.mask, place.start, place.start + ask.steps, ask.limits)

    def lift(self, ask: Ask, place: Place) -> None:
        """Undo `put`."""
        self.give(ask.pool, place.mask, place.start, place.start + ask.steps, ask.limits)

    def hold(self, pool: str, masks: Iterable[int], *, for_ever: bool) -> None:
        """Take GPUs step by step from step 0, and those of the last step for ever."""
        begun, now = 0, 0
        t = -1
        for t, mask in enumerate(masks):
            if mask != now:
                self.take(pool, now, begun, t)
                begun, now = t, mask
        self.take(pool, now, begun, FAR if for_ever else t + 1)

    @contextmanager
    def changed(self) -> Iterator[None]:
        """Let changes last for a block only."""
        lines = [*self.taken.values(), *self.use]
        kept = [(line.times[:], line.values[:]) for line in lines]
        try:
            yield
        finally:
            for line, (times, values) in zip(lines, kept, strict=True):
                line.times, line.values = times, values

    def free(self, pool: str, start: int, stop: int, *, starting: bool = True) -> int:
        """Return the GPUs that nothing takes, and that are open, from ``start`` to ``stop`` (exclusive)."""
        line = self.taken[pool]
        busy = self.shut(pool, start, stop, starting=starting)
        i = line.at(start)
        while i < len(line.times) and line.times[i] < stop:
            busy |= line.values[i]
            i += 1
        return self.layout[pool].every & ~busy

    def shut(self, pool: str, start: int, stop: int, *, starting: bool = True) -> int:
        """Return the GPUs that are down between ``start`` and ``stop``, or drain at ``start``."""
        mask = 0
        for one in self.closed[pool]:
            if one.down:
                mask |= one.mask if one.start < stop and start < one.end else 0
            elif starting and one.start <= start < one.end:
                mask |= one.mask
        return mask

    def at(self, ask: Ask, t: int) -> int:
        """Return the GPUs that a job takes if it starts at step t; 0 where it cannot."""
        if t + ask.steps > ask.latest_end or self.over(ask, t) is not None:
            return 0
        return self._fit(ask, t)[0]

    def earliest(self, ask: Ask, start: int, until: int = FAR) -> Place | None:
        """Return the first place from ``start`` on, before ``until``; None where there is none."""
        t = start
        while t < until and t + ask.steps <= ask.latest_end:
            limited = self.over(ask, t)
            if limited is not None:
                t = limited
                continue
            mask, following = self._fit(ask, t)
            if mask:
                return Place(t, mask)
            t = following
        return None

    def over(self, ask: Ask, start: int) -> int | None:
        """Return the step up to which a limit forbids a job to be on, if it starts at ``start``; None for no limit."""
        for k, amount in ask.limits:
            most = self.limits[k].most - amount
            use = self.use[k]
            i = use.at(start)
            while i < len(use.times) and use.times[i] < start + ask.steps:
                if use.values[i] > most:
                    return use.times[i + 1] if i + 1 < len(use.times) else FAR
                i += 1
        return None

    def _fit(self, ask: Ask, t: int) -> tuple[int, int]:
        """Where a job starts at step t (0: nowhere), and the next step at which it may be different."""
        line, layout = self.taken[ask.pool], self.layout[ask.pool]
        times, values = line.times, line.values
        end = t + ask.steps
        free = ask.allowed & ~self.shut(ask.pool, t, end)
        first = i = line.at(t)
        following = times[i + 1] if i + 1 < len(times) else FAR
        while i < len(times) and (i == first or times[i] < end):
            free &= ~values[i]
            if free.bit_count() < ask.gpus:
                if (ask.allowed & ~values[i]).bit_count() < ask.gpus:
                    following = times[i + 1] if i + 1 < len(times) else FAR
                return 0, following
            i += 1
        return layout.find(free, ask.gpus, ask.nodes), following
