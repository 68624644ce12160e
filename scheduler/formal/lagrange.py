"""A bound for problems of any size: a price for every GPU-step, each task alone against the prices.

Whatever the prices π ≥ 0, the objective of a plan is at most L(π): capacity at its price, plus what each job
and each app gains at most when it pays for the GPUs that it takes (weak duality). Prices are found by a
quasi-Newton method on a smoothed L; only the exact L of the best prices is handed on.
"""

from collections.abc import Callable

import numpy as np
from scipy.ndimage import maximum_filter1d
from scipy.optimize import minimize

from tidegrid.scheduler.formal.terms import Terms

Array = np.ndarray
_MAX_CELLS = 30_000_000  # shapes × steps; beyond it one evaluation takes seconds


class Prices:
    """L(π) of a problem and its gradient, with prices as an array of pools × steps (lookahead included)."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        problem = terms.problem
        self.shape = (len(problem.pools), terms.lookahead)
        pool_index = {pool.id: p for p, pool in enumerate(problem.pools)}
        self.gpus = np.array([pool.gpus for pool in problem.pools], float)
        # One row for each shape of a waiting job; jobs' rows are consecutive.
        rows: list[tuple[int, int, int, float, int, int]] = []
        self.first_row: list[int] = []
        self.running: list[tuple[int, int, int]] = []
        self.fixed = 0.0
        for job in problem.jobs:
            if job.running:
                column = terms.columns_of(job)[0]
                self.fixed += terms.reward(job, column)
                self.running.append(
                    (pool_index[column.pool], column.gpus, min(column.steps, terms.lookahead))
                )
                continue
            mine = []
            for shape in dict.fromkeys(job.shapes):
                starts = terms.starts(job, shape.steps)
                if starts and shape.gpus <= problem.pool_by_id[shape.pool].gpus:
                    p = pool_index[shape.pool]
                    mine.append((p, shape.gpus, shape.steps, float(job.priority), starts[0], starts[-1]))
            if mine:
                self.first_row.append(len(rows))
                rows += mine
        table = np.array(rows, float).reshape(len(rows), 6)
        self.pool = table[:, 0].astype(int)
        self.size = table[:, 1]
        self.job_of_row = np.repeat(np.arange(len(self.first_row)), np.diff([*self.first_row, len(rows)]))
        start = np.arange(terms.steps)
        self.allowed = (start >= table[:, 4:5]) & (start <= table[:, 5:6])
        end = start + np.minimum(table[:, 2:3].astype(int), terms.lookahead)
        self.end = np.minimum(end, terms.lookahead)
        before = np.array(terms.before)
        self.reward = (table[:, 3] * self.size)[:, None] * (
            before[np.minimum(end, terms.steps)] - before[start][None, :]
        )
        self.weight = np.array(terms.weight)
        self.demand = np.zeros((len(problem.apps), terms.lookahead))
        for a, app in enumerate(problem.apps):
            self.demand[a, : len(app.demand)] = app.demand
        self.app_pool = np.array([pool_index[app.pool] for app in problem.apps], int)
        self.charge = (
            float(problem.shortfall_weight)
            * np.array([float(app.priority) for app in problem.apps])[:, None]
            * self.weight
        )

    def exact(self, prices: Array) -> tuple[float, Array]:
        """L(π) and a subgradient."""
        return self._evaluate(prices, 0.0)

    def smoothed(self, prices: Array, temperature: float) -> tuple[float, Array]:
        """L(π) with each job's best choice softened; never below the exact one."""
        return self._evaluate(prices, temperature)

    def _evaluate(self, prices: Array, temperature: float) -> tuple[float, Array]:
        steps = self.terms.steps
        total = self.fixed
        gradient = np.zeros(self.shape)
        gradient[:, :steps] += self.gpus[:, None]
        total += float((prices[:, :steps] * self.gpus[:, None]).sum())
        for p, gpus, length in self.running:
            total -= gpus * float(prices[p, :length].sum())
            gradient[p, :length] -= gpus
        gain, load = self._jobs(prices, temperature)
        gain_apps, load_apps = self._apps(prices)
        gain_tail, load_tail = self._tails(prices)
        return total + gain + gain_apps + gain_tail, gradient - load - load_apps + load_tail

    def _jobs(self, prices: Array, temperature: float) -> tuple[float, Array]:
        load = np.zeros(self.shape)
        if not self.first_row:
            return 0.0, load
        paid = np.concatenate([np.zeros((len(prices), 1)), np.cumsum(prices, axis=1)], axis=1)
        steps = self.terms.steps
        cost = paid[self.pool[:, None], self.end] - paid[self.pool, :steps]
        net = np.where(self.allowed, self.reward - self.size[:, None] * cost, -np.inf)
        best_of_row = net.max(axis=1)
        best = np.maximum(np.maximum.reduceat(best_of_row, self.first_row), 0.0)
        if temperature > 0.0:
            scores = np.exp((net - best[self.job_of_row, None]) / temperature)
            mass = np.add.reduceat(scores.sum(axis=1), self.first_row) + np.exp(-best / temperature)
            gain = float((best + temperature * np.log(mass)).sum())
            share = scores / mass[self.job_of_row, None]
            rows, starts = np.nonzero(share > 1e-9)
            weights = share[rows, starts]
        else:
            gain = float(best.sum())
            order = np.lexsort((-best_of_row, self.job_of_row))
            rows = order[np.asarray(self.first_row)]
            rows = rows[best_of_row[rows] > 0.0]
            starts = net[rows].argmax(axis=1)
            weights = np.ones(len(rows))
        # A block adds its size at its start and takes it away at its end.
        delta = np.zeros((self.shape[0], self.shape[1] + 1))
        amount = weights * self.size[rows]
        np.add.at(delta, (self.pool[rows], starts), amount)
        np.add.at(delta, (self.pool[rows], self.end[rows, starts]), -amount)
        return gain, np.cumsum(delta, axis=1)[:, :-1]

    def _apps(self, prices: Array) -> tuple[float, Array]:
        load = np.zeros(self.shape)
        total = 0.0
        for a, app in enumerate(self.terms.problem.apps):
            p = self.app_pool[a]
            gain, counts = self._app_alone(a, prices[p], app.swap_cap, len(app.held_gpus), int(self.gpus[p]))
            total += gain
            load[p, : self.terms.steps] += counts
        return total, load

    def _app_alone(self, a: int, price: Array, cap: int | None, held: int, gpus: int) -> tuple[float, Array]:
        """Best counts of one app against the prices: by step without a cap, else by dynamic programming."""
        steps = self.terms.steps
        demand, charge = self.demand[a, :steps], self.charge[a, :steps]
        price = price[:steps]
        if cap is None or cap >= gpus:
            counts = np.where(charge > price, np.minimum(demand, gpus), 0.0)
            return float(-(charge * (demand - counts) + price * counts).sum()), counts
        # More than the largest demand, or than what is held, is of no use.
        top = int(min(gpus, max(held, demand.max(initial=0.0))))
        count = np.arange(top + 1)
        value = np.full(top + 1, -np.inf)
        value[held] = 0.0
        history = []
        for t in range(steps):
            history.append(value)
            reach = maximum_filter1d(value, 2 * cap + 1, mode="constant", cval=-np.inf) if cap else value
            value = reach - charge[t] * np.maximum(0.0, demand[t] - count) - price[t] * count
        counts = np.zeros(steps)
        best = int(value.argmax())
        total = float(value[best])
        for t in range(steps - 1, -1, -1):
            counts[t] = best
            low = max(0, best - cap)
            best = low + int(history[t][low : best + cap + 1].argmax())
        return total, counts

    def _tails(self, prices: Array) -> tuple[float, Array]:
        """Past the horizon: tails may take what demand leaves for nothing, and demand's GPUs at its charge."""
        steps = self.terms.steps
        gain = 0.0
        slack = np.zeros(self.shape)
        if self.shape[1] == steps:
            return gain, slack
        tail = prices[:, steps:]
        slack[:, steps:] = self.gpus[:, None]
        for a, p in enumerate(self.app_pool):
            demand, charge = self.demand[a, steps:], self.charge[a, steps:]
            over = tail[p] - charge
            gain += float((demand * np.maximum(over, 0.0)).sum())
            slack[p, steps:] += demand * (over > 0) - demand
        gain += float((tail * self.gpus[:, None]).sum())
        gain -= float(sum((tail[p] * self.demand[a, steps:]).sum() for a, p in enumerate(self.app_pool)))
        return gain, slack


def price_bound(terms: Terms, keep_going: Callable[[], bool] = lambda: True) -> float:
    """Return an upper bound of the objective of every legal plan.

    Parameters
    ----------
    keep_going
        Asked before each temperature; the bound found so far holds at any time.
    """
    shapes = sum(len(job.shapes) for job in terms.problem.jobs)
    if (shapes + len(terms.problem.apps)) * terms.lookahead > _MAX_CELLS:
        return terms.objective_at_most
    # Evaluations of L at each temperature: fewer where one takes longer; never read from a clock.
    rounds = int(np.clip(2e7 / max(1, shapes * terms.lookahead), 6, 40))
    model = Prices(terms)
    best = [model.exact(np.zeros(model.shape))[0]]
    unit = float(model.reward.max(initial=0.0)) or 1.0
    weights = np.ones(model.shape) * model.weight
    # A first guess: the mean reward of a GPU-step, falling with the weight.
    point = (weights * 0.5 * _typical_priority(terms)).ravel()

    for factor in (0.03, 0.01, 0.003, 0.001):
        if not keep_going():
            break
        temperature = factor * unit

        def smoothed(flat: Array, temperature: float = temperature) -> tuple[float, Array]:
            value, gradient = model.smoothed(flat.reshape(model.shape), temperature)
            return value, gradient.ravel()

        result = minimize(
            smoothed,
            point,
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * point.size,
            options={"maxfun": rounds, "maxiter": rounds},
        )
        point = np.maximum(result.x, 0.0)
        best.append(model.exact(point.reshape(model.shape))[0])
    return min(v for v in best if np.isfinite(v))


def _typical_priority(terms: Terms) -> float:
    priorities = [float(job.priority) for job in terms.problem.jobs] or [0.0]
    return float(np.mean(priorities))
