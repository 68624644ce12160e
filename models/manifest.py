"""The manifest of a version: what it is made of, what it learnt from, and who made it."""

import hashlib
import json
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

import tidegrid
from tidegrid.errors import InputError
from tidegrid.models.codec import MOST_BYTES, SAFE_FILE, as_json, canonical
from tidegrid.models.durable import MOST_TEXT, read_bounded
from tidegrid.validation import first_error

SCHEMA = 1
"""The schema number that this code writes."""

MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
"""From an older schema number to the function that lifts a manifest by one."""

LIBRARIES = ("numpy", "pandas", "scikit-learn", "lightgbm", "scipy", "statsmodels")
"""The libraries on whose versions a prediction can depend."""

MANIFEST = "manifest.json"
NAME = re.compile(r"[a-z][a-z0-9_-]{0,60}")
VERSION = re.compile(r"(\d{6,})-([0-9a-f]{10})")


class VersionWarning(UserWarning):
    """A model was saved with other versions of the libraries than those installed."""


@dataclass(frozen=True)
class Lineage:
    """Where a version comes from.

    Parameters
    ----------
    features
        The columns that it reads, each with its name, dtype and unit.
    window
        First and last UTC instant of what it learnt from; the last one is the cutoff: nothing that became
        known later was seen.
    history_sha256
        The hash of exactly the rows that it was fitted on.
    rows
        How many rows that was.
    metrics
        Its figures, on data that it never saw.
    parent
        The version that was champion when it was made.
    code
        The version of the code that fitted it.
    distribution
        The distribution that brought the estimator.
    recipe
        The hash of all that the fit and its test depend on; None where that is not known.
    """

    features: Sequence[Mapping[str, Any]] = ()
    window: tuple[datetime | str, datetime | str] | None = None
    history_sha256: str | None = None
    rows: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    parent: str | None = None
    code: str = tidegrid.__version__
    distribution: str = f"tidegrid {tidegrid.__version__}"
    recipe: str | None = None


def instant(value: datetime | str, what: str) -> str:
    """Return an instant as ISO 8601 in UTC.

    Raises
    ------
    InputError
        It is no instant, or it names no zone.
    """
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        if moment.tzinfo is None or moment.utcoffset() is None:
            raise InputError(
                f"{value} names no zone", field=what, fix="write an instant such as 2026-03-02T00:00:00Z"
            )
        return moment.astimezone(UTC).isoformat()
    except (ValueError, TypeError, AttributeError):
        raise InputError(f"{value!r} is no instant", field=what, fix="write ISO 8601 with a zone") from None


def libraries() -> dict[str, str]:
    """Return the installed versions of the libraries on which predictions depend, and of Python."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def differences(stored: Mapping[str, str]) -> list[str]:
    """Return in words each library whose major or minor version differs from the installed one."""
    here = libraries()
    out = []
    for name in LIBRARIES:
        then, now = stored.get(name), here.get(name)
        if then is not None and (now is None or then.split(".")[:2] != now.split(".")[:2]):
            out.append(f"{name} {then} (here {now or 'not installed'})")
    return out


def make(
    name: str, identifier: str, content: str, files: Mapping[str, bytes], lineage: Lineage, created: str
) -> bytes:
    """Return the bytes of a version's manifest."""
    window = None if lineage.window is None else [instant(moment, "window") for moment in lineage.window]
    body = {
        "schema": SCHEMA,
        "estimator": name,
        "version": identifier,
        "content_sha256": content,
        "created": created,
        "files": {
            file: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
            for file, data in sorted(files.items())
        },
        "libraries": libraries(),
        "code": lineage.code,
        "distribution": lineage.distribution,
        "features": as_json(list(lineage.features), "features"),
        "window": window,
        "history_sha256": lineage.history_sha256,
        "rows": lineage.rows,
        "metrics": as_json(dict(lineage.metrics), "metrics"),
        "parent": lineage.parent,
        "recipe": lineage.recipe,
    }
    return sealed(body)


def sealed(body: Mapping[str, Any]) -> bytes:
    """Return ``body`` as canonical JSON with its own hash inside, so that no byte of it can change unseen."""
    return canonical({**body, "sha256": hashlib.sha256(canonical(body)).hexdigest()})


def unsealed(data: bytes, file: Path) -> dict[str, Any]:
    """Return what :func:`sealed` wrote.

    Raises
    ------
    InputError
        The bytes are not those that were written.
    """
    try:
        body = json.loads(data)
        if not isinstance(body, dict):
            raise ValueError("it is not an object")
        claimed = body.pop("sha256", None)
        good = claimed == hashlib.sha256(canonical(body)).hexdigest() and sealed(body) == data
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(
            f"is damaged ({error})", file=file, fix="restore it, or use another version"
        ) from None
    if not good:
        raise InputError("does not match its own hash", file=file, fix="restore it, or use another version")
    return body


class _File(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0, le=MOST_BYTES)]


class _Manifest(BaseModel):
    """The schema of a manifest: what every reader of one may rely on."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    estimator: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    version: Annotated[str, Field(pattern=f"^{VERSION.pattern}$")]
    content_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    created: Annotated[str, AfterValidator(lambda value: instant(value, "created"))]
    files: Annotated[dict[str, _File], Field(min_length=1)]
    libraries: dict[str, str]
    code: str
    distribution: str
    features: list[dict[str, Any]]
    window: Annotated[list[str], Field(min_length=2, max_length=2)] | None
    history_sha256: str | None
    rows: Annotated[int, Field(ge=0)] | None
    metrics: dict[str, Any]
    parent: str | None
    recipe: str | None = None

    @model_validator(mode="after")
    def _is_sound(self) -> Self:
        for moment in self.window or ():
            instant(moment, "window")
        # the names come from a file that a stranger may have written: none may lead out of the folder
        for name in self.files:
            if not SAFE_FILE.fullmatch(name) or name == MANIFEST:
                raise InputError(f"names the file {name!r}", field="files")
        if sum(file.bytes for file in self.files.values()) > MOST_BYTES:
            raise InputError(f"names more than {MOST_BYTES >> 20} MiB", field="files")
        if not self.content_sha256.startswith(self.version.partition("-")[2]):
            raise InputError("is not the version of this content", field="version")
        return self


def read(folder: Path) -> dict[str, Any]:
    """Read and check the manifest in a version's folder, lifted to the present schema.

    Raises
    ------
    InputError
        It is missing or damaged, a field is not of its type or out of range, or its schema is one that this code
        cannot read.
    """
    file = folder / MANIFEST
    body = migrated(unsealed(read_bounded(file, MOST_TEXT), file), file)
    fix = "use a version that tidegrid wrote"
    try:
        _Manifest.model_validate(body)
    except ValidationError as error:
        first = first_error(error)
        raise InputError(first.problem, file=file, field=first.field, fix=fix) from None
    if body["version"] != folder.name or body["estimator"] != folder.parent.name:
        raise InputError(
            f"belongs to {body['estimator']} {body['version']}",
            file=file,
            fix="move it back to its own folder",
        )
    return body


def migrated(body: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return a manifest lifted to the present schema.

    Raises
    ------
    InputError
        The schema is newer than this code, or no step leads on from it.
    """
    number = body.get("schema")
    if not isinstance(number, int) or isinstance(number, bool):
        raise InputError(
            "has no schema number", file=file, field="schema", fix="use a version that tidegrid wrote"
        )
    if number > SCHEMA:
        raise InputError(
            f"has schema {number}, and this tidegrid ({tidegrid.__version__}) reads up to {SCHEMA}",
            file=file,
            field="schema",
            fix="upgrade tidegrid",
        )
    while number < SCHEMA:
        if number not in MIGRATIONS:
            raise InputError(
                f"has schema {number}, which this tidegrid ({tidegrid.__version__}) no longer reads",
                file=file,
                field="schema",
                fix="train it anew, or load it with an older tidegrid",
            )
        body = MIGRATIONS[number](body)
        number += 1
        body["schema"] = number
    return body
