"""Mode ``full``: start from the fast plan, count, name, repair; never return a worse plan than the fast one.

Problems of more than `MAX_COLUMNS` columns are searched window by window.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from tidegrid.errors import InputError
from tidegrid.scheduler.checker import check
from tidegrid.scheduler.formal.bound import MAX_COLUMNS, padded, relative_gap
from tidegrid.scheduler.formal.changes import changes
from tidegrid.scheduler.formal.lagrange import price_bound
from tidegrid.scheduler.formal.model import CountModel, IdentityModel, Var, as_plan, cells_by_app, facts
from tidegrid.scheduler.formal.run import Answer, Budget, Run
from tidegrid.scheduler.formal.terms import PROVEN_GAP, Column, Terms
from tidegrid.scheduler.formal.windows import Window, in_turn, put_back, window
from tidegrid.scheduler.plan import Plan
from tidegrid.scheduler.problem import Problem
from tidegrid.scheduler.solve import solve

#: Cells of named blocks, for each second that is left, up to which the whole model is built.
CELLS_A_SECOND = 100_000
#: Cells up to which the whole model is so quick that it comes before its parts.
FEW_CELLS = 50_000
DEFAULT_LIMIT = 10.0
# Shares of the limit, found on random problems of 8 to 16 GPUs.
COUNT_SHARE, PLACE_SHARE, NEAR_SHARE, WHOLE_SHARE = 0.35, 0.1, 0.08, 0.2
PART_SHARE, FIRST_PARTS_SHARE, SETTLE_SHARE = 0.04, 0.15, 0.03
#: Where the counts are solved beside the search, it improves parts for this share of the limit until they are there.
FIRST_COUNT_SHARE = 0.2
#: What building a part costs, in deterministic time, which does not count it.
BUILD_TIME = 0.05
#: Rounds of the fast planner before the first model: tens of milliseconds at 16 GPUs.
LONGER_ROUNDS = 5000
#: Share of the limit for each window of a problem that is too large for the model as a whole, and least seconds.
WINDOW_SHARE, WINDOW_SECONDS = 0.04, 1.0
#: Share of the limit that may go to the bound of such a problem.
PRICES_SHARE = 0.4

Chosen = dict[int, Column]
Counts = dict[tuple[int, int], int]


def plan(
    problem: Problem,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    deterministic_time: float | None = None,
    progress: Callable[[str], None] | None = None,
    **options: Any,
) -> Plan:
    """Plan a problem with the formal model, starting from the fast plan.

    Parameters
    ----------
    problem
        The input.
    time_limit
        Seconds; None for 10.
    seed
        Seed of the fast planner, of CP-SAT and of the neighbourhoods.
    deterministic_time
        Limit in CP-SAT's deterministic time instead of seconds: the same input and seed give the same bytes.
    progress
        Called with one line at each step forward.
    options
        Handed to the fast planner.

    Returns
    -------
    Plan
        Never worth less than the fast plan, and equal to it, flagged, where the solver failed. Its key
        ``solver`` holds ``status`` (``optimal``: the gap to the bound is at most 1e-5 of the value; ``feasible``;
        ``interrupted``; ``fallback``: the solver failed), ``trouble`` (what failed, or None), ``bound``, ``gap``
        (share of the bound), ``fast_objective``, ``gain`` and ``changes`` (see `changes`).

    Raises
    ------
    InputError
        The deterministic time is negative or not finite.
    """
    if deterministic_time is not None and not 0.0 <= deterministic_time < np.inf:
        raise InputError(
            f"{deterministic_time} is not a length of time", field="deterministic_time", fix="write 0 or more"
        )
    fast = solve(problem, mode="fast", seed=seed, **options)
    seconds = DEFAULT_LIMIT if time_limit is None else time_limit
    budget = Budget(seconds, deterministic_time, seed=seed)
    search = _Search(problem, fast, budget, progress, MAX_COLUMNS, windows=True)
    trouble = None
    try:
        search.improve()
        search.tell(ended=True)
    except KeyboardInterrupt:
        search.budget.interrupted = True
    except Exception as error:  # any trouble of the solver gives back the best plan so far, flagged
        trouble = f"{type(error).__name__}: {error}"
    if search.budget.total() <= 0.0:
        trouble = trouble or "no time to search: the limit is 0"
    return search.result(trouble)


class _Counting:
    """The relaxation, solved beside the search where time is counted in seconds, else before it.

    Its bound goes to the search as it falls; its best solution so far is what the search names.
    """

    def __init__(self, search: "_Search") -> None:
        self._budget = search.budget
        self._model = CountModel(search.terms, required=frozenset(search.pinned))
        self._latest: tuple[Chosen, Counts] | None = None
        self._read = False
        self.beside = search.budget.deterministic is None
        share = 1.0 if self.beside else COUNT_SHARE
        self._search = search
        self._run = Run(
            self._model.cp,
            search.budget,
            share * search.budget.total(),
            on_solution=lambda callback: self._keep(callback.value),
            on_bound=search.lower_scaled,
            slack=search.terms.rounding,
        )

    def _keep(self, value: Callable[[Var], int]) -> None:
        self._latest = self._model.chosen(value), {key: value(n) for key, n in self._model.n.items()}

    def wait(self) -> None:
        """Wait until the run has ended."""
        self._run.wait()

    def ended(self) -> bool:
        """Whether the run has ended."""
        return self._run.wait(0.0)

    def news(self) -> tuple[Chosen, Counts] | None:
        """The best solution in counts, where there is a new one since the last call."""
        if not self._read and self.ended():
            self._read = True
            answer = self._run.answer()
            self._search.statuses.append(answer.status)
            if answer.bound is not None:
                self._search.lower_scaled(answer.bound)
        latest, self._latest = self._latest, None
        return latest

    def stop(self) -> None:
        """End the run; what it found is kept."""
        self._run.stop()
        self._run.wait()


@dataclass
class _Search:
    problem: Problem
    fast: Plan
    budget: Budget
    progress: Callable[[str], None] | None
    most_columns: int = MAX_COLUMNS
    #: Whether a problem of more columns is searched window by window; a window is not divided again.
    windows: bool = False
    bound: float = np.inf
    #: By index of a job, the GPU that it keeps: what a window of a larger problem holds fixed.
    pinned: dict[int, int] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.best = self.start = self.fast
        self.stage, self._line, self._told = "fast", "", -1
        self.budget.tick = self.tell
        self.objective, self.worth = self.fast.metrics["objective"], self.fast.metrics["value"]
        self.terms = Terms(self.problem)
        self.bound = padded(self.terms, self.terms.objective_at_most)

    def improve(self) -> None:
        """Lower the bound and raise the plan until they meet or the budget ends."""
        if self.budget.left() <= 0.0:
            return
        large = self.terms.column_count > self.most_columns
        rest = (1.0 - PRICES_SHARE) * self.budget.total() if large else 0.0
        self._lower(padded(self.terms, price_bound(self.terms, lambda: self.budget.left() > rest)))
        if large and self.windows:
            self._search_windows()
        if large or self.met():
            return
        if not self.pinned and LONGER_ROUNDS:
            # its rounds cost far less than the model of a part
            longer = solve(self.problem, mode="fast", seed=self.budget.seed, rounds=LONGER_ROUNDS)
            if self._offer(longer, "longer fast search"):
                self.start = self.best
            if self.met():
                return
        counting = _Counting(self)
        try:
            self._improve(counting)
        finally:
            counting.stop()
        if self.best is not self.start:
            self._settle_apps()

    def _improve(self, counting: "_Counting") -> None:
        rng = np.random.default_rng(self.budget.seed)
        if counting.beside:
            first = self.budget.left() - FIRST_COUNT_SHARE * self.budget.total()
            self._search_parts(rng, until=first, stop=counting.ended)
        else:
            counting.wait()
        self._name(counting.news())
        cells = self._cells()
        if cells <= FEW_CELLS and not self.met():
            self._search_whole()
        # Parts are the quickest way up, the whole model is the only way to a better bound: parts, whole, parts.
        self._search_parts(rng, until=self.budget.left() - FIRST_PARTS_SHARE * self.budget.total())
        self._name(counting.news())
        if FEW_CELLS < cells <= CELLS_A_SECOND * self.budget.left() and not self.met():
            self._search_whole()
        self._name(counting.news())
        self._search_parts(rng, until=SETTLE_SHARE * self.budget.total())

    def _name(self, solution: tuple[Chosen, Counts] | None) -> None:
        """Name the GPUs of a solution in counts; where that fails, let its jobs move a little."""
        if solution is None or self.met() or self._place(*solution):
            return
        for reach in (1, 3):
            if not self.met():
                self._search_near(solution, reach)

    def met(self) -> bool:
        """Whether nothing is left to do: the plan meets the bound, or the budget is spent."""
        return self.budget.left() <= 0.0 or self.bound - self.objective <= self._near()

    def _near(self) -> float:
        """The distance to the bound at which rounding decides: never more than `PROVEN_GAP` of the plan's value."""
        near = self.terms.rounding / self.terms.scale + 1e-7 * max(1.0, abs(self.bound))
        return min(near, PROVEN_GAP * max(1.0, self.worth))

    def result(self, trouble: str | None) -> Plan:
        """The best plan with what the search knows about it."""
        gap = relative_gap(self.bound, self.objective)
        answered = {"OPTIMAL", "FEASIBLE"} & set(self.statuses)
        if self.best is self.start and self.statuses and not answered:
            trouble = trouble or f"the solver gave no answer: {self.statuses[-1]}"
        if self.best is self.start and self.trouble:
            trouble = trouble or self.trouble[0]
        if self.bound - self.objective <= self._near():
            status = "optimal"
        elif self.budget.interrupted:
            status = "interrupted"
        elif trouble is not None:
            status = "fallback"
        else:
            status = "feasible"
        solver = {
            "status": status,
            "trouble": trouble,
            "bound": self.bound,
            "gap": gap,
            "fast_objective": self.fast.metrics["objective"],
            "gain": self.objective - self.fast.metrics["objective"],
            "changes": changes(self.problem, self.fast, self.best),
        }
        extra = self.fast.extra if self.best is self.fast else {}
        return Plan.of(
            self.problem, "full", self.best.placements, self.best.apps, **{**extra, "solver": solver}
        )

    def tell(self, ended: bool = False) -> None:
        """Say how far the search is, at most once a second and at its end; never from a solver's thread."""
        gap = relative_gap(self.bound, self.objective)
        line = f"objective {self.objective:.2f} ({self.stage}), bound {self.bound:.2f}, gap {gap:.2%}"
        if self.budget.deterministic is None:
            second = int(self.budget.total() - self.budget.left())
            if second == self._told and not ended:
                return
            self._told = second
            line += f", {second} of {self.budget.total():g} s"
        if self.progress is not None and line != self._line:
            self._line = line
            self.progress(line)

    def _lower(self, bound: float) -> None:
        self.bound = min(self.bound, bound)

    def _offer(self, candidate: Plan, stage: str) -> bool:
        """Take a plan where it is legal and better; an illegal one is a defect that is told, not returned."""
        violations, found = check(self.problem, candidate)
        if violations:
            self.trouble.append(f"{stage} made a plan that breaks a rule: {violations[0]}")
            return False
        if found["objective"] <= self.objective + 1e-9 * max(1.0, abs(self.objective)):
            return False
        self.best, self.objective, self.worth = candidate, found["objective"], found["value"]
        self.stage = stage
        self.tell()
        return True

    def _columns(self, chosen: Chosen) -> list[list[Column]]:
        return [[chosen[j]] if j in chosen else [] for j in range(len(self.problem.jobs))]

    def _place(self, chosen: Chosen, counts: Counts) -> bool:
        """Name the GPUs of a solution in counts, as it stands."""
        required = frozenset(chosen)
        model = IdentityModel(self.terms, self._columns(chosen), required, self._legal, counts)
        limit = PLACE_SHARE * self.budget.total()
        answer = Run(model.cp, self.budget, limit, named=True).answer()
        return answer.solution is not None and self._offer(self._plan(model, answer), "placed")

    def _plan(self, model: IdentityModel, answer: Answer) -> Plan:
        value = answer.solution
        assert value is not None
        counts = {key: value(n) for key, n in model.n.items()}
        return as_plan(self.terms, "full", model.placements(value), model.app_cells(value), counts)

    def _solve(self, model: IdentityModel, share: float, stage: str, *, whole: bool = False) -> Answer:
        """Run a model for a share of the limit; the bound of the whole model bounds the problem."""
        answer = Run(
            model.cp,
            self.budget,
            share * self.budget.total(),
            on_bound=self.lower_scaled if whole else None,
            slack=self.terms.rounding,
            named=True,
        ).answer()
        if whole and answer.bound is not None:
            self.lower_scaled(answer.bound)
        self.statuses.append(answer.status)
        if answer.solution is not None:
            self._offer(self._plan(model, answer), stage)
        return answer

    def lower_scaled(self, scaled: float) -> None:
        """Lower the bound to one of CP-SAT's."""
        self._lower(padded(self.terms, scaled / self.terms.scale))

    def _search_near(self, solution: tuple[Chosen, Counts], reach: int) -> None:
        """Let every job move by up to ``reach`` steps from its start in a solution in counts."""
        chosen, counts = solution
        columns = [
            [c for c in every if j not in chosen or abs(c.start - chosen[j].start) <= reach]
            for j, every in enumerate(self.terms.columns)
        ]
        model = IdentityModel(self.terms, columns, frozenset(self.pinned), self._legal)
        model.hint(chosen, counts)
        self._solve(model, NEAR_SHARE, f"moved by up to {reach}")

    def _search_whole(self) -> None:
        """Search the whole model from the best plan so far; its bound holds too, and is often the better one."""
        model = IdentityModel(self.terms, None, frozenset(self.pinned), self._legal)
        model.hint_plan(self.best)
        self._solve(model, WHOLE_SHARE, "whole", whole=True)

    def _search_parts(
        self, rng: np.random.Generator, until: float, stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Free some jobs, keep the others where they are, solve, and go on with others."""
        waiting = [
            j
            for j, job in enumerate(self.problem.jobs)
            if not job.running and self.terms.columns[j] and j not in self.pinned
        ]
        size = max(8, len(waiting) // 2)
        while waiting and not self.met() and self.budget.left() > until and not stop():
            free = self._neighbourhood(rng, waiting, min(size, len(waiting)))
            chosen, _ = facts(self.terms, self.best)
            columns = [
                list(self.terms.columns[j]) if j in free else [chosen[j]] if j in chosen else []
                for j in range(len(self.problem.jobs))
            ]

            model = IdentityModel(
                self.terms, columns, frozenset(set(chosen) - free), partial(self._blocks, self.best, free)
            )
            model.hint_plan(self.best)
            before, left = self.objective, self.budget.left()
            answer = self._solve(
                model, PART_SHARE, f"{len(free)} jobs freed", whole=len(free) == len(waiting)
            )
            self.budget.spend(BUILD_TIME)
            quick = left - self.budget.left() < 0.25 * PART_SHARE * self.budget.total()
            if not answer.optimal:
                size = max(4, size - 1)
            elif self.objective == before:
                size = min(len(waiting), size + (2 if quick else 1))

    def _search_windows(self) -> None:
        """Search a large problem window by window, in order of idle GPUs, again and again."""
        for sweep in count():
            turns = in_turn(self.problem, self.best, sweep)
            for turn, where in enumerate(turns):
                if self.met():
                    return
                number = sweep * len(turns) + turn
                part = window(self.problem, self.best, where, number)
                self.budget.spend(BUILD_TIME)
                if part is not None:
                    self._search_window(part, self.budget.seed + number)

    def _search_window(self, part: Window, seed: int) -> None:
        violations, found = check(part.problem, part.plan)
        if violations:
            self.trouble.append(f"a window breaks a rule: {violations[0]}")
            return
        total = self.budget.total()
        limit = min(self.budget.left(), WINDOW_SHARE * total)
        if self.budget.deterministic is None:
            limit = min(self.budget.left(), max(limit, WINDOW_SECONDS))
        exact = None if self.budget.deterministic is None else limit
        budget = Budget(limit, exact, self.budget.workers, seed)
        inner = _Search(part.problem, part.plan.with_metrics(found), budget, None, pinned=part.pinned)
        budget.tick = self.tell
        try:
            inner.improve()
        finally:
            self.budget.interrupted = self.budget.interrupted or budget.interrupted
            self.budget.spend(min(limit, budget.spent))
            self.trouble += inner.trouble
            if inner.best is not inner.fast:
                better = put_back(self.problem, self.best, part, inner.best)
                self._offer(better, f"GPUs {part.low}–{part.high - 1} of {part.pool}")

    def _legal(self, j: int, column: Column) -> Sequence[int]:
        if j in self.pinned:
            return (self.pinned[j],)
        return self.terms.blocks_of(self.problem.jobs[j], column)

    def _blocks(self, plan: Plan, free: set[int], j: int, column: Column) -> Sequence[int]:
        job = self.problem.jobs[j]
        if j in free or job.running:
            return self.terms.blocks_of(job, column)
        return (plan.placement_by_job[job.id].first_gpu,)

    def _neighbourhood(self, rng: np.random.Generator, waiting: list[int], size: int) -> set[int]:
        """Jobs to free: near a random job in time, or any; jobs that wait unplaced are always among them."""
        placed = self.best.placement_by_job
        centre = placed.get(self.problem.jobs[int(rng.choice(waiting))].id)
        out = [j for j in waiting if self.problem.jobs[j].id not in placed]
        rng.shuffle(out)
        inside = [j for j in waiting if self.problem.jobs[j].id in placed]
        if centre is None or rng.random() < 0.3:
            rng.shuffle(inside)
        else:
            distance = {
                j: abs(placed[self.problem.jobs[j].id].start - centre.start) + rng.random() for j in inside
            }
            inside.sort(key=lambda j: distance[j])
        return set(inside[:size]) | set(out[: max(4, size // 2)])

    def _cells(self) -> int:
        """Cells of all named blocks: the size of the whole model."""
        cells = 0
        for job in self.problem.jobs:
            for s in () if job.running else job.shapes:
                blocks = len(self.terms.blocks(s.pool, s.gpus))
                cells += (
                    blocks * s.gpus * min(s.steps, self.terms.steps) * len(self.terms.starts(job, s.steps))
                )
        return cells

    def _settle_apps(self) -> None:
        """Let apps hold no more, and exchange no more, than the plan's service needs."""
        if not self.problem.apps or self.budget.left() <= 0.0:
            return
        settled = settle_apps(self.terms, self.best, self.budget)
        if settled is None:
            return
        violations, found = check(self.problem, settled)
        same = abs(found["objective"] - self.objective) <= 1e-9 * max(1.0, abs(self.objective))
        if not violations and (same or found["objective"] > self.objective):
            self.best, self.objective = settled, found["objective"]


def settle_apps(terms: Terms, plan: Plan, budget: Budget) -> Plan | None:
    """Name the apps' GPUs anew for the plan's jobs and service: fewest swaps, then fewest GPUs beyond demand."""
    chosen, _ = facts(terms, plan)
    placed = plan.placement_by_job
    columns = [[chosen[j]] if j in chosen else [] for j in range(len(terms.problem.jobs))]
    model = IdentityModel(
        terms, columns, frozenset(chosen), lambda j, c: (placed[terms.problem.jobs[j].id].first_gpu,)
    )
    served = {
        (a, t): min(len(held), terms.problem.apps[a].demand[t])
        for a, cells in cells_by_app(terms, plan).items()
        for t, held in enumerate(cells)
    }
    for key, least in served.items():
        model.cp.add(model.n[key] >= least)
    model.fewest_swaps()
    model.hint_plan(plan)
    answer = Run(model.cp, budget, SETTLE_SHARE * budget.total(), named=True).answer()
    if answer.solution is None:
        return None
    value = answer.solution
    counts = {key: value(n) for key, n in model.n.items()}
    return as_plan(terms, "full", plan.placements, model.app_cells(value), counts)
