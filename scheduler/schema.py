"""Records of a JSON file that validate themselves, with errors that name the path and the fix."""

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
)

from tidegrid.errors import InputError
from tidegrid.validation import first_error, shown

MAX_COUNT = 1_000_000_000

Count = Annotated[StrictInt, Field(ge=1, le=MAX_COUNT)]
Index = Annotated[StrictInt, Field(ge=0, le=MAX_COUNT)]
Amount = Annotated[StrictInt | StrictFloat, Field(ge=0, le=1e12, allow_inf_nan=False)]


_CONTROL = re.compile("[\x00-\x1f\x7f\x85\u2028\u2029\ud800-\udfff]")


def _one_line(value: str) -> str:
    # Ids stand in messages of one line and in files of UTF-8.
    if _CONTROL.search(value):
        raise InputError(f"{shown(value)} holds a control character", fix="write an id of one line of text")
    return value


Id = Annotated[StrictStr, Field(min_length=1), AfterValidator(_one_line)]

# What would be right, by field name; the key with the parent's list name wins where both exist.
FIXES = {
    "version": "write 1 or 2",
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
    "placement": "write line or node",
    "from": "write a step, 0 or later",
    "to": "write a step (exclusive)",
    "closed.kind": "write down or drain",
    "closed.gpus": "write [first, last + 1]",
    "nodes": "write how many nodes the GPUs lie on, 1 or more",
    "within": "write a list of [first_gpu, gpus]",
    "success": "write a chance from 0 to 1",
    "gpu_ids": "write a list of GPU indices, each once",
    "after": "write a list of job ids",
    "work": "write GPU-steps, above 0",
    "replica": "write the GPUs of a replica, 1 or more",
    "floor": "write GPUs, 0 or more",
    "limit": "write the most GPUs, or an object with the most by pool",
    "most": "write the most jobs that run at once",
    "tenants": 'write a list of {"id", "limit"}',
    "groups": 'write a list of {"id", "most"}',
}


def _is_json(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise InputError(
            "holds something that JSON cannot", fix="write finite numbers, text and lists"
        ) from None
    return value


class Record(BaseModel):
    """Base of the records: immutable, unknown keys kept, errors as `InputError`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    __pydantic_extra__: dict[str, Annotated[Any, AfterValidator(_is_json)]]

    def __init__(self, **data: Any) -> None:
        try:
            super().__init__(**data)
        except ValidationError as error:
            raise first_error(error, FIXES) from None

    # Tells pydantic that nested records need no Python call: errors are converted once, at the top.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make the record from its JSON object.

        Raises
        ------
        InputError
            A field is missing, of the wrong type or out of range; the JSON path and the fix are named.
        """
        if not isinstance(data, Mapping):
            raise InputError(f"{shown(data)} is not a JSON object", fix="write one JSON object")
        try:
            return cls.model_validate(dict(data))
        except ValidationError as error:
            raise first_error(error, FIXES) from None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object: exactly what was given, unknown keys included."""
        return self.model_dump(mode="json", exclude_unset=True, by_alias=True)
