"""Readers of CSV and Parquet files: text or typed cells in, validated tables out."""

import gzip
import io
import warnings
import zlib
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.data.cells import MISSING, as_text
from tidegrid.data.schema import Source, Table, check_columns, validate
from tidegrid.data.tables import JOBS, REQUESTS, RUNNING
from tidegrid.errors import InputError

Note = list[str]
"""A list that a reader appends to: what it left out or worked out, one line each, for the caller to show."""


_GZIP = b"\x1f\x8b"
"""The first two bytes of a gzip file (RFC 1952)."""


def read_raw(path: str | Path, *, separator: str = ",") -> tuple[pd.DataFrame, Source]:
    """Read a CSV file (plain or gzipped, whatever its name) as text cells, or a Parquet file as it is typed.

    Returns
    -------
    (DataFrame, Source)
        Blank lines are left out; the source knows each row's number in the file, the header being row 1.

    Raises
    ------
    InputError
        The file is absent, empty, not text, not a table, or has a ragged row.
    """
    file = Path(path)
    if file.suffix == ".parquet":
        return _read_parquet(file), Source(file)
    text = _read_text(file)
    if not text.strip():
        raise InputError("is empty", file=file, fix="write a header and rows")
    above = len(text) - len(text.lstrip("\n"))  # blank lines before the header
    header = text[above:].split("\n", 1)[0]
    if separator not in header and any(mark in header for mark in ";\t|"):
        raise InputError(
            f"the header {header[:60]!r} has no comma", file=file, row=1, fix="separate cells by commas"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                io.StringIO(text[above:]),
                sep=separator,
                dtype=str,
                keep_default_na=False,
                na_values=[""],
                skip_blank_lines=False,
                index_col=False,
                header=None,
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning, pd.errors.EmptyDataError) as error:
        reason = " ".join(str(error).split()).removeprefix("Error tokenizing data. C error: ")
        raise InputError(
            f"is not a table: {reason}",
            file=file,
            fix="give every row as many cells as the header; quote cells with commas",
        ) from None
    names = frame.iloc[0].fillna("").map(str).str.strip()
    if (names == "").any():
        raise InputError("a column has no name", file=file, row=1, fix="name every column in the first row")
    if names.duplicated().any():
        name = names[names.duplicated()].iloc[0]
        raise InputError("the column is there twice", file=file, row=1, field=name, fix="keep one")
    frame = frame.iloc[1:].reset_index(drop=True)
    frame.columns = pd.Index(list(names))
    rows = np.arange(len(frame)) + 2 + above
    filled = frame.notna().any(axis=1).to_numpy()
    return frame[filled].reset_index(drop=True), Source(file, rows[filled])


def _read_text(file: Path) -> str:
    try:
        content = file.read_bytes()
        packed = content.startswith(_GZIP)
        if packed or file.suffix == ".gz":
            content = gzip.decompress(content)
    except EOFError:
        raise InputError("ends early: it is cut", file=file, fix="fetch or copy it again, whole") from None
    except (gzip.BadGzipFile, zlib.error):
        if packed:
            raise InputError("is a damaged gzip file", file=file, fix="fetch or copy it again") from None
        raise InputError(
            "is not a gzip file", file=file, fix="compress it with gzip, or drop .gz from its name"
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})", file=file, fix="name an existing file"
        ) from None
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", file=file, fix="save it as UTF-8 CSV, or as .parquet") from None


def _read_parquet(file: Path) -> pd.DataFrame:
    try:
        return pd.read_parquet(file)
    except OSError as error:
        if not file.is_file():
            raise InputError(
                "cannot be read (no such file)", file=file, fix="name an existing file"
            ) from None
        raise InputError(f"is not Parquet ({error})", file=file, fix="write it as Parquet") from None
    except Exception as error:  # pyarrow raises its own kinds for a broken file
        raise InputError(f"is not Parquet ({error})", file=file, fix="write it as Parquet") from None


def read_table(
    path: str | Path, table: Table, *, timezone: str | None = None, notes: Note | None = None
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

    Raises
    ------
    InputError
        File, row, column, what is wrong and what would be right.
    """
    frame, source = read_raw(path)
    if table is JOBS:
        return complete_jobs(frame, source=source, timezone=timezone, notes=notes)
    return validate(frame, table, source=source, timezone=timezone)


def read_jobs(
    path: str | Path,
    *,
    format: str | None = None,
    timezone: str | None = None,
    start: str | None = None,
    kind: str = "training",
    notes: Note | None = None,
) -> pd.DataFrame:
    """Read job history: the documented schema, a public trace, ``sacct --parsable2`` or the standard workload format.

    Parameters
    ----------
    path
        The file.
    format
        ``"tidegrid"``, ``"trace"``, ``"sacct"`` or ``"swf"``; detected from the file where absent.
    timezone
        The IANA zone of times that carry none; without it such a time is refused.
    start
        The first instant of a file in the standard workload format whose header does not tell it.
    kind
        The workload kind of every job of a foreign format, none of which tells.
    notes
        Appended to: rows left out and why, instants that were worked out.

    Returns
    -------
    DataFrame
        Columns of :data:`tidegrid.data.tables.JOBS`; attempts that held no GPU are left out and counted.

    Raises
    ------
    InputError
        File, row, column, what is wrong and what would be right.
    """
    from tidegrid.data.formats import detect, read_foreign

    chosen = format or detect(path)
    if chosen == "tidegrid":
        return read_table(path, JOBS, timezone=timezone, notes=notes)
    return read_foreign(path, chosen, timezone=timezone, start=start, kind=kind, notes=notes)


def read_requests(path: str | Path, *, timezone: str | None = None) -> pd.DataFrame:
    """Read the queue; see :data:`tidegrid.data.tables.REQUESTS`."""
    return read_table(path, REQUESTS, timezone=timezone)


def read_running(path: str | Path, *, timezone: str | None = None) -> pd.DataFrame:
    """Read the running jobs; see :data:`tidegrid.data.tables.RUNNING`."""
    return read_table(path, RUNNING, timezone=timezone)


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
    source = source or Source()
    frame = frame.reset_index(drop=True)
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
    frame = _with_durations(frame, source, timezone)
    out = validate(frame, JOBS, source=source, timezone=timezone)
    estimated = int(out["known_at_estimated"].sum())
    if estimated:
        add_note(notes, f"{estimated:,} jobs have no start: they are taken as known at submit plus duration")
    return out


def without_gpus(frame: pd.DataFrame) -> np.ndarray:
    """Return which rows held no GPU. Shape (rows,), bool."""
    cells = frame["gpus"]
    empty = as_text(cells).str.lower().isin(MISSING)
    return (empty | (pd.to_numeric(cells, errors="coerce") == 0)).to_numpy(dtype=bool)


def _with_durations(frame: pd.DataFrame, source: Source, timezone: str | None) -> pd.DataFrame:
    from tidegrid.data.schema import blank, typed

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
        return frame
    column = {
        name: typed(frame[name], JOBS[name], source, timezone)
        if name in frame.columns
        else blank(JOBS[name], frame.index)
        for name in needed
    }
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
    return frame.assign(
        status=column["status"],
        submit_time=submit,
        start_time=start,
        end_time=end,
        duration_s=duration,
        known_at=known,
        known_at_estimated=estimated,
    )


def add_note(notes: Note | None, text: str) -> None:
    """Append a line for the caller to show, where the caller wants any."""
    if notes is not None:
        notes.append(text)
