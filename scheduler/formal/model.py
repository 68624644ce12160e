"""The allocation problem written out in CP-SAT: first with GPUs counted, then with GPUs named.

`CountModel` is the relaxation: it knows how many GPUs each task has in each step, not which. `IdentityModel`
adds the names and is the whole problem. The rules are numbered as in the contract; the mathematics, symbol by
symbol, stand in docs/formal-model.md. Both maximise the same objective, in integers that are never below the
true one (`Terms.scaled`), so that the best bound of either is an upper bound for every legal plan.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ortools.sat.python import cp_model

from tidegrid.scheduler.formal.terms import Column, Terms, fitting
from tidegrid.scheduler.plan import AppCells, Placement, Plan

Var = Any  # cp_model.IntVar, which mypy does not see
_sum = cp_model.LinearExpr.sum
_dot = cp_model.LinearExpr.weighted_sum


class CountModel:
    """The problem with GPUs counted in each step instead of named.

    Parameters
    ----------
    terms
        Sets and constants.
    columns
        The columns that each job may take, in the problem's order of jobs; every one where it is left out.
        With fewer columns the model is a neighbourhood, and its bound holds for that neighbourhood only.
    required
        Indices of jobs that must be placed; running jobs always must.

    Attributes
    ----------
    x
        ``x[j, c]``: job j runs in column c.
    n
        ``n[a, t]``: GPUs that app a holds in step t.
    short
        ``short[a, t]``: what app a lacks in step t; past the horizon, what tails of jobs take from it.
    """

    def __init__(
        self,
        terms: Terms,
        columns: Sequence[Sequence[Column]] | None = None,
        required: frozenset[int] = frozenset(),
    ) -> None:
        self.terms = terms
        self.problem = terms.problem
        self.columns = terms.columns if columns is None else columns
        self.required = required
        self.cp = cp_model.CpModel()
        self.x: dict[tuple[int, Column], Var] = {}
        self.n: dict[tuple[int, int], Var] = {}
        self.short: dict[tuple[int, int], Var] = {}
        self._objective: list[tuple[Var, int]] = []
        # GPUs of a pool in a step: (variable, GPUs) of jobs, of those not running yet, and of apps.
        self._jobs_at: dict[tuple[str, int], list[tuple[Var, int]]] = defaultdict(list)
        self._waiting_at: dict[tuple[str, int], list[tuple[Var, int]]] = defaultdict(list)
        self._apps_at: dict[tuple[str, int], list[Var]] = defaultdict(list)
        self._choose_columns()
        self._count_apps()
        self._hold_within_pools()
        self._count_blocks()
        self._pay_past_horizon()
        self.cp.maximize(_dot([v for v, _ in self._objective], [c for _, c in self._objective]))

    def _choose_columns(self) -> None:
        """Rules 2 and 5: a job takes at most one of its columns and holds it to its end."""
        for j, (job, columns) in enumerate(zip(self.problem.jobs, self.columns, strict=True)):
            for column in columns:
                x = self.cp.new_bool_var(f"x[{job.id},{column.gpus},{column.start}]")
                self.x[j, column] = x
                self._objective.append((x, self.terms.scaled(self.terms.reward(job, column))))
                for t in range(column.start, min(column.end, self.terms.lookahead)):
                    self._jobs_at[column.pool, t].append((x, column.gpus))
                    if not job.running and t < self.terms.steps:
                        self._waiting_at[column.pool, t].append((x, column.gpus))
            chosen = [self.x[j, column] for column in columns]
            if job.running or j in self.required:
                self.cp.add_exactly_one(chosen)
            elif chosen:
                self.cp.add_at_most_one(chosen)

    def _count_apps(self) -> None:
        """Rule 4 on counts, and the penalty inside the horizon."""
        for a, app in enumerate(self.problem.apps):
            gpus = self.problem.pool_by_id[app.pool].gpus
            before: Var | int = len(app.held_gpus)
            for t in range(self.terms.steps):
                n = self.cp.new_int_var(0, gpus, f"n[{app.id},{t}]")
                self.n[a, t] = n
                self._apps_at[app.pool, t].append(n)
                if app.swap_cap is not None and app.swap_cap < gpus:
                    self.cp.add_linear_constraint(n - before, -app.swap_cap, app.swap_cap)
                before = n
                if app.demand[t]:
                    short = self.cp.new_int_var(0, app.demand[t], f"short[{app.id},{t}]")
                    self.cp.add(short + n >= app.demand[t])
                    self.short[a, t] = short
                    self._objective.append((short, self.terms.scaled(-self.terms.charge(app.priority, t))))

    def _hold_within_pools(self) -> None:
        """Rule 1 on counts: no step uses more GPUs than a pool has."""
        for pool in self.problem.pools:
            for t in range(self.terms.steps):
                jobs, apps = self._jobs_at[pool.id, t], self._apps_at[pool.id, t]
                if jobs or apps:
                    used = _dot([v for v, _ in jobs] + apps, [g for _, g in jobs] + [1] * len(apps))
                    self.cp.add(used <= pool.gpus)

    def _count_blocks(self) -> None:
        """Rule 3 on counts: no step holds more blocks of a size than fit between running jobs and node ends.

        A job of a larger size counts as the blocks of that size that it contains.
        """
        for pool in self.problem.pools:
            running = [j.running for j in self.problem.jobs if j.running and j.running.pool == pool.id]
            sizes = {c.gpus for (j, c) in self.x if c.pool == pool.id and not self.problem.jobs[j].running}
            sizes -= {1}
            # How many blocks fit changes only where a running job ends.
            ends = sorted({r.remaining for r in running if r.remaining < self.terms.steps})
            fit: dict[int, int] = {}
            for t in range(self.terms.steps):
                if t == 0 or t in ends:
                    free = [True] * pool.gpus
                    for r in running:
                        if r.remaining > t:
                            free[r.first_gpu : r.first_gpu + r.gpus] = [False] * r.gpus
                    fit = {size: fitting(pool, size, free) for size in sizes}
                    worth = {
                        (gpus, size): fitting(pool, size, [True] * gpus)
                        for gpus in sizes
                        for size in sizes
                        if size <= gpus
                    }
                for size in sorted(sizes):
                    blocks = [
                        (x, worth[g, size])
                        for x, g in self._waiting_at[pool.id, t]
                        if g >= size and worth[g, size]
                    ]
                    if sum(k for _, k in blocks) > fit[size]:
                        self.cp.add(_dot([x for x, _ in blocks], [k for _, k in blocks]) <= fit[size])

    def _pay_past_horizon(self) -> None:
        """The lookahead: tails of jobs take GPUs from the demand there, the lowest priority first.

        That order needs no constraint: it is the cheapest way to cover a shortfall, so the optimum has it.
        """
        for pool in self.problem.pools:
            apps = self.terms.pool_apps(pool.id)
            for t in range(self.terms.steps, self.terms.lookahead):
                jobs = self._jobs_at[pool.id, t]
                wanted = {
                    a: self.problem.apps[a].demand[t]
                    for a in apps
                    if t < len(self.problem.apps[a].demand) and self.problem.apps[a].demand[t]
                }
                if not jobs and sum(wanted.values()) <= pool.gpus:
                    continue
                for a, demand in wanted.items():
                    app = self.problem.apps[a]
                    cut = self.cp.new_int_var(0, demand, f"short[{app.id},{t}]")
                    self.short[a, t] = cut
                    self._objective.append((cut, self.terms.scaled(-self.terms.charge(app.priority, t))))
                if wanted:
                    cuts = [self.short[a, t] for a in wanted]
                    used = _dot([v for v, _ in jobs] + cuts, [g for _, g in jobs] + [-1] * len(cuts))
                    self.cp.add(used <= pool.gpus - sum(wanted.values()))

    def chosen(self, value: Callable[[Var], int]) -> dict[int, Column]:
        """Columns of the placed jobs in a solution."""
        return {j: column for (j, column), x in self.x.items() if value(x)}

    def hint(self, chosen: dict[int, Column], counts: dict[tuple[int, int], int]) -> None:
        """Start the search from a plan's columns and counts."""
        for (j, column), x in self.x.items():
            self.cp.add_hint(x, int(chosen.get(j) == column))
        for key, n in self.n.items():
            self.cp.add_hint(n, counts[key])
        for (a, t), short in self.short.items():
            if t < self.terms.steps:
                self.cp.add_hint(short, max(0, self.problem.apps[a].demand[t] - counts[a, t]))


class IdentityModel(CountModel):
    """The whole problem: `CountModel` with every block and every app's GPU named.

    Parameters
    ----------
    blocks
        First GPUs that job j may take in a column; every legal one where it is left out.
    counts
        Where given, apps hold exactly these counts.

    Attributes
    ----------
    z
        ``z[j, c, g]``: job j runs in column c on the block whose first GPU is g.
    y
        ``y[a, t, g]``: app a holds GPU g in step t; for apps whose swap cap can bind. The GPUs of the others
        are named afterwards: any free ones will do.
    """

    def __init__(
        self,
        terms: Terms,
        columns: Sequence[Sequence[Column]] | None = None,
        required: frozenset[int] = frozenset(),
        blocks: Callable[[int, Column], Iterable[int]] | None = None,
        counts: dict[tuple[int, int], int] | None = None,
    ) -> None:
        super().__init__(terms, columns, required)
        self.z: dict[tuple[int, Column, int], Var] = {}
        self.y: dict[tuple[int, int, int], Var] = {}
        self._enter: dict[tuple[int, int, int], Var] = {}
        self._tasks_on: dict[tuple[str, int, int], list[Var]] = defaultdict(list)
        self._name_blocks(blocks or (lambda j, c: terms.blocks_of(self.problem.jobs[j], c)))
        self._name_app_gpus()
        self._one_task_a_cell()
        for key, count in (counts or {}).items():
            self.cp.add(self.n[key] == count)

    def _name_blocks(self, blocks: Callable[[int, Column], Iterable[int]]) -> None:
        """Rule 3: a placed job has one legal block, the same in all its steps."""
        for (j, column), x in self.x.items():
            named = []
            for first in blocks(j, column):
                z = self.cp.new_bool_var(f"z[{self.problem.jobs[j].id},{column.start},{first}]")
                self.z[j, column, first] = z
                named.append(z)
                for gpu in range(first, first + column.gpus):
                    for t in range(column.start, min(column.end, self.terms.steps)):
                        self._tasks_on[column.pool, gpu, t].append(z)
            self.cp.add(_sum(named) == x)

    def _name_app_gpus(self) -> None:
        """Rule 4: GPUs that enter plus GPUs that leave are at most the swap cap.

        As many enter as leave plus the change of the count, so the sum is twice those that enter less that change.
        """
        for a, app in enumerate(self.problem.apps):
            if not self.swaps_bind(a):
                continue
            gpus = range(self.problem.pool_by_id[app.pool].gpus)
            cap = app.swap_cap or 0
            held = set(app.held_gpus)
            for t in range(self.terms.steps):
                entering = []
                for g in gpus:
                    y = self.cp.new_bool_var(f"y[{app.id},{t},{g}]")
                    self.y[a, t, g] = y
                    self._tasks_on[app.pool, g, t].append(y)
                    enter = self.cp.new_bool_var("")
                    self._enter[a, t, g] = enter
                    before = self.y[a, t - 1, g] if t else int(g in held)
                    self.cp.add(enter >= y - before)
                    entering.append(enter)
                self.cp.add(_sum([self.y[a, t, g] for g in gpus]) == self.n[a, t])
                change = self.n[a, t] - (self.n[a, t - 1] if t else len(held))
                self.cp.add(2 * _sum(entering) - change <= cap)

    def _one_task_a_cell(self) -> None:
        """Rule 1: a GPU serves at most one task in a step."""
        for tasks in self._tasks_on.values():
            if len(tasks) > 1:
                self.cp.add_at_most_one(tasks)

    def swaps_bind(self, a: int) -> bool:
        """Whether an app's swap cap can bind: below the GPUs that could all change hands in one step."""
        app = self.problem.apps[a]
        return app.swap_cap is not None and app.swap_cap < self.problem.pool_by_id[app.pool].gpus

    def fewest_swaps(self) -> None:
        """Change the objective: fewest GPUs that enter (hence leave), then fewest that are held."""
        enter, held = list(self._enter.values()), list(self.n.values())
        weight = 1 + sum(self.problem.pool_by_id[self.problem.apps[a].pool].gpus for a, _ in self.n)
        self.cp.clear_objective()
        self.cp.minimize(_dot(enter + held, [weight] * len(enter) + [1] * len(held)))

    def placements(self, value: Callable[[Var], int]) -> list[Placement]:
        """Blocks of the placed jobs in a solution, in the problem's order of jobs."""
        return [
            Placement(self.problem.jobs[j].id, c.pool, first, c.gpus, c.start, c.steps)
            for (j, c, first), z in self.z.items()
            if value(z)
        ]

    def app_cells(self, value: Callable[[Var], int]) -> dict[int, list[list[int]]]:
        """GPUs of the apps whose swap cap can bind, for each step."""
        return {
            a: [
                [g for g in range(self.problem.pool_by_id[app.pool].gpus) if value(self.y[a, t, g])]
                for t in range(self.terms.steps)
            ]
            for a, app in enumerate(self.problem.apps)
            if self.swaps_bind(a)
        }

    def hint_plan(self, plan: Plan) -> None:
        """Start the search from a whole plan."""
        chosen, counts = facts(self.terms, plan)
        self.hint(chosen, counts)
        first = {
            j: plan.placement_by_job[job.id].first_gpu
            for j, job in enumerate(self.problem.jobs)
            if job.id in plan.placement_by_job
        }
        for (j, column, gpu), z in self.z.items():
            self.cp.add_hint(z, int(chosen.get(j) == column and first[j] == gpu))
        held = cells_by_app(self.terms, plan)
        for (a, t, g), y in self.y.items():
            before = held[a][t - 1] if t else set(self.problem.apps[a].held_gpus)
            self.cp.add_hint(y, int(g in held[a][t]))
            self.cp.add_hint(self._enter[a, t, g], int(g in held[a][t] and g not in before))


def cells_by_app(terms: Terms, plan: Plan) -> dict[int, list[set[int]]]:
    """GPUs that each app holds in a plan, by the app's index."""
    index = {app.id: a for a, app in enumerate(terms.problem.apps)}
    return {index[name]: [set(held) for held in cells] for name, cells in plan.apps}


def facts(terms: Terms, plan: Plan) -> tuple[dict[int, Column], dict[tuple[int, int], int]]:
    """Columns of a plan's placed jobs, and counts of its apps."""
    chosen = {}
    for j, job in enumerate(terms.problem.jobs):
        p = plan.placement_by_job.get(job.id)
        if p is not None:
            chosen[j] = Column(p.pool, p.gpus, p.steps, p.start)
    counts = {
        (a, t): len(held) for a, cells in cells_by_app(terms, plan).items() for t, held in enumerate(cells)
    }
    return chosen, counts


def as_plan(
    terms: Terms,
    mode: str,
    placements: Iterable[Placement],
    capped: dict[int, list[list[int]]],
    counts: dict[tuple[int, int], int],
) -> Plan:
    """Make a plan of named blocks: apps without a binding swap cap get free GPUs, kept from step to step."""
    problem = terms.problem
    placements = tuple(placements)
    taken: dict[str, list[set[int]]] = {
        pool.id: [set() for _ in range(terms.steps)] for pool in problem.pools
    }
    for p in placements:
        for t in range(p.start, min(p.end, terms.steps)):
            taken[p.pool][t].update(range(p.first_gpu, p.first_gpu + p.gpus))
    for a, cells in capped.items():
        for t, held in enumerate(cells):
            taken[problem.apps[a].pool][t].update(held)
    named = dict(capped)
    for a, app in enumerate(problem.apps):
        if a in named:
            continue
        before = set(app.held_gpus)
        cells = []
        for t in range(terms.steps):
            used = taken[app.pool][t]
            free = [g for g in range(problem.pool_by_id[app.pool].gpus) if g not in used]
            free.sort(key=lambda g: (g not in before, -g))
            # More than the demand earns nothing, and without a cap nothing is gained by holding on.
            held = sorted(free[: min(counts[a, t], app.demand[t])])
            used.update(held)
            before = set(held)
            cells.append(held)
        named[a] = cells
    apps = [AppCells(app.id, tuple(tuple(held) for held in named[a])) for a, app in enumerate(problem.apps)]
    return Plan.of(problem, mode, placements, apps)
