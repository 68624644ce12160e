"""What a table is made of, and the vectorised validation that every table passes through."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from tidegrid.data.cells import MISSING, as_text, with_controls, without_controls
from tidegrid.data.instants import parse_instants
from tidegrid.data.source import Source
from tidegrid.errors import InputError

Dtype = Literal["float", "int", "bool", "category", "text", "id", "instant"]
Known = Literal["submit", "start", "end"]

_TRUE = frozenset({"true", "t", "yes", "y", "1", "1.0", "on"})
_FALSE = frozenset({"false", "f", "no", "n", "0", "0.0", "off"})
_WHOLE_FLOAT = r"^(\d+)\.0+$"


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Parameters
    ----------
    name
        The column's name.
    dtype
        ``float``, ``int`` and ``bool`` become float64 with NaN for an empty cell (int64 where an ``int`` can have
        none); ``category``, ``text`` and ``id`` become text with ``""`` for an empty cell; ``instant`` becomes a
        UTC instant of microseconds with NaT. An ``id`` that is a whole float (``57979551.0``) loses its fraction.
    unit
        The unit of a number.
    low, high
        Bounds of a number, both included; None for no bound. No number may be infinite.
    above
        A bound that the number must exceed.
    categories
        The levels of a closed category.
    required
        Whether the column and every one of its cells must be there.
    default
        What an absent column or an empty cell stands for.
    default_from
        The column whose cell stands in for an empty one.
    always
        Whether the validated table has the column even where the input does not.
    known
        When a job's cell becomes known: at its submit, its start or its end.
    kinds
        The workload kinds that a feature describes; empty for all.
    doc
        One line that says what it is.
    """

    name: str
    dtype: Dtype
    unit: str = ""
    low: float | None = None
    high: float | None = None
    above: float | None = None
    categories: tuple[str, ...] = ()
    required: bool = False
    default: Any = None
    default_from: str = ""
    always: bool = True
    known: Known = "submit"
    kinds: tuple[str, ...] = ()
    doc: str = ""

    def meaning(self) -> str:
        """Return what the column holds in a few words, for an error's remedy."""
        unit = f" ({self.unit})" if self.unit else ""
        return f"{self.doc}{unit}" if self.doc else f"{self.dtype}{unit}"

    def span(self) -> str:
        """Return the range of a number in words, empty where there is none."""
        low = f"above {self.above:g}" if self.above is not None else ""
        low = f"at least {self.low:g}" if self.low is not None else low
        if self.high is None:
            return low
        if self.low is not None:
            return f"between {self.low:g} and {self.high:g}"
        return f"{low} and at most {self.high:g}" if low else f"at most {self.high:g}"


Rule = Callable[[pd.DataFrame], list[tuple[np.ndarray, str, str, str]]]
"""A check across columns: tuples of (bad rows, column to name, problem, fix)."""


@dataclass(frozen=True)
class Table:
    """A documented table.

    Parameters
    ----------
    name
        What it is called in messages: ``"job history"``.
    columns
        Its columns, in the order of writing.
    key
        The columns whose values together name a row once.
    rules
        Checks across columns, after each column alone is right.
    may_be_empty
        Whether a header without rows is a valid table (an empty queue is; an empty history is not).
    doc
        One line that says what it holds.
    item
        What a row is about, for messages: ``"job"`` or ``"series"``.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    rules: tuple[Rule, ...] = ()
    may_be_empty: bool = False
    doc: str = ""
    item: str = "job"

    def __getitem__(self, name: str) -> Column:
        """Return the column of this name."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(column.name for column in self.columns)


def validate(
    frame: pd.DataFrame,
    table: Table,
    *,
    source: Source | None = None,
    timezone: str | None = None,
) -> pd.DataFrame:
    """Return the table typed, with defaults filled in.

    The input is not changed. Columns that the table does not know are kept as they are, after the table's own.

    Parameters
    ----------
    frame
        Cells as text or already typed.
    table
        What the frame should be.
    source
        Where its rows came from. Where it has a log, rows that cannot be used are noted there and left out; without
        one the first of them raises.
    timezone
        The IANA zone of times that carry none; without it such a time is refused.

    Raises
    ------
    InputError
        File, row, column, what is wrong and what would be right.
    """
    return validated(frame, table, source or Source(), timezone)[0]


def validated(
    frame: pd.DataFrame, table: Table, source: Source, timezone: str | None = None
) -> tuple[pd.DataFrame, Source]:
    """Return what :func:`validate` does, and where the rows that are left stand in the file."""
    frame = frame.reset_index(drop=True)
    source = source.about(frame, table.item, table.key[0])
    check_columns(frame, table, source)
    if frame.empty and not table.may_be_empty:
        raise InputError(
            "has a header and no rows" if source.file else f"the {table.name} has no rows",
            file=source.file,
            fix=f"give at least one row of {table.name}",
        )
    columns: dict[str, pd.Series] = {}
    for column in table.columns:
        if column.name in frame.columns:
            columns[column.name] = typed(frame[column.name], column, source, timezone)
        elif column.always:
            columns[column.name] = typed(
                pd.Series([None] * len(frame), dtype=object), column, source, timezone
            )
    for name in frame.columns:
        if name not in columns:
            columns[str(name)] = frame[name].copy()
    out, source = source.usable(pd.DataFrame(columns, index=frame.index))
    for column in table.columns:
        if column.name in out.columns:
            if column.default_from:
                stand_in = out[column.default_from]
                cells = out[column.name]
                empty = cells == "" if column.dtype in ("text", "id", "category") else cells.isna()
                out[column.name] = cells.mask(empty, stand_in).astype(stand_in.dtype)
            elif column.dtype == "int" and column.always and out[column.name].notna().all():
                out[column.name] = out[column.name].astype("int64")
    for rule in table.rules:
        for bad, field, problem, fix in rule(out):
            source.refuse(bad, field, problem, fix)
        out, source = source.usable(out)
    check_key(out, table, source)
    out, source = source.usable(out)
    source.refuse_whole_file(len(frame), len(out), may_be_empty=table.may_be_empty)
    return out, source


def check_key(frame: pd.DataFrame, table: Table, source: Source) -> None:
    """Raise where the key of a table names two rows.

    Raises
    ------
    InputError
        The second of two such rows is named, and the first by its number.
    """
    key = list(table.key)
    doubled = frame.duplicated(key).to_numpy()
    if not doubled.any():
        return

    def problem(at: int) -> str:
        same = np.ones(len(frame), dtype=bool)
        for name in key:
            same &= (frame[name] == frame[name].iloc[at]).to_numpy()
        first = source.row(int(np.flatnonzero(same)[0]))
        values = ", ".join(f"{name} {frame[name].iloc[at]}" for name in key)
        return f"{values} is already in row {first}"

    source.refuse(doubled, " + ".join(key), problem, f"keep one row for each {' and '.join(key)}")


def check_columns(
    frame: pd.DataFrame,
    table: Table,
    source: Source,
    *,
    header: pd.Index | None = None,
    beside: tuple[str, ...] = (),
) -> None:
    """Raise where a column that a table needs is missing; the others that are missing are named with it.

    Parameters
    ----------
    frame, table, source
        The rows, what they should hold, and where they come from.
    header
        The names that the file has, where the frame has others.
    beside
        Columns that are named with missing ones, and are no error alone.

    Raises
    ------
    InputError
        A column is missing or there twice. The workload kind, which a foreign history never tells, comes last.
    """
    names = pd.Index(frame.columns)
    if names.has_duplicates:
        name = names[names.duplicated()][0]
        raise InputError(
            "the column is there twice", file=source.file, row=1, field=str(name), fix="keep one"
        )
    missing = [column.name for column in table.columns if column.required and column.name not in names]
    if not missing:
        return
    missing = sorted(
        [*missing, *(name for name in beside if name not in names)], key=lambda name: name == "kind"
    )
    others = f", as {'is' if len(missing) == 2 else 'are'} {', '.join(missing[1:])}" if missing[1:] else ""
    raise InputError(
        f"the column is missing{others}; the header has {header_text(names if header is None else header)}",
        file=source.file,
        row=1 if source.file else None,
        field=missing[0],
        fix=f"add it: {table[missing[0]].meaning()}",
    )


def header_text(names: pd.Index) -> str:
    """Return the first names of a header, for an error."""
    return ", ".join(map(str, names[:12])) + (", …" if len(names) > 12 else "") or "no names"


def typed(raw: pd.Series, column: Column, source: Source, timezone: str | None) -> pd.Series:
    """Return one column in its type, empty cells filled with the default.

    Raises
    ------
    InputError
        A cell is not of the type, out of range, or missing though required.
    """
    if column.dtype == "instant":
        out, absent = parse_instants(raw, column.name, source, timezone)
    elif column.dtype in ("float", "int", "bool"):
        out, absent = _numbers(raw, column, source)
    else:
        out, absent = _texts(raw, column, source)
    if column.required:
        source.refuse(absent, column.name, "the cell is empty", f"fill it in: {column.meaning()}")
    elif column.default is not None and absent.any():
        fill = column.default if column.dtype in ("category", "text", "id") else float(column.default)
        out = out.mask(pd.Series(absent, index=out.index), fill)
    return out.rename(column.name)


def _numbers(raw: pd.Series, column: Column, source: Source) -> tuple[pd.Series, np.ndarray]:
    if pd.api.types.is_numeric_dtype(raw.dtype):  # booleans are numbers too
        values = raw.astype("float64").to_numpy(copy=True)
        absent = np.isnan(values)
        cells: pd.Series = raw
    else:
        cells = as_text(raw)
        lower = cells.str.lower()
        absent = lower.isin(MISSING).to_numpy()
        if column.dtype == "bool":
            values = np.where(lower.isin(_TRUE), 1.0, np.where(lower.isin(_FALSE), 0.0, np.nan))
            source.refuse(
                np.isnan(values) & ~absent,
                column.name,
                lambda at: f"{cells.iloc[at]!r} is neither true nor false",
                "write true or false",
            )
        else:
            values = pd.to_numeric(cells.mask(absent), errors="coerce").to_numpy(dtype="float64", copy=True)
    unit = f" ({column.unit})" if column.unit else ""
    fix = f"write {'a whole number' if column.dtype == 'int' else 'a number'} {column.span()}".rstrip() + unit

    def said(what: str) -> Callable[[int], str]:
        return lambda at: f"{_plain(cells.iloc[at])} is {what}"

    source.refuse(np.isnan(values) & ~absent, column.name, said("not a number"), fix)
    source.refuse(np.isinf(values), column.name, said("not finite"), fix)
    with np.errstate(invalid="ignore"):
        if column.dtype == "int":
            source.refuse(
                ~absent & (values != np.round(values)), column.name, said("not a whole number"), fix
            )
        if column.low is not None:
            source.refuse(values < column.low, column.name, said("too small"), fix)
        if column.above is not None:
            source.refuse(values <= column.above, column.name, said("not positive"), fix)
        if column.high is not None:
            source.refuse(values > column.high, column.name, said("too large"), fix)
    return pd.Series(values, index=raw.index), absent


def _plain(value: Any) -> str:
    return repr(value) if isinstance(value, str) else f"{value}"


def _texts(raw: pd.Series, column: Column, source: Source) -> tuple[pd.Series, np.ndarray]:
    text = as_text(raw)
    if text.empty:
        return text, np.zeros(0, dtype=bool)
    if column.dtype == "id":
        source.refuse(
            with_controls(text),
            column.name,
            lambda at: f"{text.iloc[at]!r} holds a control character",
            "write plain text on one line",
        )
        text = text.str.replace(_WHOLE_FLOAT, r"\1", regex=True)
    else:
        text = without_controls(text)
    absent = (text == "").to_numpy(dtype=bool)
    if column.categories:
        source.refuse(
            ~absent & ~text.isin(column.categories).to_numpy(),
            column.name,
            lambda at: f"{text.iloc[at]!r} is unknown",
            f"use one of {', '.join(column.categories)}",
        )
    return text, absent


def blank(column: Column, index: pd.Index) -> pd.Series:
    """Return a column of empty cells in the column's type."""
    if column.dtype == "instant":
        return pd.Series(pd.NaT, index=index, dtype="datetime64[us, UTC]")
    if column.dtype in ("float", "int", "bool"):
        return pd.Series(np.nan, index=index, dtype="float64")
    return pd.Series([""] * len(index), index=index)


def as_markdown(table: Table) -> str:
    """Return the table's columns as a table in Markdown; ``docs/data-formats.md`` holds this very text."""
    lines = ["| column | type | unit | range | needed | meaning |", "| --- | --- | --- | --- | --- | --- |"]
    for c in table.columns:
        span = ", ".join(c.categories) or c.span()
        default = c.default_from or ("" if c.default is None else str(c.default))
        needed = "yes" if c.required else f"no: {default}" if default else "no"
        lines.append(f"| {c.name} | {c.dtype} | {c.unit} | {span} | {needed} | {c.doc} |")
    return "\n".join(lines)
