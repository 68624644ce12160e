"""The allocation problem written out in CP-SAT with GPUs counted: the relaxation.

`CountModel` knows how many GPUs each task has in each step, not which; `NamedModel` (named.py) adds the places and is
the whole problem. The rules are numbered as in the contract; the mathematics, symbol by symbol, stand in
docs/formal-model.md. Both maximise the same objective, in integers that are never below the true one
(`Terms.scaled`), so that the best bound of either is an upper bound for every legal plan.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ortools.sat.python import cp_model

from tidegrid.scheduler.formal.places import Column, Pattern
from tidegrid.scheduler.formal.terms import Terms
from tidegrid.scheduler.limits import limits_of
from tidegrid.scheduler.plan import Plan

Var = Any  # cp_model.IntVar, which mypy does not see; an int where there is no choice


class Load:
    """A linear expression as it grows: what is fixed, and variables with their factors."""

    __slots__ = ("factors", "fixed", "most", "variables")

    def __init__(self, fixed: int = 0) -> None:
        self.fixed = self.most = fixed
        self.variables: list[Var] = []
        self.factors: list[int] = []

    def add(self, variable: Var, factor: int = 1, top: int = 1) -> None:
        """Add ``factor`` × a variable that is at most ``top``, or × an int that stands for one."""
        if isinstance(variable, int):
            self.fixed += variable * factor
            self.most += variable * factor
        elif factor:
            self.variables.append(variable)
            self.factors.append(factor)
            self.most += top * max(0, factor)

    @property
    def expression(self) -> Any:
        """The expression for CP-SAT."""
        return cp_model.LinearExpr.weighted_sum(self.variables, self.factors) + self.fixed


@dataclass(frozen=True)
class Facts:
    """A plan, or a solution, in the terms of the models; jobs and apps by index.

    Attributes
    ----------
    chosen
        Column of each placed job.
    lies
        GPUs of each placed job by class.
    counts
        ``counts[a, t]``: replicas of app a.
    held
        ``held[a, t]``: how many of them lie in each place.
    """

    chosen: dict[int, Column]
    lies: dict[int, Pattern] = field(default_factory=dict)
    counts: dict[tuple[int, int], int] = field(default_factory=dict)
    held: dict[tuple[int, int], Counter[Pattern]] = field(default_factory=dict)

    @classmethod
    def of(cls, terms: Terms, plan: Plan) -> "Facts":
        """Read a plan."""
        facts = cls({})
        for j, job in enumerate(terms.problem.jobs):
            p = plan.placement_by_job.get(job.id)
            if p is not None:
                facts.chosen[j] = terms.column_at(job, p)
                facts.lies[j] = terms.places[p.pool].pattern(p.ids)
        cells = dict(plan.apps)
        for a, app in enumerate(terms.problem.apps):
            places = terms.places[app.pool]
            for t, held in enumerate(cells[app.id]):
                facts.counts[a, t] = len(held)
                facts.held[a, t] = Counter(
                    places.pattern((one,) if isinstance(one, int) else one) for one in held
                )
        return facts


@dataclass(frozen=True)
class Part:
    """What a model may choose; the rest stays as it is in ``kept``.

    Attributes
    ----------
    columns
        By index of a job that is free, the columns that it may take.
    required
        Free jobs that must be placed.
    kept
        A plan whose jobs stay where they are, save those that are free.
    apps
        Whether the apps are free; otherwise they hold what they hold in ``kept``.
    reach
        Pool, first and last + 1 of the GPUs where free jobs may lie; None for everywhere.
    """

    columns: Mapping[int, Sequence[Column]]
    required: frozenset[int] = frozenset()
    kept: Facts = field(default_factory=lambda: Facts({}))
    apps: bool = True
    reach: tuple[str, int, int] | None = None


def everything(terms: Terms) -> Part:
    """The whole problem: every waiting job and every app is free."""
    jobs = terms.problem.jobs
    return Part({j: terms.columns[j] for j, job in enumerate(jobs) if not job.running})


class CountModel:
    """The problem with GPUs counted in each step instead of named.

    Parameters
    ----------
    terms
        Sets and constants.
    part
        What may be chosen; the whole problem where it is left out. The bound of a part holds for that part only.

    Attributes
    ----------
    x
        ``x[j, c]``: job j runs in column c. 1 for jobs that stay.
    n
        ``n[a, t]``: replicas of app a in step t.
    enter
        ``enter[a, t]``: replicas that enter app a in step t, where a cap or a cost asks for them.
    short, below
        ``short[a, t]``: what app a lacks of its demand in step t; past the horizon, what tails of jobs take from it.
        ``below[a, t]``: what it lacks of its floor.
    """

    def __init__(self, terms: Terms, part: Part | None = None) -> None:
        self.terms = terms
        self.problem = terms.problem
        self.part = part or everything(terms)
        self.cp = cp_model.CpModel()
        self.x: dict[tuple[int, Column], Var] = {}
        self.n: dict[tuple[int, int], Var] = {}
        self.enter: dict[tuple[int, int], Var] = {}
        self.short: dict[tuple[int, int], Var] = {}
        self.below: dict[tuple[int, int], Var] = {}
        self._objective = Load()
        self._hinted: set[int] = set()
        self._of_job: dict[int, list[tuple[Column, Var]]] = defaultdict(list)
        # Waiting jobs that are on in a step, by pool; past the horizon the GPUs of all jobs.
        self._on: dict[tuple[str, int], list[tuple[int, Column, Var]]] = defaultdict(list)
        self._tails: dict[tuple[str, int], Load] = defaultdict(Load)
        self._choose_columns()
        self._keep_order()
        self._keep_limits()
        self._count_apps()
        self._hold_within_pools()
        self._pay_past_horizon()
        self.cp.maximize(self._objective.expression)

    def _bool(self, name: str = "") -> Var:
        return self.cp.new_bool_var(name)

    def _earn(self, variable: Var, amount: float) -> None:
        self._objective.add(variable, self.terms.scaled(amount))

    def _choose_columns(self) -> None:
        """Rules 2 and 5: a job takes at most one of its columns and holds it to its end."""
        part = self.part
        for j, job in enumerate(self.problem.jobs):
            if job.running:
                self._take(j, self.terms.columns_of(job)[0], 1)
            elif j not in part.columns:
                if j in part.kept.chosen:
                    self._take(j, part.kept.chosen[j], 1)
            elif j in part.required and len(part.columns[j]) == 1:
                self._take(j, part.columns[j][0], 1)
            else:
                chosen = [
                    self._take(j, c, self._bool(f"x[{job.id},{c.gpus},{c.start}]")) for c in part.columns[j]
                ]
                if j in part.required:
                    self.cp.add_exactly_one(chosen)
                elif chosen:
                    self.cp.add_at_most_one(chosen)

    def _take(self, j: int, column: Column, x: Var) -> Var:
        job = self.problem.jobs[j]
        self.x[j, column] = x
        self._of_job[j].append((column, x))
        self._earn(x, self.terms.reward(job, column))
        steps = self.terms.steps
        if not job.running:
            for t in range(column.start, min(column.end, steps)):
                self._on[column.pool, t].append((j, column, x))
        for t in range(steps, min(column.end, self.terms.lookahead)):
            self._tails[column.pool, t].add(x, column.gpus)
        return x

    def _keep_order(self) -> None:
        """Rule 8: whoever has started by a step, has its predecessors ended by then."""
        index = {job.id: j for j, job in enumerate(self.problem.jobs)}
        for j, job in enumerate(self.problem.jobs):
            before = [index[name] for name in dict.fromkeys(job.after or ()) if name in index]
            if job.running or not before or not self._of_job[j]:
                continue
            for t in sorted({c.start for c, _ in self._of_job[j]}):
                started = self._total((x, 1) for c, x in self._of_job[j] if c.start <= t)
                for i in before:
                    ended = self._total((x, 1) for c, x in self._of_job[i] if c.end <= t)
                    if started.variables or ended.variables:
                        self.cp.add(started.expression <= ended.expression)

    def _keep_limits(self) -> None:
        """Rule 7: in a step in which a job is on that the plan starts, the limits of its tenant and group hold."""
        for limit in limits_of(self.problem):
            mine = {
                j
                for j, job in enumerate(self.problem.jobs)
                if (job.tenant if limit.key == "tenant" else job.group) == limit.owner
            }
            runs = [self.problem.jobs[j].running for j in mine]
            pools = [pool.id for pool in self.problem.pools if limit.pool in (None, pool.id)]
            for t in range(self.terms.steps):
                used = sum(
                    r.gpus if limit.counts_gpus else 1
                    for r in runs
                    if r and r.remaining > t and r.pool in pools
                )
                load = self._total(
                    (x, column.gpus if limit.counts_gpus else 1)
                    for pool in pools
                    for j, column, x in self._on[pool, t]
                    if j in mine
                )
                self._at_most(load, max(0, limit.most - used))

    def _total(self, terms: Iterable[tuple[Var, int]]) -> Load:
        load = Load()
        for variable, factor in terms:
            load.add(variable, factor)
        return load

    def _at_most(self, load: Load, most: int) -> None:
        """Hold a sum of non-negative variables under a limit, where it can pass it."""
        if load.variables and load.most > most:
            self.cp.add(load.expression <= most)
        elif load.fixed > most:
            self.cp.add_bool_or(False)  # what has no choice does not fit

    def _count_apps(self) -> None:
        """Rule 4 on counts, what entering costs, and the penalty inside the horizon."""
        for a, app in enumerate(self.problem.apps):
            places = self.terms.places[app.pool]
            most = places.most_replicas(app.replica)
            before: Var = len(app.held_replicas)
            for t in range(self.terms.steps):
                if self.part.apps:
                    self.n[a, t] = self.cp.new_int_var(0, most, f"n[{app.id},{t}]")
                    self._count_swaps(a, t, before, most, places.newly_down(t))
                else:
                    self.n[a, t] = self.part.kept.counts[a, t]
                before = self.n[a, t]
                self._charge(a, t)

    def _count_swaps(self, a: int, t: int, before: Var, most: int, down: int) -> None:
        app = self.problem.apps[a]
        change = self.n[a, t] - before
        cap, binds = app.swap_cap or 0, self.terms.swaps_bind(app)
        costs = self.terms.entry(app, t) > 0.0
        if costs or (binds and down):
            enter = self.enter[a, t] = self.cp.new_int_var(0, most, f"enter[{app.id},{t}]")
            self.cp.add(enter >= change)
            self._earn(enter, -self.terms.entry(app, t) * app.replica)
            if binds:
                # As many leave as enter less the change of the count; whoever stands on what goes down leaves freely.
                forced = self.cp.new_int_var(0, min(most, down), "") if down else 0
                if down:
                    self.cp.add(forced <= enter - change)
                self.cp.add(app.replica * (2 * enter - change - forced) <= cap)
        elif binds:
            self.cp.add_linear_constraint(change, -(cap // app.replica), cap // app.replica)

    def _charge(self, a: int, t: int) -> None:
        app, n = self.problem.apps[a], self.n[a, t]
        wanted = app.demand[t]
        if not wanted:
            return
        if isinstance(n, int):
            return  # nothing to choose: the penalty is the same in every solution
        short = self.short[a, t] = self.cp.new_int_var(0, wanted, f"short[{app.id},{t}]")
        self.cp.add(short + app.replica * n >= wanted)
        self._earn(short, -self.terms.charge(app, t))
        floor = min(wanted, app.floor)
        extra = self.terms.below(app, t)
        if floor and extra:
            below = self.below[a, t] = self.cp.new_int_var(0, floor, f"below[{app.id},{t}]")
            if extra > 0.0:
                self.cp.add(below + app.replica * n >= floor)
            else:  # a floor that is worth less than the demand: missing GPUs must not be made up
                self.cp.add_max_equality(below, [0, floor - app.replica * n])
                self.cp.add_max_equality(short, [0, wanted - app.replica * n])
            self._earn(below, -extra)

    def _hold_within_pools(self) -> None:
        """Rules 1, 3 and 6 on counts: no step holds more pieces of a size than fit where they may lie.

        Pieces are GPUs, blocks, or GPUs on one node; a wider job counts as the pieces that it contains. It counts for
        every set of GPUs that holds all those where it may start.
        """
        for pool in self.problem.pools:
            places = self.terms.places[pool.id]
            everywhere = np.ones(pool.gpus, bool)
            columns = {c for (j, c) in self.x if c.pool == pool.id and not self.problem.jobs[j].running}
            base = {c: places.base(c) for c in columns}
            sets = {mask.tobytes(): mask for mask in (everywhere, *base.values())}
            inside = {
                (key, c): not (mask & ~mine).any() for c, mask in base.items() for key, mine in sets.items()
            }
            # where places are restricted anyway, wider pieces say nothing new
            sizes = [1] if self.part.reach else sorted({1} | {c.gpus // c.nodes for c in columns})
            worth = {(c, size): places.pieces(c, size) for c in columns for size in sizes}
            apps = self.terms.pool_apps(pool.id)
            for t in range(self.terms.steps):
                on, free = self._on[pool.id, t], places.free(t)
                for key, mask in sets.items():
                    mine = [one for one in on if inside[key, one[1]]]
                    whole = key == everywhere.tobytes()
                    for size in sizes:
                        load = self._total((x, worth[c, size]) for _, c, x in mine)
                        for a in apps if whole else ():
                            replica = self.problem.apps[a].replica
                            load.add(
                                self.n[a, t],
                                places.replica_pieces(replica, size),
                                places.most_replicas(replica),
                            )
                        self._at_most(load, places.fits(size, free & mask))

    def _pay_past_horizon(self) -> None:
        """The lookahead: tails of jobs take GPUs from the demand there, the lowest priority first.

        That order needs no constraint: it is the cheapest way to cover a shortfall, so the optimum has it.
        """
        for pool in self.problem.pools:
            apps = self.terms.pool_apps(pool.id)
            for t in range(self.terms.steps, self.terms.lookahead):
                tails, capacity = self._tails[pool.id, t], self.terms.places[pool.id].capacity(t)
                wanted = {
                    a: self.problem.apps[a].demand[t]
                    for a in apps
                    if t < len(self.problem.apps[a].demand) and self.problem.apps[a].demand[t]
                }
                if not wanted or tails.most + sum(wanted.values()) <= capacity:
                    continue
                load = Load(tails.fixed + sum(wanted.values()))
                for x, gpus in zip(tails.variables, tails.factors, strict=True):
                    load.add(x, gpus)
                for a, demand in wanted.items():
                    app = self.problem.apps[a]
                    cut = self.short[a, t] = self.cp.new_int_var(0, demand, f"short[{app.id},{t}]")
                    self._earn(cut, -self.terms.charge(app, t))
                    load.add(cut, -1)
                self.cp.add(load.expression <= capacity)

    def chosen(self, value: Callable[[Var], int]) -> dict[int, Column]:
        """Columns of the placed jobs in a solution."""
        return {j: column for (j, column), x in self.x.items() if read(value, x)}

    def counted(self, value: Callable[[Var], int]) -> Facts:
        """A solution without places."""
        return Facts(self.chosen(value), counts={key: read(value, n) for key, n in self.n.items()})

    def hint(self, facts: Facts) -> None:
        """Start the search from a plan's columns and counts."""
        for (j, column), x in self.x.items():
            self._hint(x, int(facts.chosen.get(j) == column))
        for (a, t), n in self.n.items():
            self._hint(n, facts.counts[a, t])
            app = self.problem.apps[a]
            held = app.replica * facts.counts[a, t]
            if (a, t) in self.short:
                self._hint(self.short[a, t], max(0, app.demand[t] - held))
            if (a, t) in self.below:
                self._hint(self.below[a, t], max(0, min(app.demand[t], app.floor) - held))

    def _hint(self, variable: Var, value: int) -> None:
        if not isinstance(variable, int) and variable.index not in self._hinted:
            self._hinted.add(variable.index)
            self.cp.add_hint(variable, value)


def read(value: Callable[[Var], int], variable: Var) -> int:
    """Value of a variable, or of the int that stands for one."""
    return variable if isinstance(variable, int) else value(variable)
