"""The rows of ``sacct``: text with any delimiter and any names, and JSON of both dialects, as cells of one table."""

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data.cells import MISSING
from tidegrid.data.readers import Note, add_note
from tidegrid.data.schema import header_text
from tidegrid.data.source import Log, Source
from tidegrid.errors import InputError
from tidegrid.files import MAX_JSON, parse_json

FIELDS = (
    "JobID,User,Account,QOS,Partition,State,Submit,Start,End,ElapsedRaw,Suspended,TimelimitRaw,NNodes,NCPUS,ReqMem,"
    "ReqTRES,AllocTRES,NodeList,Comment,JobName"
)
"""The fields of the documented command; the name, which may hold anything, comes last."""

COMMAND = f"SLURM_TIME_FORMAT=%s sacct -a -D -X -P -S now-14days --format={FIELDS}"

_FREE = (
    "JobName",
    "Comment",
    "AdminComment",
    "SystemComment",
    "SubmitLine",
    "WorkDir",
    "Constraints",
    "Reason",
)
"""Fields whose text is the user's own and may hold the delimiter or line ends."""

_JOB = re.compile(r"^\d+(?:_(?:\d+|\[.*\])|\+\d+)?(?:\.\S+)?$")

EPOCH = re.compile(r"^\d{8,11}$")

_STATE = re.compile(r"^[A-Z_]+(?: by \S+)?\+?$")


def is_sacct(text: str) -> bool:
    """Return whether a file that begins so is the output of ``sacct``, as text or as JSON."""
    start = text.lstrip()
    if start.startswith("{"):
        return '"jobs"' in text or '"meta"' in text
    header = start.split("\n", 1)[0]
    names = re.findall(r"[A-Za-z]+", header)
    return bool({"JobID", "JobIDRaw"} & set(names)) and "," not in header


def rows_of_text(text: str, file: Path, log: Log | None, notes: Note | None) -> tuple[pd.DataFrame, Source]:
    """Return the cells of a list, without the steps of jobs, and where its rows stand in the file.

    Raises
    ------
    InputError
        A field is missing; or a row cannot be read, and there is no log.
    """
    above = len(text) - len(text.lstrip("\n"))
    lines = text[above:].split("\n")
    delimiter = _delimiter(lines[0], file)
    names = lines[0].split(delimiter)
    trailing = names[-1] == ""
    names = names[:-1] if trailing else names
    ident = next((name for name in ("JobID", "JobIDRaw") if name in names), "")
    for name in (ident or "JobID", "State", "Submit", "Start", "End"):
        if name not in names:
            said = f"the column is missing; the header has {header_text(pd.Index(names))}"
            raise InputError(said, file=file, row=1, field=name, fix=f"add it to sacct --format={FIELDS}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError("the column is there twice", file=file, row=1, field=twice, fix="keep one")
    at = names.index(ident)
    rows: list[str] = []
    numbers: list[int] = []
    for k, line in enumerate(lines[1:]):
        if rows and not _begins(line, rows[-1], names, delimiter, at):
            rows[-1] += "\n" + line  # a name that runs over lines
        elif line:
            rows.append(line)
            numbers.append(k + 2 + above)
    steps = np.array([_is_step(row, delimiter, at) for row in rows], dtype=bool)
    if steps.any():
        add_note(notes, f"{int(steps.sum()):,} of {len(rows):,} jobs are steps of jobs and are left out")
        rows = [row for row, step in zip(rows, steps, strict=True) if not step]
    where = np.array(numbers, dtype="int64")[~steps] if len(steps) else np.zeros(0, dtype="int64")
    source = Source(file, where, log)
    return _cells(rows, names, delimiter, trailing, source), source


def _delimiter(header: str, file: Path) -> str:
    """Return what stands between the first two names of a header."""
    found = re.match(r"^\s*[A-Za-z][A-Za-z0-9]*(.+?)[A-Za-z]", header)
    delimiter = found.group(1) if found else "|"
    if not delimiter.strip(" "):
        raise InputError(
            "its columns are aligned by blanks, which cuts their cells short",
            file=file,
            row=1,
            fix=f"write it with -P: {COMMAND}",
        )
    return delimiter


def _is_step(row: str, delimiter: str, at: int) -> bool:
    """Return whether a row is a step of a job, such as ``12.batch``."""
    cells = row.split(delimiter, at + 1)
    return len(cells) > at and "." in cells[at]


def _begins(line: str, before: str, names: list[str], delimiter: str, at: int) -> bool:
    """Return whether a line begins a row, and does not go on a name of the row before."""
    cells = line.split(delimiter, at + 1)
    if len(cells) <= at + 1 or _JOB.match(cells[at]) is None:
        return False
    if line.count(delimiter) >= len(names) - 1:
        return True
    # too short for a row of its own: the rest of a row whose name has a line end, or a row that was cut
    if before.count(delimiter) >= len(names) - 1:
        return names[-1] not in _FREE
    return _fitted((before + "\n" + line).split(delimiter), names, delimiter) is None


def _cells(rows: list[str], names: list[str], delimiter: str, trailing: bool, source: Source) -> pd.DataFrame:
    """Split rows into cells: those with the right number at once, the others by which reading makes sense."""
    width = len(names)
    expected = width if trailing else width - 1
    plain = [row.count(delimiter) == expected and "\n" not in row for row in rows]
    mark = "\x1f"
    body = "\n".join(
        (row[: -len(delimiter)] if trailing else row).replace(delimiter, mark)
        for row, simple in zip(rows, plain, strict=True)
        if simple
    )
    if any(plain):
        regular = pd.read_csv(
            io.StringIO(body),
            sep=mark,
            dtype=str,
            header=None,
            names=names,
            quoting=3,  # csv.QUOTE_NONE: sacct quotes nothing, so a quote is a character of a name
            keep_default_na=False,
            skip_blank_lines=False,
            index_col=False,
        )
    else:
        regular = pd.DataFrame({name: pd.Series([], dtype=str) for name in names})
    if all(plain):
        return regular
    odd: list[list[str]] = []
    unread: dict[int, str] = {}
    for i, (row, simple) in enumerate(zip(rows, plain, strict=True)):
        if simple:
            continue
        row = row.rstrip("\n")
        pieces = (row.removesuffix(delimiter) if trailing else row).split(delimiter)
        read = _fitted(pieces, names, delimiter)
        if read is None:
            unread[i] = f"has {len(pieces)} cells, and the header {width}"
        odd.append(read or [(pieces + [""] * width)[k] for k in range(width)])
    out = pd.concat([regular, pd.DataFrame(odd, columns=names, dtype=str)], ignore_index=True)
    order = np.argsort(
        np.concatenate([np.flatnonzero(plain), np.flatnonzero(~np.array(plain))]), kind="stable"
    )
    out = out.iloc[order].reset_index(drop=True)
    bad = np.isin(np.arange(len(rows)), list(unread))
    source = source.about(out, "job", next(n for n in ("JobID", "JobIDRaw") if n in names))
    source.refuse(
        bad,
        "cells",
        lambda at: unread[at],
        "put JobName last in --format, choose a --delimiter that no name holds, or use --json",
    )
    return out


def _fitted(pieces: list[str], names: list[str], delimiter: str) -> list[str] | None:
    """Return the cells of a row with more pieces than names: the pieces too many belong to one free text."""
    extra = len(pieces) - len(names)
    if extra < 0:
        return None
    fitting = []
    for at in [i for i, name in enumerate(names) if name in _FREE] if extra else [0]:
        cells = [*pieces[:at], delimiter.join(pieces[at : at + extra + 1]), *pieces[at + extra + 1 :]]
        if _makes_sense(dict(zip(names, cells, strict=True))):
            fitting.append(cells)
    known = {tuple(c for c, name in zip(cells, names, strict=True) if name not in _FREE) for cells in fitting}
    # readings that differ in the free texts alone tell the same of the job
    return fitting[0] if len(known) == 1 else None


def _makes_sense(row: Mapping[str, str]) -> bool:
    times = all(
        row[name].lower() in MISSING or EPOCH.match(row[name]) or re.match(r"^\d{4}-\d\d-\d\dT", row[name])
        for name in ("Submit", "Start", "End")
    )
    numbers = all(
        not row.get(name, "") or row[name].isdigit()
        for name in ("ElapsedRaw", "NNodes", "NCPUS", "AllocCPUS")
    )
    return times and numbers and _STATE.match(row["State"]) is not None


def rows_of_json(text: str, file: Path, log: Log | None) -> tuple[pd.DataFrame, Source]:
    """Return the jobs of ``sacct --json`` as the cells of its text; rows are numbered from 1.

    Raises
    ------
    InputError
        It is too large or has no list of jobs; or a job cannot be read, and there is no log.
    """
    if len(text) > MAX_JSON:
        raise InputError(
            f"holds more than {MAX_JSON // 2**20} MiB of JSON",
            file=file,
            fix="ask for a shorter window (-S, -E), or import text",
        )
    value = parse_json(text, file)
    jobs = value.get("jobs") if isinstance(value, dict) else None
    if not isinstance(jobs, list):
        raise InputError(
            "has no list of jobs", file=file, field="jobs", fix="give the output of sacct --json"
        )
    rows: list[dict[str, str]] = []
    unread: dict[int, str] = {}
    for i, job in enumerate(jobs):
        try:
            # a lone surrogate, which JSON can say, is no text
            cells = {
                name: text.encode("utf-8", "replace").decode() for name, text in _job_of_json(job).items()
            }
            rows.append(cells)
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            unread[i] = f"job {i} cannot be read ({type(error).__name__}: {error})"[:200]
            rows.append({"JobID": f"number {i + 1}"})
    frame = pd.DataFrame(rows, dtype=str).fillna("") if rows else pd.DataFrame()
    for name in ("JobID", "State", "Submit", "Start", "End", "ElapsedRaw", "AllocTRES"):
        if name not in frame.columns:
            frame[name] = pd.Series([""] * len(frame), dtype=str)
    source = Source(file, np.arange(len(frame)) + 1, log).about(frame, "job", "JobID")
    source.refuse(
        np.isin(np.arange(len(frame)), list(unread)),
        "jobs",
        lambda at: unread[at],
        "write it with sacct --json",
    )
    return frame, source


def _number(value: Any) -> float | None:
    """Return a number of either dialect; None where it is not set or infinite."""
    if isinstance(value, Mapping):
        return None if not value.get("set", True) or value.get("infinite") else _number(value.get("number"))
    return None if value is None else float(value)


def _whole(value: Any) -> str:
    number = _number(value)
    return "" if number is None else str(int(number))


def _job_of_json(job: Mapping[str, Any]) -> dict[str, str]:
    """Return a job of ``sacct --json`` in the fields of the text."""
    array, het, times = job.get("array") or {}, job.get("het") or {}, job["time"]
    state = job["state"]["current"]
    states = [state] if isinstance(state, str) else [str(one) for one in state]
    ended = [one for one in states if one in ("REQUEUED", "RESIZING")]  # these are told beside PENDING
    ident = str(int(job["job_id"]))
    task = _number(array.get("task_id"))
    if array.get("job_id") and task is not None:
        ident = f"{int(array['job_id'])}_{int(task)}"
    elif array.get("job_id") and array.get("task"):
        ident = f"{int(array['job_id'])}_[{array['task']}]"
    elif het.get("job_id"):
        ident = f"{int(het['job_id'])}+{_whole(het.get('job_offset')) or 0}"
    tres = job.get("tres") or {}
    limit = _number(times.get("limit"))
    return {
        "JobID": ident,
        "User": str(job.get("user") or (job.get("association") or {}).get("user") or ""),
        "Account": str(job.get("account") or ""),
        "QOS": str(job.get("qos") or ""),
        "Partition": str(job.get("partition") or ""),
        "State": ended[0] if ended else (states[0] if states else ""),
        "Submit": _epoch(times.get("submission")),
        "Start": _epoch(times.get("start")),
        "End": _epoch(times.get("end")),
        "ElapsedRaw": _whole(times.get("elapsed")),
        "Suspended": _whole(times.get("suspended")),
        "TimelimitRaw": "UNLIMITED" if limit is None else f"{limit:g}",
        "NNodes": _whole(job.get("allocation_nodes")),
        "NodeList": str(job.get("nodes") or ""),
        "ReqTRES": _tres(tres.get("requested")),
        "AllocTRES": _tres(tres.get("allocated")),
        "Comment": str((job.get("comment") or {}).get("job") or ""),
        "JobName": str(job.get("name") or ""),
    }


def _epoch(value: Any) -> str:
    number = _number(value)
    return str(int(number)) if number else ""


def _tres(items: Any) -> str:
    out = []
    for item in items or ():
        name = f"{item['type']}/{item['name']}" if item.get("name") else str(item["type"])
        count = _number(item.get("count"))
        if count is not None and count >= 0:
            out.append(f"{name}={int(count)}" + ("M" if name == "mem" else ""))
    return ",".join(out)
