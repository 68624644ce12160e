"""Errors of pydantic as errors that a user can act on: the one translation for every record that is read."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from tidegrid.errors import InputError


class FieldError(ValueError):
    """What a validator across fields found: the JSON path, what is wrong, and what would be right."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.field, self.problem, self.fix = field, problem, fix


def path_of(parts: Sequence[str | int]) -> str:
    """Return a JSON path as text, such as ``pools[0].gpus``; the names of unions' branches are left out."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():
            path += f".{part}" if path else part
    return path


def input_errors(error: ValidationError) -> list[InputError]:
    """Return each problem that pydantic found, once, with its path and its fix."""
    return [_translated(found) for found in _innermost(error)]


def first_error(error: ValidationError) -> InputError:
    """Return the first problem, saying how many more there are."""
    found = input_errors(error)
    first, more = found[0], len(found) - 1
    also = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
    return InputError(first.problem + also, field=first.field, fix=first.fix)


def _innermost(error: ValidationError) -> list[Any]:
    found = error.errors(include_url=False)
    # pydantic also counts the field around a bad record; that is the same problem told twice
    inner = [
        e for e in found if not any(o is not e and o["loc"][: len(e["loc"])] == e["loc"] for o in found)
    ] or found
    # one value that fits no branch of a union is one problem
    by_path: dict[str, Any] = {}
    for one in inner:
        by_path.setdefault(path_of(one["loc"]), one)
    return list(by_path.values())


def _translated(found: Any) -> InputError:
    cause = found.get("ctx", {}).get("error")
    path = path_of(found["loc"])
    if isinstance(cause, FieldError):
        inside = f"{path}.{cause.field}" if path and cause.field else path or cause.field
        return InputError(cause.problem, field=inside, fix=cause.fix)
    if isinstance(cause, InputError):
        return InputError(cause.problem, field=path or cause.field, fix=cause.fix)
    kind = found["type"]
    if kind == "missing":
        return InputError("is missing", field=path, fix="add it")
    if kind == "too_short":
        return InputError("is empty", field=path, fix="give at least one")
    if kind == "extra_forbidden":
        return InputError("is unknown", field=path, fix="remove it, or check its spelling")
    said = found["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    shown = repr(found["input"])
    shown = shown if len(shown) <= 60 else shown[:57] + "…"
    return InputError(f"{shown} cannot be used", field=path, fix=f"give {said}")
