"""The bundle: what a fitted estimator is made of, as plain data that can be stored without pickle."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Bundle:
    """A fitted estimator as data.

    Parameters
    ----------
    estimator
        The registered name of the estimator, such as ``"training"``.
    params
        Its constructor parameters, as JSON values.
    state
        What it learnt, as JSON values: numbers, strings, lists and mappings with string keys.
    arrays
        What it learnt, as numeric or fixed-width string arrays (never of dtype object).
    texts
        What it learnt, as text: LightGBM models in LightGBM's own text format.
    """

    estimator: str
    params: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, array in self.arrays.items():
            if array.dtype.kind == "O":
                raise TypeError(f"array {name!r} of a bundle holds Python objects; store numbers or text")
