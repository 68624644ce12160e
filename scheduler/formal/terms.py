"""The sets and constants of the formal model: what can be chosen, and what it earns.

Names and symbols follow docs/formal-model.md. Version 1 of the problem is a case of version 2: a shape's work is then
the GPU-steps that it occupies.
"""

import math
from functools import cached_property

from tidegrid.scheduler.formal.places import Column, places_of
from tidegrid.scheduler.plan import Placement
from tidegrid.scheduler.problem import App, Job, Problem

#: Σ|coefficient| after scaling, where no power of two makes the coefficients whole: each is then rounded up
#: by less than one, a share of 1e-10 of the largest objective that there could be.
SCALED_TOTAL = 1e10

#: How many times the jobs' part of the objective may be scaled below that, and what Σ|coefficient| may then be: a
#: heavy shortfall weight must not round the jobs' worth away.
COARSEST, LARGEST_TOTAL = 10.0, 1e14

_EXACT = (1.0, 2.0, 4.0, 8.0, 16.0)


class Terms:
    """Sets and constants of a problem.

    Attributes
    ----------
    steps, lookahead
        T and T': the horizon, and the steps that any demand curve states.
    weight
        w(t) for t < T'.
    places
        By pool, where tasks may lie.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.steps = problem.steps
        self.lookahead = problem.lookahead
        self.weight = [float(problem.decay) ** t for t in range(self.lookahead)]
        self.before = [0.0]
        for t in range(self.steps):
            self.before.append(self.before[-1] + self.weight[t])
        self.places = places_of(problem)
        # Of shapes that a placement cannot tell apart, the likeliest to end counts.
        self._success: dict[tuple[str, str, int, int], float] = {}
        for job in problem.jobs:
            for s in job.shapes:
                key = (job.id, s.pool, s.gpus, s.steps)
                self._success[key] = max(self._success.get(key, 0.0), float(s.success))

    def rate(self, job: Job, pool: str, gpus: int, steps: int) -> float:
        """What a step of a job earns at weight 1, less what its GPUs cost."""
        if job.running or not self.problem.pays_for_work:
            work = float(gpus)
        else:
            work = job.least_work / steps * self._success.get((job.id, pool, gpus, steps), 0.0)
        return float(job.priority) * work - float(self.problem.gpu_cost) * gpus

    def reward(self, job: Job, column: Column) -> float:
        """What a column earns inside the horizon, less what its GPUs cost."""
        inside = min(column.end, self.steps)
        weight = self.before[inside] - self.before[column.start]
        return self.rate(job, column.pool, column.gpus, column.steps) * weight

    def starts(self, job: Job, steps: int) -> range:
        """Steps at which a shape of that length may start (rule 2), once running predecessors have ended (rule 8)."""
        last = self.steps - 1
        if job.deadline is not None:
            last = min(last, job.deadline - steps)
        if job.finish_inside:
            last = min(last, self.steps - steps)
        return range(max(job.earliest, self._after_running(job)), last + 1)

    def _after_running(self, job: Job) -> int:
        known = self.problem.job_by_id
        runs = (known[name].running for name in job.after or () if name in known)
        return max((r.remaining for r in runs if r), default=0)

    def shapes(self, job: Job) -> list[Column]:
        """Every way to run a waiting job that its pools can hold, as a column at step 0."""
        found: dict[Column, None] = {}
        for s in job.shapes:
            pool = self.problem.pool_by_id[s.pool]
            nodes = s.nodes_in(pool) if pool.by_node else 1
            if s.gpus <= pool.gpus and 0 < nodes <= self.places[s.pool].nodes:
                found[Column(s.pool, s.gpus, s.steps, 0, nodes, s.within)] = None
        return list(found)

    def columns_of(self, job: Job) -> list[Column]:
        """Every column of a job that has a place; a running job has one."""
        if job.running:
            return [Column(job.running.pool, job.running.gpus, job.running.remaining, 0)]
        moved = (
            shape._replace(start=start)
            for shape in self.shapes(job)
            for start in self.starts(job, shape.steps)
        )
        return [column for column in moved if self.places[column.pool].at(column)]

    @cached_property
    def columns(self) -> list[list[Column]]:
        """Every column of every job, in the problem's order of jobs."""
        return [self.columns_of(job) for job in self.problem.jobs]

    @cached_property
    def column_count(self) -> int:
        """How many columns there are at most, without making them."""
        return sum(
            1 if job.running else sum(len(self.starts(job, shape.steps)) for shape in self.shapes(job))
            for job in self.problem.jobs
        )

    def column_at(self, job: Job, p: Placement) -> Column:
        """The column of a placement."""
        if job.running:
            return Column(p.pool, p.gpus, p.steps, p.start)
        places = self.places[p.pool]
        nodes = len({int(places.node_of[gpu]) for gpu in p.ids}) if places.pool.by_node else 1
        same = [
            shape
            for shape in self.shapes(job)
            if (shape.pool, shape.gpus, shape.steps, shape.nodes) == (p.pool, p.gpus, p.steps, nodes)
        ]
        for shape in same:
            column = shape._replace(start=p.start)
            if places.open(column)[list(p.ids)].all():
                return column
        return Column(p.pool, p.gpus, p.steps, p.start, nodes)

    @cached_property
    def scale(self) -> float:
        """Factor from the objective's floats to integers.

        Without decay a power of two can make every coefficient whole, and nothing is rounded; otherwise
        Σ|coefficient| becomes `SCALED_TOTAL`, or more where the apps' part would leave the jobs' too coarse.
        """
        problem = self.problem
        rates = [
            [self.rate(job, s.pool, s.gpus, s.steps) for s in self._occupied(job)] for job in problem.jobs
        ]
        jobs = sum(max(map(abs, mine), default=0.0) for mine in rates) * self.before[-1]
        total = jobs
        for app in problem.apps:
            for t, wanted in enumerate(app.demand):
                below = min(wanted, app.floor) * max(0.0, float(problem.floor_weight) - 1.0)
                total += self.charge(app, t) * (wanted + below)
            total += self.before[-1] * self.entry(app, 0) * problem.pool_by_id[app.pool].gpus
        if total <= 0.0:
            return 1.0
        if problem.decay == 1:
            amounts = [rate for mine in rates for rate in mine]
            for app in problem.apps:
                amounts += [self.charge(app, 0), self.below(app, 0), self.entry(app, 0)]
            for exact in _EXACT:
                whole = all((amount * exact).is_integer() for amount in amounts)
                if whole and total * exact <= SCALED_TOTAL:
                    return exact
        finer = min(SCALED_TOTAL / COARSEST / jobs, LARGEST_TOTAL / total) if jobs > 0.0 else 0.0
        return max(SCALED_TOTAL / total, finer)

    def _occupied(self, job: Job) -> list[Column]:
        return self.columns_of(job) if job.running else self.shapes(job)

    @cached_property
    def rounding(self) -> int:
        """Distance to the bound, in scaled units, at which rounding decides and a search may end."""
        if self.problem.decay == 1 and self.scale in _EXACT:
            return 0
        return min(1000, len(self.problem.jobs) + sum(sum(app.demand) for app in self.problem.apps))

    def scaled(self, coefficient: float) -> int:
        """Round a coefficient of the objective up, so that no plan is worth less in integers than in floats."""
        return math.ceil(coefficient * self.scale)

    def charge(self, app: App, t: int) -> float:
        """What one GPU short at step t costs."""
        return float(self.problem.shortfall_weight * app.priority) * self.weight[t]

    def below(self, app: App, t: int) -> float:
        """What one GPU below the floor costs at step t, beside that it is short."""
        return self.charge(app, t) * (float(self.problem.floor_weight) - 1.0) if app.floor else 0.0

    def entry(self, app: App, t: int) -> float:
        """What one GPU that enters the app at step t costs."""
        return float(self.problem.swap_cost * app.priority) * self.weight[t]

    def swaps_bind(self, app: App) -> bool:
        """Whether the swap cap can bind: below the GPUs that could all change hands in one step."""
        return app.swap_cap is not None and app.swap_cap < self.problem.pool_by_id[app.pool].gpus

    def pool_apps(self, pool: str) -> list[int]:
        """Indices of a pool's apps."""
        return [i for i, app in enumerate(self.problem.apps) if app.pool == pool]

    @cached_property
    def objective_at_most(self) -> float:
        """A bound that needs no solver: every job earns its best, no app is ever short."""
        total = 0.0
        for job in self.problem.jobs:
            if job.running:
                total += self.reward(job, self.columns_of(job)[0])
                continue
            best = 0.0
            for shape in self.shapes(job):
                starts = self.starts(job, shape.steps)
                if starts:
                    best = max(best, self.reward(job, shape._replace(start=starts[0])))
            total += best
        return total
