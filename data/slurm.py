"""Slurm's accounting: ``sacct`` as text with any delimiter and as JSON of any version, made into attempts of jobs."""

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
from tidegrid.data.sacct import EPOCH, rows_of_json, rows_of_text
from tidegrid.data.schema import typed
from tidegrid.data.source import Log, Source
from tidegrid.data.tables import FEATURES, KINDS, MAX_GPUS
from tidegrid.errors import InputError

_COUNTED_GPUS = re.compile(r"gres/gpu(?::([^=,]+))?=([0-9]{1,9})(?![0-9])")

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
            counted = len(pieces) > 1 and re.fullmatch(r"[0-9]{1,9}", pieces[-1]) is not None
            count = int(pieces[-1]) if counted else 1
            kind = ":".join(pieces[1:-1] if counted else pieces[1:])
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
        raw, source = rows_of_json(head, file, log)
    else:
        raw, source = rows_of_text(head, file, log, notes)
    del head
    raw, source = source.usable(raw)
    frame = _in_our_words(raw, source, nodes or {})
    frame, source = _timed(frame, source, timezone)
    frame, source = _joined(frame, source, notes)
    return _with_features(frame, notes), source


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
    memory = _by_value(asked, lambda text: _found(r"(?:^|,)mem=([0-9]+(?:\.[0-9]+)?[KMGTP]?)", text))
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
    nodes = (
        pd.to_numeric(out["nodes"], errors="coerce").fillna(1).clip(1, MAX_GPUS) if "nodes" in out else None
    )
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
    units = each[1].fillna("")
    told = ["" if pd.isna(a) else f"{a!r}{unit}" for a, unit in zip(amount, units, strict=True)]
    return pd.Series(told, index=text.index, dtype=str)


def _mebibytes(text: str) -> float:
    if not text:
        return float("nan")
    factor = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
    unit = text[-1] if text[-1] in factor else "M"
    return float(text.rstrip("KMGTP")) * factor[unit]


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
    """Read the times: ambiguous local ones resolve to the instant that fits the elapsed time."""
    names = ("submit_time", "start_time", "end_time")
    early: dict[str, pd.Series] = {}
    late: dict[str, pd.Series] = {}
    for name in names:
        text = frame[name].mask(frame[name].str.lower().isin(MISSING), "")
        epoch = text.str.fullmatch(EPOCH.pattern).to_numpy(dtype=bool)
        seconds = pd.to_numeric(text.where(epoch), errors="coerce").fillna(-1).to_numpy(dtype="int64")
        stamps = pd.Series(seconds.astype("datetime64[s]"), index=text.index).where(epoch)
        stamps = stamps.dt.tz_localize("UTC").astype(UTC_DTYPE)
        if (epoch | (text == "").to_numpy()).all():
            early[name], _ = parse_instants(stamps, name, source, timezone)
        else:
            read, _ = parse_instants(text.mask(epoch, ""), name, source, timezone)
            early[name] = read.where(~epoch, stamps)
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
