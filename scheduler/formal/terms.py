"""The sets and constants of the formal model: what can be chosen, where, and what it earns.

Names and symbols follow docs/formal-model.md.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from tidegrid.scheduler.problem import Job, Pool, Problem

#: Σ|coefficient| after scaling, where no power of two makes the coefficients whole: each is then rounded up
#: by less than one, a share of 1e-8 of the largest objective that there could be.
SCALED_TOTAL = 1e8

#: How many times the jobs' part of the objective may be scaled below that, and what Σ|coefficient| may then be: a
#: heavy shortfall weight must not round the jobs' worth away.
COARSEST, LARGEST_TOTAL = 10.0, 1e14

#: The gap, as a share of a plan's value, up to which it is called optimal.
PROVEN_GAP = 1e-5


class Column(NamedTuple):
    """One way to run a job, its block not named yet: ``gpus`` of a pool from ``start`` for ``steps`` steps."""

    pool: str
    gpus: int
    steps: int
    start: int

    @property
    def end(self) -> int:
        """First step after the job's last one."""
        return self.start + self.steps


class Terms:
    """Sets and constants of a problem.

    Attributes
    ----------
    steps, lookahead
        T and T': the horizon, and the steps that any demand curve states.
    weight
        w(t) for t < T'.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.steps = problem.steps
        self.lookahead = problem.lookahead
        self.weight = [float(problem.decay) ** t for t in range(self.lookahead)]
        self.before = [0.0]
        for t in range(self.steps):
            self.before.append(self.before[-1] + self.weight[t])
        self._blocks: dict[tuple[str, int], tuple[int, ...]] = {}

    def reward(self, job: Job, column: Column) -> float:
        """Σ over the cells inside the horizon of priority · w(t)."""
        inside = min(column.end, self.steps)
        return float(job.priority) * column.gpus * (self.before[inside] - self.before[column.start])

    def starts(self, job: Job, steps: int) -> range:
        """Steps at which a shape of that length may start (rule 2)."""
        last = self.steps - 1
        if job.deadline is not None:
            last = min(last, job.deadline - steps)
        if job.finish_inside:
            last = min(last, self.steps - steps)
        return range(job.earliest, last + 1)

    def columns_of(self, job: Job) -> list[Column]:
        """Every column of a job; a running job has one."""
        if job.running:
            return [Column(job.running.pool, job.running.gpus, job.running.remaining, 0)]
        shapes = dict.fromkeys((s.pool, s.gpus, s.steps) for s in job.shapes)
        return [
            Column(pool, gpus, steps, start)
            for pool, gpus, steps in shapes
            if gpus <= self.problem.pool_by_id[pool].gpus
            for start in self.starts(job, steps)
        ]

    @cached_property
    def columns(self) -> list[list[Column]]:
        """Every column of every job, in the problem's order of jobs."""
        return [self.columns_of(job) for job in self.problem.jobs]

    @cached_property
    def column_count(self) -> int:
        """How many columns there are, without making them."""
        return sum(
            1 if job.running else sum(len(self.starts(job, shape.steps)) for shape in job.shapes)
            for job in self.problem.jobs
        )

    def blocks(self, pool: str, gpus: int) -> tuple[int, ...]:
        """First GPUs of the legal blocks of that size (rule 3)."""
        key = pool, gpus
        if key not in self._blocks:
            it = self.problem.pool_by_id[pool]
            self._blocks[key] = tuple(f for f in range(it.gpus - gpus + 1) if it.allows(f, gpus))
        return self._blocks[key]

    def blocks_of(self, job: Job, column: Column) -> tuple[int, ...]:
        """First GPUs that a job may take in a column; a running job keeps its own."""
        return (job.running.first_gpu,) if job.running else self.blocks(column.pool, column.gpus)

    @cached_property
    def scale(self) -> float:
        """Factor from the objective's floats to integers.

        Without decay a power of two can make every coefficient whole, and nothing is rounded; otherwise
        Σ|coefficient| becomes `SCALED_TOTAL`, or more where the apps' part would leave the jobs' too coarse.
        """
        total = 0.0
        for job in self.problem.jobs:
            gpus = [job.running.gpus] if job.running else [shape.gpus for shape in job.shapes]
            total += float(job.priority) * max(gpus, default=0) * self.before[-1]
        jobs = total
        for app in self.problem.apps:
            demand = sum(d * w for d, w in zip(app.demand, self.weight, strict=False))
            total += float(self.problem.shortfall_weight * app.priority) * demand
        if total <= 0.0:
            return 1.0
        if self.problem.decay == 1:
            amounts = [float(job.priority) for job in self.problem.jobs]
            amounts += [float(self.problem.shortfall_weight * app.priority) for app in self.problem.apps]
            for exact in (1.0, 2.0, 4.0, 8.0, 16.0):
                whole = all((amount * exact).is_integer() for amount in amounts)
                if whole and total * exact <= SCALED_TOTAL:
                    return exact
        finer = min(SCALED_TOTAL / COARSEST / jobs, LARGEST_TOTAL / total) if jobs > 0.0 else 0.0
        return max(SCALED_TOTAL / total, finer)

    @cached_property
    def rounding(self) -> int:
        """Distance to the bound, in scaled units, at which rounding decides and a search may end."""
        if self.problem.decay == 1 and self.scale in (1.0, 2.0, 4.0, 8.0, 16.0):
            return 0
        return min(1000, len(self.problem.jobs) + sum(sum(app.demand) for app in self.problem.apps))

    def scaled(self, coefficient: float) -> int:
        """Round a coefficient of the objective up, so that no plan is worth less in integers than in floats."""
        return math.ceil(coefficient * self.scale)

    def charge(self, priority: float, t: int) -> float:
        """What one GPU short at step t costs."""
        return float(self.problem.shortfall_weight * priority) * self.weight[t]

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
            for s in job.shapes:
                starts = self.starts(job, s.steps)
                if starts and s.gpus <= self.problem.pool_by_id[s.pool].gpus:
                    best = max(best, self.reward(job, Column(s.pool, s.gpus, s.steps, starts[0])))
            total += best
        return total


def fitting(pool: Pool, size: int, free: Sequence[bool]) -> int:
    """How many disjoint legal blocks of ``size`` fit into the free GPUs of a pool, or of its first part."""
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
