"""The search of mode ``full``: count, name, repair; the best legal plan and the lowest bound so far."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from tidegrid.scheduler.checker import check
from tidegrid.scheduler.formal.bound import MAX_COLUMNS, ROUNDING, padded, relative_gap
from tidegrid.scheduler.formal.lagrange import price_bound
from tidegrid.scheduler.formal.model import CountModel, Facts, Part, everything
from tidegrid.scheduler.formal.named import NamedModel
from tidegrid.scheduler.formal.naming import as_plan
from tidegrid.scheduler.formal.parts import free_jobs, neighbours, window, windows
from tidegrid.scheduler.formal.run import Answer, Budget, Run
from tidegrid.scheduler.formal.terms import Terms
from tidegrid.scheduler.plan import Plan
from tidegrid.scheduler.problem import Problem
from tidegrid.scheduler.solve import solve

#: Cells of named places, for each second that is left, up to which the whole model is built.
CELLS_A_SECOND = 100_000
#: Cells up to which the whole model is so quick that it comes before its parts.
FEW_CELLS = 50_000
#: Cells beyond which even a part of the jobs has too many places: windows are searched instead.
MANY_CELLS = 1_000_000
# Shares of the limit, found on random problems of 8 to 16 GPUs.
COUNT_SHARE, PLACE_SHARE, NEAR_SHARE, WHOLE_SHARE = 0.5, 0.1, 0.08, 0.2
PART_SHARE, SETTLE_SHARE = 0.04, 0.03
#: Parts in turn without a better plan, after which the whole model has its turn, and its share of what is left.
PATIENCE, TURN_SHARE = 8, 0.5
#: Where the counts are solved beside the search, it improves parts for this share of the limit until they are there.
FIRST_COUNT_SHARE = 0.2
#: What building a part costs, in deterministic time, which does not count it.
BUILD_TIME = 0.05
#: Rounds of the fast planner before the first model: tens of milliseconds at 16 GPUs.
LONGER_ROUNDS = 5000
#: Share of the limit for each window of a problem that is too large for the model as a whole, and the least seconds
#: or deterministic time.
WINDOW_SHARE, WINDOW_SECONDS, WINDOW_TIME = 0.04, 1.0, 0.1
#: Share of the limit that may go to the bound of such a problem.
PRICES_SHARE = 0.4
#: The gap, as a share of a plan's value, up to which it is called optimal where no tolerance is given.
PROVEN_GAP = 1e-5


class _Counting:
    """The relaxation, solved beside the search where time is counted in seconds, else before it.

    Its bound goes to the search as it falls; its best solution so far is what the search names.
    """

    def __init__(self, search: "Search") -> None:
        self._model = CountModel(search.terms)
        self._latest: Facts | None = None
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

    def _keep(self, value: Callable[[Any], int]) -> None:
        self._latest = self._model.counted(value)

    def wait(self) -> None:
        """Wait until the run has ended."""
        self._run.wait()

    def ended(self) -> bool:
        """Whether the run has ended."""
        return self._run.wait(0.0)

    def news(self) -> Facts | None:
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
class Search:
    """A search that starts from a plan.

    Attributes
    ----------
    best, objective
        The best plan so far, which the checker has passed, and its worth.
    bound
        No legal plan is worth more.
    trouble, statuses
        What went wrong on the way, and how each run of the solver ended.
    course
        Time, objective and bound whenever one of the two got better.
    """

    problem: Problem
    fast: Plan
    budget: Budget
    progress: Callable[[str], None] | None
    #: Distance to the bound, in the unit of value, at which a plan is as good as optimal; None for `PROVEN_GAP`.
    tolerance: float | None = None
    trouble: list[str] = field(default_factory=list)
    statuses: list[str] = field(default_factory=list)
    course: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.best = self.start = self.fast
        self.stage, self._line, self._told = "fast", "", -1
        self.budget.tick = self.tell
        self.objective, self._worth = self.fast.metrics["objective"], self.fast.metrics["value"]
        self.terms = Terms(self.problem)
        self.bound = padded(self.terms, self.terms.objective_at_most)
        self._exhausted = False
        self._lines = any(not pool.by_node for pool in self.problem.pools)

    def improve(self) -> None:
        """Lower the bound and raise the plan until they meet or the budget ends."""
        if self.budget.left() <= 0.0:
            return
        large = self.terms.column_count > MAX_COLUMNS
        rest = (1.0 - PRICES_SHARE) * self.budget.total() if large else 0.0
        self._lower(padded(self.terms, price_bound(self.terms, lambda: self.budget.left() > rest)))
        if large:
            self._search_windows(until=0.0)
        if large or self.met():
            return
        if LONGER_ROUNDS:  # its rounds cost far less than the model of a part
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

    def _improve(self, counting: _Counting) -> None:
        rng = np.random.default_rng(self.budget.seed)
        cells = self._cells()
        if cells > MANY_CELLS:
            self._search_windows(until=SETTLE_SHARE * self.budget.total())
            return
        if counting.beside:
            first = self.budget.left() - FIRST_COUNT_SHARE * self.budget.total()
            self._search_parts(rng, until=first, stop=counting.ended)
        else:
            counting.wait()
        self._name(counting.news())
        if cells <= FEW_CELLS and not self.met():
            self._search_whole(WHOLE_SHARE)
        # Parts are the quickest way up, the whole model is the only way to a better bound: they take turns.
        rest = SETTLE_SHARE * self.budget.total()
        while not self.met() and self.budget.left() > rest:
            self._search_parts(rng, until=rest, patience=PATIENCE)
            self._name(counting.news())
            if cells <= CELLS_A_SECOND * self.budget.left() and not self.met():
                self._search_whole(TURN_SHARE * (self.budget.left() - rest) / self.budget.total())

    def met(self) -> bool:
        """Whether nothing is left to do: the plan meets the bound, the model is solved, or the budget is spent."""
        return self.budget.left() <= 0.0 or self._exhausted or self.proven()

    def proven(self) -> bool:
        """Whether no legal plan is worth more than this one by more than the tolerance."""
        return self.bound - self.objective <= self.allowed()

    def allowed(self) -> float:
        """The tolerance, in the unit of value."""
        if self.tolerance is not None:
            return self.tolerance
        return max(PROVEN_GAP * max(1.0, self._worth), 10 * ROUNDING * abs(self.bound))

    def tell(self, ended: bool = False) -> None:
        """Say how far the search is, at most once a second and at its end; never from a solver's thread."""
        self._note()
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

    def _note(self) -> None:
        now = {"objective": self.objective, "bound": self.bound}
        if not self.course or now != {k: self.course[-1][k] for k in now}:
            self.course.append({"time": round(self.budget.total() - self.budget.left(), 3), **now})

    def _lower(self, bound: float) -> None:
        self.bound = min(self.bound, bound)

    def lower_scaled(self, scaled: float) -> None:
        """Lower the bound to one of CP-SAT's."""
        self._lower(padded(self.terms, scaled / self.terms.scale))

    def _offer(self, candidate: Plan, stage: str) -> bool:
        """Take a plan where it is legal and better; an illegal one is a defect that is told, not returned."""
        violations, found = check(self.problem, candidate)
        if violations:
            self.trouble.append(f"{stage} made a plan that breaks a rule: {violations[0]}")
            return False
        if found["objective"] <= self.objective + 1e-9 * max(1.0, abs(self.objective)):
            return False
        self.best, self.objective, self._worth = candidate, found["objective"], found["value"]
        self.stage = stage
        self.tell()
        return True

    def _solve(self, model: NamedModel, share: float, stage: str, *, whole: bool = False) -> Answer:
        """Run a model for a share of the limit; the bound of the whole model bounds the problem."""
        bounds = whole and model.complete
        answer = Run(
            model.cp,
            self.budget,
            share * self.budget.total(),
            on_bound=self.lower_scaled if bounds else None,
            slack=self.terms.rounding,
            named=self._lines,
        ).answer()
        if bounds and answer.bound is not None:
            self.lower_scaled(answer.bound)
        self.statuses.append(answer.status)
        self._exhausted = whole and answer.optimal
        if answer.solution is not None:
            self._offer(as_plan(self.terms, "full", model.facts(answer.solution), self.best), stage)
        return answer

    def _name(self, counted: Facts | None) -> None:
        """Find places for a solution in counts; where that fails, let its jobs move a little."""
        if counted is None or self.met():
            return
        free = {j: [c] for j, c in counted.chosen.items() if not self.problem.jobs[j].running}
        model = NamedModel(self.terms, Part(free, frozenset(free)), counted.counts)
        answer = Run(model.cp, self.budget, PLACE_SHARE * self.budget.total(), named=self._lines).answer()
        if answer.solution is not None and self._offer(
            as_plan(self.terms, "full", model.facts(answer.solution), self.best), "placed"
        ):
            return
        for reach in (1, 3):
            if not self.met():
                self._search_near(counted, reach)

    def _search_near(self, counted: Facts, reach: int) -> None:
        """Let every job move by up to ``reach`` steps from its start in a solution in counts."""
        near = {
            j: [
                c for c in every if j not in counted.chosen or abs(c.start - counted.chosen[j].start) <= reach
            ]
            for j, every in everything(self.terms).columns.items()
        }
        model = NamedModel(self.terms, Part(near))
        model.hint(counted)
        self._solve(model, NEAR_SHARE, f"moved by up to {reach}")

    def _search_whole(self, share: float) -> None:
        """Search the whole model from the best plan so far; its bound holds too, and is often the better one."""
        best = Facts.of(self.terms, self.best)
        model = NamedModel(self.terms, known=(best,))
        model.hint(best)
        self._solve(model, share, "whole", whole=True)
        self.budget.spend(BUILD_TIME)

    def _search_parts(
        self,
        rng: np.random.Generator,
        until: float,
        stop: Callable[[], bool] = lambda: False,
        patience: float = np.inf,
    ) -> None:
        """Free some jobs, keep the others where they are, solve, and go on with others.

        It ends once so much budget is left, when asked to stop, or when ``patience`` parts in turn gave nothing.
        """
        waiting = [j for j, columns in everything(self.terms).columns.items() if columns]
        size = max(8, len(waiting) // 2)
        vain = 0
        while waiting and not self.met() and self.budget.left() > until and not stop() and vain < patience:
            free = neighbours(self.terms, self.best, rng, waiting, min(size, len(waiting)))
            part = free_jobs(self.terms, self.best, free)
            model = NamedModel(self.terms, part)
            model.hint(part.kept)
            before, left = self.objective, self.budget.left()
            whole = len(free) == len(waiting)
            # parts almost as large were solved: what is left goes to the bound
            share = (left - until) / self.budget.total() if whole else PART_SHARE
            answer = self._solve(model, share, f"{len(free)} jobs freed", whole=whole)
            self.budget.spend(BUILD_TIME)
            vain = vain + 1 if self.objective == before else 0
            quick = left - self.budget.left() < 0.25 * PART_SHARE * self.budget.total()
            if not answer.optimal:
                size = max(4, size - 1)
            elif self.objective == before:
                size = min(len(waiting), size + (2 if quick else 1))

    def _search_windows(self, until: float) -> None:
        """Search a large problem window by window, in order of idle GPUs, again and again."""
        least = WINDOW_SECONDS if self.budget.deterministic is None else WINDOW_TIME
        share = max(WINDOW_SHARE, least / self.budget.total())
        rng = np.random.default_rng(self.budget.seed)
        for sweep in count():
            turns = windows(self.problem, self.best, sweep)
            for turn, where in enumerate(turns):
                if self.met() or self.budget.left() <= until:
                    return
                part = window(self.terms, self.best, where, sweep * len(turns) + turn, rng)
                self.budget.spend(BUILD_TIME)
                if part is not None:
                    model = NamedModel(self.terms, part)
                    model.hint(part.kept)
                    pool, low, high = where
                    self._solve(model, share, f"GPUs {low}–{high - 1} of {pool}")

    def _cells(self) -> int:
        """Cells of all named places: the size of the whole model."""
        cells = 0
        for job in self.problem.jobs:
            for shape in () if job.running else self.terms.shapes(job):
                places = self.terms.places[shape.pool]
                width = 1 if places.pool.by_node else shape.gpus
                starts = len(self.terms.starts(job, shape.steps))
                cells += len(places.at(shape)) * width * min(shape.steps, self.terms.steps) * starts
        return cells

    def _settle_apps(self) -> None:
        """Let apps hold no more, and exchange no more, than the plan's service needs."""
        if not self.problem.apps or self.budget.left() <= 0.0:
            return
        best = Facts.of(self.terms, self.best)
        free = {j: [c] for j, c in best.chosen.items() if not self.problem.jobs[j].running}
        kept = Facts(best.chosen, best.lies)
        model = NamedModel(self.terms, Part({}, frozenset(free), kept), known=(best,))
        for (a, t), n in model.n.items():
            app = self.problem.apps[a]
            model.cp.add(app.replica * n >= min(app.replica * best.counts[a, t], app.demand[t]))
        model.fewest_swaps()
        model.hint(best)
        answer = Run(model.cp, self.budget, SETTLE_SHARE * self.budget.total(), named=self._lines).answer()
        if answer.solution is None:
            return
        settled = as_plan(self.terms, "full", model.facts(answer.solution), self.best)
        violations, found = check(self.problem, settled)
        same = abs(found["objective"] - self.objective) <= 1e-9 * max(1.0, abs(self.objective))
        if not violations and (same or found["objective"] > self.objective):
            self.best, self.objective = settled, found["objective"]
