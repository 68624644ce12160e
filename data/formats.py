"""Foreign job histories: public GPU traces, Slurm's accounting, and the standard workload format."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.data.cells import MISSING, as_text
from tidegrid.data.instants import as_instant
from tidegrid.data.readers import (
    Note,
    SetAside,
    add_note,
    completed_jobs,
    read_raw,
    read_table,
    read_text,
    tell,
)
from tidegrid.data.sacct import is_sacct
from tidegrid.data.schema import header_text, validate
from tidegrid.data.slurm import read_sacct
from tidegrid.data.source import Log, Source
from tidegrid.data.tables import JOBS, KINDS
from tidegrid.errors import InputError
from tidegrid.files import read_start

FORMATS = ("tidegrid", "trace", "sacct", "swf")
"""The formats of job history that :func:`tidegrid.data.read_jobs` reads."""

_OPTIONS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "start": (("swf",), "tells the instants of its jobs"),
    "kind": (("trace", "sacct", "swf"), "tells the kind of each job"),
    "nodes": (("sacct",), "tells no nodes"),
}
"""The formats that an option of reading is for, and why the others have no use for it."""

STATUS_OF: Mapping[str, str] = {
    "completed": "completed",
    "pass": "completed",
    "passed": "completed",
    "success": "completed",
    "succeeded": "completed",
    "complete": "completed",
    "done": "completed",
    "terminated": "completed",  # the Alibaba traces' word for a job that ended by itself
    "failed": "failed",
    "fail": "failed",
    "failure": "failed",
    "error": "failed",
    "out_of_memory": "failed",
    "oom": "failed",
    "node_fail": "failed",
    "boot_fail": "failed",
    "launch_failed": "failed",
    "cancelled": "cancelled",
    "canceled": "cancelled",
    "killed": "cancelled",
    "kill": "cancelled",
    "preempted": "cancelled",
    "revoked": "cancelled",
    "requeued": "cancelled",
    "special_exit": "cancelled",
    "stopped": "cancelled",
    "interrupted": "cancelled",
    "timeout": "timeout",
    "deadline": "timeout",
    "timelimit": "timeout",
    "running": "running",
    "completing": "running",
    "suspended": "running",
    "resizing": "cancelled",  # goes on under the same id; a job's parts are joined where the file has both
    "stopping": "running",
    "pending": "queued",
    "queued": "queued",
    "requeue_hold": "queued",
    "requeue_fed": "queued",
    "configuring": "queued",
    "waiting": "queued",
}
"""What the statuses of Slurm (``sacct(1)``, job state codes) and of public traces mean here."""

_AFTERWARDS = ("wait_s", "eligible_time", "priority", "first_poll", "submit_s", "req_tres", "status_code")
"""Columns of public traces that are known only after submission, or that say nothing more: left out."""


def read_jobs(
    path: str | Path,
    *,
    format: str | None = None,
    timezone: str | None = None,
    start: str | None = None,
    kind: str | None = None,
    nodes: Mapping[str, str] | None = None,
    notes: Note | None = None,
    set_aside: SetAside | None = None,
) -> pd.DataFrame:
    """Read job history: the documented schema, a public trace, ``sacct`` or the standard workload format.

    Parameters
    ----------
    path
        The file.
    format
        ``"tidegrid"``, ``"trace"``, ``"sacct"`` (text or JSON) or ``"swf"``; detected from the file where absent.
    timezone
        The IANA zone of times that carry none; without it such a time is refused.
    start
        The first instant of a file in the standard workload format whose header does not tell it.
    kind
        The workload kind of every job that does not tell its own; training where absent.
    nodes
        The GPU type of each node, for accounting of Slurm that does not tell it
        (:func:`tidegrid.data.slurm.node_types`).
    notes
        Appended to: rows left out and why, instants that were worked out.
    set_aside
        Appended to: one error for each row that cannot be used; the others are returned. Without it the first such
        row raises.

    Returns
    -------
    DataFrame
        Columns of :data:`tidegrid.data.tables.JOBS`; attempts that held no GPU are left out and counted.

    Raises
    ------
    InputError
        File, row, column, what is wrong and what would be right; or ``start``, ``kind`` or ``nodes`` is given for a
        file that has no use for it.
    """
    chosen = format or detect(path)
    if chosen not in FORMATS:
        raise InputError(f"{chosen!r} is unknown", field="format", fix=f"use one of {', '.join(FORMATS)}")
    for name, value in (("start", start), ("kind", kind), ("nodes", nodes)):
        takes, why = _OPTIONS[name]
        if value is not None and chosen not in takes:
            raise InputError(
                f"a file of the format {chosen} {why}", file=path, field=name, fix="leave this option out"
            )
    if chosen == "tidegrid":
        return read_table(path, JOBS, timezone=timezone, notes=notes, set_aside=set_aside)
    if kind is not None and kind not in KINDS:
        raise InputError(f"{kind!r} is unknown", field="kind", fix=f"use one of {', '.join(KINDS)}")
    log = None if set_aside is None else Log()
    if chosen == "trace":
        frame, source = _trace(path, log)
    elif chosen == "sacct":
        frame, source = read_sacct(path, timezone=timezone, nodes=nodes, notes=notes, log=log)
    else:
        frame, source = _swf(path, start, log)
    out = _as_history(frame, source, kind, timezone, notes, may_be_empty=chosen == "sacct")
    tell(log, set_aside)
    return out


def map_status(raw: pd.Series) -> pd.Series:
    """Return statuses in the schema's words, ``"queued"`` for jobs that have not started, ``""`` for unknown ones.

    ``CANCELLED by 1000`` is cancelled; case, spaces and a trailing ``+`` do not matter.
    """
    text = as_text(raw)
    return text.map({value: _status_of(value) for value in pd.unique(text)})


def _status_of(raw: str) -> str:
    word = re.sub(r"\s+by\s+\S+$|\+$", "", raw.lower()).strip()
    return STATUS_OF.get(re.sub(r"[\s-]+", "_", word), "")


def detect(path: str | Path) -> str:
    """Return the format of a job history, told from its name and header.

    Raises
    ------
    InputError
        The file cannot be read or is empty.
    """
    file = Path(path)
    if file.suffix == ".parquet":
        names = list(read_raw(file)[0].columns)
        return "trace" if "submit_s" in names and "kind" not in names else "tidegrid"
    if file.name.removesuffix(".gz").endswith(".swf"):
        return "swf"
    text = read_start(file, 100_000).decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    header = text.lstrip().split("\n", 1)[0]
    if header.startswith(";"):
        return "swf"
    if is_sacct(text):
        return "sacct"
    names = [name.strip().strip('"') for name in header.split(",")]
    return "trace" if "submit_s" in names and "kind" not in names else "tidegrid"


def _as_history(
    frame: pd.DataFrame,
    source: Source,
    kind: str | None,
    timezone: str | None,
    notes: Note | None,
    may_be_empty: bool,
) -> pd.DataFrame:
    """Return the jobs of another format as job history.

    Jobs that have not started, or that ended without running, are left out and counted. An unknown status counts as
    failed, so that its duration is only a lower bound, and is counted too.
    """
    source = source.about(frame, JOBS.item, JOBS.key[0])
    whole = len(frame)
    status = map_status(frame["raw_status"])
    lost = (status == "") & (as_text(frame["raw_status"]) != "")
    if lost.any():
        words = ", ".join(sorted(set(as_text(frame["raw_status"])[lost]))[:5])
        add_note(notes, f"{int(lost.sum()):,} jobs have an unknown status ({words}): they count as failed")
    if "kind" in frame.columns:
        told = as_text(frame["kind"])
        if kind is not None and (told != "").all():
            raise InputError(
                "each job tells its kind", file=source.file, field="kind", fix="leave this option out"
            )
        frame = frame.assign(kind=told.mask(told == "", kind or "training"))
    else:
        frame = frame.assign(kind=kind or "training")
    frame = frame.assign(status=status.mask(lost, "failed"))
    if "gpus" in frame.columns:
        frame, source = _without(frame, source, _empty(frame["gpus"]), "held no GPU", notes)
    frame, source = _without(frame, source, frame["status"] == "queued", "have not started", notes)
    ended = frame["status"] != "running"
    idle = _zero(frame["duration_s"]) & ended
    if "start_time" in frame.columns and "end_time" in frame.columns:
        untimed = _empty(frame["start_time"]) | _empty(frame["end_time"])
        idle |= _missing(frame["duration_s"]) & untimed & ended & (frame["status"] != "completed")
    frame, source = _without(frame, source, idle, "ended without running", notes)
    if frame.empty and not may_be_empty:
        raise InputError("no job of it ran on GPUs", file=source.file, fix="give a history of GPU jobs")
    if frame.empty:  # a window of time in which nobody used GPUs
        source.refuse_whole_file(len(source.log.rows) if source.log else 0, whole, may_be_empty=True)
        out = validate(frame.reindex(columns=[c.name for c in JOBS.columns if c.always]), JOBS)
    else:
        out, _ = completed_jobs(frame, source, timezone, notes)
    return out


def _missing(cells: pd.Series) -> pd.Series:
    if pd.api.types.is_numeric_dtype(cells.dtype) or isinstance(cells.dtype, pd.DatetimeTZDtype):
        return cells.isna()
    return as_text(cells).str.lower().isin(MISSING)


def _zero(cells: pd.Series) -> pd.Series:
    return pd.to_numeric(cells, errors="coerce") == 0


def _empty(cells: pd.Series) -> pd.Series:
    return _missing(cells) | _zero(cells)


def _without(
    frame: pd.DataFrame, source: Source, drop: pd.Series, why: str, notes: Note | None
) -> tuple[pd.DataFrame, Source]:
    bad = drop.to_numpy(dtype=bool)
    if not bad.any():
        return frame, source
    add_note(notes, f"{int(bad.sum()):,} of {len(frame):,} jobs {why} and are left out")
    return frame[~bad].reset_index(drop=True), source.take(~bad)


def _need(frame: pd.DataFrame, names: tuple[str, ...], source: Source, why: str) -> None:
    for name in names:
        if name not in frame.columns:
            said = f"the column is missing; the header has {header_text(frame.columns)}"
            raise InputError(said, file=source.file, row=1, field=name, fix=why)


def _trace(path: str | Path, log: Log | None) -> tuple[pd.DataFrame, Source]:
    frame, source = read_raw(path, log=log)
    _need(frame, ("job_id", "submit_time", "duration_s", "gpus", "status"), source, "a GPU trace needs it")
    frame = frame.drop(columns=[name for name in _AFTERWARDS if name in frame.columns])
    raw = frame["raw_status"] if "raw_status" in frame.columns else frame["status"]
    known = map_status(frame["status"])
    # the source's own word decides only where the normalised one says nothing
    frame = frame.assign(raw_status=frame["status"].where(known != "", raw))
    return frame.rename(columns={"req_walltime_s": "requested_walltime_s"}), source


_SWF_STATUS = {1: "completed", 0: "failed", 5: "cancelled"}
"""Statuses 2 to 4 are parts of a job that the whole job's row already counts."""


def _swf(path: str | Path, start: str | None, log: Log | None) -> tuple[pd.DataFrame, Source]:
    file = Path(path)
    lines = read_text(file).split("\n")
    begin = re.search(r"^;\s*UnixStartTime:\s*(\d+)", "\n".join(lines[:200]), flags=re.MULTILINE)
    if start is not None:
        origin = as_instant(start, field="start")
    elif begin and int(begin.group(1)) > 0:
        origin = pd.Timestamp(int(begin.group(1)), unit="s", tz="UTC")
    else:
        raise InputError(
            "the header has no UnixStartTime",
            file=file,
            field="UnixStartTime",
            fix="state the first instant with start=",
        )
    numbered = [
        (i + 1, line.split()) for i, line in enumerate(lines) if line.strip() and not line.startswith(";")
    ]
    if not numbered:
        raise InputError("has no jobs", file=file, fix="give at least one line of 18 numbers")
    source = Source(file, np.array([row for row, _ in numbered]), log)
    short = np.array([len(cells) < 18 for _, cells in numbered])
    source.refuse(
        short,
        "fields",
        lambda at: f"has {len(numbered[at][1])} fields",
        "a job has 18 fields (see the SWF definition)",
    )
    table = pd.DataFrame([(cells + ["-1"] * 18)[:18] for _, cells in numbered])
    number = table.apply(pd.to_numeric, errors="coerce")
    text = ~np.isfinite(number.to_numpy(dtype="float64")).all(axis=1) | (number.abs() > 1e11).any(axis=1)
    source.refuse(text.to_numpy(), "fields", "holds text where a number belongs", "write numbers")
    number, source = source.usable(number)
    whole = ~number[10].isin((2, 3, 4)).to_numpy()
    number, source = number[whole].reset_index(drop=True), source.take(whole)
    submit = origin + pd.to_timedelta(number[1], unit="s")
    held = number[4].where(number[4] > 0, number[7])
    asked = number[8].where(number[8] > 0)
    began = (submit + pd.to_timedelta(number[2], unit="s")).where(number[2] >= 0)
    return (
        pd.DataFrame(
            {
                "job_id": number[0].astype("int64").map(str),
                "raw_status": number[10].map(_SWF_STATUS).fillna("unknown"),
                "submit_time": submit.astype("datetime64[us, UTC]"),
                "start_time": began.astype("datetime64[us, UTC]"),
                "duration_s": number[3].where(number[3] > 0, 0.0),
                "gpus": held.clip(lower=0),
                "user": _label(number[11], "u"),
                "group": _label(number[12], "g"),
                "name": _label(number[13], "app"),
                "queue": _label(number[14], "q"),
                "requested_walltime_s": asked,
            }
        ),
        source,
    )


def _label(numbers: pd.Series, prefix: str) -> pd.Series:
    return pd.Series([f"{prefix}{int(n)}" if n >= 0 else "" for n in numbers], index=numbers.index)
