"""A plan on a board, and what explanations ask of it: who holds GPUs until when, and what if a task were not there."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tidegrid.scheduler.baselines.board import Ask, Board, Place
from tidegrid.scheduler.baselines.places import gpus_of, mask_of, span_mask
from tidegrid.scheduler.plan import Placement, Plan
from tidegrid.scheduler.problem import Problem, flat

#: Tasks that are taken away one by one, to see what each is in the way of.
MOST_ALONE = 16

_SHUT = 1 << 40  # dearer than any number of taken cells


class Hold(NamedTuple):
    """GPUs (bits) of a pool that a task holds from ``start`` to ``end`` (exclusive), and the limits it counts in."""

    task: str
    pool: str
    mask: int
    start: int
    end: int
    limits: tuple[tuple[int, int], ...] = ()


class PlanBoard(Board):
    """The board of a plan: its jobs with their tails, and its apps up to the horizon."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        super().__init__(problem)
        self.holds: dict[str, list[Hold]] = {}
        for p in plan.placements:
            self._add(self.hold_of(p))
            if problem.job_by_id[p.job].running is None:
                self._restore(self.holds[p.job])
        for name, cells in plan.apps:
            pool = problem.app_by_id[name].pool
            begun, now = 0, 0
            for t, mask in enumerate([*(mask_of(flat(held)) for held in cells), 0]):
                if mask != now or t == len(cells):
                    if now:
                        self._add(Hold(name, pool, now, begun, t))
                    begun, now = t, mask
            self._restore(self.holds.get(name, []))
        self._answers: dict[tuple[Any, ...], Any] = {}
        self._gone: tuple[str, ...] = ()

    def once(self, question: Callable[..., Any], *about: Any) -> Any:
        """Return the answer to a question; long queues ask the same of the same board again and again."""
        key = (question.__name__, self._gone, *about)
        if key not in self._answers:
            self._answers[key] = question(*about)
        return self._answers[key]

    def hold_of(self, p: Placement) -> Hold:
        """Return what a placement holds."""
        counted = self.counted(self.problem.job_by_id[p.job], p.pool, p.gpus)
        return Hold(p.job, p.pool, mask_of(p.ids), p.start, p.end, counted)

    def _add(self, hold: Hold) -> None:
        self.holds.setdefault(hold.task, []).append(hold)

    def _restore(self, holds: Iterable[Hold]) -> None:
        for hold in holds:
            self.take(hold.pool, hold.mask, hold.start, hold.end, hold.limits)

    @contextmanager
    def without(self, *tasks: str) -> Iterator[None]:
        """Let some tasks not be there, for as long as the block lasts."""
        gone = [hold for task in tasks for hold in self.holds.get(task, ())]
        for hold in gone:
            self.give(hold.pool, hold.mask, hold.start, hold.end, hold.limits)
        before, self._gone = self._gone, self._gone + tasks
        try:
            yield
        finally:
            self._gone = before
            self._restore(gone)

    @contextmanager
    def open(self, pool: str, *closings: int) -> Iterator[None]:
        """Let some of a pool's closed GPUs (by their place in the list) be open, for as long as the block lasts."""
        kept = self.closed[pool]
        self.closed[pool] = [one for k, one in enumerate(kept) if k not in closings]
        try:
            yield
        finally:
            self.closed[pool] = kept

    @cached_property
    def _spans(self) -> tuple[list[Hold], np.ndarray, dict[str, np.ndarray], dict[int, np.ndarray]]:
        """All holds; their first and last GPU and steps, shape (4, holds); who is in each pool and limit."""
        holds = [hold for mine in self.holds.values() for hold in mine]
        edges = [(*_ends(hold.mask), hold.start, hold.end) for hold in holds]
        pools = np.array([hold.pool for hold in holds], dtype=object)
        counted: dict[int, np.ndarray] = {}
        for i, hold in enumerate(holds):
            for k, _ in hold.limits:
                counted.setdefault(k, np.zeros(len(holds), dtype=bool))[i] = True
        of_pool = {pool: pools == pool for pool in self.layout}
        return holds, np.array(edges, dtype=np.int64).reshape(-1, 4).T, of_pool, counted

    def holders(self, ask: Ask, block: int, start: int, stop: int) -> list[str]:
        """Return who holds some of a block, or counts in a limit of the job, in steps ``start`` … ``stop`` − 1.

        Those that are there longest come first.
        """
        holds, (low, high, begins, ends), of_pool, counted = self._spans
        first, last = _ends(block)
        there = (begins < stop) & (ends > start)
        near = there & of_pool[ask.pool] & (low <= last) & (high >= first)
        met = [holds[i] for i in np.flatnonzero(near).tolist() if holds[i].mask & block]
        for k, _ in ask.limits:
            if k in counted:
                met += [holds[i] for i in np.flatnonzero(there & counted[k]).tolist()]
        found: dict[str, int] = {}
        for hold in met:
            if hold.task not in self._gone:
                found[hold.task] = max(found.get(hold.task, 0), hold.end)
        return sorted(found, key=lambda task: (-found[task], task))

    def held(self, task: str, pool: str, block: int, start: int, stop: int) -> tuple[int, int, int] | None:
        """Return (GPUs, from, to): what of a block a task holds in a span of steps, and until when it holds on to any.

        None where it holds nothing of it.
        """
        mine = [hold for hold in self.holds.get(task, ()) if hold.pool == pool]
        inside = [hold for hold in mine if hold.mask & block and hold.start < stop and hold.end > start]
        if not inside:
            return None
        mask = 0
        for hold in inside:
            mask |= hold.mask & block
        end = inside[-1].end
        for hold in mine:  # the stretches of an app follow each other
            if hold.start == end and hold.mask & mask:
                end = hold.end
        return mask, max(start, inside[0].start), end

    def alone_or_together(
        self, ask: Ask, tasks: list[str], start: int, until: int
    ) -> tuple[list[str], list[str]]:
        """Say which tasks alone keep a job from a place between ``start`` and ``until``; else which do together."""

        def helps(*gone: str) -> bool:
            with self.without(*gone):
                return self.earliest(ask, start, until) is not None

        alone = [task for task in tasks[:MOST_ALONE] if helps(task)]
        if alone or not tasks or not helps(*tasks):
            return alone, []
        together = list(tasks)
        for task in tasks if len(tasks) <= MOST_ALONE else ():  # no task that is not needed
            rest = [other for other in together if other != task]
            if rest and helps(*rest):
                together = rest
        return [], together

    def closings_in_the_way(self, ask: Ask, start: int, until: int) -> list[int]:
        """Return the closed GPUs but for which a job had a place between ``start`` and ``until``."""
        many = range(len(self.closed[ask.pool]))

        def helps(*gone: int) -> bool:
            with self.open(ask.pool, *gone):
                return self.earliest(ask, start, until) is not None

        alone = [k for k in many if helps(k)]
        return alone or (list(many) if len(many) > 1 and helps(*many) else [])

    def least_taken(self, ask: Ask, start: int, until: int) -> Place | None:
        """Return the place, before ``until``, whose cells tasks take the least of; None where all are closed."""
        steps = self.problem.steps
        # A start near the end is the least taken by cutting the job short, which explains nothing.
        last = min(max(start, steps - ask.steps), until - 1, ask.latest_end - ask.steps)
        if last < start:
            return None
        starts = np.arange(start, last + 1)
        before = self.once(self._taken_before, ask.pool)
        cells = before[np.minimum(starts + ask.steps, steps)] - before[starts]
        for row, t in zip(cells, starts.tolist(), strict=True):
            if shut := self.shut(ask.pool, t, t + ask.steps) | ~ask.allowed:
                row += _SHUT * _bits(shut, len(row))
        layout = self.layout[ask.pool]
        if not layout.by_node:
            firsts = np.array(self.once(self._firsts, ask.pool, ask.gpus))
            sums = np.concatenate([np.zeros((len(starts), 1), np.int64), cells.cumsum(axis=1)], axis=1)
            cost = sums[:, firsts + ask.gpus] - sums[:, firsts]
            row_at, k = divmod(int(cost.argmin()), len(firsts))
            if cost[row_at, k] >= _SHUT:
                return None
            return Place(start + row_at, span_mask(int(firsts[k]), int(firsts[k]) + ask.gpus))
        nodes, each = -(-layout.gpus // layout.node), ask.gpus // ask.nodes
        padded = np.full((len(starts), nodes * layout.node), _SHUT, np.int64)
        padded[:, : layout.gpus] = cells
        room = padded.reshape(len(starts), nodes, layout.node)
        of_node = np.sort(room, axis=2)[:, :, :each].sum(axis=2)
        cost = np.sort(of_node, axis=1)[:, : ask.nodes].sum(axis=1)
        at = int(cost.argmin())
        if cost[at] >= _SHUT:
            return None
        chosen = np.argsort(of_node[at], kind="stable")[: ask.nodes]
        gpus = [
            int(node) * layout.node + int(gpu)
            for node in chosen
            for gpu in np.argsort(room[at, node], kind="stable")[:each]
        ]
        return Place(start + at, mask_of(gpus))

    def _taken_before(self, pool: str) -> np.ndarray:
        """(T + 1, G) in how many earlier steps each GPU is taken."""
        line, gpus, steps = self.taken[pool], self.layout[pool].gpus, self.problem.steps
        taken = np.zeros((steps + 1, gpus), np.int64)
        for i, (start, mask) in enumerate(zip(line.times, line.values, strict=True)):
            end = line.times[i + 1] if i + 1 < len(line.times) else steps
            taken[start + 1 : min(end, steps) + 1] = _bits(mask, gpus)
        return taken.cumsum(axis=0)

    def _firsts(self, pool: str, gpus: int) -> list[int]:
        layout = self.layout[pool]
        return gpus_of(layout.blocks(layout.every, gpus))


def _ends(mask: int) -> tuple[int, int]:
    """Return the first and the last GPU of a mask; of an empty one, a span that meets none."""
    return (mask & -mask).bit_length() - 1 if mask else 1 << 40, mask.bit_length() - 1


def _bits(mask: int, count: int) -> np.ndarray:
    """(count,) 0 or 1: the lowest bits of a mask."""
    size = -(-count // 8)
    raw = (mask & ((1 << count) - 1)).to_bytes(size, "little")
    return np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little")[:count].astype(np.int64)
