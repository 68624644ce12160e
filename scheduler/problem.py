"""The allocation problem: who asks for which GPUs, as immutable data that validates itself when made.

The format is that of the problem file, versions 1 and 2. Unknown keys are kept, so ``to_dict(from_dict(d)) == d``.
"""

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from tidegrid.errors import InputError
from tidegrid.files import read_json, write_json
from tidegrid.scheduler.consistency import check_consistent
from tidegrid.scheduler.schema import FIXES, MAX_COUNT, Amount, Count, Id, Index, Record

MAX_GPUS = 1_000_000
MAX_STEPS = 100_000


class Closed(Record):
    """GPUs ``gpus[0]`` … ``gpus[1]`` − 1 that are closed in steps ``start`` … ``end`` − 1 (in the file: from, to).

    ``down``: nothing may use them, save what runs there already. ``drain``: nothing may start or enter there.
    """

    gpus: tuple[Index, Index]
    start: Annotated[Index, Field(alias="from")]
    end: Annotated[Index, Field(alias="to")]
    kind: Literal["down", "drain"]


class Pool(Record):
    """GPUs of one type, index 0 … ``gpus`` − 1, in nodes of ``node_size`` (null: one node).

    ``placement``: in a ``line`` a job's GPUs are a block of neighbours; by ``node`` a job takes GPUs of any nodes.
    """

    id: Id
    gpus: Annotated[StrictInt, Field(ge=1, le=MAX_GPUS)]
    node_size: Count | None = None
    placement: Literal["line", "node"] = "line"
    closed: tuple[Closed, ...] | None = ()

    @property
    def by_node(self) -> bool:
        """Whether jobs take GPUs of any nodes."""
        return self.placement == "node"

    def allows(self, first_gpu: int, gpus: int) -> bool:
        """Whether a block lies inside the pool and respects its nodes (rule 3)."""
        if first_gpu < 0 or gpus < 1 or first_gpu + gpus > self.gpus:
            return False
        node = self.node_size
        if not node:
            return True
        if gpus <= node:
            return first_gpu // node == (first_gpu + gpus - 1) // node
        return first_gpu % node == 0


class Shape(Record):
    """One way to run a job: ``gpus`` GPUs of ``pool`` for ``steps`` steps.

    In a line pool ``gpus`` is a power of two. By node they lie evenly on ``nodes`` nodes (default: as few as hold
    them). ``within``: ranges (first GPU, GPUs) in which all of them lie; None for anywhere, an empty list for nowhere.
    ``success``: the chance that the job ends inside its time limit there.
    """

    pool: Id
    gpus: Count
    steps: Count
    nodes: Count | None = None
    within: tuple[tuple[Index, Count], ...] | None = None
    success: Annotated[StrictInt | StrictFloat, Field(ge=0, le=1, allow_inf_nan=False)] = 1.0

    def nodes_in(self, pool: Pool) -> int:
        """On how many nodes the GPUs lie; 0 where they cannot lie evenly, or do not fit a node."""
        node = pool.node_size or pool.gpus
        nodes = self.nodes or -(-self.gpus // node)
        return nodes if self.gpus % nodes == 0 and self.gpus // nodes <= node else 0


class Running(Record):
    """The GPUs that a job under way holds from step 0 for ``remaining`` steps: a block, or a list of ``gpu_ids``."""

    pool: Id
    first_gpu: Index = 0
    gpus: Count = 1
    gpu_ids: Annotated[tuple[Index, ...], Field(min_length=1)] | None = None
    remaining: Count

    @model_validator(mode="after")
    def _states_its_gpus(self) -> Self:
        if self.gpu_ids is None:
            for name in ("first_gpu", "gpus"):
                if name not in self.model_fields_set:
                    raise InputError("is missing", field=name, fix=FIXES["running"])
        else:
            if len(set(self.gpu_ids)) != len(self.gpu_ids):
                raise InputError("lists a GPU twice", field="gpu_ids", fix=FIXES["held"])
            # a frozen record: what the list says, without counting as stated
            self.__dict__["first_gpu"], self.__dict__["gpus"] = min(self.gpu_ids), len(self.gpu_ids)
        return self

    @property
    def ids(self) -> Sequence[int]:
        """The GPUs, ascending."""
        if self.gpu_ids is None:
            return range(self.first_gpu, self.first_gpu + self.gpus)
        return sorted(self.gpu_ids)


class Job(Record):
    """Batch work: once started it holds its GPUs until it ends.

    ``order`` is the arrival order; ``requested`` the index of the shape that the submitter asked for.
    ``deadline`` is exclusive, in steps. Where ``running`` is given, ``shapes`` is not used. ``after``: jobs that must
    have ended. ``work``: GPU-steps that its work takes at its most efficient; None for the least of its shapes.
    """

    id: Id
    kind: Literal["training", "batch_inference", "quantization"] = "training"
    priority: Amount
    order: Annotated[StrictInt, Field(ge=-MAX_COUNT, le=MAX_COUNT)]
    shapes: tuple[Shape, ...] = ()
    requested: Index | None = None
    earliest: Index = 0
    deadline: Index | None = None
    finish_inside: StrictBool = False
    running: Running | None = None
    tenant: Id | None = None
    group: Id | None = None
    after: tuple[Id, ...] | None = ()
    work: Annotated[StrictInt | StrictFloat, Field(gt=0, le=1e12, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _shapes_are_there(self) -> Self:
        if self.running is None and "shapes" not in self.model_fields_set:
            raise InputError("is missing", field="shapes", fix=FIXES["shapes"])
        if self.requested is not None and self.requested >= max(1, len(self.shapes)):
            raise InputError(
                f"{self.requested} is past the {len(self.shapes)} shapes",
                field="requested",
                fix=f"write an index below {len(self.shapes)}",
            )
        return self

    @property
    def least_work(self) -> float:
        """GPU-steps that its work takes."""
        if self.work is not None:
            return float(self.work)
        return float(min((shape.gpus * shape.steps for shape in self.shapes), default=0))


class App(Record):
    """Realtime inference: elastic, driven by ``demand`` in GPUs a step, lookahead included.

    It runs in replicas of ``replica`` GPUs, each up and down as a whole: on one node, or on whole nodes. ``floor``:
    GPUs that are always up. ``held``: what it holds before step 0: GPUs, or for larger replicas a list of GPUs each.
    """

    id: Id
    pool: Id
    priority: Amount
    demand: tuple[Index, ...]
    swap_cap: Index | None = None
    held: tuple[Index | tuple[Index, ...], ...] | None = ()
    replica: Count = 1
    floor: Index = 0

    @property
    def held_gpus(self) -> tuple[int, ...]:
        """GPUs held just before step 0."""
        return flat(self.held or ())

    @property
    def held_replicas(self) -> tuple[tuple[int, ...], ...]:
        """Replicas held just before step 0, each with its GPUs."""
        return tuple((one,) if isinstance(one, int) else one for one in self.held or ())


def flat(cells: Sequence[int | Sequence[int]]) -> tuple[int, ...]:
    """Return the GPUs of one step of an app, whatever the size of its replicas."""
    if cells and not isinstance(cells[0], int):
        return tuple(gpu for one in cells for gpu in ((one,) if isinstance(one, int) else one))
    return tuple(cells)  # type: ignore[arg-type]


class Tenant(Record):
    """Who shares the cluster: ``limit`` is the most GPUs that its jobs hold at once, in all or by pool."""

    id: Id
    limit: Index | dict[Id, Index]


class Group(Record):
    """Jobs of which at most ``most`` run at once."""

    id: Id
    most: Index


class Problem(Record):
    """Who asks for which GPUs over a horizon of ``steps`` steps of ``step_minutes`` minutes.

    Parameters
    ----------
    start
        Instant of step 0 with its zone, ISO 8601.
    decay
        w(t) = decay**t is the weight of step t, 0 < decay ≤ 1.
    shortfall_weight
        Factor of the penalty for realtime GPUs that are short.
    floor_weight
        How much more a GPU costs that is missing below an app's floor.
    gpu_cost
        What a GPU-step that a job occupies costs, in the unit of value.
    swap_cost
        What a GPU that enters an app costs, times the app's priority.
    tenants, groups
        Limits on jobs that hold GPUs, or run, at once.

    Raises
    ------
    InputError
        A field is missing or wrong, or no legal plan could exist (two running jobs on one GPU, say).
    """

    version: Literal[1, 2] = 1
    start: StrictStr | None = None
    step_minutes: Count = 60
    steps: Annotated[StrictInt, Field(ge=1, le=MAX_STEPS)]
    decay: Annotated[StrictInt | StrictFloat, Field(gt=0, le=1, allow_inf_nan=False)]
    shortfall_weight: Amount
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
    jobs: tuple[Job, ...]
    apps: tuple[App, ...]
    tenants: tuple[Tenant, ...] | None = ()
    groups: tuple[Group, ...] | None = ()
    floor_weight: Amount = 10.0
    gpu_cost: Amount = 0.0
    swap_cost: Amount = 0.0

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        check_consistent(self)
        return self

    @classmethod
    def read(cls, path: str | Path) -> "Problem":
        """Read a problem file.

        Raises
        ------
        InputError
            The file is unreadable, not JSON, or not a valid problem; file, JSON path and fix are named.
        """
        try:
            return cls.from_dict(read_json(path))
        except InputError as error:
            raise error if error.file else error.in_file(path) from None

    def write(self, path: str | Path) -> None:
        """Write the problem as JSON, whole or not at all."""
        write_json(path, self.to_dict())

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the problem's JSON with sorted keys and no spaces: the version of this input."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def pool_by_id(self) -> dict[str, Pool]:
        """Pools by id."""
        return {pool.id: pool for pool in self.pools}

    @cached_property
    def job_by_id(self) -> dict[str, Job]:
        """Jobs by id."""
        return {job.id: job for job in self.jobs}

    @cached_property
    def app_by_id(self) -> dict[str, App]:
        """Apps by id."""
        return {app.id: app for app in self.apps}

    @property
    def pays_for_work(self) -> bool:
        """Whether a job earns by its work (version 2), not by the GPUs that it occupies."""
        return self.version >= 2

    @cached_property
    def lookahead(self) -> int:
        """Steps that any demand curve states: ``steps`` or more."""
        return max([self.steps, *(len(app.demand) for app in self.apps)])
