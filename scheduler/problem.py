"""The allocation problem: who asks for which GPUs, as immutable data that validates itself when made.

The format is version 1 of the problem file. Unknown keys are kept, so ``to_dict(from_dict(d)) == d``.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from tidegrid.errors import InputError
from tidegrid.files import read_json, write_json
from tidegrid.scheduler.records import FIXES, MAX_COUNT, Amount, Count, Id, Index, Record, shown

MAX_GPUS = 1_000_000
MAX_STEPS = 100_000
MAX_CELLS = 50_000_000  # GPUs × steps, lookahead included: beyond it a board no longer fits in memory


def _power_of_two(value: int, field: str) -> None:
    if value & (value - 1):
        raise InputError(f"{value} is not a power of two", field=field, fix="write 1, 2, 4, …")


class Pool(Record):
    """GPUs of one type in a line, index 0 … ``gpus`` − 1, in nodes of ``node_size`` (null: one node)."""

    id: Id
    gpus: Annotated[StrictInt, Field(ge=1, le=MAX_GPUS)]
    node_size: Count | None = None

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
    """One way to run a job: a block of ``gpus`` (a power of two) in ``pool`` for ``steps`` steps."""

    pool: Id
    gpus: Count
    steps: Count

    @model_validator(mode="after")
    def _is_power_of_two(self) -> Self:
        _power_of_two(self.gpus, "gpus")
        return self


class Running(Record):
    """The block that a job under way holds from step 0 for ``remaining`` steps."""

    pool: Id
    first_gpu: Index
    gpus: Count
    remaining: Count

    @model_validator(mode="after")
    def _is_power_of_two(self) -> Self:
        _power_of_two(self.gpus, "gpus")
        return self


class Job(Record):
    """Batch work: once started it holds its block until it ends.

    ``order`` is the arrival order; ``requested`` the index of the shape that the submitter asked for.
    ``deadline`` is exclusive, in steps. Where ``running`` is given, ``shapes`` is not used.
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


class App(Record):
    """Realtime inference: elastic, driven by ``demand`` in GPUs a step, lookahead included."""

    id: Id
    pool: Id
    priority: Amount
    demand: tuple[Index, ...]
    swap_cap: Index | None = None
    held: tuple[Index, ...] | None = ()

    @property
    def held_gpus(self) -> tuple[int, ...]:
        """GPUs held just before step 0."""
        return self.held or ()


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

    Raises
    ------
    InputError
        A field is missing or wrong, or no legal plan could exist (two running jobs on one GPU, say).
    """

    version: Literal[1] = 1
    start: StrictStr | None = None
    step_minutes: Count = 60
    steps: Annotated[StrictInt, Field(ge=1, le=MAX_STEPS)]
    decay: Annotated[StrictInt | StrictFloat, Field(gt=0, le=1, allow_inf_nan=False)]
    shortfall_weight: Amount
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
    jobs: tuple[Job, ...]
    apps: tuple[App, ...]

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        _check_start(self.start)
        pools = _unique_pools(self.pools)
        _unique_tasks(self)
        for i, job in enumerate(self.jobs):
            for k, shape in enumerate(job.shapes):
                if shape.pool not in pools:
                    raise _unknown_pool(shape.pool, f"jobs[{i}].shapes[{k}].pool", pools)
        for i, app in enumerate(self.apps):
            if app.pool not in pools:
                raise _unknown_pool(app.pool, f"apps[{i}].pool", pools)
            if len(app.demand) < self.steps:
                raise InputError(
                    f"has {len(app.demand)} values for {self.steps} steps",
                    field=f"apps[{i}].demand",
                    fix=f"write at least {self.steps} values",
                )
        longest = max([self.steps, *(len(app.demand) for app in self.apps)])
        if (cells := sum(pool.gpus for pool in self.pools) * longest) > MAX_CELLS:
            raise InputError(
                f"{cells:,} cells of GPU and step are more than {MAX_CELLS:,}",
                field="steps",
                fix="plan fewer or longer steps",
            )
        _blocks_are_legal(self, pools)
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

    @cached_property
    def lookahead(self) -> int:
        """Steps that any demand curve states: ``steps`` or more."""
        return max([self.steps, *(len(app.demand) for app in self.apps)])


def _check_start(start: str | None) -> None:
    if start is None:
        return
    try:
        instant = datetime.fromisoformat(start)
    except ValueError:
        raise InputError(f"{shown(start)} is not an instant", field="start", fix=FIXES["start"]) from None
    if instant.utcoffset() is None:
        raise InputError(f"{shown(start)} has no zone", field="start", fix=FIXES["start"])


def _unique_pools(pools: tuple[Pool, ...]) -> dict[str, Pool]:
    seen: dict[str, Pool] = {}
    for i, pool in enumerate(pools):
        if pool.id in seen:
            raise InputError(
                f"{shown(pool.id)} is the id of two pools", field=f"pools[{i}].id", fix="use each once"
            )
        seen[pool.id] = pool
    return seen


def _unique_tasks(problem: Problem) -> None:
    seen: dict[str, str] = {}
    named = [(f"jobs[{i}]", job.id) for i, job in enumerate(problem.jobs)]
    named += [(f"apps[{i}]", app.id) for i, app in enumerate(problem.apps)]
    for place, name in named:
        if name in seen:
            raise InputError(
                f"{shown(name)} is also the id of {seen[name]}",
                field=f"{place}.id",
                fix="give every job and app its own id",
            )
        seen[name] = place


def _unknown_pool(name: str, field: str, pools: Mapping[str, Pool]) -> InputError:
    known = ", ".join(list(pools)[:8])
    return InputError(f"{shown(name)} is not a pool", field=field, fix=f"write one of {known}")


def _blocks_are_legal(problem: Problem, pools: Mapping[str, Pool]) -> None:
    owner: dict[tuple[str, int], str] = {}

    def take(pool: str, gpu: int, task: str, field: str) -> None:
        other = owner.setdefault((pool, gpu), task)
        if other != task:
            raise InputError(
                f"GPU {gpu} of {pool} serves both {other} and {task}",
                field=field,
                fix="let each GPU be in one running block or one held list",
            )

    for i, job in enumerate(problem.jobs):
        running = job.running
        if running is None:
            continue
        field = f"jobs[{i}].running"
        if running.pool not in pools:
            raise _unknown_pool(running.pool, f"{field}.pool", pools)
        pool = pools[running.pool]
        last = running.first_gpu + running.gpus - 1
        if last >= pool.gpus:
            raise InputError(
                f"GPUs {running.first_gpu}–{last} lie outside {pool.id}, which has {pool.gpus}",
                field=f"{field}.first_gpu",
                fix="write a block inside the pool",
            )
        if not pool.allows(running.first_gpu, running.gpus):
            raise InputError(
                f"GPUs {running.first_gpu}–{last} straddle nodes of {pool.node_size}",
                field=f"{field}.first_gpu",
                fix="keep a block inside one node; a larger one starts at a node's first GPU",
            )
        for gpu in range(running.first_gpu, last + 1):
            take(pool.id, gpu, job.id, field)
    for i, app in enumerate(problem.apps):
        held = app.held_gpus
        if len(set(held)) != len(held):
            raise InputError("lists a GPU twice", field=f"apps[{i}].held", fix=FIXES["held"])
        for gpu in held:
            if gpu >= pools[app.pool].gpus:
                raise InputError(
                    f"GPU {gpu} lies outside {app.pool}, which has {pools[app.pool].gpus}",
                    field=f"apps[{i}].held",
                    fix="write GPUs of the app's pool",
                )
            take(app.pool, gpu, app.id, f"apps[{i}].held")
