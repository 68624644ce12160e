"""Where a waiting job may start: its partitions, features and lists of nodes, reservations, CPUs and memory."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from tidegrid.data.nodelist import as_nodes
from tidegrid.pipeline.worlds.slurm.entities import Node, Partition, QueueJob, Reservation, Snapshot, allows

RETRY = pd.Timedelta(minutes=5)
"""When a job is looked at again that only lacks CPUs or memory now: nothing tells when these become free."""


@dataclass(frozen=True)
class Place:
    """Where a job may start.

    Attributes
    ----------
    nodes
        Names of nodes.
    earliest
        When it may start there; None for now.
    why
        Why it may not start now, or nowhere.
    """

    nodes: tuple[str, ...]
    earliest: pd.Timestamp | None = None
    why: str = ""

    @cached_property
    def listed(self) -> str:
        """The nodes in Slurm's notation."""
        return as_nodes(self.nodes)

    @cached_property
    def among(self) -> frozenset[str]:
        """The nodes as a set."""
        return frozenset(self.nodes)


class Places:
    """Answers where jobs may start, the same for jobs that ask for the same.

    Parameters
    ----------
    snapshot
        What Slurm says.
    now
        The instant.
    free : dict of str to int
        GPUs of each node that no job holds.
    """

    def __init__(self, snapshot: Snapshot, now: pd.Timestamp, free: Mapping[str, int]) -> None:
        self.now, self.free = now, free
        self.nodes = [node for node in snapshot.nodes if node.gpus]
        self.partitions: dict[str, Partition] = {one.name: one for one in snapshot.partitions}
        self.reservations = [one for one in snapshot.reservations if one.end > now]
        self.notes: dict[str, int] = {}
        self._known: dict[tuple[object, ...], Place] = {}

    def of(self, job: QueueJob) -> Place:
        """Return where a job may start; what cannot be decided is counted in ``notes``."""
        limit = self._limit_h(job)
        until = math.inf if math.isinf(limit) else round(limit, 3)
        key = (
            job.partitions, job.features, job.required_nodes, job.excluded_nodes, job.reservation, job.exclusive,
            tuple(job.gpu_types.items()), self._gpus_a_node(job), job.nodes, job.cpus, job.memory_mb, until,
        )  # fmt: skip
        if allows(job.features, frozenset()) is None:
            self._note("a constraint on sets of nodes is ignored")
        if job.required_nodes and job.nodes > len(job.required_nodes):
            self._note("a list of nodes that a wider job must include is ignored")
        if key not in self._known:
            self._known[key] = self._place(job, limit)
        return self._known[key]

    def _note(self, text: str) -> None:
        self.notes[text] = self.notes.get(text, 0) + 1

    def _limit_h(self, job: QueueJob) -> float:
        """Return the time limit that Slurm looks at: the job's, or else its widest partition's."""
        if not math.isinf(job.limit_h):
            return job.limit_h
        return max(
            (self.partitions[name].limit_h for name in job.partitions if name in self.partitions),
            default=math.inf,
        )

    def _place(self, job: QueueJob, limit: float) -> Place:
        ever = self._ever(job)
        if len(ever) < job.nodes:
            down = [name for name in job.partitions if not self._is_up(name)]
            lacks = "too few nodes have its partition, features, CPUs, memory and GPUs"
            return Place((), why=f"partition {down[0]} is down" if down else lacks)
        if job.reservation:
            return self._reserved(job, ever)
        end = self.now + pd.Timedelta(hours=min(limit, 24 * 3650))
        meeting = {node.name: self._in_the_way(node, end) for node in ever}
        clear = [node for node in ever if not meeting[node.name]]
        if len(clear) < job.nodes:
            ends = sorted(max((one.end for one in meeting[node.name]), default=self.now) for node in ever)
            at, names = ends[job.nodes - 1], sorted({one.name for found in meeting.values() for one in found})
            return Place(_names(ever), at, f"its time limit reaches into reservation {', '.join(names[:3])}")
        able = [node for node in clear if not self._lacks(job, node)]
        if len(able) < job.nodes:
            return Place(_names(clear), self.now + RETRY, "its nodes lack CPUs or memory now")
        return Place(_names(able))

    def _reserved(self, job: QueueJob, ever: list[Node]) -> Place:
        own = next((one for one in self.reservations if one.name == job.reservation), None)
        if own is None:
            return Place((), why=f"reservation {job.reservation} has ended")
        inside = _names(node for node in ever if node.name in own.nodes)
        if own.start > self.now:
            return Place(inside, own.start, f"reservation {own.name} has not begun")
        return Place(inside, why="" if inside else f"no node of reservation {own.name} can run it")

    def _gpus_a_node(self, job: QueueJob) -> int:
        return job.gpus_per_node or -(-job.gpus // job.nodes)

    def _ever(self, job: QueueJob) -> list[Node]:
        """Return the nodes that could run a job if they were empty."""
        named = set(job.required_nodes) if len(job.required_nodes) >= job.nodes else None
        able = {kind for kind, node in self._kinds.items() if self._could_run(job, node)}
        return [
            node
            for node, kind in zip(self.nodes, self._kind_of, strict=True)
            if kind in able and (named is None or node.name in named) and node.name not in job.excluded_nodes
        ]

    @cached_property
    def _kind_of(self) -> list[tuple[object, ...]]:
        """What a node is whatever its name: most nodes of a cluster are like many others."""
        return [
            (tuple(one.gpus.items()), one.partitions, one.features, one.cpus, one.memory_mb)
            for one in self.nodes
        ]

    @cached_property
    def _kinds(self) -> dict[tuple[object, ...], Node]:
        return dict(zip(self._kind_of, self.nodes, strict=True))

    def _could_run(self, job: QueueJob, node: Node) -> bool:
        wanted = next(iter(job.gpu_types), "")
        here = node.gpus.get(wanted, 0) if wanted else max(node.gpus.values())
        # GPUs asked for as a total may spread, those asked for by node may not
        enough = here >= job.gpus_per_node if job.gpus_per_node else here > 0
        return (
            enough
            and any(name in node.partitions and self._is_up(name) for name in job.partitions)
            and allows(job.features, node.features) is not False
            and node.cpus >= job.cpus / job.nodes
            and node.memory_mb >= job.memory_mb
        )

    def _is_up(self, partition: str) -> bool:
        return partition not in self.partitions or self.partitions[partition].is_up

    def _in_the_way(self, node: Node, end: pd.Timestamp) -> list[Reservation]:
        """Return reservations of a node that begin before a job would end that starts now, at its time limit."""
        return [
            one
            for one in self._on_node.get(node.name, ())
            if one.start < end and (one.maintenance or one.gpus is None)
        ]

    @cached_property
    def _on_node(self) -> dict[str, list[Reservation]]:
        out: dict[str, list[Reservation]] = {}
        for one in self.reservations:
            for name in one.nodes:
                out.setdefault(name, []).append(one)
        return out

    def _lacks(self, job: QueueJob, node: Node) -> bool:
        """Whether a node has the GPUs free for a job and lacks CPUs or memory, which other jobs hold."""
        if self.free.get(node.name, 0) < self._gpus_a_node(job):
            return False
        if job.exclusive and node.free_cpus < node.cpus:
            return True
        return node.free_cpus < job.cpus / job.nodes or node.free_memory_mb < job.memory_mb


def _names(nodes: Iterable[Node]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)
