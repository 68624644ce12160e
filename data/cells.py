"""Cells as text: what every reader starts from."""

import numpy as np
import pandas as pd

from tidegrid.errors import CONTROL, printable

MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "nat", "<na>", "unknown"})
"""What an empty cell of a number or an instant may look like, in lower case."""

TEXT = pd.Series(["text"]).dtype
"""The dtype of text: ``str`` from pandas 3 on, ``object`` before."""


def with_controls(text: pd.Series) -> np.ndarray:
    """Return which cells hold a control character. Shape (rows,), bool."""
    bad = [value for value in pd.unique(text) if CONTROL.search(value)]
    return text.isin(bad).to_numpy(dtype=bool) if bad else np.zeros(len(text), dtype=bool)


def without_controls(text: pd.Series) -> pd.Series:
    """Return text with its control characters escaped, so that no name can reach a terminal as a command."""
    bad = with_controls(text)
    if not bad.any():
        return text
    return text.mask(pd.Series(bad, index=text.index), text[bad].map(printable))


def as_text(raw: pd.Series) -> pd.Series:
    """Return cells as text without surrounding blanks, ``""`` where a cell is empty."""
    if len(raw) == 0:
        return pd.Series([], index=raw.index, name=raw.name, dtype=TEXT)
    plain = (
        raw.dtype == TEXT if raw.dtype != object else pd.api.types.infer_dtype(raw, skipna=True) == "string"
    )
    if plain:
        return raw.fillna("").str.strip()
    absent = raw.isna()
    return pd.Series(
        list(raw.astype(object).where(~absent, "").map(str).str.strip()), index=raw.index, name=raw.name
    )
