"""Foreign job histories: public GPU traces, ``sacct --parsable2``, and the standard workload format."""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.data.cells import MISSING, as_text
from tidegrid.data.instants import as_instant, slurm_minutes
from tidegrid.data.readers import Note, _read_text, add_note, complete_jobs, read_raw
from tidegrid.data.schema import Source, header_text
from tidegrid.data.tables import KINDS
from tidegrid.errors import InputError

FORMATS = ("tidegrid", "trace", "sacct", "swf")
"""The formats of job history that :func:`tidegrid.data.read_jobs` reads."""

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
    "resizing": "running",
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


def map_status(raw: pd.Series) -> pd.Series:
    """Return statuses in the schema's words, ``"queued"`` for jobs that have not started, ``""`` for unknown ones.

    ``CANCELLED by 1000`` is cancelled; case, spaces and a trailing ``+`` do not matter.
    """
    word = as_text(raw).str.lower().str.replace(r"\s+by\s+\S+$|\+$", "", regex=True).str.strip()
    return word.str.replace(r"[\s-]+", "_", regex=True).map(STATUS_OF).fillna("")


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
    text = _read_text(file)
    header = text.lstrip().split("\n", 1)[0]
    if header.startswith(";"):
        return "swf"
    if "|" in header and re.search(r"(^|\|)JobID(Raw)?(\||$)", header):
        return "sacct"
    names = [name.strip().strip('"') for name in header.split(",")]
    return "trace" if "submit_s" in names and "kind" not in names else "tidegrid"


def read_foreign(
    path: str | Path,
    format: str,
    *,
    timezone: str | None = None,
    start: str | None = None,
    kind: str = "training",
    notes: Note | None = None,
) -> pd.DataFrame:
    """Read a job history that is not in the documented schema; see :func:`tidegrid.data.read_jobs`.

    Jobs that have not started, or that ended without running, are left out and counted. A status that nobody knows
    counts as failed, so that its duration is only a lower bound, and is counted too.

    Raises
    ------
    InputError
        The format is unknown, or a row cannot be used.
    """
    if kind not in KINDS:
        raise InputError(f"{kind!r} is unknown", field="kind", fix=f"use one of {', '.join(KINDS)}")
    if format == "trace":
        frame, source = _trace(path)
    elif format == "sacct":
        frame, source = _sacct(path, timezone, notes)
    elif format == "swf":
        frame, source = _swf(path, start)
    else:
        raise InputError(f"{format!r} is unknown", field="format", fix=f"use one of {', '.join(FORMATS)}")
    status = map_status(frame["raw_status"])
    lost = (status == "") & (as_text(frame["raw_status"]) != "")
    if lost.any():
        words = ", ".join(sorted(set(as_text(frame["raw_status"])[lost]))[:5])
        add_note(notes, f"{int(lost.sum()):,} jobs have an unknown status ({words}): they count as failed")
    frame = frame.assign(status=status.mask(lost, "failed"), kind=kind)
    if "gpus" in frame.columns:
        frame, source = _without(frame, source, _empty(frame["gpus"]), "held no GPU", notes)
    frame, source = _without(frame, source, frame["status"] == "queued", "have not started", notes)
    ended = frame["status"] != "running"
    idle = _zero(frame["duration_s"]) & ended
    if "start_time" in frame.columns and "end_time" in frame.columns:
        untimed = _empty(frame["start_time"]) | _empty(frame["end_time"])
        idle |= _missing(frame["duration_s"]) & untimed & ended & (frame["status"] != "completed")
    frame, source = _without(frame, source, idle, "ended without running", notes)
    if frame.empty:
        raise InputError("no job of it ran on GPUs", file=source.file, fix="give a history of GPU jobs")
    return complete_jobs(frame, source=source, timezone=timezone, notes=notes)


def _missing(cells: pd.Series) -> pd.Series:
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


def _trace(path: str | Path) -> tuple[pd.DataFrame, Source]:
    frame, source = read_raw(path)
    _need(frame, ("job_id", "submit_time", "duration_s", "gpus", "status"), source, "a GPU trace needs it")
    frame = frame.drop(columns=[name for name in _AFTERWARDS if name in frame.columns])
    raw = frame["raw_status"] if "raw_status" in frame.columns else frame["status"]
    known = map_status(frame["status"])
    # the source's own word decides only where the normalised one says nothing
    frame = frame.assign(raw_status=frame["status"].where(known != "", raw))
    return frame.rename(columns={"req_walltime_s": "requested_walltime_s"}), source


_GPUS = re.compile(r"gres/gpu=(\d+)")
_TYPED_GPUS = re.compile(r"gres/gpu:([^=,:]+)=(\d+)")
_GRES = re.compile(r"gpu(?::([A-Za-z][^:,(]*))?:(\d+)")


def gpus_of(tres: str) -> tuple[int, str]:
    """Return GPUs and GPU type from a Slurm TRES or GRES string.

    Examples
    --------
    >>> gpus_of("billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,node=1"), gpus_of("gpu:v100:4"), gpus_of("cpu=1")
    ((2, 'a100'), (4, 'v100'), (0, ''))
    """
    typed = _TYPED_GPUS.findall(tres)
    total = _GPUS.search(tres)
    if typed or total:
        kind = typed[0][0] if typed else ""
        return (int(total.group(1)) if total else sum(int(count) for _, count in typed)), kind
    gres = _GRES.findall(tres)
    return sum(int(count) for _, count in gres), next((kind for kind, _ in gres if kind), "")


_SACCT = {
    "Submit": "submit_time",
    "Start": "start_time",
    "End": "end_time",
    "User": "user",
    "Account": "group",
    "JobName": "name",
    "Partition": "queue",
    "State": "raw_status",
    "NNodes": "nodes",
    "NCPUS": "cpus",
}


def _sacct(path: str | Path, timezone: str | None, notes: Note | None) -> tuple[pd.DataFrame, Source]:
    frame, source = read_raw(path, separator="|")
    ident = "JobID" if "JobID" in frame.columns else "JobIDRaw"
    fields = "JobID,User,Account,JobName,State,Submit,Start,End,ElapsedRaw,Timelimit,AllocTRES"
    _need(frame, (ident, "State", "Submit", "Start", "End"), source, f"add it to sacct --format={fields}")
    steps = as_text(frame[ident]).str.contains(".", regex=False)
    frame, source = _without(frame, source, steps, "are steps of jobs", notes)
    out = pd.DataFrame({"job_id": as_text(frame[ident])})
    for theirs, ours in _SACCT.items():
        if theirs in frame.columns:
            out[ours] = as_text(frame[theirs])
    tres = pd.Series([""] * len(frame))
    for name in ("AllocTRES", "AllocGRES", "ReqTRES", "ReqGRES", "AllocTres", "ReqTres"):
        if name in frame.columns:
            tres = tres.where(tres != "", as_text(frame[name]))
    held = [gpus_of(text) for text in tres]
    out["gpus"] = [str(gpus) for gpus, _ in held]
    out["gpu_type"] = [kind for _, kind in held]
    if "ElapsedRaw" in frame.columns:
        out["duration_s"] = as_text(frame["ElapsedRaw"])
    elif "Elapsed" in frame.columns:
        out["duration_s"] = _slurm_seconds(frame["Elapsed"], "Elapsed", source)
    else:
        out["duration_s"] = ""
    if "TimelimitRaw" in frame.columns:
        out["requested_walltime_s"] = _slurm_seconds(frame["TimelimitRaw"], "TimelimitRaw", source)
    elif "Timelimit" in frame.columns:
        out["requested_walltime_s"] = _slurm_seconds(frame["Timelimit"], "Timelimit", source)
    running = map_status(out["raw_status"]) == "running"
    out["duration_s"] = out["duration_s"].mask(running, "")
    out["end_time"] = out["end_time"].mask(running | _missing(out["end_time"]), "")
    out["start_time"] = out["start_time"].mask(_missing(out["start_time"]), "")
    return _end_after_elapsed(out, source, timezone), source


def _end_after_elapsed(frame: pd.DataFrame, source: Source, timezone: str | None) -> pd.DataFrame:
    # a local end in the hour that an autumn night has twice reads an hour early; the elapsed time tells
    if timezone in (None, "UTC") or frame.empty:
        return frame
    from tidegrid.data.schema import typed
    from tidegrid.data.tables import JOBS

    start = typed(frame["start_time"], JOBS["start_time"], source, timezone)
    end = typed(frame["end_time"], JOBS["end_time"], source, timezone)
    length = pd.to_timedelta(pd.to_numeric(frame["duration_s"], errors="coerce"), unit="s")
    late = (start + length).astype(end.dtype)
    return frame.assign(start_time=start, end_time=end.where(~(late > end), late))


def _slurm_seconds(cells: pd.Series, field: str, source: Source) -> pd.Series:
    text = as_text(cells)
    seconds: dict[str, float] = {}
    for value in pd.unique(text):
        try:
            minutes = slurm_minutes(value)
        except InputError as error:
            at = int(np.flatnonzero((text == value).to_numpy())[0])
            raise InputError(
                error.problem, file=source.file, row=source.row(at), field=field, fix=error.fix
            ) from None
        seconds[value] = np.nan if minutes is None else round(minutes * 60, 6)
    return text.map(seconds).astype("float64")


_SWF_STATUS = {1: "completed", 0: "failed", 5: "cancelled"}
"""Statuses 2 to 4 are parts of a job that the whole job's row already counts."""


def _swf(path: str | Path, start: str | None) -> tuple[pd.DataFrame, Source]:
    file = Path(path)
    lines = _read_text(file).split("\n")
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
    for row, cells in numbered:
        if len(cells) < 18:
            raise InputError(
                f"has {len(cells)} fields",
                file=file,
                row=row,
                fix="a job has 18 fields (see the SWF definition)",
            )
    source = Source(file, np.array([row for row, _ in numbered]))
    table = pd.DataFrame([cells[:18] for _, cells in numbered])
    number = table.apply(pd.to_numeric, errors="coerce")
    source.refuse(
        number.isna().any(axis=1).to_numpy(), "fields", "holds text where a number belongs", "write numbers"
    )
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
