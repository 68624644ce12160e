"""What the contract suite shares: the estimator under test, its made-up history, and how a promise breaks."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone

from tidegrid.errors import InputError
from tidegrid.estimators.base import LEVELS, Estimator, Feature
from tidegrid.estimators.synthetic import example, example_future

ODD_LEVELS = (0.975, 0.5, 0.001, 0.37, 0.999)
SAME = 1e-9
"""Relative difference from which two predictions differ: summation order alone may move the last bits."""


class Broken(AssertionError):
    """A promise was broken; the text says how."""


class Subject:
    """The estimator under test, its made-up history and the fits that the checks share."""

    def __init__(self, estimator: Estimator, name: str, seed: int) -> None:
        self.estimator = estimator
        self.name = name
        self.seed = seed

    def fresh(self) -> Estimator:
        """Return an unfitted copy."""
        out: Estimator = clone(self.estimator)
        return out

    @cached_property
    def history(self) -> tuple[pd.DataFrame, pd.Series]:
        """The made-up history, on an index that is neither sorted nor counted from 0."""
        X, y = example(self.estimator, 80, self.seed)
        index = pd.Index([f"row-{(i * 37) % 9973}-{i}" for i in range(len(X))], name="key")
        return X.set_axis(index, axis=0), pd.Series(y.to_numpy(), index=index, name=y.name)

    @cached_property
    def future(self) -> pd.DataFrame:
        """Rows to predict that are not in the history."""
        future = example_future(self.estimator, self.history[0], 24, self.seed + 1)
        return future.set_axis(pd.Index([f"new-{i}" for i in range(len(future))], name="key"), axis=0)

    @cached_property
    def fitted(self) -> Estimator:
        """The estimator fitted on the history."""
        X, y = self.history
        return self.fresh().fit(X.copy(), y.copy())

    @cached_property
    def predicted(self) -> pd.DataFrame:
        """Its quantiles of the future."""
        return self.fitted.predict_quantiles(self.future.copy(), LEVELS)

    @property
    def features(self) -> tuple[Feature, ...]:
        """The declared features."""
        return tuple(type(self.estimator).features)


Check = Callable[[Subject], None]


class Checks(list[tuple[str, Check]]):
    """Checks in the order of their definition, each with the promise that it tests."""

    def promise(self, text: str) -> Callable[[Check], Check]:
        """Register the decorated check under ``text``."""

        def add(check: Check) -> Check:
            self.append((text, check))
            return check

        return add


def need(kept: bool, how: str) -> None:
    """Raise :class:`Broken` with ``how`` unless ``kept``."""
    if not kept:
        raise Broken(how)


def shown(values: Sequence[Any]) -> str:
    """Return a few values for a message."""
    return ", ".join(repr(value) for value in list(values)[:4])


def sound(out: pd.DataFrame, index: pd.Index, levels: Sequence[float], what: str) -> None:
    """Raise unless ``out`` is a frame of quantiles as the contract says."""
    need(isinstance(out, pd.DataFrame), f"{what}: predict_quantiles returned a {type(out).__name__}")
    need(out.index.equals(index), f"{what}: the result is not on the index of X")
    need(
        list(out.columns.astype(float)) == list(levels),
        f"{what}: the columns are {list(out.columns)}, not {list(levels)}",
    )
    need(out.columns.name == "level", f"{what}: the columns' name is {out.columns.name!r}, not 'level'")
    values = out.to_numpy(dtype=float)
    need(
        bool(np.isfinite(values).all()),
        f"{what}: a quantile is not finite ({shown(values[~np.isfinite(values)].tolist())})",
    )
    need(bool((values >= 0).all()), f"{what}: a quantile is negative ({values.min() if values.size else 0})")
    ordered = values[:, np.argsort(levels, kind="stable")]
    need(bool((np.diff(ordered, axis=1) >= 0).all()), f"{what}: quantiles cross")


def same(one: pd.DataFrame, other: pd.DataFrame, what: str) -> None:
    """Raise unless two frames of quantiles hold the same numbers."""
    a, b = one.to_numpy(dtype=float), other.to_numpy(dtype=float)
    need(a.shape == b.shape, f"{what}: the shape changed from {a.shape} to {b.shape}")
    close = np.isclose(a, b, rtol=SAME, atol=0.0)
    if not close.all():
        row, column = (int(v) for v in np.argwhere(~close)[0])
        raise Broken(f"{what}: row {row} changed from {a[row, column]:.17g} to {b[row, column]:.17g}")


def refuses_or(subject: Subject, X: pd.DataFrame, name: str, what: str) -> pd.DataFrame | None:
    """Predict; a refusal must name ``name`` (None is returned), an answer must be sound."""
    try:
        out = subject.fitted.predict_quantiles(X, LEVELS)
    except InputError as error:
        need(name in str(error), f"{what}: the refusal does not name {name!r} ({error})")
        return None
    sound(out, X.index, LEVELS, what)
    return out
