"""Site adaptation: what a site, its stacks, users, recurring jobs and similar runs differ from the prior by.

A Gaussian process on log(actual / prior) with a hierarchical kernel: one offset for the site, one for each stack
(``group``), user and recurring name, and smooth functions of the run's physics, a strong one inside a stack and a weak
one across stacks. Every part is shrunk towards zero until rows say otherwise, a few finished jobs move the estimate of
their relatives at once, and the posterior's spread says how far a request lies from what was seen. It keeps the latest
:data:`MEMORY` rows; offsets of keys beyond them are kept as shrunken means.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve

from tidegrid.estimators.training.features import Runs
from tidegrid.estimators.training.physics import Terms

MEMORY = 384
"""Rows the process keeps: the latest of each stack in turn; more would slow prediction without moving it."""

SITE, STACK, USER, NAME = 0.15, 0.22, 0.10, 0.20
"""Standard deviations of the offsets in log hours, before any row is seen."""

LOCAL, GLOBAL, LENGTH = 0.30, 0.08, 2.0
"""Standard deviations of the smooth functions inside and across stacks, and their length in scaled features."""

NOISES = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Noise levels (log hours) among which the rows choose by their leave-one-out likelihood."""

NEWTON = 8
"""Steps to the mode of the posterior where there are lower bounds."""

SHRINK = 4.0
"""Rows that a key's own mean must outweigh."""


def scaled(r: Runs, t: Terms) -> np.ndarray:
    """Return scaled features of the runs, shape (rows, features): one unit is a difference that matters.

    They are ratios and sizes, never the amount of work: more tokens can only take longer, because the prior grows with
    them and nothing learned reads them.
    """

    def log(values: np.ndarray) -> np.ndarray:
        return np.log(np.maximum(values, 1e-12))

    count = np.maximum(1.0, r.batch / (r.dp * r.micro))
    return np.column_stack([
        log(r.params) / 1.5, log(r.active / r.params) / 0.7, log(r.micro * r.mean_seq / r.cp) / 1.2, log(r.seq) / 1.2,
        log(r.gpus) / 1.5, log(r.tp) / 0.7, log(r.pp) / 0.8, log(count) / 1.2, r.zero >= 3, r.lora, r.qlora,
        np.nan_to_num(r.checkpointing, nan=0.4), r.narrow * 0.7, log(r.peak) / 0.6, r.packing,
        r.rl * 2.0, r.dpo, log(t.launch_ratio) / 1.5, log(r.hidden) / 0.6,
        log(r.layers) / 0.6, log(r.ep), (r.weight_bits < 16) * 0.5, log(r.mean_seq / r.seq),
    ]).astype(float)  # fmt: skip


def matern(a: np.ndarray, b: np.ndarray, length: float = LENGTH) -> np.ndarray:
    """Return the Matérn 3/2 correlations of scaled features, shape (rows of a, rows of b)."""
    square = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2.0 * a @ b.T
    d = np.sqrt(np.maximum(square, 0.0)) * (np.sqrt(3.0) / length)
    return np.asarray((1.0 + d) * np.exp(-d))


@dataclass
class Keys:
    """Whose run it is, as fixed-width texts of shape (rows,); an empty text matches nothing but an empty stack."""

    stack: np.ndarray
    user: np.ndarray
    name: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> "Keys":
        return Keys(self.stack[rows], self.user[rows], self.name[rows])

    def __len__(self) -> int:
        return len(self.stack)

    def joined(self, other: "Keys") -> "Keys":
        """Return the rows of both."""
        return Keys(
            np.concatenate([self.stack, other.stack]),
            np.concatenate([self.user, other.user]),
            np.concatenate([self.name, other.name]),
        )


class _Coded:
    """The texts of the kept rows as integers, so that others are compared by one look-up each."""

    def __init__(self, values: np.ndarray, *, empty: bool) -> None:
        # a dictionary: the look-up of one request costs less than pandas' own set-up
        texts = values.tolist()
        self.code = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        codes = np.array([self.code[text] for text in texts], dtype=int)
        # an empty text matches nothing where it says "unknown"
        self.codes = codes if empty else np.where(values == "", -2, codes)

    def same(self, values: np.ndarray) -> np.ndarray:
        found = np.array([self.code.get(text, -1) for text in values.tolist()], dtype=int)
        return np.asarray(found[:, None] == self.codes[None, :])


@dataclass
class SiteModel:
    """The fitted process.

    Parameters
    ----------
    x : ndarray of shape (memory, features)
        Scaled features of the rows kept.
    keys
        Their keys.
    y : ndarray of shape (memory,)
        Their log(actual / prior), or a lower bound of it.
    seen : ndarray of bool, shape (memory,)
        Whether they finished; False for a lower bound.
    extra : ndarray of shape (memory,)
        Factors on their noise: above 1 for outliers.
    noise
        The noise's standard deviation.
    means
        Shrunken mean of what is left, by ``"stack|…"``, ``"user|…"`` and ``"name|…"``: (rows, sum).
    """

    x: np.ndarray
    keys: Keys
    y: np.ndarray
    seen: np.ndarray
    extra: np.ndarray
    noise: float = 0.15
    means: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stack, self._user = _Coded(self.keys.stack, empty=True), _Coded(self.keys.user, empty=False)
        self._name = _Coded(self.keys.name, empty=False)
        rows = len(self.y)
        k = self._kernel(*self._nearness(self.x, self.keys), self.keys)
        own = self.noise * self.extra
        bounds = np.flatnonzero(~self.seen)
        self._target, self._variance = self.y.copy(), own**2
        # the inverse is needed at the mode alone; on the way there a factor costs a sixth of it
        for _ in range(NEWTON if len(bounds) else 0):
            factor = cho_factor(k + np.diag(self._variance), overwrite_a=True, check_finite=False)
            alpha = cho_solve(factor, self._target, check_finite=False)
            self._impute(k @ alpha, bounds, own[bounds])
        self._inverse = np.linalg.inv(k + np.diag(self._variance)) if rows else k
        self._alpha = self._inverse @ self._target
        # symmetric up to rounding; the factor gives the posterior's spread by one product
        even = (self._inverse + self._inverse.T) / 2 + 1e-10 * np.eye(rows)
        self._half = np.linalg.cholesky(even) if rows else k

    def _impute(self, mean: np.ndarray, bounds: np.ndarray, own: np.ndarray) -> None:
        """Let lower bounds stand for normal observations with the slope and curvature of their likelihood.

        The likelihood of "beyond b" is the normal's survival function (Tobin 1958); a step of Newton's method towards
        the posterior's mode (Rasmussen and Williams 2006, section 3.4) sees each as a value and a variance. A bound far
        below the prediction gets a variance without end: it says nothing.
        """
        from scipy.stats import norm

        b = (self.y[bounds] - mean[bounds]) / own
        slope = np.exp(norm.logpdf(b) - norm.logsf(b))
        bend = np.clip(slope * (slope - b), 1e-4, 1.0)
        self._target[bounds] = mean[bounds] + own * slope / bend
        self._variance[bounds] = own**2 / bend

    def _nearness(self, x: np.ndarray, keys: Keys) -> tuple[np.ndarray, np.ndarray]:
        return matern(x, self.x), self._stack.same(keys.stack)

    def _kernel(self, near: np.ndarray, stack: np.ndarray, keys: Keys) -> np.ndarray:
        out = near * (GLOBAL**2 + stack * LOCAL**2)
        out += stack * STACK**2 + SITE**2
        if (keys.user != "").any():
            out += USER**2 * self._user.same(keys.user)
        if (keys.name != "").any():
            out += NAME**2 * self._name.same(keys.name) * near
        return np.asarray(out)

    @staticmethod
    def prior_variance(keys: Keys) -> np.ndarray:
        """Return the variance of a row of which nothing is known."""
        out = SITE**2 + GLOBAL**2 + STACK**2 + LOCAL**2 + np.zeros(len(keys))
        return np.asarray(out + USER**2 * (keys.user != "") + NAME**2 * (keys.name != ""))

    def view(self, x: np.ndarray, keys: Keys) -> "SiteView":
        """Return what the process says of rows."""
        return SiteView(self, keys, *self._nearness(x, keys))

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance (without noise) of each kept row as if it were not there."""
        diagonal = np.diag(self._inverse)
        variance = np.maximum(1.0 / diagonal - self._variance, 1e-6)
        return self._target - self._alpha / diagonal, variance

    def fit_of(self) -> float:
        """Return the leave-one-out log likelihood of all rows, Student-like: a wild row is one wild row."""
        from scipy.stats import norm

        mean, variance = self.leave_one_out()
        residual, total = self.y - mean, variance + (self.noise * self.extra) ** 2
        known = -(2.5 * np.log1p(residual**2 / (4.0 * total)) + 0.5 * np.log(total))
        beyond = norm.logsf(residual / np.sqrt(total))
        return float(np.where(self.seen, known, beyond).sum())

    def _left(self, keys: Keys) -> np.ndarray:
        out = np.zeros(len(keys))
        if not self.means:
            return out
        for level in ("stack", "user", "name"):
            texts = getattr(keys, level).tolist()
            found = {text: shrunken(self.means.get(f"{level}|{text}")) for text in dict.fromkeys(texts)}
            out += np.array([found[text] for text in texts])
        return out

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return its JSON state and its arrays."""
        state = {"noise": self.noise, "means": {k: [float(n), float(s)] for k, (n, s) in self.means.items()}}
        arrays = {
            "site.x": self.x, "site.y": self.y, "site.seen": self.seen,
            "site.extra": self.extra, "site.stack": self.keys.stack.astype(str),
            "site.user": self.keys.user.astype(str), "site.name": self.keys.name.astype(str),
        }  # fmt: skip
        return state, arrays

    @classmethod
    def from_state(cls, state: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> "SiteModel":
        """Rebuild it from :meth:`to_state`."""
        keys = Keys(
            arrays["site.stack"].astype(str), arrays["site.user"].astype(str), arrays["site.name"].astype(str)
        )
        means = {k: (float(v[0]), float(v[1])) for k, v in dict(state["means"]).items()}
        return cls(
            arrays["site.x"],
            keys,
            arrays["site.y"],
            arrays["site.seen"].astype(bool),
            arrays["site.extra"],
            float(state["noise"]),
            means,
        )


class SiteView:
    """What a site's process says of some rows; every part rests on one comparison with the kept rows.

    Parameters
    ----------
    site
        The process.
    keys
        Whose the rows are.
    near, stack : ndarray of shape (rows, memory)
        Correlations with the kept rows, and whether the stacks are the same.
    """

    def __init__(self, site: SiteModel, keys: Keys, near: np.ndarray, stack: np.ndarray) -> None:
        self.site, self.keys, self._near, self._stack = site, keys, near, stack
        self._cross = site._kernel(near, stack, keys)

    def mean(self) -> np.ndarray:
        """Return the mean of log(actual / prior), shape (rows,)."""
        return np.asarray(self._cross @ self.site._alpha + self.site._left(self.keys))

    def variance(self) -> np.ndarray:
        """Return its variance, without noise."""
        whole = self.site.prior_variance(self.keys)
        return np.asarray(np.maximum(whole - ((self._cross @ self.site._half) ** 2).sum(axis=1), 1e-6))

    def similar(self) -> np.ndarray:
        """Return how many kept rows of the same stack correlate with each row by 0.3 or more."""
        return np.asarray((self._stack & (self._near > 0.3)).sum(axis=1))


def shrunken(entry: tuple[float, float] | None) -> float:
    """Return a key's mean, shrunk towards 0 by :data:`SHRINK` rows."""
    return 0.0 if entry is None else entry[1] / (entry[0] + SHRINK)


def keep_latest(keys: Keys, order: np.ndarray, memory: int = MEMORY) -> np.ndarray:
    """Return which rows to keep: the latest of each stack in turn, at most ``memory``.

    Parameters
    ----------
    keys
        The rows' keys.
    order
        Rank of each row in time, shape (rows,); higher is later.
    """
    if len(keys) <= memory:
        return np.arange(len(keys))
    latest = np.lexsort((-order, keys.stack))
    stacks = keys.stack[latest]
    first = np.concatenate([[True], stacks[1:] != stacks[:-1]])
    start = np.maximum.accumulate(np.where(first, np.arange(len(latest)), 0))
    turn = np.arange(len(latest)) - start
    return np.sort(latest[np.lexsort((-order[latest], turn))[:memory]])


def fit_site(
    x: np.ndarray,
    keys: Keys,
    y: np.ndarray,
    seen: np.ndarray,
    extra: np.ndarray,
    means: dict[str, tuple[float, float]],
) -> SiteModel:
    """Fit the process on kept rows: the noise by leave-one-out likelihood, outliers with more of it."""
    models = [SiteModel(x, keys, y, seen, extra, noise, means) for noise in NOISES if len(y)]
    if not models:
        return SiteModel(x, keys, y, seen, extra, means=means)
    best = max(models, key=SiteModel.fit_of)
    mean, variance = best.leave_one_out()
    wild = np.abs(y - mean) / np.sqrt(variance + (best.noise * extra) ** 2)
    return SiteModel(
        x, keys, y, seen, extra * np.where(seen, np.maximum(1.0, wild / 2.0), 1.0), best.noise, means
    )
