"""Slurm's accounting: ``sacct`` as text with any delimiter and as JSON of any version, made into attempts of jobs."""

import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data.cells import MISSING, as_text, without_controls
from tidegrid.data.instants import UTC_DTYPE, parse_instants, second_of_fold, slurm_minutes
from tidegrid.data.nodelist import nodes_of
from tidegrid.data.readers import Note, add_note, read_text
from tidegrid.data.schema import header_text, typed
from tidegrid.data.source import Log, Source
from tidegrid.data.tables import FEATURES, KINDS
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
_EPOCH = re.compile(r"^\d{8,11}$")
_STATE = re.compile(r"^[A-Z_]+(?: by \S+)?\+?$")
_COUNTED_GPUS = re.compile(r"gres/gpu(?::([^=,]+))?=(\d+)")
_FEATURES = {column.name: column for column in FEATURES}
_CLOCK = pd.Timedelta(seconds=2)
"""How far the times of one job may lie from its elapsed time by rounding."""


def gpus_of(tres: str) -> tuple[int, str]:
    """Return GPUs and GPU type from a Slurm TRES or GRES string.

    A job on several types has ``type=count`` for each: both are kept.

    Examples
    --------
    >>> gpus_of("billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,node=1"), gpus_of("gpu:2080ti:4"), gpus_of("cpu=1")
    ((2, 'a100'), (4, '2080ti'), (0, ''))
    >>> gpus_of("gres/gpu:a100=24,gres/gpu:v100=2,gres/gpu=26")
    (26, 'a100=24,v100=2')
    """
    by_type: dict[str, int] = {}
    total = 0
    for kind, count in _COUNTED_GPUS.findall(tres):
        if kind:
            by_type[kind] = by_type.get(kind, 0) + int(count)
        else:
            total = max(total, int(count))
    if not by_type and not total:
        for part in re.split(r",(?![^(]*\))", tres):
            # gpu, gpu:4, gpu:a100, gpu:a100:2(S:0-1): a type may begin with a digit, and a count has nothing else
            pieces = part.strip().split("(")[0].removeprefix("gres:").split(":")
            if pieces[0] != "gpu":
                continue
            count = int(pieces[-1]) if len(pieces) > 1 and pieces[-1].isdigit() else 1
            kind = ":".join(pieces[1:-1] if len(pieces) > 1 and pieces[-1].isdigit() else pieces[1:])
            if kind:
                by_type[kind] = by_type.get(kind, 0) + count
            else:
                total += count
        total += sum(by_type.values())
    total = max(total, sum(by_type.values()))
    if len(by_type) > 1:
        return total, ",".join(f"{kind}={count}" for kind, count in sorted(by_type.items()))
    return total, next(iter(by_type), "")


def node_types(path: str | Path) -> dict[str, str]:
    """Return the GPU type of each node, from the output of ``scontrol show node -o``.

    Raises
    ------
    InputError
        The file cannot be read, or names no node.
    """
    out: dict[str, str] = {}
    for line in read_text(Path(path), errors="replace").split("\n"):
        name = re.search(r"\bNodeName=(\S+)", line)
        gres = re.search(r"\bGres=(\S+)", line)
        if name and gres:
            kind = gpus_of(gres.group(1))[1]
            if kind:
                out[name.group(1)] = kind
    if not out:
        raise InputError(
            "names no node with typed GPUs", file=path, fix="give the output of scontrol show node -o"
        )
    return out


def is_sacct(text: str) -> bool:
    """Return whether a file that begins so is the output of ``sacct``, as text or as JSON."""
    start = text.lstrip()
    if start.startswith("{"):
        return '"jobs"' in text or '"meta"' in text
    header = start.split("\n", 1)[0]
    names = re.findall(r"[A-Za-z]+", header)
    return bool({"JobID", "JobIDRaw"} & set(names)) and "," not in header


def read_sacct(
    path: str | Path,
    *,
    timezone: str | None = None,
    nodes: Mapping[str, str] | None = None,
    notes: Note | None = None,
    log: Log | None = None,
) -> tuple[pd.DataFrame, Source]:
    """Return the attempts that a file of ``sacct`` tells of, in the columns of job history.

    Parameters
    ----------
    path
        Text (``-P``, ``-p``, any ``--delimiter``) or ``--json``.
    timezone
        The IANA zone of local times; times in seconds (``SLURM_TIME_FORMAT=%s``) and JSON need none.
    nodes
        The GPU type of each node, for accounting that does not tell it.
    notes
        Appended to: steps left out, attempts joined, comments that could not be used.
    log
        Where rows that cannot be read are noted.

    Raises
    ------
    InputError
        The file cannot be read or lacks a field; or a row cannot be read, and there is no log.
    """
    file = Path(path)
    head = read_text(file, errors="replace")
    if head.lstrip().startswith("{"):
        raw, source = _of_json(head, file, log)
    else:
        raw, source = _of_text(head, file, log, notes)
    del head
    raw, source = source.usable(raw)
    frame = _in_our_words(raw, source, nodes or {})
    frame, source = _timed(frame, source, timezone)
    frame, source = _joined(frame, source, notes)
    return _with_features(frame, notes), source


def _of_text(text: str, file: Path, log: Log | None, notes: Note | None) -> tuple[pd.DataFrame, Source]:
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
        row[name].lower() in MISSING or _EPOCH.match(row[name]) or re.match(r"^\d{4}-\d\d-\d\dT", row[name])
        for name in ("Submit", "Start", "End")
    )
    numbers = all(
        not row.get(name, "") or row[name].isdigit()
        for name in ("ElapsedRaw", "NNodes", "NCPUS", "AllocCPUS")
    )
    return times and numbers and _STATE.match(row["State"]) is not None


def _of_json(text: str, file: Path, log: Log | None) -> tuple[pd.DataFrame, Source]:
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
            rows.append(_job_of_json(job))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
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


_OURS = {
    "Submit": "submit_time",
    "Start": "start_time",
    "End": "end_time",
    "User": "user",
    "Account": "group",
    "JobName": "name",
    "Partition": "queue",
    "QOS": "qos",
    "NNodes": "nodes",
}


def _in_our_words(raw: pd.DataFrame, source: Source, types: Mapping[str, str]) -> pd.DataFrame:
    ident = "JobID" if "JobID" in raw.columns else "JobIDRaw"
    out = pd.DataFrame({"job_id": as_text(raw[ident])})
    for theirs, ours in _OURS.items():
        if theirs in raw.columns:
            out[ours] = as_text(raw[theirs])
    for column in ("name", "user", "group"):
        if column in out.columns:
            out[column] = without_controls(out[column])
    out["raw_status"] = _by_value(as_text(raw["State"]), lambda text: re.sub(r"\s+by\s+\S+$", "", text))
    if "NodeList" in raw.columns:
        listed = as_text(raw["NodeList"])
        out["node_list"] = listed.mask(listed.str.lower().isin(("none assigned", "none", "(null)")), "")
    _with_gpus(out, raw, types)
    asked = as_text(raw["ReqTRES"]) if "ReqTRES" in raw.columns else pd.Series([""] * len(raw), dtype=str)
    out["cpus"] = _by_value(asked, lambda text: _found(r"(?:^|,)cpu=(\d+)", text))
    for name in ("ReqCPUS", "NCPUS", "AllocCPUS"):
        if name in raw.columns:
            out["cpus"] = out["cpus"].mask(out["cpus"] == "", as_text(raw[name]))
    if (out["cpus"] == "").all():
        out = out.drop(columns="cpus")
    memory = _by_value(asked, lambda text: _found(r"(?:^|,)mem=(\d[0-9.]*[KMGTP]?)", text))
    if "ReqMem" in raw.columns:
        memory = memory.mask(memory == "", _whole_memory(raw, out))
    if (memory != "").any():
        out["mem_mb"] = _by_value(memory, _mebibytes)
    for theirs, ours in (("ElapsedRaw", "elapsed"), ("Suspended", "suspended")):
        given = [name for name in (theirs, theirs.removesuffix("Raw")) if name in raw.columns]
        out[ours] = slurm_seconds(raw[given[0]], given[0], source, plain_seconds=True) if given else np.nan
    for name in ("TimelimitRaw", "Timelimit"):
        if name in raw.columns and "requested_walltime_s" not in out.columns:
            limit = slurm_seconds(raw[name], name, source)
            out["requested_walltime_s"] = limit.mask(limit <= 0)
    if "Comment" in raw.columns:
        out["comment"] = as_text(raw["Comment"])
    return out


def _by_value(cells: pd.Series, make: Callable[[str], Any]) -> pd.Series:
    """Return what is made of each cell, worked out once for each value: a history has few."""
    return cells.map({value: make(value) for value in pd.unique(cells)})


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match.group(1) if match else ""


def _with_gpus(out: pd.DataFrame, raw: pd.DataFrame, types: Mapping[str, str]) -> None:
    """Add ``gpus`` and ``gpu_type``: what was allocated, or else asked for; GRES counts are of one node."""
    nodes = pd.to_numeric(out["nodes"], errors="coerce").fillna(1).clip(lower=1) if "nodes" in out else None
    gpus = np.zeros(len(raw), dtype="int64")
    kinds = np.full(len(raw), "", dtype=object)
    for name in ("AllocTRES", "AllocGRES", "ReqTRES", "ReqGRES"):
        column = next((c for c in raw.columns if str(c).lower() == name.lower()), None)
        if column is None:
            continue
        codes, values = pd.factorize(as_text(raw[column]))
        told = [gpus_of(str(text)) for text in values]
        count = np.array([number for number, _ in told], dtype="int64")[codes]
        if name.endswith("GRES") and nodes is not None:
            count = count * nodes.to_numpy(dtype="int64")
        empty = gpus == 0
        gpus = np.where(empty, count, gpus)
        kinds = np.where(empty, np.array([kind for _, kind in told], dtype=object)[codes], kinds)
    if types and "node_list" in out.columns:
        untyped = np.flatnonzero((gpus > 0) & (kinds == ""))
        lists = out["node_list"].tolist()
        for i in untyped:
            kinds[i] = _type_of_nodes(lists[i], types)
    out["gpus"] = gpus
    out["gpu_type"] = pd.Series(list(kinds), index=out.index, dtype=str)


def _type_of_nodes(listed: str, types: Mapping[str, str]) -> str:
    """Return the one GPU type that the nodes of a list have; empty where they have several or are not known."""
    try:
        found = {types.get(node, "") for node in nodes_of(listed)}
    except InputError:
        return ""
    return found.pop() if len(found) == 1 else ""


def _whole_memory(raw: pd.DataFrame, out: pd.DataFrame) -> pd.Series:
    """Return ``ReqMem`` as the job's own: before Slurm 21.08 it ends in ``c`` (of a CPU) or ``n`` (of a node)."""
    text = as_text(raw["ReqMem"])
    each = text.str.extract(r"^([0-9.]+)([KMGTP]?)([cn])?$")
    times = pd.Series(1.0, index=text.index)
    for mark, column in (("c", "cpus"), ("n", "nodes")):
        if column in out.columns:
            count = pd.to_numeric(out[column], errors="coerce").fillna(1)
            times = times.mask(each[2] == mark, count)
    amount = pd.to_numeric(each[0], errors="coerce") * times
    return amount.map(lambda value: "" if pd.isna(value) else f"{value:g}") + each[1].fillna("").where(
        amount.notna(), ""
    )


def _mebibytes(text: str) -> str:
    if not text:
        return ""
    factor = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
    unit = text[-1] if text[-1] in factor else "M"
    amount = float(text.rstrip("KMGTP")) * factor[unit]
    return f"{amount:g}" if amount < 1e6 else str(int(amount))


def slurm_seconds(cells: pd.Series, field: str, source: Source, *, plain_seconds: bool = False) -> pd.Series:
    """Return Slurm times as seconds, NaN for no limit; what is no time is refused.

    A plain number means minutes (``sbatch --time``), and seconds in ``ElapsedRaw`` (``plain_seconds``).
    """
    text = as_text(cells)
    seconds: dict[str, float] = {}
    wrong: dict[str, InputError] = {}
    for value in pd.unique(text):
        try:
            minutes = slurm_minutes(value)
            plain = plain_seconds and value.strip().isdigit()
            seconds[value] = (
                np.nan if minutes is None else minutes if plain else float(round(minutes * 60, 6))
            )
        except InputError as error:
            wrong[value] = error
            seconds[value] = np.nan
    if wrong:
        source.refuse(
            text.isin(list(wrong)).to_numpy(dtype=bool),
            field,
            lambda at: wrong[text.iloc[at]].problem,
            next(iter(wrong.values())).fix or "",
        )
    return text.map(seconds).astype("float64")


def _timed(frame: pd.DataFrame, source: Source, timezone: str | None) -> tuple[pd.DataFrame, Source]:
    """Read the times: of the two instants that an autumn hour may mean, those that fit the elapsed time."""
    names = ("submit_time", "start_time", "end_time")
    early: dict[str, pd.Series] = {}
    late: dict[str, pd.Series] = {}
    for name in names:
        text = frame[name].mask(frame[name].str.lower().isin(MISSING), "")
        epoch = text.str.fullmatch(_EPOCH.pattern).to_numpy(dtype=bool)
        stamps = pd.to_datetime(pd.to_numeric(text.where(epoch), errors="coerce"), unit="s", utc=True)
        if (epoch | (text == "").to_numpy()).all():
            early[name], _ = parse_instants(stamps, name, source, timezone)
        else:
            read, _ = parse_instants(text.mask(epoch, ""), name, source, timezone)
            early[name] = read.where(~epoch, stamps.astype(UTC_DTYPE))
        late[name] = early[name] if timezone in (None, "UTC") else second_of_fold(early[name], str(timezone))
    if any(not early[name].equals(late[name]) for name in names):
        elapsed = pd.to_timedelta(
            (frame["elapsed"] + frame["suspended"].fillna(0)).to_numpy(), unit="s"
        ).astype("timedelta64[us]")
        chosen = _fitting(early, late, pd.Series(elapsed, index=frame.index))
    else:
        chosen = early
    frame = frame.assign(**chosen)
    running = frame["raw_status"].str.upper().isin(("RUNNING", "SUSPENDED", "COMPLETING", "STOPPED"))
    duration = frame["elapsed"]
    length = (frame["end_time"] - frame["start_time"]).dt.total_seconds() - frame["suspended"].fillna(0)
    duration = duration.where(duration.notna(), length.where(length >= 0))
    frame["duration_s"] = duration.mask(running)
    frame["end_time"] = frame["end_time"].mask(running)
    return source.usable(frame)


def _fitting(
    early: Mapping[str, pd.Series], late: Mapping[str, pd.Series], elapsed: pd.Series
) -> dict[str, pd.Series]:
    """Choose for each row the first combination whose start and end fit the elapsed time, and whose order is right."""
    out = {name: cells.copy() for name, cells in early.items()}
    best = pd.Series(np.inf, index=elapsed.index)
    for submit in (early["submit_time"], late["submit_time"]):
        for start in (early["start_time"], late["start_time"]):
            for end in (early["end_time"], late["end_time"]):
                off = ((end - start - elapsed).abs() > _CLOCK) & end.notna() & elapsed.notna()
                wrong = (start < submit).astype(float) + (end < start) + 2.0 * off
                better = (wrong < best).to_numpy()
                best = best.where(~better, wrong)
                for name, cells in (("submit_time", submit), ("start_time", start), ("end_time", end)):
                    out[name] = out[name].where(~better, cells)
    return out


def _joined(frame: pd.DataFrame, source: Source, notes: Note | None) -> tuple[pd.DataFrame, Source]:
    """Join the attempts of one allocation: a resized job goes on under its id, from the instant of the resizing.

    The GPUs are those that it was given first; an attempt that goes on outside of the file ended for what it tells.
    """
    resized = frame["raw_status"].str.upper() == "RESIZING"
    if not resized.any():
        return frame, source
    again = frame[frame["job_id"].isin(set(frame["job_id"][resized]))].sort_values(
        ["job_id", "submit_time"], kind="stable"
    )
    at = again.index.to_list()
    ids, submits, ends = (again[name].tolist() for name in ("job_id", "submit_time", "end_time"))
    states, lengths, goes_on = (
        again["raw_status"].tolist(),
        again["duration_s"].tolist(),
        resized[again.index].tolist(),
    )
    keep = np.ones(len(frame), dtype=bool)
    for k in reversed(range(len(at) - 1)):
        if goes_on[k] and ids[k] == ids[k + 1] and abs(submits[k + 1] - ends[k]) <= _CLOCK:
            keep[at[k + 1]] = False
            states[k], ends[k], lengths[k] = states[k + 1], ends[k + 1], lengths[k] + lengths[k + 1]
    if keep.all():
        return frame, source
    add_note(notes, f"{int((~keep).sum()):,} attempts go on a resized job's and are joined with it")
    out = frame.copy()
    out["raw_status"] = _replaced(out["raw_status"], at, states)
    out["end_time"] = _replaced(out["end_time"], at, ends)
    out["duration_s"] = _replaced(out["duration_s"], at, lengths)
    return out[keep].reset_index(drop=True), source.take(keep)


def _replaced(cells: pd.Series, at: list[int], values: list[Any]) -> pd.Series:
    new = pd.Series(values, index=at, dtype=cells.dtype)
    return new.reindex(cells.index).where(cells.index.isin(at), cells)


def _with_features(frame: pd.DataFrame, notes: Note | None) -> pd.DataFrame:
    """Add the features that comments tell as JSON; what cannot be used of them is left out and counted."""
    frame = frame.drop(columns=["elapsed", "suspended"])
    if "comment" not in frame.columns:
        return frame
    comments = frame["comment"]
    frame = frame.drop(columns="comment")
    if not comments.str.startswith("{").any():
        return frame
    told = [_features_of(text) for text in comments]
    names = {name for one in told for name in one}
    unused = 0
    for name in [*_FEATURES, "kind"]:
        if name not in names:
            continue
        cells = pd.Series([str(one.get(name, "")) for one in told], index=frame.index, dtype=str)
        if name == "kind":
            bad = ~cells.isin(("", *KINDS))
        else:
            log = Log()
            typed(cells, _FEATURES[name], Source(log=log), None)
            bad = pd.Series(np.isin(np.arange(len(cells)) + 2, list(log.rows)), index=cells.index)
        unused += int(bad.sum())
        frame[name] = cells.mask(bad, "")
    if unused:
        add_note(notes, f"{unused:,} features in comments cannot be used and are ignored")
    return frame


def _features_of(comment: str) -> dict[str, Any]:
    """Return the features of a comment that is a JSON object; Slurm stores its quotes as backticks."""
    text = comment.strip()
    if not text.startswith("{") or len(text) > 10_000:
        return {}
    for candidate in (text, text.replace("`", '"')):
        try:
            value = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return {
                name: item
                for name, item in value.items()
                if (name in _FEATURES or name == "kind") and isinstance(item, str | int | float | bool)
            }
    return {}


def zone_warning(jobs: pd.DataFrame, now: pd.Timestamp) -> str | None:
    """Return a warning where the newest instant of a history lies hours from now, as a wrong zone makes it.

    Parameters
    ----------
    jobs
        Job history.
    now
        The instant at which the history was written.
    """
    known: Iterable[pd.Timestamp] = (jobs[name].max() for name in ("submit_time", "start_time", "end_time"))
    newest = max((instant for instant in known if not pd.isna(instant)), default=None)
    if newest is None:
        return None
    away = (newest - now).total_seconds() / 3600
    if away > 0.25:
        return f"the newest time lies {away:.1f} hours in the future: is the time zone right"
    if -15 < away < -0.75:
        return f"the newest time lies {-away:.1f} hours before now: if jobs ran since, the time zone is wrong"
    return None
