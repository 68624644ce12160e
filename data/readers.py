"""Readers of CSV and Parquet files: text or typed cells in, validated tables out."""

import csv
import io
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.data.cells import MISSING, as_text
from tidegrid.data.schema import Table, blank, check_columns, typed, validate, validated
from tidegrid.data.source import Log, Source
from tidegrid.data.tables import JOBS, REQUESTS, RUNNING
from tidegrid.errors import InputError
from tidegrid.files import read_bytes, regular_file

Note = list[str]
"""A list that a reader appends to: what it left out or worked out, one line each, for the caller to show."""

SetAside = list[InputError]
"""A list that a reader appends to: one error for each row that it could not use and went on without."""

MAX_ROWS = 5_000_000
"""The rows of a Parquet file that are read at most; its compression can hide billions in a small file."""


def read_raw(path: str | Path, *, log: Log | None = None) -> tuple[pd.DataFrame, Source]:
    """Read a CSV file (plain or gzipped, whatever its name) as text cells, or a Parquet file as it is typed.

    Parameters
    ----------
    path
        The file.
    log
        Where rows with too many cells are noted; without one the first of them raises.

    Returns
    -------
    (DataFrame, Source)
        Blank lines are left out; the source knows each row's number in the file, the header being row 1.

    Raises
    ------
    InputError
        The file is absent, empty, too large, not text or not a table, or has a ragged row and there is no log.
    """
    file = Path(path)
    if file.suffix == ".parquet":
        return _read_parquet(file), Source(file, log=log)
    text = read_text(file)
    if not text.strip():
        raise InputError("is empty", file=file, fix="write a header and rows")
    above = len(text) - len(text.lstrip("\n"))  # blank lines before the header
    header = text[above:].split("\n", 1)[0]
    if "," not in header and any(mark in header for mark in ";\t|"):
        raise InputError(
            f"the header {header[:60]!r} has no comma", file=file, row=1, fix="separate cells by commas"
        )
    body = io.StringIO(text[above:])
    del text
    ragged: dict[int, int] = {}
    try:
        frame = _table_of(body)
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError) as error:
        reason = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ")
        refused = InputError(
            f"is not a table: {reason}",
            file=file,
            fix="give every row as many cells as the header; quote cells with commas",
        )
        if log is None or isinstance(error, pd.errors.EmptyDataError):
            raise refused from None
        body.seek(0)
        frame, ragged = _table_row_by_row(body, refused)
    names = frame.iloc[0].fillna("").map(str).str.strip()
    if (names == "").any():
        raise InputError("a column has no name", file=file, row=1, fix="name every column in the first row")
    if names.duplicated().any():
        name = names[names.duplicated()].iloc[0]
        raise InputError("the column is there twice", file=file, row=1, field=name, fix="keep one")
    frame = frame.iloc[1:].reset_index(drop=True)
    frame.columns = pd.Index(list(names))
    source = Source(file, np.arange(len(frame)) + 2 + above, log)
    if body.getvalue().rstrip("\n").count("\n") > len(frame):
        source = _over_lines(frame, source)
    source.refuse(
        np.isin(np.arange(len(frame)) + 1, list(ragged)),
        "cells",
        lambda at: f"has {ragged[at + 1]} cells, and the header {len(names)}",
        "give every row as many cells as the header; quote cells with commas",
    )
    filled = frame.notna().any(axis=1).to_numpy() & source.good(len(frame))
    return frame[filled].reset_index(drop=True), source.take(filled)


def _over_lines(frame: pd.DataFrame, source: Source) -> Source:
    """Count the lines of cells that have several, and refuse one that holds what looks like rows of the table."""
    lines = np.zeros(len(frame), dtype="int64")
    rows_inside = np.zeros(len(frame), dtype=bool)
    for name in frame.columns:
        text = as_text(frame[name])
        many = text.str.contains("\n", regex=False).to_numpy(dtype=bool)
        for at in np.flatnonzero(many):
            inside = text.iloc[at].split("\n")
            lines[at] += len(inside) - 1
            rows_inside[at] |= any(line.count(",") >= len(frame.columns) - 1 for line in inside[1:-1]) or (
                text.iloc[at].count(",") >= len(frame.columns) - 1
            )
    before = np.concatenate([[0], np.cumsum(lines)[:-1]]) if len(lines) else lines
    first = 2 if source.rows is None or not len(source.rows) else int(source.rows[0])
    out = Source(source.file, np.arange(len(frame)) + first + before, source.log)
    out.refuse(
        rows_inside,
        "cells",
        lambda at: (
            f"a cell runs over {lines[at] + 1} lines and holds rows of the table: a quote is not closed"
        ),
        "close the quote, or double it inside a quoted cell",
    )
    return out


def _table_of(body: io.StringIO) -> pd.DataFrame:
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        return pd.read_csv(
            body,
            dtype=str,
            keep_default_na=False,
            na_values=[""],
            skip_blank_lines=False,
            index_col=False,
            header=None,
        )


def _table_row_by_row(body: io.StringIO, refused: InputError) -> tuple[pd.DataFrame, dict[int, int]]:
    """Read a table of which some rows have too many cells; return how many, by the row's position."""
    try:
        rows = list(csv.reader(body, strict=True))
    except csv.Error:
        raise refused from None
    width = len(rows[0])
    ragged = {i: len(row) for i, row in enumerate(rows) if len(row) > width}
    cells = [(row + [""] * (width - len(row)))[:width] for row in rows]
    frame = pd.DataFrame(cells, dtype=object)
    return frame.where(frame != ""), ragged


def read_text(file: Path, *, errors: str = "strict") -> str:
    """Return the text of a file, plain or gzipped, with its lines ended by a line feed.

    Raises
    ------
    InputError
        It cannot be read, is too large, or is not UTF-8; with ``errors="replace"`` other bytes are replaced.
    """
    try:
        return read_bytes(file).decode("utf-8-sig", errors).replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", file=file, fix="save it as UTF-8 CSV, or as .parquet") from None


def _read_parquet(file: Path) -> pd.DataFrame:
    import pyarrow.parquet

    regular_file(file)
    try:
        with pyarrow.parquet.ParquetFile(file) as held:
            rows, columns = held.metadata.num_rows, held.metadata.num_columns
        if rows <= MAX_ROWS and columns <= MAX_ROWS // 1000:
            return pd.read_parquet(file)
    except Exception as error:  # pyarrow raises its own kinds for a broken file
        raise InputError(f"is not Parquet ({error})", file=file, fix="write it as Parquet") from None
    raise InputError(
        f"holds {rows:,} rows of {columns:,} columns",
        file=file,
        fix=f"give at most {MAX_ROWS:,} rows of {MAX_ROWS // 1000:,} columns",
    )


def read_table(
    path: str | Path,
    table: Table,
    *,
    timezone: str | None = None,
    notes: Note | None = None,
    set_aside: SetAside | None = None,
) -> pd.DataFrame:
    """Read a file in the documented schema.

    Parameters
    ----------
    path
        A ``.csv``, ``.csv.gz`` or ``.parquet`` file.
    table
        What it should hold.
    timezone
        The IANA zone of times that carry none.
    notes
        Appended to: what was left out or worked out.
    set_aside
        Appended to: one error for each row that cannot be used; the others are returned. Without it the first such
        row raises.

    Raises
    ------
    InputError
        File, row, column, what is wrong and what would be right.
    """
    log = None if set_aside is None else Log()
    frame, source = read_raw(path, log=log)
    if table is JOBS:
        out = complete_jobs(frame, source=source, timezone=timezone, notes=notes)
    else:
        out = validate(frame, table, source=source, timezone=timezone)
    tell(log, set_aside)
    return out


def tell(log: Log | None, set_aside: SetAside | None) -> None:
    """Append what a log holds to a caller's list, where there are both."""
    if log is not None and set_aside is not None:
        set_aside += log.set_aside()


def read_requests(
    path: str | Path, *, timezone: str | None = None, set_aside: SetAside | None = None
) -> pd.DataFrame:
    """Read the queue; see :data:`tidegrid.data.tables.REQUESTS` and :func:`read_table`."""
    return read_table(path, REQUESTS, timezone=timezone, set_aside=set_aside)


def read_running(
    path: str | Path, *, timezone: str | None = None, set_aside: SetAside | None = None
) -> pd.DataFrame:
    """Read the running jobs; see :data:`tidegrid.data.tables.RUNNING` and :func:`read_table`."""
    return read_table(path, RUNNING, timezone=timezone, set_aside=set_aside)


def complete_jobs(
    frame: pd.DataFrame,
    *,
    source: Source | None = None,
    timezone: str | None = None,
    notes: Note | None = None,
) -> pd.DataFrame:
    """Validate job history, leave out attempts without GPUs, and work out durations, ends and ``known_at``.

    An end that is not given is the start plus the duration. ``known_at`` is the end; where no start is known it is
    the submit plus the duration, the earliest instant that it can be, and ``known_at_estimated`` is true. A running
    row is known since its start.
    """
    return completed_jobs(frame, source or Source(), timezone, notes)[0]


def completed_jobs(
    frame: pd.DataFrame, source: Source, timezone: str | None = None, notes: Note | None = None
) -> tuple[pd.DataFrame, Source]:
    """Return what :func:`complete_jobs` does, and where the rows that are left stand in the file."""
    frame = frame.reset_index(drop=True)
    source = source.about(frame, JOBS.item, JOBS.key[0])
    timed = "duration_s" in frame.columns or {"start_time", "end_time"} <= set(frame.columns)
    check_columns(frame, JOBS, source, beside=() if timed else ("duration_s",))
    if "gpus" in frame.columns:
        without = without_gpus(frame)
        if len(frame) and without.all():
            raise InputError(
                "no job of it held a GPU", file=source.file, field="gpus", fix="give jobs that ran on GPUs"
            )
        if without.any():
            keep = ~without
            add_note(notes, f"{int(without.sum()):,} of {len(frame):,} jobs held no GPU and are left out")
            source = source.take(keep)
            frame = frame[keep].reset_index(drop=True)
    whole = len(frame)
    frame, source = _with_durations(frame, source, timezone)
    out, source = validated(frame, JOBS, source, timezone)
    source.refuse_whole_file(whole, len(out), may_be_empty=True)
    estimated = int(out["known_at_estimated"].sum())
    if estimated:
        add_note(notes, f"{estimated:,} jobs have no start: they are taken as known at submit plus duration")
    return out, source


def without_gpus(frame: pd.DataFrame) -> np.ndarray:
    """Return which rows held no GPU. Shape (rows,), bool."""
    cells = frame["gpus"]
    if pd.api.types.is_numeric_dtype(cells.dtype):
        return (cells.isna() | (cells == 0)).to_numpy(dtype=bool)
    empty = as_text(cells).str.lower().isin(MISSING)
    return (empty | (pd.to_numeric(cells, errors="coerce") == 0)).to_numpy(dtype=bool)


def _with_durations(frame: pd.DataFrame, source: Source, timezone: str | None) -> tuple[pd.DataFrame, Source]:
    needed = (
        "status",
        "submit_time",
        "start_time",
        "end_time",
        "duration_s",
        "known_at",
        "known_at_estimated",
    )
    if frame.empty or "status" not in frame.columns or "submit_time" not in frame.columns:
        return frame, source
    column = pd.DataFrame(
        {
            name: typed(frame[name], JOBS[name], source, timezone)
            if name in frame.columns
            else blank(JOBS[name], frame.index)
            for name in needed
        }
    )
    column, _ = source.usable(column)
    frame, source = source.usable(frame)
    submit, start, end = column["submit_time"], column["start_time"], column["end_time"]
    running = column["status"] == "running"
    duration = column["duration_s"].mask(running)
    elapsed = (end - start).dt.total_seconds()
    duration = duration.where(duration.notna(), elapsed.where(elapsed >= 0))
    length = pd.to_timedelta(duration.clip(upper=9e9), unit="s").astype("timedelta64[us]")
    end = end.where(end.notna() | running, start + length)
    guess = submit + length
    known = column["known_at"].where(column["known_at"].notna(), end)
    estimated = column["known_at_estimated"].fillna(0.0).mask(known.isna() & ~running & guess.notna(), 1.0)
    known = known.where(known.notna(), guess)
    known = known.where(known.notna() | ~running, start.where(start.notna(), submit))
    done = frame.assign(
        status=column["status"],
        submit_time=submit,
        start_time=start,
        end_time=end,
        duration_s=duration,
        known_at=known,
        known_at_estimated=estimated,
    )
    return done, source


def add_note(notes: Note | None, text: str) -> None:
    """Append a line for the caller to show, where the caller wants any."""
    if notes is not None:
        notes.append(text)
