"""What Slurm says of itself, as plain records: nodes, partitions, reservations, and the jobs of its queue."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import pandas as pd

MARK = "tidegrid:gate"
"""How the admin comment of a job begins that the gate has put under tidegrid's control."""

DOWN = frozenset({"DOWN", "FAIL", "ERROR", "NOT_RESPONDING", "INVALID_REG", "UNKNOWN"})
"""States in which a node runs nothing new and what ran there is lost or unreachable."""
DRAINED = frozenset({
    "DRAIN", "DRAINED", "DRAINING", "FAILING", "FUTURE", "MAINT", "MAINTENANCE",
    "PLANNED_DOWN", "POWERING_DOWN", "REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED", "RESERVED",
})  # fmt: skip
"""States in which a node starts nothing new, while what runs there goes on; one without power Slurm wakes up."""


@dataclass(frozen=True)
class Node:
    """A node: its GPUs by type, how many are in use, what is left of its CPUs and memory, and its state."""

    name: str
    gpus: Mapping[str, int]
    cpus: int
    free_cpus: int
    memory_mb: int
    free_memory_mb: int
    features: frozenset[str]
    partitions: tuple[str, ...]
    state: frozenset[str]
    reason: str = ""
    used_gpus: int = 0

    @property
    def is_down(self) -> bool:
        """Whether nothing runs there."""
        return bool(self.state & DOWN)

    @property
    def is_drained(self) -> bool:
        """Whether nothing may start there."""
        return bool(self.state & DRAINED)


@dataclass(frozen=True)
class Partition:
    """A partition; ``limit_h`` is infinite for no time limit, the limits of ``qos`` hold for all its jobs."""

    name: str
    nodes: tuple[str, ...]
    limit_h: float
    default_h: float | None
    is_default: bool
    is_up: bool
    qos: str = ""
    preempts: bool = False


@dataclass(frozen=True)
class Reservation:
    """A reservation: ``maintenance`` ones take whole nodes out of service, the others are kept for somebody."""

    name: str
    start: pd.Timestamp
    end: pd.Timestamp
    nodes: tuple[str, ...]
    maintenance: bool
    gpus: int | None
    users: tuple[str, ...]
    accounts: tuple[str, ...]


@dataclass(frozen=True)
class QueueJob:
    """A job that waits or runs; of an array, one record stands for all of its tasks that are still one record.

    Attributes
    ----------
    id
        What Slurm's commands take: ``122``, an array's task ``122_0``.
    raw_id
        The number under which accounting has it.
    tasks
        The array's tasks that this record stands for; empty where it is one job.
    gpus, gpu_types
        GPUs asked for or held in all, and by type where types were named.
    gpus_per_node
        Where they were asked for by node; None where any split will do.
    gpu_ids
        By node, the indices of the GPUs that it holds.
    limit_h
        The time limit; infinite for none.
    dependency
        Slurm's text.
    exclusive
        Whether it shares its nodes with no other job.
    licenses
        The licenses that it needs, as Slurm writes them.
    shares_gpus
        Whether it asks for parts of GPUs (shards, MPS).
    """

    id: str
    raw_id: int
    name: str
    user: str
    account: str
    qos: str
    partitions: tuple[str, ...]
    state: frozenset[str]
    reason: str
    submit: pd.Timestamp
    eligible: pd.Timestamp | None
    start: pd.Timestamp | None
    limit_h: float
    gpus: int
    gpu_types: Mapping[str, int]
    gpus_per_node: int | None
    nodes: int
    cpus: int
    memory_mb: int
    features: str
    required_nodes: tuple[str, ...]
    excluded_nodes: tuple[str, ...]
    dependency: str
    deadline: pd.Timestamp | None
    priority: int
    nice: int
    held: bool
    comment: str
    admin_comment: str
    reservation: str
    array_job: int | None = None
    tasks: tuple[int, ...] = ()
    task_limit: int | None = None
    het_job: int | None = None
    het_offset: int = 0
    batch: bool = True
    exclusive: bool = False
    licenses: str = ""
    shares_gpus: bool = False
    suspended_h: float = 0.0
    node_names: tuple[str, ...] = ()
    gpu_ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all jobs that it stands for: its own, or those of an array's tasks."""
        return tuple(f"{self.array_job}_{task}" for task in self.tasks) if self.tasks else (self.id,)

    def stands_for(self, identifier: str) -> bool:
        """Whether a name that Slurm's commands take means this job, or one of its tasks."""
        if identifier in (self.id, str(self.raw_id)):
            return True
        array, underscore, task = identifier.partition("_")
        return (
            bool(underscore) and array == str(self.array_job) and task.isdigit() and int(task) in self.tasks
        )

    @property
    def is_pending(self) -> bool:
        """Whether it waits; a job that is requeued and still leaving its nodes does not yet."""
        return "PENDING" in self.state and not self.state & {"REQUEUED", "RESIZING", "REVOKED", "COMPLETING"}

    @property
    def gated(self) -> bool:
        """Whether the gate has put it under tidegrid's control; interactive jobs and het jobs never are."""
        return self.is_pending and self.batch and self.het_job is None and self.admin_comment.startswith(MARK)

    @property
    def is_running(self) -> bool:
        """Whether it holds its GPUs."""
        return bool(
            self.state & {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "STAGE_OUT"}
        )


@dataclass(frozen=True)
class Limit:
    """GPUs that some jobs may hold at once: those of a QOS, of an account, of a user, or of several of these together.

    Attributes
    ----------
    qos, account, user
        Whose jobs count; empty for any.
    below
        The accounts below the account, whose jobs count too.
    each
        ``"user"`` or ``"account"`` where each of them has the limit for itself; empty where all share it.
    gpus, by_type
        The limit on all GPUs together (None for none), and on those of a type.
    """

    qos: str = ""
    account: str = ""
    user: str = ""
    each: str = ""
    gpus: int | None = None
    by_type: Mapping[str, int] = field(default_factory=dict)
    below: frozenset[str] = frozenset()

    def covers(self, job: QueueJob, partition_qos: Collection[str] = ()) -> bool:
        """Whether a job counts, which runs in partitions of some QOS."""
        return (
            (not self.qos or self.qos == job.qos or self.qos in partition_qos)
            and (not self.account or self.account == job.account or job.account in self.below)
            and self.user in ("", job.user)
        )

    def name(self, job: QueueJob) -> str:
        """Return what the limit is called for a job that it covers."""
        parts = [("qos", self.qos), ("account", self.account), ("user", self.user)]
        if self.each:
            parts.append((self.each, job.user if self.each == "user" else job.account))
        return " ".join(f"{what} {name}" for what, name in parts if name)


@dataclass(frozen=True)
class Snapshot:
    """A whole cluster at one instant."""

    at: pd.Timestamp
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    reservations: tuple[Reservation, ...]
    jobs: tuple[QueueJob, ...]
    limits: tuple[Limit, ...] = ()
    problems: tuple[str, ...] = ()


_FEATURE_NAME = re.compile(r"[A-Za-z0-9_.\-:=]+")


@lru_cache(maxsize=100_000)
def allows(expression: str, features: frozenset[str]) -> bool | None:
    """Return whether a node with ``features`` meets a constraint; None where the constraint is beyond a node.

    ``&`` and ``,`` bind tighter than ``|``, as in ``sbatch --constraint``; counts (``[rack1*2]``), parentheses and
    matching groups speak of sets of nodes and cannot be decided for one.
    """
    if not expression:
        return True
    if re.search(r"[\[\]()*!]", expression):
        return None
    return any(
        all(name in features for name in re.split(r"[&,]", part) if _FEATURE_NAME.fullmatch(name))
        for part in expression.split("|")
    )
