"""Errors of pydantic as errors that a user can act on: the one translation for every record that is read."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from tidegrid.errors import InputError

_BRANCHES = frozenset(f"{strict}{kind}" for strict in ("", "constrained-") for kind in ("int", "float", "str"))
"""What pydantic adds to the path of a value that may be of several types; no file contains it."""


def path_of(parts: Sequence[str | int]) -> str:
    """Return a JSON path as text, such as ``pools[0].gpus``; the names of unions' branches are left out."""
    path = ""
    for part in _in_file(parts):
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def _in_file(parts: Sequence[str | int]) -> tuple[str | int, ...]:
    return tuple(
        part for part in parts if isinstance(part, int) or not (part in _BRANCHES or "[" in part)
    )


def shown(value: Any) -> str:
    """Return a value as a message shows it: JSON, on one line, cut short."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "…"


def input_errors(
    error: ValidationError, fixes: Mapping[str, str] | None = None, known: Iterable[str] = ()
) -> list[InputError]:
    """Return each problem that pydantic found, once, with its path and its fix.

    Parameters
    ----------
    error
        What pydantic raised. A validator across fields raises ``InputError`` with the path from its record on.
    fixes
        What would be right, by field, or by a field and the one that it lies in (``closed.kind``), which wins.
    known
        The fields that there are, told where one is unknown.
    """
    return [_translated(found, fixes or {}, known) for found in _innermost(error)]


def first_error(
    error: ValidationError, fixes: Mapping[str, str] | None = None, known: Iterable[str] = ()
) -> InputError:
    """Return the first problem, saying how many more there are; see :func:`input_errors`."""
    found = _innermost(error)
    first, more = _translated(found[0], fixes or {}, known), len(found) - 1
    also = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
    return InputError(first.problem + also, field=first.field, fix=first.fix)


def _innermost(error: ValidationError) -> list[Any]:
    found = error.errors(include_url=False)
    # pydantic also counts the field around a bad record; that is the same problem told twice
    places = [_in_file(one["loc"]) for one in found]
    around = {place[:depth] for place in places for depth in range(len(place))}
    # one value that fits no branch of a union is one problem: that it is no number, where a number is a branch
    inner: dict[tuple[str | int, ...], Any] = {}
    for place, one in zip(places, found, strict=True):
        if place not in around and (place not in inner or one["type"].startswith("float")):
            inner[place] = one
    return list(inner.values())


def _translated(found: Any, fixes: Mapping[str, str], known: Iterable[str]) -> InputError:
    path = path_of(found["loc"])
    cause = found.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        inside = cause.field or ""
        if path and not path.endswith(inside):
            path += f".{inside}"
        return InputError(cause.problem, field=path or inside or None, fix=cause.fix)
    problem, fix = _said(found, known)
    names = [part.split("[")[0] for part in path.split(".")]
    better = fixes.get(".".join(names[-2:])) or fixes.get(names[-1])
    return InputError(problem, field=path or None, fix=better or fix)


def _said(found: Any, known: Iterable[str]) -> tuple[str, str]:
    """Return what is wrong and what would be right."""
    kind, value = found["type"], found["input"]
    said = found["msg"].removeprefix("Value error, ")
    should = said.removeprefix("Input should be ")
    fix = f"give {should}" if should != said else said[:1].lower() + said[1:]
    if kind == "missing":
        return "is missing", "add it"
    if kind == "extra_forbidden":
        fields = ", ".join(known)
        return "is unknown", f"use some of {fields}" if fields else "remove it, or check its spelling"
    if kind in ("too_short", "string_too_short") and not len(value):
        return "is empty", "give at least one"
    if kind in ("model_type", "model_attributes_type", "dataclass_type", "dict_type"):
        return f"{shown(value)} is not a JSON object", "write {…}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{shown(value)} is not a finite number", f"give {should}"
    if kind in ("greater_than", "greater_than_equal", "less_than", "less_than_equal"):
        return f"{shown(value)} is out of range", f"give a number {should}"
    if kind == "literal_error":
        return f"{shown(value)} is not known", f"write {should}"
    if kind in ("int_type", "int_parsing", "int_from_float"):
        return f"{shown(value)} is not a whole number", "write one"
    if kind in ("float_type", "float_parsing"):
        return f"{shown(value)} is not a number", "write one"
    if kind.endswith("_type") and should != said:
        return f"{shown(value)} is not {should}", fix
    return f"{shown(value)} cannot be used", fix
