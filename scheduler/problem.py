"""The allocation problem: who asks for which GPUs, as immutable data that validates itself when made.

The format is version 1 of the problem file. Unknown keys are kept, so ``to_dict(from_dict(d)) == d``.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails

from tidegrid.errors import InputError
from tidegrid.files import read_json, write_json

MAX_GPUS = 1_000_000
MAX_STEPS = 100_000
MAX_COUNT = 1_000_000_000
MAX_CELLS = 50_000_000  # GPUs × steps, lookahead included: beyond it a board no longer fits in memory

Count = Annotated[StrictInt, Field(ge=1, le=MAX_COUNT)]
Index = Annotated[StrictInt, Field(ge=0, le=MAX_COUNT)]
Amount = Annotated[StrictInt | StrictFloat, Field(ge=0, le=1e12, allow_inf_nan=False)]


def _one_line(value: str) -> str:
    # Ids stand in messages of one line and in files of UTF-8.
    if any(c < " " or c in "\x7f\x85\u2028\u2029" or "\ud800" <= c <= "\udfff" for c in value):
        raise InputError(f"{_shown(value)} holds a control character", fix="write an id of one line of text")
    return value


Id = Annotated[StrictStr, Field(min_length=1), AfterValidator(_one_line)]

# What would be right, by field name; the key with the parent's list name wins where both exist.
_FIXES = {
    "version": "write 1",
    "start": 'write an ISO 8601 instant with its zone, such as "2026-03-02T00:00:00+00:00"',
    "step_minutes": "write whole minutes, such as 60",
    "steps": "write a whole number of steps, 1 or more",
    "decay": "write a number above 0 and at most 1, such as 0.98",
    "shortfall_weight": "write a finite number of 0 or more; 5 to 10 is usual",
    "pools": "write a list of one or more pools",
    "jobs": "write a list of jobs; it may be empty",
    "apps": "write a list of apps; it may be empty",
    "id": "write a text that is not empty",
    "pool": "write the id of a pool",
    "gpus": "write a whole number, 1 or more",
    "shapes.gpus": "write 1, 2, 4, …",
    "running.gpus": "write 1, 2, 4, …",
    "node_size": "write null or the GPUs of a node, 1 or more",
    "kind": "write training, batch_inference or quantization",
    "priority": "write a finite number of 0 or more; 1 to 10 is usual",
    "order": "write the arrival order as a whole number",
    "shapes": 'write a list of {"pool", "gpus", "steps"}',
    "requested": "write an index into shapes, or leave it out",
    "earliest": "write a step, 0 or later",
    "deadline": "write a step (exclusive), or null for none",
    "finish_inside": "write true or false",
    "running": 'write null or {"pool", "first_gpu", "gpus", "remaining"}',
    "first_gpu": "write a GPU's index, 0 or more",
    "remaining": "write the steps that are left, 1 or more",
    "demand": "write whole GPUs for each step, each 0 or more",
    "swap_cap": "write null for no cap, or a whole number of 0 or more",
    "held": "write a list of GPU indices, each once",
}

_AMOUNTS = ("decay", "shortfall_weight", "priority")


def _path(parts: Sequence[str | int]) -> str:
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        # pydantic adds the name of the union's branch to the path, which no file contains
        elif part not in ("int", "float", "constrained-int", "constrained-float"):
            text += f".{part}" if text else part
    return text


def _fix(path: str) -> str | None:
    names = [part.split("[")[0] for part in path.split(".")]
    return _FIXES.get(".".join(names[-2:])) or _FIXES.get(names[-1])


def _shown(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "…"


def _as_input_error(error: ValidationError) -> InputError:
    first: ErrorDetails = error.errors(include_url=False)[0]
    path = _path(first["loc"])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        field = f"{path}.{cause.field}" if path and cause.field else path or cause.field
        return InputError(cause.problem, field=field, fix=cause.fix)
    kind = first["type"]
    shown = _shown(first["input"])
    if kind == "missing":
        problem = "is missing"
    elif isinstance(first["input"], float) and not math.isfinite(first["input"]):
        problem = f"{shown} is not a finite number"
    elif kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        problem = f"{shown} is out of range"
    elif kind == "literal_error":
        problem = f"{shown} is not known"
    elif kind in ("too_short", "string_too_short"):
        problem = "is empty"
    elif kind in ("model_type", "model_attributes_type", "dict_type"):
        return InputError(f"{shown} is not a JSON object", field=path or None, fix=_fix(path) or "write {…}")
    elif kind == "int_type":
        problem = f"{shown} is not a {'number' if path.split('.')[-1] in _AMOUNTS else 'whole number'}"
    elif kind.endswith("_type"):
        problem = f"{shown} is not what belongs here"
    else:
        problem = f"{shown} is not allowed here ({first['msg']})"
    return InputError(problem, field=path or None, fix=_fix(path))


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise _as_input_error(error) from None

    # Tells pydantic that nested records need no Python call: errors are converted once, at the top.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @model_validator(mode="after")
    def _extra_keys_are_json(self) -> Self:
        if self.__pydantic_extra__:
            for name, value in self.__pydantic_extra__.items():
                try:
                    json.dumps(value, allow_nan=False)
                except (TypeError, ValueError):
                    raise InputError(
                        "holds something that JSON cannot",
                        field=name,
                        fix="write finite numbers, text and lists",
                    ) from None
        return self

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make the record from its JSON object.

        Raises
        ------
        InputError
            A field is missing, of the wrong type or out of range; the JSON path and the fix are named.
        """
        if not isinstance(data, Mapping):
            raise InputError(f"{_shown(data)} is not a JSON object", fix="write one JSON object")
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise _as_input_error(error) from None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: exactly what was given, unknown keys included."""
        return self.model_dump(mode="json", exclude_unset=True)


def _power_of_two(value: int, field: str) -> None:
    if value & (value - 1):
        raise InputError(f"{value} is not a power of two", field=field, fix="write 1, 2, 4, …")


class Pool(_Record):
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


class Shape(_Record):
    """One way to run a job: a block of ``gpus`` (a power of two) in ``pool`` for ``steps`` steps."""

    pool: Id
    gpus: Count
    steps: Count

    @model_validator(mode="after")
    def _is_power_of_two(self) -> Self:
        _power_of_two(self.gpus, "gpus")
        return self


class Running(_Record):
    """The block that a job under way holds from step 0 for ``remaining`` steps."""

    pool: Id
    first_gpu: Index
    gpus: Count
    remaining: Count

    @model_validator(mode="after")
    def _is_power_of_two(self) -> Self:
        _power_of_two(self.gpus, "gpus")
        return self


class Job(_Record):
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
            raise InputError("is missing", field="shapes", fix=_FIXES["shapes"])
        if self.requested is not None and self.requested >= max(1, len(self.shapes)):
            raise InputError(
                f"{self.requested} is past the {len(self.shapes)} shapes",
                field="requested",
                fix=f"write an index below {len(self.shapes)}",
            )
        return self


class App(_Record):
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


class Problem(_Record):
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
        raise InputError(f"{_shown(start)} is not an instant", field="start", fix=_FIXES["start"]) from None
    if instant.utcoffset() is None:
        raise InputError(f"{_shown(start)} has no zone", field="start", fix=_FIXES["start"])


def _unique_pools(pools: tuple[Pool, ...]) -> dict[str, Pool]:
    seen: dict[str, Pool] = {}
    for i, pool in enumerate(pools):
        if pool.id in seen:
            raise InputError(
                f"{_shown(pool.id)} is the id of two pools", field=f"pools[{i}].id", fix="use each once"
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
                f"{_shown(name)} is also the id of {seen[name]}",
                field=f"{place}.id",
                fix="give every job and app its own id",
            )
        seen[name] = place


def _unknown_pool(name: str, field: str, pools: Mapping[str, Pool]) -> InputError:
    known = ", ".join(list(pools)[:8])
    return InputError(f"{_shown(name)} is not a pool", field=field, fix=f"write one of {known}")


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
            raise InputError("lists a GPU twice", field=f"apps[{i}].held", fix=_FIXES["held"])
        for gpu in held:
            if gpu >= pools[app.pool].gpus:
                raise InputError(
                    f"GPU {gpu} lies outside {app.pool}, which has {pools[app.pool].gpus}",
                    field=f"apps[{i}].held",
                    fix="write GPUs of the app's pool",
                )
            take(app.pool, gpu, app.id, f"apps[{i}].held")
