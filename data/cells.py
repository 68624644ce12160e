"""Cells as text: what every reader starts from."""

import pandas as pd

MISSING = frozenset({"", "nan", "na", "n/a", "null", "none", "nat", "<na>", "unknown"})
"""What an empty cell of a number or an instant may look like, in lower case."""

TEXT = pd.Series(["text"]).dtype
"""The dtype of text: ``str`` from pandas 3 on, ``object`` before."""


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
