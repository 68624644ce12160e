"""What Slurm says of itself, as plain records: nodes, partitions, reservations, and the jobs of its queue."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import pandas as pd

DOWN = frozenset(
    {"DOWN", "FAIL", "ERROR", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "INVALID_REG", "UNKNOWN"}
)
"""States in which a node runs nothing new and what ran there is lost or unreachable."""
DRAINED = frozenset(
    {
        "DRAIN",
        "DRAINED",
        "DRAINING",
        "MAINT",
        "MAINTENANCE",
        "RESERVED",
        "REBOOT",
        "REBOOT_ISSUED",
        "FUTURE",
        "PLANNED_DOWN",
    }
)
"""States in which a node starts nothing new, while what runs there goes on."""


@dataclass(frozen=True)
class Node:
    """A node: its GPUs by type, what is left of its CPUs and memory, and its state."""

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
    """A partition; ``limit_h`` is infinite where it has no time limit."""

    name: str
    nodes: tuple[str, ...]
    limit_h: float
    default_h: float | None
    is_default: bool
    is_up: bool


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
    suspended_h: float = 0.0
    node_names: tuple[str, ...] = ()
    gpu_ids: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

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
        """Whether it waits."""
        return "PENDING" in self.state and not self.state & {"REQUEUED", "RESIZING", "REVOKED"}

    @property
    def is_running(self) -> bool:
        """Whether it holds its GPUs."""
        return bool(
            self.state & {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "STOPPED", "STAGE_OUT"}
        )


@dataclass(frozen=True)
class Snapshot:
    """A whole cluster at one instant."""

    at: pd.Timestamp
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    reservations: tuple[Reservation, ...]
    jobs: tuple[QueueJob, ...]
    problems: tuple[str, ...] = ()


_FEATURE_NAME = re.compile(r"[A-Za-z0-9_.\-:=]+")


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
