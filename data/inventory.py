"""What a cluster is made of: pools and their nodes, apps, windows of maintenance, tenants."""

from collections.abc import Iterable
from functools import cached_property
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator
from pydantic.functional_validators import AfterValidator, BeforeValidator

from tidegrid.data.instants import as_instant
from tidegrid.data.nodelist import as_indices
from tidegrid.data.tables import MAX_GPUS
from tidegrid.errors import CONTROL, InputError, printable

MAX_NODE = 4096
"""The most GPUs of a node."""


def _plain(name: str) -> str:
    if CONTROL.search(name):
        raise InputError(f"{name!r} holds a control character", fix="write a name of one line of text")
    return name


def _instant(value: Any) -> pd.Timestamp:
    if not isinstance(value, str | pd.Timestamp):
        raise InputError(f"{value!r} is not a time", fix="write an ISO 8601 instant with its zone")
    return as_instant(value, field="")


Name = Annotated[str, Field(min_length=1, max_length=200, strict=True), AfterValidator(_plain)]

Instant = Annotated[Any, BeforeValidator(_instant)]

Gpus = Annotated[StrictInt, Field(ge=0, le=MAX_GPUS)]

Some = Annotated[StrictInt, Field(ge=1, le=MAX_GPUS)]

NodeGpus = Annotated[StrictInt, Field(ge=1, le=MAX_NODE)]


class Record(BaseModel):
    """Base of the records: immutable, unknown fields refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Capacity(Record):
    """What one GPU serves.

    Parameters
    ----------
    units_per_gpu_hour
        Units of the app's traffic (requests, tokens) that one GPU serves in an hour at the service level, 1e-9 to
        1e15; None where it is not known: traffic then says nothing about the GPUs that the app needs.
    gpus_per_replica
        GPUs of one replica (tensor parallel): at most a node, or whole nodes.
    min_replicas
        Replicas that are always up.
    target_load
        The share of the capacity that is planned on, above 0 and at most 1.
    """

    units_per_gpu_hour: Annotated[float, Field(ge=1e-9, le=1e15, allow_inf_nan=False)] | None = None
    gpus_per_replica: Some = 1
    min_replicas: Gpus = 0
    target_load: Annotated[float, Field(ge=0.001, le=1)] = 1.0

    @property
    def floor(self) -> int:
        """GPUs that are always up."""
        return self.min_replicas * self.gpus_per_replica


class Pool(Record):
    """GPUs of one type.

    Parameters
    ----------
    id
        The pool's name.
    gpus
        How many GPUs it has, at least 1.
    gpu_type
        Their type, such as ``H100-SXM-80GB``.
    node_size
        GPUs of a node; None where blocks may lie anywhere. In a line, a block of at most that many stays inside one
        node, and a larger one starts at a node's first GPU.
    gpus_per_node
        GPUs of a physical node, for estimates of communication; ``node_size`` where absent.
    placement
        ``"line"``: a job gets neighbouring GPUs, a power of two of them. ``"node"``: it gets any GPUs of as few nodes
        as it asks for, any number of them.
    nodes
        The names of its nodes, in the order of its GPUs: node k has GPUs ``k · node_size`` and on.
    down
        Indices of GPUs that do not work now: no job and no app is put on them.
    price_per_gpu_hour
        What a GPU costs an hour, in the cluster's currency; None where it is not told. Nothing is planned by it.
    """

    id: Name
    gpus: Some
    gpu_type: Name
    node_size: NodeGpus | None = None
    gpus_per_node: NodeGpus | None = None
    placement: Literal["line", "node"] = "line"
    nodes: tuple[Name, ...] = ()
    down: tuple[Gpus, ...] = ()
    price_per_gpu_hour: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _some_gpus(cls, value: Any) -> Any:
        gpus = value.get("gpus") if isinstance(value, dict) else None
        if type(gpus) is int and gpus < 1:
            raise InputError(f"pool {value.get('id')!r} has {gpus} GPUs", field="gpus", fix="give at least 1")
        return value

    @cached_property
    def node_index(self) -> dict[str, int]:
        """The number of each node by its name."""
        return {name: k for k, name in enumerate(self.nodes)}

    def gpus_of(self, node: str) -> range:
        """Return the indices of a node's GPUs.

        Raises
        ------
        InputError
            The pool has no node of this name.
        """
        if self.node_size is None or node not in self.node_index:
            raise InputError(
                f"pool {self.id!r} has no node {node!r}", field="nodes", fix="name a node of cluster.json"
            )
        first = self.node_index[node] * self.node_size
        return range(first, first + self.node_size)

    def node_of(self, gpu: int) -> str:
        """Return the name of the node that a GPU is on; its number where nodes have no names."""
        node = gpu // (self.node_size or self.gpus)
        return self.nodes[node] if self.nodes else str(node)

    def held(self, gpus: Iterable[int]) -> str:
        """Return GPUs by their nodes as a table of running jobs has them, such as ``a1:0-3,6 a2:0``."""
        size, by_node = self.node_size or self.gpus, dict[int, list[int]]()
        for gpu in sorted(gpus):
            by_node.setdefault(gpu // size, []).append(gpu % size)
        return " ".join(f"{self.node_of(node * size)}:{as_indices(on)}" for node, on in by_node.items())

    def within(self, names: Iterable[str]) -> list[tuple[int, int]]:
        """Return the GPUs of some nodes as ranges ``(first GPU, GPUs)``, neighbours joined; other names are ignored."""
        wanted = set(names)
        ranges: list[tuple[int, int]] = []
        for k, name in enumerate(self.nodes):
            if name in wanted and self.node_size is not None:
                first = k * self.node_size
                if ranges and sum(ranges[-1]) == first:
                    ranges[-1] = (ranges[-1][0], ranges[-1][1] + self.node_size)
                else:
                    ranges.append((first, self.node_size))
        return ranges


class App(Record):
    """A realtime app.

    Parameters
    ----------
    id
        The app's name.
    pool
        The pool that it lives in.
    priority
        1 (lowest) to 10.
    swap_cap
        GPUs that may enter or leave between two steps: 0, or at least a replica; None for no cap.
    held
        Indices of the GPUs that it holds now.
    series_id
        Its traffic series; its own name where absent.
    series_share
        The share of the series that it serves, where several apps serve one; the shares of a series sum to 1.
    capacity
        What one GPU serves.
    """

    id: Name
    pool: Name
    priority: Annotated[StrictInt, Field(ge=1, le=10)] = 5
    swap_cap: Gpus | None = None
    held: tuple[Gpus, ...] = ()
    series_id: Name | None = None
    series_share: Annotated[float, Field(gt=0, le=1)] | None = None
    capacity: Capacity = Capacity()

    @property
    def series(self) -> str:
        """The name of its traffic series."""
        return self.series_id or self.id

    @property
    def share(self) -> float:
        """The share of its series' demand that is its own."""
        return 1.0 if self.series_share is None else self.series_share


class Maintenance(Record):
    """GPUs that are closed for a time.

    Parameters
    ----------
    pool
        The pool; told by the nodes where absent.
    nodes
        Names of nodes, or none for the whole pool.
    gpus
        Indices of GPUs in the pool, in place of nodes.
    start, end
        The instants between which they are closed, ``from`` and ``to`` in the file; None for now and for good.
    kind
        ``"down"``: nothing may use them. ``"drain"``: nothing may start there, and what is there may go on.
    reason
        What it is for; shown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    pool: Name | None = None
    nodes: tuple[Name, ...] = ()
    gpus: tuple[Gpus, ...] = ()
    start: Instant | None = Field(default=None, alias="from")
    end: Instant | None = Field(default=None, alias="to")
    kind: Literal["down", "drain"] = "down"
    reason: Annotated[str, Field(max_length=1000), AfterValidator(printable)] = ""


class Tenant(Record):
    """Who shares the cluster, and how much of it at once.

    Parameters
    ----------
    id
        The name that ``tenant`` (or ``group``) of requests and running jobs has.
    limit
        The most GPUs that its jobs hold at once: one number over all pools, or a number for each pool.
    """

    id: Name
    limit: Gpus | dict[Name, Gpus]
