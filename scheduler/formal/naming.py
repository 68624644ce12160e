"""From GPUs by class to GPUs by number: step by step, each task takes free ones of its classes and keeps them.

Nothing can go wrong on the way: in every step a class has as many free GPUs as the tasks that begin there need, and it
makes no difference which they take. So each takes those that it had in an older plan, where they are free.
"""

from collections.abc import Iterable

import numpy as np

from tidegrid.scheduler.formal.model import Facts
from tidegrid.scheduler.formal.places import Pattern, Places
from tidegrid.scheduler.formal.terms import Terms
from tidegrid.scheduler.plan import AppCells, Placement, Plan
from tidegrid.scheduler.problem import App, flat

Replica = tuple[int, ...]


def as_plan(terms: Terms, mode: str, facts: Facts, like: Plan) -> Plan:
    """Make a plan of a solution, with the GPUs of the plan ``like`` where that makes no difference."""
    problem = terms.problem
    placements: dict[int, Placement] = {}
    cells: dict[int, list[list[Replica]]] = {a: [] for a in range(len(problem.apps))}
    for pool in problem.pools:
        naming = _Naming(terms, terms.places[pool.id], facts, like)
        for t in range(terms.steps):
            naming.step(t)
        placements |= naming.placements
        cells |= naming.cells
    apps = [
        AppCells(app.id, tuple(_stated(app, held) for held in cells[a])) for a, app in enumerate(problem.apps)
    ]
    return Plan.of(problem, mode, [placements[j] for j in sorted(placements)], apps)


def _stated(app: App, held: Iterable[Replica]) -> tuple[object, ...]:
    return tuple(sorted(one[0] if app.replica == 1 else tuple(sorted(one)) for one in held))


class _Naming:
    """One pool, step by step."""

    def __init__(self, terms: Terms, places: Places, facts: Facts, like: Plan) -> None:
        self.terms, self.places, self.facts, self.like = terms, places, facts, like
        self.placements: dict[int, Placement] = {}
        self.cells: dict[int, list[list[Replica]]] = {a: [] for a in terms.pool_apps(places.pool.id)}
        self._like_cells = dict(like.apps)
        self._until = np.zeros(places.pool.gpus, int)
        self._held = np.zeros(places.pool.gpus, bool)
        self._replicas: dict[int, list[Replica]] = {}
        self._starting: dict[int, list[int]] = {}
        for j, column in facts.chosen.items():
            if column.pool == places.pool.id:
                self._starting.setdefault(column.start, []).append(j)
        for a in self.cells:
            app = terms.problem.apps[a]
            self._replicas[a] = list(app.held_replicas)
            if self._tight(a):
                self._held[list(app.held_gpus)] = True

    def _tight(self, a: int) -> bool:
        return (a, 0) in self.facts.held

    def step(self, t: int) -> None:
        """Name what begins at step t, in a step whose ends are known."""
        free_apps = [a for a in self.cells if not self._tight(a)]
        for a in self.cells:
            if self._tight(a):
                self._leave(a, t)
        for j in sorted(
            self._starting.get(t, ()), key=lambda j: (self.terms.problem.jobs[j].running is None, j)
        ):
            self._start(j, t)
        for a in self.cells:
            if self._tight(a):
                self._enter(a, t)
        taken: set[int] = set()
        for a in free_apps:
            self._replicas[a] = self._any(a, t, taken)
            taken.update(flat(self._replicas[a]))
        for a in self.cells:
            self.cells[a].append(list(self._replicas[a]))

    def _take(self, pattern: Pattern, t: int, wished: set[int]) -> list[int]:
        ids: list[int] = []
        for k, many in pattern:
            free = [g for g in self.places.classes[k] if self._until[g] <= t and not self._held[g]]
            free.sort(key=lambda g: (g not in wished, g))
            if len(free) < many:
                raise AssertionError(f"class {k} of {self.places.pool.id} is too full at step {t}")
            ids += free[:many]
        return ids

    def _start(self, j: int, t: int) -> None:
        job, column = self.terms.problem.jobs[j], self.facts.chosen[j]
        if job.running:
            ids = list(job.running.ids)
        else:
            old = self.like.placement_by_job.get(job.id)
            wished = set(old.ids) if old is not None and old.pool == column.pool else set()
            ids = self._take(self.facts.lies[j], t, wished)
        self._until[ids] = column.end
        if self.places.pool.by_node:
            self.placements[j] = Placement.on(job.id, column.pool, ids, t, column.steps)
        else:
            self.placements[j] = Placement(job.id, column.pool, min(ids), len(ids), t, column.steps)

    def _wished(self, a: int, t: int) -> set[int]:
        return set(flat(self._like_cells[self.terms.problem.apps[a].id][t]))

    def _leave(self, a: int, t: int) -> None:
        left = dict(self.facts.held[a, t])
        wished = self._wished(a, t)
        stay: list[Replica] = []
        for one in sorted(self._replicas[a], key=lambda one: (not wished.issuperset(one), one)):
            pattern = self.places.pattern(one)
            if left.get(pattern, 0) > 0:
                left[pattern] -= 1
                stay.append(one)
            else:
                self._held[list(one)] = False
        self._replicas[a] = stay

    def _enter(self, a: int, t: int) -> None:
        missing = dict(self.facts.held[a, t])
        for one in self._replicas[a]:
            missing[self.places.pattern(one)] -= 1
        wished = self._wished(a, t)
        for pattern, many in missing.items():
            for _ in range(many):
                ids = self._take(pattern, t, wished)
                self._held[ids] = True
                self._replicas[a].append(tuple(ids))

    def _any(self, a: int, t: int, taken: set[int]) -> list[Replica]:
        """GPUs of an app that may move freely: those that it has, as many as it needs."""
        app = self.terms.problem.apps[a]
        before = set(flat(self._replicas[a]))
        open_ = ~self.places.down(t) & (self._until <= t) & ~self._held
        free = [g for g in np.flatnonzero(open_).tolist() if g not in taken]
        free.sort(key=lambda g: (g not in before, -g))
        # More than the demand earns nothing, and nothing is gained by holding on.
        return [(g,) for g in free[: min(self.facts.counts[a, t], app.demand[t])]]
