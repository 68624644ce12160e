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
import pandas as pd

MEMORY = 384
"""Rows the process keeps: the latest of each stack in turn; more would slow prediction without moving it."""

SITE, STACK, USER, NAME = 0.15, 0.22, 0.10, 0.20
"""Standard deviations of the offsets in log hours, before any row is seen."""

LOCAL, GLOBAL, LENGTH = 0.30, 0.08, 2.0
"""Standard deviations of the smooth functions inside and across stacks, and their length in scaled features."""

NOISES = (0.02, 0.04, 0.08, 0.15, 0.3, 0.6)
"""Noise levels (log hours) among which the rows choose by their leave-one-out likelihood."""

QUIET = 2.0
"""Rows of loudness 1 that the rows like a request must outweigh."""

NORMAL_MAD = 0.8
"""Mean absolute value of a standard normal."""

SHRINK = 4.0
"""Rows that a key's own mean must outweigh."""


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
        codes, uniques = pd.factorize(values)
        self.index = pd.Index(uniques)
        # an empty text matches nothing where it says "unknown"
        self.codes = codes if empty else np.where(values == "", -2, codes)

    def same(self, values: np.ndarray) -> np.ndarray:
        found = self.index.get_indexer(values)
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
    z : ndarray of shape (memory,)
        Their log(actual / prior), after the learned residual.
    extra : ndarray of shape (memory,)
        Factors on their noise: above 1 for outliers and imputed lower bounds.
    noise
        The noise's standard deviation.
    means
        Shrunken mean of what is left, by ``"stack|…"``, ``"user|…"`` and ``"name|…"``: (rows, sum).
    """

    x: np.ndarray
    keys: Keys
    z: np.ndarray
    extra: np.ndarray
    noise: float = 0.15
    means: dict[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._stack, self._user = _Coded(self.keys.stack, empty=True), _Coded(self.keys.user, empty=False)
        self._name = _Coded(self.keys.name, empty=False)
        rows = len(self.z)
        k = self._kernel(*self._nearness(self.x, self.keys), self.keys)
        k[np.diag_indices(rows)] += (self.noise * self.extra) ** 2
        self._inverse = np.linalg.inv(k) if rows else k
        # symmetric up to rounding; the factor gives the posterior's spread by one product
        even = (self._inverse + self._inverse.T) / 2 + 1e-10 * np.eye(rows)
        self._half = np.linalg.cholesky(even) if rows else k
        self._alpha = self._inverse @ self.z
        self._loud: np.ndarray | None = None

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
        """Return each kept row's residual and variance (without noise) as if it were not there."""
        diagonal = np.diag(self._inverse)
        variance = np.maximum(1.0 / diagonal - (self.noise * self.extra) ** 2, 1e-6)
        return self._alpha / diagonal, variance

    def _loudness(self) -> np.ndarray:
        if self._loud is None:
            residual, variance = self.leave_one_out()
            self._loud = np.minimum(np.abs(residual) / np.sqrt(variance + self.noise**2), 6.0) / NORMAL_MAD
        return self._loud

    def _left(self, keys: Keys) -> np.ndarray:
        out = np.zeros(len(keys))
        if not self.means:
            return out
        for level in ("stack", "user", "name"):
            codes, uniques = pd.factorize(getattr(keys, level))
            found = np.array([shrunken(self.means.get(f"{level}|{value}")) for value in uniques])
            out += found[codes]
        return out

    def to_state(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return its JSON state and its arrays."""
        state = {"noise": self.noise, "means": {k: [float(n), float(s)] for k, (n, s) in self.means.items()}}
        arrays = {
            "site.x": self.x, "site.z": self.z, "site.extra": self.extra, "site.stack": self.keys.stack.astype(str),
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
            arrays["site.x"], keys, arrays["site.z"], arrays["site.extra"], float(state["noise"]), means
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

    def __init__(
        self,
        site: SiteModel,
        keys: Keys,
        near: np.ndarray,
        stack: np.ndarray,
        cross: np.ndarray | None = None,
    ) -> None:
        self.site, self.keys, self._near, self._stack = site, keys, near, stack
        self._cross = site._kernel(near, stack, keys) if cross is None else cross

    def first(self, rows: int) -> "SiteView":
        """Return the view of the first rows."""
        keys = self.keys[np.arange(rows)]
        return SiteView(self.site, keys, self._near[:rows], self._stack[:rows], self._cross[:rows])

    def mean(self) -> np.ndarray:
        """Return the mean of log(actual / prior), shape (rows,)."""
        return np.asarray(self._cross @ self.site._alpha + self.site._left(self.keys))

    def variance(self) -> np.ndarray:
        """Return its variance, without noise."""
        whole = self.site.prior_variance(self.keys)
        return np.asarray(np.maximum(whole - ((self._cross @ self.site._half) ** 2).sum(axis=1), 1e-6))

    def loudness(self, *, left_out: bool = False) -> np.ndarray:
        """Return how much louder than the process's own spread the rows like each row are.

        The mean absolute scaled residual of kept rows of the stack, those near counting most, shrunk towards 1 by
        :data:`QUIET` rows. ``left_out`` leaves each kept row out of its own mean (the rows are the kept ones then).
        """
        weight = self._stack * (0.15 + self._near)
        if left_out:
            np.fill_diagonal(weight, 0.0)
        return np.asarray((weight @ self.site._loudness() + QUIET) / (weight.sum(axis=1) + QUIET))

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


def fit_site(x: np.ndarray, keys: Keys, z: np.ndarray, extra: np.ndarray) -> SiteModel:
    """Fit the process on kept rows: the noise by leave-one-out likelihood, outliers with more of it."""
    if len(z) == 0:
        return SiteModel(x, keys, z, extra)
    best, score = None, -np.inf
    for noise in NOISES:
        model = SiteModel(x, keys, z, extra, noise)
        residual, variance = model.leave_one_out()
        total = variance + (noise * extra) ** 2
        # Student-like: a wild row is one wild row, not a reason to distrust all of them
        likelihood = -np.sum(2.5 * np.log1p(residual**2 / (4.0 * total)) + 0.5 * np.log(total))
        if likelihood > score:
            best, score = model, likelihood
    assert best is not None
    residual, variance = best.leave_one_out()
    wild = np.abs(residual) / np.sqrt(variance + (best.noise * extra) ** 2)
    return SiteModel(x, keys, z, extra * np.maximum(1.0, wild / 2.0), best.noise)
