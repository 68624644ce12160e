"""The judge of every plan: is it legal, and what are its figures.

Written from the contract alone, so that it shares no code with any planner. Vectorised over GPUs.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from tidegrid.scheduler.limits import Span, broken_limits, broken_order
from tidegrid.scheduler.plan import Placement, Plan
from tidegrid.scheduler.problem import App, Closed, Job, Pool, Problem, Shape

Replica = frozenset[int]

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
        GPU-steps), ``objective`` = value − penalty − cost, ``shortfall`` (GPU-steps), ``swaps`` (GPUs), ``placed``
        and ``jobs`` (counts); for a problem of version 2 also ``cost`` (in the unit of value) and ``work``
        (GPU-steps of work done).
    """
    board = _Board(problem)
    seen = board.place_jobs(plan)
    if board.jobs_overlap():
        board = _Board(problem)
        seen = board.place_jobs(plan, tell_clashes=True)
    for job in problem.jobs:
        if job.running and job.id not in seen:
            board.bad.append(f"rule 2: running job {job.id} is dropped")
    if problem.version >= 2:
        board.bad += broken_order(problem, board.spans) + broken_limits(problem, board.spans)
    covered = board.place_apps(plan)
    board.bad += [f"app {app.id} is missing from the plan" for app in problem.apps if app.id not in covered]
    board.charge_lookahead()
    if plan.stated_grid is not None:
        board.compare_grid(plan.stated_grid)
    cells = problem.steps * sum(pool.gpus for pool in problem.pools) - board.down_and_unused()
    figures: dict[str, float] = {
        "utilization": (board.job_cells + board.served) / cells if cells else 0.0,
        "value": board.reward,
        "penalty": board.penalty,
        "objective": board.reward - board.penalty - board.cost,
        "shortfall": board.short,
        "swaps": board.swaps,
        "placed": len(seen),
        "jobs": len(problem.jobs),
    }
    if problem.version >= 2:
        figures |= {"cost": board.cost, "work": board.work}
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
        self.reward = self.penalty = self.cost = self.work = 0.0
        self.job_cells = self.short = self.served = self.swaps = 0
        self.spans: dict[str, Span] = {}
        self.taken = 0

    def place_jobs(self, plan: Plan, *, tell_clashes: bool = False) -> set[str]:
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
            fitting = self._judge(job, pool, p)
            last = p.first_gpu + p.gpus - 1 if p.gpu_ids is None else max(p.gpu_ids)
            if p.first_gpu < 0 or last >= pool.gpus:
                self.bad.append(f"rule 3: {p.job} lies outside {p.pool}")
                continue
            self.spans[p.job] = Span(p.start, p.end, p.gpus, job.running is not None, p.pool)
            self._take(job, p, fitting, tell_clashes)
        return seen

    def jobs_overlap(self) -> bool:
        """Whether jobs that are placed took more cells than are taken."""
        return self.taken != sum(int(np.count_nonzero(owner != _FREE)) for owner in self.owner.values())

    def _judge(self, job: Job, pool: Pool, p: Placement) -> Sequence[Shape]:
        """Judge a placement by itself; return the shapes that it fits."""
        if p.gpu_ids is not None:
            if len(set(p.gpu_ids)) != len(p.gpu_ids):
                self.bad.append(f"rule 3: {p.job} lists a GPU twice")
            if not pool.by_node and p.gpu_ids != tuple(range(p.first_gpu, p.first_gpu + p.gpus)):
                self.bad.append(f"rule 3: {p.job} is not contiguous")
        if job.running:
            r = job.running
            same = (p.pool, p.start, p.steps) == (r.pool, 0, r.remaining)
            if not same or sorted(p.ids) != list(r.ids):
                self.bad.append(f"rule 2: running job {p.job} does not keep its block")
            return ()
        fitting = [s for s in job.shapes if s.gpus == p.gpus and s.steps == p.steps and s.pool == p.pool]
        if not fitting:
            self.bad.append(f"rule 2: {p.job} has no shape of {p.gpus} GPUs for {p.steps} steps in {p.pool}")
        elif not any(_inside(p, shape) for shape in fitting):
            self.bad.append(f"rule 2: {p.job} lies outside the GPUs that it may use")
        if p.start < job.earliest or p.start >= self.steps:
            self.bad.append(f"rule 2: {p.job} starts at {p.start}")
        if job.deadline is not None and p.end > job.deadline:
            self.bad.append(f"rule 2: {p.job} ends at {p.end}, past its deadline {job.deadline}")
        if job.finish_inside and p.end > self.steps:
            self.bad.append(f"rule 2: {p.job} ends at {p.end}, outside the horizon")
        if pool.by_node:
            self._judge_nodes(pool, p, fitting)
        else:
            self._judge_block(pool, p)
        for closed in pool.closed or ():
            self._judge_closed(closed, p)
        return fitting

    def _judge_block(self, pool: Pool, p: Placement) -> None:
        if p.gpus < 1 or p.gpus & (p.gpus - 1):
            self.bad.append(f"rule 3: {p.job} has {p.gpus} GPUs, not a power of two")
        node = pool.node_size
        if node:
            inside = p.gpus < 1 or p.first_gpu // node == (p.first_gpu + p.gpus - 1) // node
            if not (inside if p.gpus <= node else p.first_gpu % node == 0):
                self.bad.append(f"rule 3: {p.job} straddles a node")

    def _judge_nodes(self, pool: Pool, p: Placement, fitting: Sequence[Shape]) -> None:
        node = pool.node_size or pool.gpus
        counts: dict[int, int] = {}
        for gpu in p.ids:
            counts[gpu // node] = counts.get(gpu // node, 0) + 1
        even = len(set(counts.values())) == 1
        if fitting and not any(even and len(counts) == (s.nodes or -(-s.gpus // node)) for s in fitting):
            self.bad.append(f"rule 3: {p.job} holds {sorted(counts.values())} GPUs a node, no shape of it")

    def _judge_closed(self, closed: Closed, p: Placement) -> None:
        low, high = closed.gpus
        hit = [gpu for gpu in p.ids if low <= gpu < high]
        if not hit:
            return
        if closed.kind == "drain" and closed.start <= p.start < closed.end:
            self.bad.append(f"rule 6: {p.job} starts on GPU {hit[0]}, which drains at step {p.start}")
        if closed.kind == "down" and max(closed.start, p.start) < min(closed.end, p.end):
            at = max(closed.start, p.start)
            self.bad.append(f"rule 6: {p.job} uses GPU {hit[0]} at step {at}, while it is down")

    def _take(self, job: Job, p: Placement, fitting: Sequence[Shape], tell_clashes: bool) -> None:
        # Cells past the lookahead need no owner: two legal blocks that meet there meet before it too.
        start, stop = max(0, p.start), min(p.end, self.width)
        if stop <= start:
            return
        if p.gpus > 0:
            owner = self.owner[p.pool]
            gpus = slice(p.first_gpu, p.first_gpu + p.gpus) if p.gpu_ids is None else list(p.gpu_ids)
            if tell_clashes:
                self._clash(p.pool, owner[gpus, start:stop], p.ids, start, job.id)
            owner[gpus, start:stop] = self.number[job.id]
            self.taken += p.gpus * (stop - start)
        inside = min(stop, self.steps)
        if inside > start:
            weight = self.weight_before[inside] - self.weight_before[start]
            if weight < 1e-3 * self.weight_before[inside]:
                # the difference of two like sums loses digits that a small weight needs
                weight = float(self.weight[start:inside].sum())
            rate = self._rate(job, p, fitting)
            self.reward += job.priority * rate * weight
            self.work += rate * (inside - start)
            self.cost += self.problem.gpu_cost * weight * p.gpus
            self.job_cells += p.gpus * (inside - start)

    def _rate(self, job: Job, p: Placement, fitting: Sequence[Shape]) -> float:
        """What a step of the job earns, before its priority: GPUs, or in version 2 work that is likely done."""
        if not self.problem.pays_for_work or job.running:
            return p.gpus
        success = max((shape.success for shape in fitting), default=1.0)
        return job.least_work / p.steps * success if p.steps > 0 else 0.0

    def _clash(self, pool: str, block: np.ndarray, gpus: Sequence[int], start: int, task: str) -> None:
        for at, t in np.argwhere(block != _FREE)[:20]:
            other = self.names[block[at, t]]
            self.bad.append(f"rule 1: {pool} GPU {gpus[at]} step {start + t} serves both {other} and {task}")

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
                before = set(_replicas(app.held or ()))
                for t, held in enumerate(cells):
                    before = self._serve(app, t, held, before)
        return covered

    def _serve_clean(self, app: App, cells: Sequence[Sequence[Any]]) -> bool:
        """Serve an app of one-GPU replicas whose cells break no rule, all steps at once.

        Returns False, with nothing done, for any other.
        """
        pool = self.problem.pool_by_id[app.pool]
        if app.replica > 1 or pool.closed or any(held and not isinstance(held[0], int) for held in cells):
            return False
        owner = self.owner[app.pool]
        count = np.fromiter(map(len, cells), np.int64, self.steps)
        try:
            gpus = np.fromiter(chain.from_iterable(cells), np.int64, int(count.sum()))
        except TypeError:  # a replica of several GPUs among them
            return False
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
        entered = np.count_nonzero(holds[1:] & ~holds[:-1], axis=1)
        self._charge(app, slice(0, self.steps), demand, count, moved, entered)
        return True

    def _charge(self, app: App, t: Any, demand: Any, held: Any, moved: Any, entered: Any) -> None:
        """Add up what an app was given in one step, or in several at once."""
        weight = self.weight[t]
        short = np.maximum(0, demand - held)
        below = np.maximum(0, np.minimum(demand, app.floor) - held)
        charged = short + (self.problem.floor_weight - 1.0) * below if app.floor else short
        self.swaps += int(np.sum(moved))
        self.short += int(np.sum(short))
        self.served += int(np.sum(np.minimum(held, demand)))
        self.penalty += float(self.problem.shortfall_weight * app.priority * np.dot(weight, charged))
        self.cost += float(self.problem.swap_cost * app.priority * np.dot(weight, entered))

    def _serve(self, app: App, t: int, held: Sequence[Any], before: set[Replica]) -> set[Replica]:
        replicas = _replicas(held)
        now = set(replicas)
        pool = self.problem.pool_by_id[app.pool]
        if len(now) != len(replicas):
            self.bad.append(f"app {app.id} step {t} lists a GPU twice")
        owner = self.owner[app.pool]
        node = pool.node_size
        down = _closed_at(pool, "down", t)
        drain = _closed_at(pool, "drain", t)
        for one in sorted(now, key=sorted):
            if len(one) != app.replica:
                self.bad.append(
                    f"rule 5: app {app.id} step {t}: a replica of {len(one)} GPUs, not {app.replica}"
                )
            nodes = len({gpu // node for gpu in one}) if node else 1
            if nodes != (max(1, app.replica // node) if node else 1):
                self.bad.append(f"rule 5: app {app.id} step {t}: replica {sorted(one)} is spread over nodes")
            for gpu in sorted(one):
                if not 0 <= gpu < len(owner):
                    self.bad.append(f"app {app.id} step {t}: no GPU {gpu}")
                    continue
                if down(gpu):
                    self.bad.append(f"rule 6: app {app.id} holds GPU {gpu} at step {t}, while it is down")
                if one not in before and drain(gpu):
                    self.bad.append(f"rule 6: app {app.id} enters GPU {gpu} at step {t}, while it drains")
                if owner[gpu, t] != _FREE:
                    both = f"{self.names[owner[gpu, t]]} and {app.id}"
                    self.bad.append(f"rule 1: {app.pool} GPU {gpu} step {t} serves both {both}")
                owner[gpu, t] = self.number[app.id]
        forced = {one for one in before - now if any(down(gpu) for gpu in one)}
        moved = app.replica * (len(now - before) + len(before - now - forced))
        if app.swap_cap is not None and moved > app.swap_cap:
            self.bad.append(
                f"rule 4: app {app.id} swaps {moved} GPUs at step {t}, over its cap {app.swap_cap}"
            )
        entered = app.replica * len(now - before)
        self._charge(app, t, app.demand[t], app.replica * len(now), moved, entered)
        return now

    def charge_lookahead(self) -> None:
        # Past the horizon only tails of jobs hold GPUs; the lowest priority is charged first.
        for pool in self.problem.pools:
            mine = sorted((a for a in self.problem.apps if a.pool == pool.id), key=lambda a: a.priority)
            longest = max((len(app.demand) for app in mine), default=0)
            if longest <= self.steps:
                continue
            taken = self.owner[pool.id][:, self.steps : longest] != _FREE
            gone = _down_cells(pool, self.steps, longest) & ~taken
            used = (np.count_nonzero(taken, axis=0) + np.count_nonzero(gone, axis=0)).tolist()
            for t in range(self.steps, longest):
                wanted = [app.demand[t] if t < len(app.demand) else 0 for app in mine]
                short = max(0, sum(wanted) - (pool.gpus - used[t - self.steps]))
                for app, want in zip(mine, wanted, strict=True):
                    cut = min(short, want)
                    self.penalty += float(self.problem.shortfall_weight * app.priority * self.weight[t] * cut)
                    self.short += cut
                    short -= cut

    def down_and_unused(self) -> int:
        """Cells of the horizon that are down and that nothing uses."""
        return sum(
            int(
                np.count_nonzero(
                    _down_cells(pool, 0, self.steps) & (self.owner[pool.id][:, : self.steps] == _FREE)
                )
            )
            for pool in self.problem.pools
            if pool.closed
        )

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


def _inside(p: Placement, shape: Shape) -> bool:
    if shape.within is None:
        return True
    return all(any(first <= gpu < first + many for first, many in shape.within) for gpu in p.ids)


def _replicas(cells: Sequence[Any]) -> list[Replica]:
    return [frozenset((one,) if isinstance(one, int) else one) for one in cells]


def _closed_at(pool: Pool, kind: str, t: int) -> Callable[[int], bool]:
    ranges = [c.gpus for c in pool.closed or () if c.kind == kind and c.start <= t < c.end]
    return lambda gpu: any(low <= gpu < high for low, high in ranges)


def _down_cells(pool: Pool, first: int, last: int) -> np.ndarray:
    """Return which GPUs are down in steps ``first`` … ``last`` − 1, shape (GPUs, steps)."""
    out = np.zeros((pool.gpus, max(0, last - first)), bool)
    for closed in pool.closed or ():
        if closed.kind == "down":
            out[
                closed.gpus[0] : closed.gpus[1], max(0, closed.start - first) : max(0, closed.end - first)
            ] = True
    return out
