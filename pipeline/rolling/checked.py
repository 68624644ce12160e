"""What a state's rows must hold: a store that something else wrote to is refused by table and row."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from tidegrid.data import as_instant
from tidegrid.errors import InputError
from tidegrid.validation import first_error
from tidegrid.zones import zone_of

Record = TypeVar("Record")

INSTANTS = frozenset(
    {
        "now",
        "first_seen",
        "started",
        "committed",
        "told",
        "ended",
        "hour",
        "start_low",
        "start_mid",
        "start_high",
    }
    | {"end_low", "end_mid", "end_high"}
)
"""Fields of the records that are instants as text."""


def _instant(text: str) -> str:
    as_instant(text)
    return text


def _zone(name: str) -> str:
    zone_of(name)
    return name


Instant = Annotated[str, AfterValidator(_instant)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _Start(_Part):
    job: str
    pool: str
    first_gpu: int
    gpus: int
    end: dict[str, Instant]


class _Move(_Part):
    app: str
    pool: str
    gpus: list[int]
    enter: list[int]
    leave: list[int]


class _Told(_Part):
    kind: str
    text: str


class _Refused(_Part):
    job: str
    reason: str


class _Document(_Part):
    tick: int
    now: Instant
    timezone: Annotated[str, AfterValidator(_zone)] = "UTC"
    plan_sha256: str
    start: list[_Start]
    apps: list[_Move]
    running: int
    waiting: list[dict[str, Any]]
    refused: list[_Refused]
    risks: list[str]
    deadlines: list[str] = []
    events: list[_Told]
    set_aside: int = 0
    notes: list[str]
    synthetic: bool


def check_document(text: str, where: str, row: int) -> None:
    """Refuse a commit's text that is not what a tick writes.

    Raises
    ------
    InputError
        The store, the row and the field are named.
    """
    try:
        _Document.model_validate(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise _refused(error, where, "tidegrid_commits", row, "document") from None


def record_of(kind: type[Record], values: Mapping[str, Any], where: str, table: str, row: int) -> Record:
    """Return a row as a record.

    Raises
    ------
    InputError
        A field is of another type, or no instant: the store, the table, the row and the field are named.
    """
    for one in fields(kind):  # type: ignore[arg-type]
        value, said = values[one.name], one.type if isinstance(one.type, type) else get_args(one.type)
        # a whole number stands for a float, and truth for no number
        fits = isinstance(value, said) or (isinstance(value, int) and isinstance(0.0, said))
        try:
            if not fits or (isinstance(value, bool) and one.type is not bool):
                raise InputError(f"{str(value)[:60]!r} is of another type", field=one.name)
            if one.name in INSTANTS and value is not None:
                as_instant(value, field=one.name)
        except InputError as error:
            raise _refused(error, where, table, row) from None
    return kind(**values)


def _refused(error: Exception, where: str, table: str, row: int, field: str = "") -> InputError:
    """Return one line that names the store, the table, the row (its key or its number) and the field."""
    if isinstance(error, ValidationError):
        error = first_error(error)
    inside = error.field if isinstance(error, InputError) else None
    problem = error.problem if isinstance(error, InputError) else f"is damaged ({error})"
    place = ".".join(part for part in (table, field, inside or "") if part)
    fix = "restore the state from a copy, or name another"
    return InputError(
        problem, file=f"{where}, {table}", row=row, field=place.removeprefix(f"{table}."), fix=fix
    )
