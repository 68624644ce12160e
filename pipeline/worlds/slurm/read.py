"""From the output of Slurm's commands to records; both dialects of its JSON (22.05 and 24.11) and ``scontrol -o``."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from tidegrid.data.nodelist import indices_of, nodes_of
from tidegrid.errors import InputError
from tidegrid.pipeline.worlds.slurm.entities import Limit, Node, Partition, QueueJob, Reservation

MOST_GPUS = 1024
"""The most GPUs of a node."""

_TRES = re.compile(r"gres[/:]gpu(?::([^:=,]+))?[:=](\d+)$")
_GRES = re.compile(r"gpu(?::([^:(,]+))?:(\d+)(?:\(S:[^)]*\))?$")
_DETAIL = re.compile(r"gpu(?::([^:(,]+))?:(\d+)\((?:IDX|S):([^)]*)\)")
_SHARED = re.compile(r"gres[/:](?:shard|mps)\b")
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z:/_]*)=")


def jobs_of(text: str) -> tuple[list[QueueJob], list[str]]:
    """Read ``squeue --json``; a job that cannot be read is told, and the others are returned.

    Returns
    -------
    jobs : list of QueueJob
        Those that wait or run, in Slurm's order.
    problems : list of str
        A line for each job that cannot be read.

    Raises
    ------
    InputError
        The text is not such JSON.
    """
    jobs, problems = [], []
    for record in _listed(text, "jobs", "squeue --json"):
        try:
            job = _job(record)
        except (InputError, KeyError, TypeError, ValueError) as error:
            said = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
            problems.append(f"job {record.get('job_id', '?')} cannot be read: {said}")
            continue
        if job.is_pending or job.is_running:
            jobs.append(job)
    return jobs, problems


def _listed(text: str, key: str, command: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(text)[key]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise InputError(
            f"is not what {command} prints", field=command, fix="use Slurm 22.05 or later"
        ) from None
    if not isinstance(found, list) or not all(isinstance(record, dict) for record in found):
        raise InputError(f"has no list of {key}", field=command, fix="use Slurm 22.05 or later")
    return found


def number(value: Any) -> float | None:
    """Return a number of either dialect: plain, or ``{set, infinite, number}``; None where it is not set."""
    if isinstance(value, Mapping):
        if value.get("infinite"):
            return math.inf
        return float(value["number"]) if value.get("set") else None
    return None if value is None else float(value)


def _whole(value: Any, otherwise: int = 0) -> int:
    found = number(value)
    return otherwise if found is None or math.isinf(found) else int(found)


def _instant(value: Any) -> pd.Timestamp | None:
    seconds = number(value)
    if not seconds or math.isinf(seconds):
        return None
    return pd.Timestamp(int(seconds), unit="s", tz="UTC")


def _states(value: Any) -> frozenset[str]:
    return frozenset([value] if isinstance(value, str) else value)


def _nodes(text: str | None) -> tuple[str, ...]:
    return tuple(nodes_of(text)) if text and text not in ("(null)", "None") else ()


def _job(record: Mapping[str, Any]) -> QueueJob:
    state = _states(record["job_state"])
    held_types, held = _gpus(record.get("tres_alloc_str", "").split(","))
    types, gpus = _gpus(record.get("tres_req_str", "").split(","))
    if state & {"RUNNING", "COMPLETING", "SUSPENDED"} and held:
        types, gpus = held_types, held
    array, task = _whole(record.get("array_job_id")) or None, number(record.get("array_task_id"))
    raw = int(record["job_id"])
    tasks: tuple[int, ...] = ()
    if array is not None and task is None and record.get("array_task_string"):
        listed = str(record["array_task_string"]).split("%")[0]
        tasks = tuple(indices_of(listed.replace("...", ""), 4_000_001))
    limit = number(record.get("time_limit"))
    nodes = max(1, _whole(record.get("node_count"), 1))
    names = _nodes(record.get("nodes"))
    submit = _instant(record["submit_time"])
    if submit is None:
        raise InputError("has no submit_time", field="submit_time")
    priority = _whole(record.get("priority"))
    return QueueJob(
        id=f"{array}_{int(task)}" if array is not None and task is not None else str(array or raw),
        raw_id=raw,
        name=str(record.get("name", "")),
        user=str(record.get("user_name", "")),
        account=str(record.get("account", "")),
        qos=str(record.get("qos", "")),
        partitions=tuple(part for part in str(record.get("partition", "")).split(",") if part),
        state=state,
        reason=str(record.get("state_reason", "")),
        submit=submit,
        eligible=_instant(record.get("eligible_time")),
        start=_instant(record.get("start_time")),
        limit_h=math.inf if limit is None or math.isinf(limit) else limit / 60,
        gpus=gpus,
        gpu_types=types,
        gpus_per_node=_per_node(record, nodes),
        nodes=nodes,
        cpus=_whole(record.get("cpus"), 1),
        memory_mb=_memory(record, nodes),
        features=str(record.get("features", "") or ""),
        required_nodes=_nodes(record.get("required_nodes")),
        excluded_nodes=_nodes(record.get("excluded_nodes")),
        dependency=str(record.get("dependency", "") or ""),
        deadline=_instant(record.get("deadline")),
        priority=priority,
        nice=_whole(record.get("nice")),
        held=bool(record.get("hold", priority == 0 and "PENDING" in state)),
        comment=str(record.get("comment", "") or ""),
        admin_comment=str(record.get("admin_comment", "") or ""),
        reservation=str(record.get("resv_name", "") or ""),
        array_job=array,
        tasks=tasks,
        task_limit=_whole(record.get("array_max_tasks")) or None,
        het_job=_whole(record.get("het_job_id")) or None,
        het_offset=_whole(record.get("het_job_offset")),
        batch=bool(record.get("batch_flag", True)),
        exclusive="none" in _states(record.get("shared") or ()),
        licenses=str(record.get("licenses", "") or ""),
        shares_gpus=bool(_SHARED.search(str(record.get("tres_req_str", "")))),
        suspended_h=_suspended(record),
        node_names=names,
        gpu_ids=_indices(record.get("gres_detail") or [], names),
    )


def _gpus(parts: Iterable[str]) -> tuple[dict[str, int], int]:
    """Return GPUs by type and in all, from parts such as ``gres/gpu=8`` and ``gres/gpu:a100=8``."""
    types: dict[str, int] = {}
    total = 0
    for part in parts:
        found = _TRES.search(part.strip())
        if found and found[1]:
            types[found[1]] = types.get(found[1], 0) + int(found[2])
        elif found:
            total += int(found[2])
    return types, max(total, sum(types.values()))


def _per_node(record: Mapping[str, Any], nodes: int) -> int | None:
    wanted = str(record.get("tres_per_node", "") or "")
    if wanted:
        return _gpus(wanted.split(","))[1] or None
    return None


def _memory(record: Mapping[str, Any], nodes: int) -> int:
    """Return MiB a node."""
    whole = number(record.get("memory_per_node"))
    if whole is not None and not math.isinf(whole):
        return int(whole)
    each = number(record.get("memory_per_cpu"))
    if each is None or math.isinf(each):
        return 0
    return int(each * max(1, _whole(record.get("cpus"), 1)) / nodes)


def _suspended(record: Mapping[str, Any]) -> float:
    """Hours that the job was suspended: run time before a suspension is kept as ``pre_sus_time``."""
    before, start, since = (
        number(record.get("pre_sus_time")), number(record.get("start_time")), number(record.get("suspend_time")),
    )  # fmt: skip
    if not since or not start or since <= start or before is None:
        return 0.0
    return max(0.0, (since - start - before) / 3600)


def _indices(details: Iterable[str], names: tuple[str, ...]) -> dict[str, tuple[int, ...]]:
    out = {}
    for name, detail in zip(names, details, strict=False):
        found: list[int] = []
        for match in _DETAIL.finditer(detail):
            if match[3] and match[3] not in ("N/A", "(null)"):
                found += indices_of(match[3], MOST_GPUS)
        if found:
            out[name] = tuple(sorted(found))
    return out


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of one line of ``scontrol show … -o``; a value goes on until the next ``Name=``.

    Free text such as a node's reason comes late: a name that it repeats does not replace the field itself.
    """
    marks = list(_FIELD.finditer(line))
    ends = [*(mark.start() for mark in marks[1:]), len(line)][: len(marks)]
    out: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=True):
        out.setdefault(mark[1], line[mark.end() : end].strip())
    return out


def nodes_in(text: str) -> list[Node]:
    """Read ``scontrol show node -o``."""
    out = []
    for line in filter(None, map(str.strip, text.splitlines())):
        told = fields_of(line)
        types: dict[str, int] = {}
        for part in re.split(r",(?![^(]*\))", told.get("Gres", "")):
            found = _GRES.match(part.strip())
            if found:
                types[found[1] or "gpu"] = types.get(found[1] or "gpu", 0) + int(found[2])
        # what is kept for the node itself is no job's
        cpus = int(told.get("CPUEfctv", told.get("CPUTot", "0")))
        memory = int(told.get("RealMemory", "0")) - int(told.get("MemSpecLimit", "0"))
        out.append(
            Node(
                name=told["NodeName"],
                gpus=types,
                cpus=cpus,
                free_cpus=cpus - int(told.get("CPUAlloc", 0)),
                memory_mb=memory,
                free_memory_mb=memory - int(told.get("AllocMem", 0)),
                features=frozenset(
                    filter(None, told.get("ActiveFeatures", "").replace("(null)", "").split(","))
                ),
                partitions=tuple(filter(None, told.get("Partitions", "").split(","))),
                state=_node_state(told.get("State", "")),
                reason=told.get("Reason", "").partition(" [")[0],
                used_gpus=_gpus(told.get("AllocTRES", "").split(","))[1],
            )
        )
    return out


def _node_state(text: str) -> frozenset[str]:
    # a star: does not respond
    states = {part.strip("*~#!%$@^-") for part in text.split("+")}
    return frozenset(states | ({"NOT_RESPONDING"} if "*" in text else set()))


def partitions_in(text: str) -> list[Partition]:
    """Read ``scontrol show partition -o``."""
    out = []
    for line in filter(None, map(str.strip, text.splitlines())):
        told = fields_of(line)
        default = hours_of(told.get("DefaultTime", "NONE"))
        out.append(
            Partition(
                name=told["PartitionName"],
                nodes=_nodes(told.get("Nodes")),
                limit_h=hours_of(told.get("MaxTime", "UNLIMITED")),
                default_h=None if math.isinf(default) else default,
                is_default=told.get("Default") == "YES",
                is_up=told.get("State", "UP") == "UP",
                qos="" if told.get("QoS", "N/A") in ("N/A", "(null)") else told["QoS"],
                preempts=told.get("PreemptMode", "OFF") not in ("OFF", "GANG"),
            )
        )
    return out


def reservations_in(text: str) -> list[Reservation]:
    """Read ``scontrol show reservation -o``, whose times are UTC."""
    out = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if not line.startswith("ReservationName="):
            continue
        told = fields_of(line)
        gpus = _gpus(told.get("TRES", "").split(","))[1]

        def names(key: str, told: dict[str, str] = told) -> tuple[str, ...]:
            value = told.get(key, "(null)")
            return () if value == "(null)" else tuple(value.split(","))

        out.append(
            Reservation(
                name=told["ReservationName"],
                start=pd.Timestamp(told["StartTime"], tz="UTC"),
                end=pd.Timestamp(told["EndTime"], tz="UTC"),
                nodes=_nodes(told.get("Nodes")),
                maintenance="MAINT" in told.get("Flags", "").split(","),
                gpus=gpus or None,
                users=names("Users"),
                accounts=names("Accounts"),
            )
        )
    return out


def hours_of(text: str) -> float:
    """Return a time limit of Slurm in hours: ``30`` (minutes), ``4:00``, ``4:00:00``, ``2-12``, ``2-12:30:30``.

    ``UNLIMITED``, ``NONE`` and ``Partition_Limit`` are infinite.
    """
    if text in ("UNLIMITED", "NONE", "INFINITE", "Partition_Limit", "(null)", "N/A", ""):
        return math.inf
    days, dash, rest = text.rpartition("-")
    parts = [float(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0.0, 0.0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0.0, [*parts, 0.0][:2]
    return 24 * float(days or 0) + hours + minutes / 60 + seconds / 3600


def limits_in(qos: str, associations: str) -> tuple[list[Limit], list[str]]:
    """Read the limits on GPUs from ``sacctmgr -P show qos`` and ``show associations``.

    Returns
    -------
    limits : list of Limit
    notes : list of str
        Limits on something else than GPUs, which are not planned by.
    """
    limits: list[Limit] = []
    others: dict[str, int] = {}

    def add(text: str, **whose: Any) -> None:
        parts = [part for part in text.split(",") if part]
        by_type, _ = _gpus(part for part in parts if ":" in part)
        total = [int(part.partition("=")[2]) for part in parts if part.startswith("gres/gpu=")]
        if by_type or total:
            limits.append(Limit(gpus=total[0] if total else None, by_type=by_type, **whose))

    for row in _table(qos):
        add(row.get("GrpTRES", ""), qos=row["Name"])
        add(row.get("MaxTRESPU", ""), qos=row["Name"], each="user")
        add(row.get("MaxTRESPA", ""), qos=row["Name"], each="account")
        for name in ("GrpJobs", "MaxJobsPU", "MaxJobsPA"):
            others[name] = others.get(name, 0) + bool(row.get(name))
    rows = _table(associations)
    children: dict[str, set[str]] = {}
    for row in rows:
        if row.get("ParentName"):
            children.setdefault(row["ParentName"], set()).add(row["Account"])
    for row in rows:
        user = row.get("User", "")
        below = frozenset() if user else _below(row["Account"], children)
        add(row.get("GrpTRES", ""), account=row["Account"], user=user, below=below)
        for name in ("GrpJobs", "MaxJobs"):
            others[name] = others.get(name, 0) + bool(row.get(name))
    notes = [
        f"{name} of sacctmgr, {count} times, is not planned by" for name, count in others.items() if count
    ]
    return limits, notes


def _below(account: str, children: Mapping[str, set[str]]) -> frozenset[str]:
    """Return the accounts below one, at any depth."""
    found: set[str] = set()
    ahead = list(children.get(account, ()))
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += children.get(name, ())
    return frozenset(found)


def _table(text: str) -> list[dict[str, str]]:
    lines = [line.split("|") for line in text.splitlines() if line]
    return [dict(zip(lines[0], cells, strict=False)) for cells in lines[1:]]
