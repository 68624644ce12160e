"""Where jobs and replicas may lie in a pool: classes of GPUs that are all alike, and the places made of them.

In a line each GPU is a class of its own. By node the GPUs of a node are one class, or several where a closed range or a
`within` cuts through the node. How many GPUs of each class a task has decides everything: which ones can always be
named afterwards, step by step (`naming`), since a task takes any that are free when it begins and keeps them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from math import comb
from typing import NamedTuple

import numpy as np

from tidegrid.scheduler.problem import App, Pool, Problem

#: Sets of nodes, or of GPUs, up to which a replica's places are all listed; beyond it only neighbours are.
MOST_PATTERNS = 400

Mask = np.ndarray
#: GPUs of a task by class: ((class, GPUs), …), classes ascending.
Pattern = tuple[tuple[int, int], ...]


class Column(NamedTuple):
    """One way to run a job: ``gpus`` of a pool, not named, on ``nodes`` nodes for ``steps`` steps from ``start``."""

    pool: str
    gpus: int
    steps: int
    start: int
    nodes: int = 1
    within: tuple[tuple[int, int], ...] | None = None

    @property
    def end(self) -> int:
        """First step after the job's last one."""
        return self.start + self.steps


class Places:
    """The classes of one pool, and where tasks may lie in it.

    Attributes
    ----------
    classes
        GPUs of each class, ascending.
    class_of, node_of
        Class and node of each GPU.
    runs_until
        For each GPU, the step in which a running job leaves it; 0 where none holds it.
    """

    def __init__(self, problem: Problem, pool: Pool) -> None:
        self.pool = pool
        self.node = pool.node_size or pool.gpus
        self.closed = pool.closed or ()
        gpus = np.arange(pool.gpus)
        self.node_of = gpus // self.node
        self.nodes = int(self.node_of[-1]) + 1
        self.runs_until = np.zeros(pool.gpus, int)
        withins: dict[tuple[tuple[int, int], ...], None] = {}
        for job in problem.jobs:
            if job.running:
                if job.running.pool == pool.id:
                    self.runs_until[list(job.running.ids)] = job.running.remaining
                continue
            withins.update((s.within, None) for s in job.shapes if s.pool == pool.id and s.within is not None)
        if pool.by_node:
            marks: list[np.ndarray] = [self.node_of]
            marks += [(gpus >= c.gpus[0]) & (gpus < c.gpus[1]) for c in self.closed]
            marks += [self._inside(within) for within in withins]
            _, which = np.unique(np.array(marks, int), axis=1, return_inverse=True)
            self.class_of = np.asarray(which).ravel()
        else:
            self.class_of = gpus
        self.classes = [np.flatnonzero(self.class_of == k).tolist() for k in range(self.class_of.max() + 1)]
        self.class_node = [int(self.node_of[ids[0]]) for ids in self.classes]
        self._open: dict[tuple[object, ...], Mask] = {}
        self._at: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._fits: dict[tuple[object, ...], int] = {}
        self._down: dict[int, Mask] = {}

    def _inside(self, within: tuple[tuple[int, int], ...] | None) -> Mask:
        mask = np.full(self.pool.gpus, within is None)
        for first, many in within or ():
            mask[first : first + many] = True
        return mask

    def _closed_at(self, kind: str, t: int) -> Mask:
        mask = np.zeros(self.pool.gpus, bool)
        for closed in self.closed:
            if closed.kind == kind and closed.start <= t < closed.end:
                mask[closed.gpus[0] : closed.gpus[1]] = True
        return mask

    def down(self, t: int) -> Mask:
        """GPUs that are down at step t."""
        if t not in self._down:
            self._down[t] = self._closed_at("down", t)
        return self._down[t]

    def drains(self, t: int) -> Mask:
        """GPUs that drain at step t."""
        return self._closed_at("drain", t)

    @cached_property
    def any_drain(self) -> bool:
        """Whether any GPU drains at any step."""
        return any(closed.kind == "drain" for closed in self.closed)

    def free(self, t: int) -> Mask:
        """GPUs that are not down at step t and that no running job holds."""
        return ~self.down(t) & (self.runs_until <= t)

    def capacity(self, t: int) -> int:
        """GPUs that tasks may use at step t, running jobs included: all but those down and unused."""
        return self.pool.gpus - int(np.count_nonzero(self.down(t) & (self.runs_until <= t)))

    def newly_down(self, t: int) -> int:
        """GPUs that a replica may be forced to leave at step t."""
        now = self.down(t)
        return int(np.count_nonzero(now & ~self.down(t - 1) if t else now))

    def base(self, column: Column) -> Mask:
        """GPUs where a column may start, by its `within` and by what drains; see `open` for the rest."""
        return self._inside(column.within) & ~self.drains(column.start)

    def open(self, column: Column) -> Mask:
        """GPUs that a column may use: also never down, and left by running jobs when it starts."""
        key = (column.within, column.start, column.end if self.closed else 0)
        if key not in self._open:
            mask = self.base(column) & (self.runs_until <= column.start)
            for closed in self.closed:
                if closed.kind == "down" and closed.start < column.end and column.start < closed.end:
                    mask[closed.gpus[0] : closed.gpus[1]] = False
            self._open[key] = mask
        return self._open[key]

    def at(self, column: Column) -> tuple[int, ...]:
        """Places of a column: first GPUs of its blocks in a line, nodes where placement is by node (rule 3)."""
        key = (column.gpus, column.nodes, column.within, column.start, column.end if self.closed else 0)
        if key not in self._at:
            mask = self.open(column)
            if self.pool.by_node:
                room = np.bincount(self.node_of, mask, self.nodes)
                found = np.flatnonzero(room >= column.gpus // column.nodes)
                self._at[key] = tuple(found.tolist()) if len(found) >= column.nodes else ()
            else:
                before = np.concatenate([[0], np.cumsum(mask)])
                self._at[key] = tuple(
                    f
                    for f in range(self.pool.gpus - column.gpus + 1)
                    if before[f + column.gpus] - before[f] == column.gpus and self.pool.allows(f, column.gpus)
                )
        return self._at[key]

    def classes_at(self, column: Column, place: int) -> list[tuple[int, int]]:
        """Classes that a column may use in a place, each with its open GPUs; in a line all of them are used."""
        if not self.pool.by_node:
            return [(gpu, 1) for gpu in range(place, place + column.gpus)]
        mask = self.open(column)
        counted = (
            (k, int(np.count_nonzero(mask[ids])))
            for k, ids in enumerate(self.classes)
            if self.class_node[k] == place
        )
        return [(k, room) for k, room in counted if room]

    def pattern(self, gpus: Iterable[int]) -> Pattern:
        """The classes of a set of GPUs."""
        return tuple(sorted(Counter(int(self.class_of[gpu]) for gpu in gpus).items()))

    def fits(self, size: int, free: Mask) -> int:
        """How many disjoint pieces of ``size`` GPUs fit into free ones: blocks in a line, else on one node each."""
        key = (size, free.tobytes())
        if key not in self._fits:
            if self.pool.by_node:
                self._fits[key] = int((np.bincount(self.node_of, free, self.nodes).astype(int) // size).sum())
            else:
                self._fits[key] = fitting(self.pool, size, free.tolist())
        return self._fits[key]

    def pieces(self, column: Column, size: int) -> int:
        """How many disjoint pieces of ``size`` GPUs a column contains wherever it lies."""
        if size == 1:
            return column.gpus
        if self.pool.by_node:
            return column.nodes * (column.gpus // column.nodes // size)
        return self.fits(size, np.ones(column.gpus, bool))

    def replica_pieces(self, replica: int, size: int) -> int:
        """How many disjoint pieces of ``size`` GPUs a replica contains; in a line its GPUs are no block."""
        if size == 1:
            return replica
        if not self.pool.by_node:
            return 0
        return replica // size if replica <= self.node else replica // self.node * (self.node // size)

    def most_replicas(self, replica: int) -> int:
        """Replicas that the pool can hold at most."""
        if replica == 1:
            return self.pool.gpus
        sizes = np.bincount(self.node_of)
        if replica <= self.node:
            return int((sizes // replica).sum())
        return int(np.count_nonzero(sizes == self.node)) // (replica // self.node)

    def patterns(self, app: App) -> tuple[list[Pattern], bool]:
        """Places of a replica, and whether they are all; where there are too many, only neighbours are listed."""
        size = app.replica
        if size == 1:
            return [((k, 1),) for k in range(len(self.classes))], True
        if size > self.node:
            return self._whole_nodes(size // self.node)
        found: list[Pattern] = []
        complete = True
        for node in range(self.nodes):
            ids = np.flatnonzero(self.node_of == node).tolist()
            if self.pool.by_node:
                mine = Counter(int(self.class_of[gpu]) for gpu in ids)
                found += _splits(sorted(mine.items()), size)
            elif comb(len(ids), size) <= MOST_PATTERNS:
                found += [self.pattern(chosen) for chosen in combinations(ids, size)]
            else:
                complete = False
                found += [self.pattern(ids[i : i + size]) for i in range(len(ids) - size + 1)]
        return found, complete

    def _whole_nodes(self, many: int) -> tuple[list[Pattern], bool]:
        sizes = np.bincount(self.node_of)
        full = [node for node in range(self.nodes) if sizes[node] == self.node]
        complete = comb(len(full), many) <= MOST_PATTERNS
        if complete:
            chosen: Iterable[Sequence[int]] = combinations(full, many)
        else:
            chosen = (full[i : i + many] for i in range(len(full) - many + 1))
        return [self.pattern(np.flatnonzero(np.isin(self.node_of, nodes))) for nodes in chosen], complete


def _splits(room: Sequence[tuple[int, int]], size: int) -> Iterator[Pattern]:
    """Yield every way to take ``size`` GPUs from classes with ``room``."""
    if size == 0:
        yield ()
        return
    if not room:
        return
    (k, most), rest = room[0], room[1:]
    for many in range(min(most, size), -1, -1):
        for others in _splits(rest, size - many):
            yield (((k, many), *others)) if many else others


def fitting(pool: Pool, size: int, free: Sequence[bool]) -> int:
    """How many disjoint legal blocks of ``size`` fit into the free GPUs of a line, or of its first part."""
    node = pool.node_size
    gpus = len(free)
    if node and size > node:
        count = first = 0
        while first + size <= gpus:
            if all(free[first : first + size]):
                count += 1
                first += -(-size // node) * node
            else:
                first += node
        return count
    count = run = 0
    for gpu in range(gpus):
        if node and gpu % node == 0:
            run = 0
        run = run + 1 if free[gpu] else 0
        if run == size:
            count += 1
            run = 0
    return count


def places_of(problem: Problem) -> Mapping[str, Places]:
    """Return the places of every pool, by id."""
    return {pool.id: Places(problem, pool) for pool in problem.pools}
