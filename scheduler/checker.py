"""The judge of every plan: is it legal, and what are its figures.

Written from the contract alone, so that it shares no code with any planner. Vectorised over GPUs.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from tidegrid.scheduler.plan import Placement, Plan
from tidegrid.scheduler.problem import App, Job, Pool, Problem

FIGURES = ("utilization", "value", "penalty", "objective", "shortfall", "swaps", "placed", "jobs")
_FREE = -1


def check(problem: Problem, plan: Plan) -> tuple[list[str], dict[str, float]]:
    """Judge a plan and recompute its figures.

    Parameters
    ----------
    problem, plan
        The plan may be broken in any way that `Plan.from_dict` lets through.

    Returns
    -------
    violations
        One message for each breach of a rule; empty where the plan is legal.
    figures
        ``utilization`` (0 to 1 for a legal plan), ``value`` and ``penalty`` (priority · weight ·
        GPU-steps), ``objective`` = value − penalty, ``shortfall`` (GPU-steps), ``swaps`` (GPUs), ``placed``
        and ``jobs`` (counts).
    """
    board = _Board(problem)
    seen = board.place_jobs(plan)
    for job in problem.jobs:
        if job.running and job.id not in seen:
            board.bad.append(f"rule 2: running job {job.id} is dropped")
    covered = board.place_apps(plan)
    board.bad += [f"app {app.id} is missing from the plan" for app in problem.apps if app.id not in covered]
    board.charge_lookahead()
    if plan.stated_grid is not None:
        board.compare_grid(plan.stated_grid)
    cells = problem.steps * sum(pool.gpus for pool in problem.pools)
    figures: dict[str, float] = {
        "utilization": (board.job_cells + board.served) / cells,
        "value": board.reward,
        "penalty": board.penalty,
        "objective": board.reward - board.penalty,
        "shortfall": board.short,
        "swaps": board.swaps,
        "placed": len(seen),
        "jobs": len(problem.jobs),
    }
    for name, figure in figures.items():
        stated = plan.metrics.get(name)
        if stated is not None and abs(stated - figure) > 1e-6 * max(1.0, abs(figure)):
            board.bad.append(f"metric {name} is stated as {stated}, recomputed as {figure}")
    return board.bad, figures


def figures(problem: Problem, plan: Plan) -> dict[str, float]:
    """Return the figures of a plan, whatever its legality."""
    return check(problem, plan)[1]


def is_legal(problem: Problem, plan: Plan) -> bool:
    """Whether a plan keeps every rule and states no wrong figure."""
    return not check(problem, plan)[0]


class _Board:
    """Who holds each GPU in each step, the lookahead included, filled in the order of the plan."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.steps = problem.steps
        self.width = problem.lookahead
        self.weight = float(problem.decay) ** np.arange(self.width)
        # Σ of weights before a step, so that a block's reward is one subtraction.
        self.weight_before = np.concatenate([[0.0], np.cumsum(self.weight[: self.steps])]).tolist()
        self.owner = {pool.id: np.full((pool.gpus, self.width), _FREE, np.int32) for pool in problem.pools}
        self.names = [job.id for job in problem.jobs] + [app.id for app in problem.apps]
        self.number = {name: i for i, name in enumerate(self.names)}
        self.bad: list[str] = []
        self.reward = self.penalty = 0.0
        self.job_cells = self.short = self.served = self.swaps = 0

    def place_jobs(self, plan: Plan) -> set[str]:
        seen: set[str] = set()
        jobs, pools = self.problem.job_by_id, self.problem.pool_by_id
        for p in plan.placements:
            job = jobs.get(p.job)
            if job is None:
                self.bad.append(f"unknown job {p.job}")
                continue
            if p.job in seen:
                self.bad.append(f"rule 2: {p.job} is placed twice")
            seen.add(p.job)
            pool = pools.get(p.pool)
            if pool is None:
                self.bad.append(f"unknown pool {p.pool}")
                continue
            self._judge(job, pool, p)
            if p.first_gpu < 0 or p.first_gpu + p.gpus > pool.gpus:
                self.bad.append(f"rule 3: {p.job} lies outside {p.pool}")
                continue
            self._take_block(job, p)
        return seen

    def _judge(self, job: Job, pool: Pool, p: Placement) -> None:
        if job.running:
            r = job.running
            if (p.pool, p.first_gpu, p.gpus, p.start, p.steps) != (
                r.pool,
                r.first_gpu,
                r.gpus,
                0,
                r.remaining,
            ):
                self.bad.append(f"rule 2: running job {p.job} does not keep its block")
            return
        if not any(s.gpus == p.gpus and s.steps == p.steps and s.pool == p.pool for s in job.shapes):
            self.bad.append(f"rule 2: {p.job} has no shape of {p.gpus} GPUs for {p.steps} steps in {p.pool}")
        if p.start < job.earliest or p.start >= self.steps:
            self.bad.append(f"rule 2: {p.job} starts at {p.start}")
        end = p.start + p.steps
        if job.deadline is not None and end > job.deadline:
            self.bad.append(f"rule 2: {p.job} ends at {end}, past its deadline {job.deadline}")
        if job.finish_inside and end > self.steps:
            self.bad.append(f"rule 2: {p.job} ends at {end}, outside the horizon")
        if p.gpus < 1 or p.gpus & (p.gpus - 1):
            self.bad.append(f"rule 3: {p.job} has {p.gpus} GPUs, not a power of two")
        node = pool.node_size
        if node:
            inside = p.first_gpu // node == (p.first_gpu + p.gpus - 1) // node
            if not (inside if p.gpus <= node else p.first_gpu % node == 0):
                self.bad.append(f"rule 3: {p.job} straddles a node")

    def _take_block(self, job: Job, p: Placement) -> None:
        # Cells past the lookahead need no owner: two legal blocks that meet there meet before it too.
        start, stop = max(0, p.start), min(p.start + p.steps, self.width)
        if stop <= start:
            return
        if p.gpus > 0:
            block = self.owner[p.pool][p.first_gpu : p.first_gpu + p.gpus, start:stop]
            if block.max() != _FREE:
                self._clash(p.pool, block, p.first_gpu, start, job.id)
            block[:] = self.number[job.id]
        inside = min(stop, self.steps)
        if inside > start:
            self.reward += job.priority * p.gpus * (self.weight_before[inside] - self.weight_before[start])
            self.job_cells += p.gpus * (inside - start)

    def _clash(self, pool: str, block: np.ndarray, first_gpu: int, start: int, task: str) -> None:
        for gpu, t in np.argwhere(block != _FREE)[:20]:
            other = self.names[block[gpu, t]]
            self.bad.append(
                f"rule 1: {pool} GPU {first_gpu + gpu} step {start + t} serves both {other} and {task}"
            )

    def place_apps(self, plan: Plan) -> set[str]:
        covered: set[str] = set()
        for name, cells in plan.apps:
            app = self.problem.app_by_id.get(name)
            if app is None:
                self.bad.append(f"unknown app {name}")
                continue
            covered.add(name)
            if len(cells) != self.steps:
                self.bad.append(f"app {name} has {len(cells)} steps, not {self.steps}")
                continue
            if not self._serve_clean(app, cells):
                before = set(app.held_gpus)
                for t, held in enumerate(cells):
                    before = self._serve(app, t, held, before)
        return covered

    def _serve_clean(self, app: App, cells: Sequence[Sequence[int]]) -> bool:
        """Serve an app whose cells break no rule, all steps at once; False, with nothing done, for any other."""
        owner = self.owner[app.pool]
        count = np.fromiter(map(len, cells), np.int64, self.steps)
        gpus = np.fromiter(chain.from_iterable(cells), np.int64, int(count.sum()))
        if gpus.size and (gpus.min() < 0 or gpus.max() >= len(owner)):
            return False
        at = np.repeat(np.arange(self.steps), count)
        holds = np.zeros((self.steps + 1, len(owner)), bool)
        holds[0, list(app.held_gpus)] = True
        holds[at + 1, gpus] = True
        moved = np.count_nonzero(holds[1:] != holds[:-1], axis=1)
        if np.count_nonzero(holds[1:]) != gpus.size or (gpus.size and owner[gpus, at].max() != _FREE):
            return False
        if app.swap_cap is not None and moved.max() > app.swap_cap:
            return False
        owner[gpus, at] = self.number[app.id]
        demand = np.array(app.demand[: self.steps], np.int64)
        short = np.maximum(0, demand - count)
        self.swaps += int(moved.sum())
        self.short += int(short.sum())
        self.served += int(np.minimum(count, demand).sum())
        self.penalty += float(
            self.problem.shortfall_weight * app.priority * (self.weight[: self.steps] @ short)
        )
        return True

    def _serve(self, app: App, t: int, held: Any, before: set[int]) -> set[int]:
        now = set(held)
        if len(now) != len(held):
            self.bad.append(f"app {app.id} step {t} lists a GPU twice")
        owner = self.owner[app.pool]
        moved = 0
        if now:
            gpus = sorted(now)
            if gpus[0] < 0 or gpus[-1] >= len(owner):
                self.bad += [f"app {app.id} step {t}: no GPU {g}" for g in gpus if not 0 <= g < len(owner)]
                gpus = [g for g in gpus if 0 <= g < len(owner)]
            taken = owner[gpus, t]
            if gpus and taken.max() != _FREE:
                for gpu, other in zip(gpus, taken, strict=True):
                    if other != _FREE:
                        both = f"{self.names[other]} and {app.id}"
                        self.bad.append(f"rule 1: {app.pool} GPU {gpu} step {t} serves both {both}")
            owner[gpus, t] = self.number[app.id]
        if now != before:
            moved = len(now ^ before)
        self.swaps += moved
        if app.swap_cap is not None and moved > app.swap_cap:
            self.bad.append(
                f"rule 4: app {app.id} swaps {moved} GPUs at step {t}, over its cap {app.swap_cap}"
            )
        demand = app.demand[t]
        short = max(0, demand - len(now))
        self.short += short
        self.served += min(len(now), demand)
        self.penalty += float(self.problem.shortfall_weight * app.priority * self.weight[t] * short)
        return now

    def charge_lookahead(self) -> None:
        # Past the horizon only tails of jobs hold GPUs; the lowest priority is charged first.
        for pool in self.problem.pools:
            mine = sorted((a for a in self.problem.apps if a.pool == pool.id), key=lambda a: a.priority)
            longest = max((len(app.demand) for app in mine), default=0)
            if longest <= self.steps:
                continue
            used = np.count_nonzero(self.owner[pool.id][:, self.steps : longest] != _FREE, axis=0).tolist()
            for t in range(self.steps, longest):
                wanted = [app.demand[t] if t < len(app.demand) else 0 for app in mine]
                short = max(0, sum(wanted) - (pool.gpus - used[t - self.steps]))
                for app, want in zip(mine, wanted, strict=True):
                    cut = min(short, want)
                    self.penalty += float(self.problem.shortfall_weight * app.priority * self.weight[t] * cut)
                    self.short += cut
                    short -= cut

    def compare_grid(self, grid: Mapping[str, Any]) -> None:
        names: list[str | None] = [*self.names, None]
        for pool in self.problem.pools:
            rows = grid.get(pool.id)
            if rows is None or len(rows) < pool.gpus:
                self.bad.append(f"grid {pool.id} has {len(rows or ())} GPUs, not {pool.gpus}")
                continue
            owned = self.owner[pool.id][:, : self.steps].tolist()
            for gpu, numbers in enumerate(owned):
                want = [names[number] for number in numbers]
                row = rows[gpu]
                if row == want:
                    continue
                if len(row) < self.steps:
                    self.bad.append(f"grid {pool.id} GPU {gpu} has {len(row)} steps, not {self.steps}")
                for t, (says, true) in enumerate(zip(row, want, strict=False)):
                    if says != true:
                        self.bad.append(f"grid {pool.id} GPU {gpu} step {t} says {says}, the plan {true}")
