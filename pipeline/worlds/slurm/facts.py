"""From a snapshot of Slurm to the words of a site: its cluster, its queue, what runs, and what they cannot say."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data import REQUESTS, RUNNING, Cluster, gpu_ids
from tidegrid.data.checks import settle
from tidegrid.data.nodelist import as_indices, as_nodes
from tidegrid.data.schema import validated
from tidegrid.data.slurm import features_of
from tidegrid.data.source import Log, Source
from tidegrid.errors import InputError
from tidegrid.pipeline.worlds.slurm.entities import Node, QueueJob, Snapshot
from tidegrid.pipeline.worlds.slurm.limits import Tenants, tenants_of
from tidegrid.pipeline.worlds.slurm.site import SlurmSite
from tidegrid.pipeline.worlds.slurm.where import Places

MOST_TASKS = 1000
"""Waiting tasks of an array that are planned: those with the lowest numbers."""

_DEPENDENCY = re.compile(r"(after\w*|singleton|expand):?([^,?(]*)")
_NEVER = re.compile(
    r"(QOS|Assoc)Max\w+Per(Job|Node)(Limit)?|QOSMin\w+|PartitionTimeLimit|BadConstraints|ReservationDeleted"
    r"|Invalid(Account|QOS)|(Account|QOS)NotAllowed"
)
"""Slurm's reasons of jobs that do not start unless somebody changes the job or a limit."""
_ENDED = ("afterany", "afterok", "afternotok", "aftercorr")


@dataclass(frozen=True)
class Facts:
    """What a loop is told.

    Attributes
    ----------
    cluster
        A pool for each GPU type and size of node, with the names of its nodes.
    requests, running
        In the documented schema; running jobs by the GPUs that they hold.
    waits
        Waiting jobs that cannot be planned, by id, and why.
    notes
        What Slurm says that is not planned by, one line each.
    set_aside
        Jobs whose row cannot be used.
    """

    cluster: Cluster
    requests: pd.DataFrame
    running: pd.DataFrame
    waits: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    set_aside: tuple[InputError, ...] = ()


def facts_of(snapshot: Snapshot, site: SlurmSite | None = None, now: pd.Timestamp | None = None) -> Facts:
    """Return the facts that a snapshot tells.

    Parameters
    ----------
    snapshot
        What Slurm says.
    site
        What the site adds.
    now
        The instant; that of the snapshot where absent.

    Raises
    ------
    InputError
        No node has a GPU, or an app of the site does not fit.
    """
    how, at = site or SlurmSite(), now or snapshot.at
    notes = Counter[str]()
    pools = _Pools(snapshot.nodes, notes)
    cluster = _cluster(snapshot, pools, how, at, notes)
    held, busy = _running(snapshot, pools, notes)
    _told(snapshot, notes)
    places = Places(snapshot, at, {name: gpus - held.get(name, 0) for name, gpus in pools.size.items()})
    asked, waits = _requests(snapshot, places, how, at, notes)
    notes.update(places.notes)
    aside: list[InputError] = []
    frames = []
    for rows, table in ((asked, REQUESTS), (busy, RUNNING)):
        frame = (
            pd.DataFrame(rows)
            if rows
            else pd.DataFrame(columns=[c.name for c in table.columns if c.required])
        )
        frames.append(validated(frame, table, Source("squeue", log=Log())))
    (queue, left), (runs, right) = settle(cluster, frames[0], frames[1])
    cluster = _closed_where_unknown(cluster, snapshot, pools, runs, notes)
    for source in (left, right):
        aside += source.log.set_aside() if source.log is not None else []
    counted = [f"{text} ({count} times)" if count > 1 else text for text, count in notes.items()]
    return Facts(cluster, queue, runs, waits, (*snapshot.problems, *counted), tuple(aside))


def _told(snapshot: Snapshot, notes: Counter[str]) -> None:
    """Note what jobs and partitions ask for that no plan knows."""
    for job in snapshot.jobs:
        if job.shares_gpus:
            notes[
                "a job on parts of GPUs (shards, MPS) is not planned, and its GPUs may be taken for free"
            ] += 1
        if job.licenses and job.gpus and job.is_pending:
            notes["the licenses of a job are not planned by"] += 1
    if preempting := [one.name for one in snapshot.partitions if one.preempts]:
        notes[f"preemption, in partitions {', '.join(preempting)}, is not planned by"] += 1


class _Pools:
    """Which pool each node is in: those of one GPU type and one number of GPUs."""

    def __init__(self, nodes: Iterable[Node], notes: Counter[str]) -> None:
        members: dict[tuple[str, int], list[Node]] = {}
        for node in nodes:
            if not node.gpus:
                continue
            kind = max(node.gpus, key=lambda name: (node.gpus[name], name))
            members.setdefault((kind, node.gpus[kind]), []).append(node)
            for other in sorted(set(node.gpus) - {kind}):
                notes[f"node {node.name} also has {node.gpus[other]} {other}, which are not planned"] += 1
        if not members:
            raise InputError(
                "no node has a GPU",
                field="scontrol show node",
                fix="check Gres= of the nodes in slurm.conf, and that tidegrid asks the right cluster",
            )
        kinds = Counter(kind for kind, _ in members)
        self.members = {
            kind if kinds[kind] == 1 else f"{kind}-{size}": (kind, size, found)
            for (kind, size), found in sorted(members.items())
        }
        self.of_node = {node.name: name for name, (_, _, found) in self.members.items() for node in found}
        self.size = {node.name: size for _, size, found in self.members.values() for node in found}
        self.kind = {name: kind for name, (kind, _, _) in self.members.items()}


def _cluster(
    snapshot: Snapshot, pools: _Pools, site: SlurmSite, now: pd.Timestamp, notes: Counter[str]
) -> Cluster:
    busy = {name for job in snapshot.jobs if job.is_running for name in job.node_names}
    windows: list[dict[str, Any]] = []
    described = []
    for name, (kind, size, found) in pools.members.items():
        # what Slurm still lists as running on a node that does not answer is not taken for lost
        down = [node.name for node in found if node.is_down and node.name not in busy]
        drained = [node for node in found if (node.is_down or node.is_drained) and node.name not in down]
        reserved = {one for r in snapshot.reservations if r.start <= now < r.end for one in r.nodes}
        for node in drained:
            if node.state & _OUT or node.name not in reserved:
                windows.append({"nodes": [node.name], "kind": "drain", "reason": node.reason[:1000]})
        described.append(
            {
                "id": name,
                "gpus": size * len(found),
                "gpu_type": site.gpu_types.get(kind, kind),
                "node_size": size,
                "placement": "node",
                "nodes": [node.name for node in found],
                "down": down,
            }
        )
    for one in snapshot.reservations:
        nodes = [name for name in one.nodes if name in pools.of_node]
        if not nodes or one.end <= now:
            continue
        if one.maintenance:
            windows.append(
                {"nodes": nodes, "from": one.start, "to": one.end, "kind": "down", "reason": one.name}
            )
        elif one.gpus is not None:
            notes[
                f"reservation {one.name} keeps {one.gpus} GPUs of {as_nodes(nodes)}, which is not planned by"
            ] += 1
    tenants = sorted(tenants_of(snapshot, pools.kind, notes).items())
    return Cluster.from_dict(
        {
            "timezone": site.timezone,
            "country": site.country,
            "pools": described,
            "apps": site.apps,
            "maintenance": windows,
            "tenants": [{"id": name, "limit": limit} for name, limit in tenants],
        }
    )


def _closed_where_unknown(
    cluster: Cluster, snapshot: Snapshot, pools: _Pools, running: pd.DataFrame, notes: Counter[str]
) -> Cluster:
    """Close as many GPUs of a node as Slurm counts as used beyond those that known jobs hold: something is on them."""
    held: dict[str, set[int]] = {}
    for pool, ids in zip(running["pool"], gpu_ids(running), strict=True):
        held.setdefault(str(pool), set()).update(ids)
    shut: dict[str, list[int]] = {}
    for node in snapshot.nodes:
        if node.name not in pools.of_node or node.is_down:
            continue
        pool = cluster.pool(pools.of_node[node.name])
        free = [gpu for gpu in pool.gpus_of(node.name) if gpu not in held.get(pool.id, ())]
        unknown = min(len(free), node.used_gpus - (pools.size[node.name] - len(free)))
        if unknown > 0:
            notes[f"{unknown} GPUs of {node.name} are in use by no job that can be read, and are closed"] += 1
            shut.setdefault(pool.id, []).extend(free[-unknown:])
    return cluster.with_down(shut) if shut else cluster


_OUT = frozenset({"DRAIN", "DRAINED", "DRAINING", "REBOOT", "REBOOT_ISSUED", "FUTURE"})
"""States in which a node is out of service beside a reservation, which has a window of its own."""


def _running(
    snapshot: Snapshot, pools: _Pools, notes: Counter[str]
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Return the GPUs that jobs hold by node, and the running jobs as rows."""
    by_node: dict[str, int] = {}
    rows: list[dict[str, Any]] = []
    tenant = Tenants(snapshot)
    for job in snapshot.jobs:
        if not job.is_running or not job.gpus or job.start is None:
            continue
        parts: dict[str, list[str]] = {}
        nodes = [name for name in job.node_names if name in pools.of_node]
        each = -(-job.gpus // max(1, len(job.node_names)))
        for name in nodes:
            ids = job.gpu_ids.get(name)
            count = len(ids) if ids else each
            by_node[name] = by_node.get(name, 0) + count
            parts.setdefault(pools.of_node[name], []).append(
                f"{name}:{as_indices(ids)}" if ids else f"{name}={count}"
            )
        if job.suspended_h or "SUSPENDED" in job.state:
            notes["a suspended job is planned as running on"] += 1
        for k, (_, held) in enumerate(sorted(parts.items())):
            rows.append(
                {
                    **_common(job),
                    # one row for the GPUs of each pool
                    "job_id": job.id if k == 0 else f"{job.id}+{k}",
                    "held": " ".join(held),
                    "start_time": job.start + pd.Timedelta(hours=job.suspended_h),
                    "tenant": tenant.of(job),
                    "array": "" if job.array_job is None else str(job.array_job),
                }
            )
        if len(parts) > 1:
            notes["a running job on two GPU types counts as two"] += 1
    return by_node, rows


def _requests(
    snapshot: Snapshot, places: Places, site: SlurmSite, now: pd.Timestamp, notes: Counter[str]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the waiting jobs as rows, and why the others cannot be planned."""
    waiting = [job for job in snapshot.jobs if job.is_pending and job.gpus]
    priority = priorities(waiting)
    order, tenant = _Order(snapshot, notes), Tenants(snapshot)
    everywhere: dict[str, set[str]] = {}
    for node in places.nodes:
        for kind in ("", *node.gpus):
            everywhere.setdefault(kind, set()).add(node.name)
    rows: list[dict[str, Any]] = []
    waits: dict[str, str] = {}
    for job in waiting:
        why = _not_planned(job)
        place = places.of(job)
        if why or not place.nodes:
            waits.update(dict.fromkeys(job.ids, why or place.why))
            continue
        kind = next(iter(job.gpu_types), "")
        row = {
            **_common(job),
            "priority": priority[job.id],
            "gpu_type": site.gpu_types.get(kind, kind),
            "earliest_time": _earliest(job, site, now, place.earliest),
            "deadline": job.deadline,
            "tenant": tenant.of(job),
            "after": " ".join(order.before(job)),
        }
        if place.among != everywhere.get(kind, set()):
            row["allowed_nodes"] = place.listed
        if job.gpus % job.nodes and job.nodes > 1:
            notes["a number of nodes that does not divide the GPUs is ignored"] += 1
            row["nodes"] = np.nan
        if job.exclusive:
            notes[
                "an exclusive job is planned with the GPUs that it asks for, and started on idle nodes alone"
            ] += 1
        if job.tasks:
            row["array"], row["array_limit"] = str(job.array_job), job.task_limit
        if len(job.tasks) > MOST_TASKS:
            notes[f"of {len(job.tasks)} tasks of array {job.array_job}, {MOST_TASKS} are planned"] += 1
        for name in job.ids[:MOST_TASKS]:
            rows.append({**row, "job_id": name})
    return rows, waits


def _not_planned(job: QueueJob) -> str:
    if job.het_job is not None:
        return "the parts of a heterogeneous job start together, which cannot be planned"
    if job.held:
        return f"it is held ({job.reason})"
    if job.reason == "DependencyNeverSatisfied":
        return "the job that it comes after did not end as it needs"
    if _NEVER.fullmatch(job.reason):
        return f"Slurm does not start it as it is ({job.reason})"
    if len(job.gpu_types) > 1:
        return f"it asks for GPUs of {len(job.gpu_types)} types at once"
    return ""


def _earliest(
    job: QueueJob, site: SlurmSite, now: pd.Timestamp, place: pd.Timestamp | None
) -> pd.Timestamp | None:
    """Return when a job may start: its begin time, unless the gate has set it, and where it can be."""
    begin = job.eligible
    if begin is not None and job.gated and begin <= now + pd.Timedelta(minutes=site.hold_minutes + 1):
        begin = None
    known = [at for at in (begin, place) if at is not None and at > now]
    return max(known, default=None)


def _common(job: QueueJob) -> dict[str, Any]:
    told = features_of(job.comment)
    limit = None if job.limit_h == np.inf or job.limit_h > 250_000 else job.limit_h * 3600
    return {
        "kind": "training",
        **told,
        "job_id": job.id,
        "submit_time": job.submit,
        "name": job.name,
        "user": job.user,
        "group": job.account,
        "queue": job.partitions[0] if job.partitions else "",
        "qos": job.qos,
        "gpus": job.gpus,
        "nodes": float(job.nodes),
        "cpus": float(job.cpus),
        "mem_mb": float(job.memory_mb * job.nodes) or np.nan,
        "requested_walltime_s": limit,
    }


def priorities(jobs: Iterable[QueueJob]) -> dict[str, int]:
    """Return Slurm's priorities as ranks from 1 to 10.

    The rank is 1 + 9 · p, rounded, where p is the share of the other waiting jobs that have a lower priority, those
    with an equal one counting half: one job alone, or all alike, get 5 or 6. What ``Nice`` takes away is added again.
    """
    known = list(jobs)
    values = np.array([job.priority + job.nice for job in known], dtype=float)
    if len(values) < 2:
        return {job.id: 5 for job in known}
    order = np.sort(values)
    low, high = np.searchsorted(order, values, "left"), np.searchsorted(order, values, "right")
    share = (low + (high - low - 1) / 2) / (len(values) - 1)
    return {job.id: round(1 + 9 * float(p)) for job, p in zip(known, share, strict=True)}


class _Order:
    """Which jobs a job comes after, of those that are still in the queue."""

    def __init__(self, snapshot: Snapshot, notes: Counter[str]) -> None:
        self.notes = notes
        self.known: dict[str, list[str]] = {}
        self.alike: dict[tuple[str, str], list[QueueJob]] = {}
        for job in snapshot.jobs:
            for name in job.ids:
                self.known.setdefault(name, []).append(name)
            if job.array_job is not None:
                self.known.setdefault(str(job.array_job), []).extend(job.ids)
                self.known.setdefault(f"{job.array_job}_*", []).extend(job.ids)
            self.known.setdefault(str(job.raw_id), list(job.ids))
            self.alike.setdefault((job.user, job.name), []).append(job)
        self.running = {name for job in snapshot.jobs if job.is_running for name in job.ids}

    def before(self, job: QueueJob) -> list[str]:
        """Return the ids of the jobs that a job comes after."""
        if not job.dependency:
            return []
        out: dict[str, None] = {}
        if "?" in job.dependency:
            self.notes["a job that comes after any of several is planned after all of them"] += 1
        for kind, names in _DEPENDENCY.findall(job.dependency):
            if kind == "singleton":
                earlier = [
                    one for one in self.alike[job.user, job.name] if one.raw_id < job.raw_id or one.is_running
                ]
                out |= dict.fromkeys(name for one in earlier if one is not job for name in one.ids)
                continue
            found = [name for each in re.split(r"[:+]", names) for name in self.known.get(each.strip(), ())]
            if kind in _ENDED:
                out |= dict.fromkeys(found)
                if kind == "aftercorr":
                    self.notes["a task that comes after its like is planned after the whole other array"] += 1
                if kind == "afternotok":
                    self.notes["a job that comes after another's failure is planned as if it failed"] += 1
            elif kind in ("after", "afterburstbuffer"):
                waits = [name for name in found if name not in self.running]
                if waits:
                    self.notes["a job that comes after another's start is planned after its end"] += 1
                out |= dict.fromkeys(waits)
        return [name for name in out if name not in job.ids]
