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
        self.gpus = np.array(
            [[terms.places[pool.id].capacity(t) for t in range(terms.lookahead)] for pool in problem.pools],
            float,
        ).reshape(self.shape)
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
            for shape in terms.shapes(job):
                starts = terms.starts(job, shape.steps)
                if starts:
                    rate = terms.rate(job, shape.pool, shape.gpus, shape.steps)
                    mine.append(
                        (pool_index[shape.pool], shape.gpus, shape.steps, rate, starts[0], starts[-1])
                    )
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
        self.reward = table[:, 3:4] * (before[np.minimum(end, terms.steps)] - before[start][None, :])
        self.weight = np.array(terms.weight)
        self.demand = np.zeros((len(problem.apps), terms.lookahead))
        self.charge = np.zeros(self.demand.shape)
        for a, app in enumerate(problem.apps):
            self.demand[a, : len(app.demand)] = app.demand
            self.charge[a] = terms.charge(app, 0) * self.weight
        self.app_pool = np.array([pool_index[app.pool] for app in problem.apps], int)

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
        gradient[:, :steps] += self.gpus[:, :steps]
        total += float((prices * self.gpus)[:, :steps].sum())
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
        for a, p in enumerate(self.app_pool):
            gain, counts = self._app_alone(a, prices[p, : self.terms.steps])
            total += gain
            load[p, : self.terms.steps] += counts
        return total, load

    def _app_alone(self, a: int, price: Array) -> tuple[float, Array]:
        """Best GPUs of one app by step against the prices, by dynamic programming over its replicas."""
        terms, app = self.terms, self.terms.problem.apps[a]
        places = terms.places[app.pool]
        held = len(app.held_replicas)
        # More than the largest demand, or than what is held, is of no use.
        wanted = int(self.demand[a, : terms.steps].max(initial=0.0))
        top = max(held, min(places.most_replicas(app.replica), -(-wanted // app.replica)))
        count = np.arange(top + 1)
        gpus = app.replica * count
        cap = (app.swap_cap or 0) // app.replica if terms.swaps_bind(app) else top
        worth = np.empty((terms.steps, top + 1))
        for t in range(terms.steps):
            short = np.maximum(0.0, self.demand[a, t] - gpus)
            below = np.maximum(0.0, min(self.demand[a, t], app.floor) - gpus)
            worth[t] = -terms.charge(app, t) * short - terms.below(app, t) * below - price[t] * gpus
        if cap >= top and terms.entry(app, 0) == 0.0:
            best = worth.argmax(axis=1)
            return float(worth.max(axis=1).sum()), app.replica * best.astype(float)
        value = np.full(top + 1, -np.inf)
        value[held] = 0.0
        history, drops = [], []
        for t in range(terms.steps):
            entry = terms.entry(app, t) * app.replica
            drop = min(top, cap + places.newly_down(t))
            history.append(value)
            drops.append(drop)
            grown = _best_of(value + entry * count, min(cap, top), 0) - entry * count
            value = np.maximum(grown, _best_of(value, 0, drop)) + worth[t]
        counts = np.zeros(terms.steps)
        best_count = int(value.argmax())
        total = float(value[best_count])
        for t in range(terms.steps - 1, -1, -1):
            counts[t] = app.replica * best_count
            low, high = max(0, best_count - cap), min(top, best_count + drops[t])
            before = np.arange(low, high + 1)
            paid = terms.entry(app, t) * app.replica * np.maximum(0, best_count - before)
            best_count = low + int((history[t][low : high + 1] - paid).argmax())
        return total, counts

    def _tails(self, prices: Array) -> tuple[float, Array]:
        """Past the horizon: tails may take what demand leaves for nothing, and demand's GPUs at its charge."""
        steps = self.terms.steps
        gain = 0.0
        slack = np.zeros(self.shape)
        if self.shape[1] == steps:
            return gain, slack
        tail = prices[:, steps:]
        slack[:, steps:] = self.gpus[:, steps:]
        for a, p in enumerate(self.app_pool):
            demand, charge = self.demand[a, steps:], self.charge[a, steps:]
            over = tail[p] - charge
            gain += float((demand * np.maximum(over, 0.0)).sum())
            slack[p, steps:] += demand * (over > 0) - demand
        gain += float((tail * self.gpus[:, steps:]).sum())
        gain -= float(sum((tail[p] * self.demand[a, steps:]).sum() for a, p in enumerate(self.app_pool)))
        return gain, slack


def _best_of(value: Array, left: int, right: int) -> Array:
    """For each i the largest of value[i − left … i + right]."""
    if left == right == 0:
        return value
    size = left + right + 1
    padded = np.concatenate([np.full(left, -np.inf), value, np.full(right, -np.inf)])
    # the filter's window of a position begins size // 2 before it
    return np.asarray(maximum_filter1d(padded, size))[size // 2 : size // 2 + len(value)]


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
