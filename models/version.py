"""One version's folder: found, listed, checked byte by byte, and loaded."""

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegrid.errors import InputError
from tidegrid.models import journal, manifest
from tidegrid.models.bundle import Bundle
from tidegrid.models.codec import decode
from tidegrid.models.manifest import MANIFEST, VERSION, VersionWarning


@dataclass(frozen=True)
class Version:
    """One version of one estimator.

    Parameters
    ----------
    name
        The estimator.
    id
        Its sequence number and the first ten digits of its content's SHA-256.
    folder
        Where it lies.
    aliases
        ``champion``, ``challenger``, both or none.
    manifest
        Its manifest; empty where that cannot be read.
    problem
        Why the manifest cannot be read; empty where it can.
    """

    name: str
    id: str
    folder: Path
    aliases: tuple[str, ...]
    manifest: Mapping[str, Any]
    problem: str = ""

    @property
    def sequence(self) -> int:
        """Its number in the order of saving."""
        return int(self.id.partition("-")[0])

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())


@dataclass(frozen=True)
class Damage:
    """Something in the store that is not as it was written."""

    name: str
    version: str | None
    file: str
    problem: str

    def __str__(self) -> str:
        return f"{'/'.join(part for part in (self.name, self.version, self.file) if part)}: {self.problem}"


def version_folders(folder: Path) -> Iterator[Path]:
    """Yield the whole versions in an estimator's folder, in the order of saving."""
    if folder.is_dir():
        found = [
            p for p in folder.iterdir() if VERSION.fullmatch(p.name) and p.is_dir() and not p.is_symlink()
        ]
        yield from sorted(found, key=lambda path: (int(path.name.partition("-")[0]), path.name))


def described(path: Path) -> Version:
    """Return a version with its manifest and aliases; an unreadable manifest is told, not raised."""
    now = journal.state(path.parent)
    targets = (("champion", now.champion), ("challenger", now.challenger))
    aliases = tuple(alias for alias, target in targets if target == path.name)
    name = path.parent.name
    try:
        return Version(name, path.name, path, aliases, manifest.read(path))
    except InputError as error:
        return Version(name, path.name, path, aliases, {}, str(error))


def resolve(folder: Path, ref: str) -> str:
    """Return the id that an alias, an id or a unique beginning of one means.

    Raises
    ------
    InputError
        It means none, or several.
    """
    name = folder.name
    there = [path.name for path in version_folders(folder)]
    if ref in ("champion", "challenger"):
        target = getattr(journal.state(folder), ref)
        if target is None:
            raise InputError(f"there is no {ref}", field=name, fix="promote a version by its id, or train")
        if target not in there:
            raise InputError(f"the {ref} {target} is not there", file=folder, fix="roll back, or restore it")
        return str(target)
    if ref in there:
        return ref
    matching = [each for each in there if ref and (each.startswith(ref) or ref.zfill(6) == each[:6])]
    if len(matching) != 1:
        what = "is ambiguous" if matching else "is no version"
        raise InputError(
            f"{ref!r} {what}", field=name, fix=f"use one of: {', '.join(matching or there) or 'none'}"
        )
    return matching[0]


def load(folder: Path, versions: str) -> Bundle:
    """Load the bundle in a version's folder, every byte checked first (see ``ModelStore.load``)."""
    body = manifest.read(folder)
    files = {}
    for file, part in body["files"].items():
        data, why = _checked(folder / file, part["bytes"], part["sha256"])
        if data is None:
            raise InputError(
                why, file=folder / file, fix="roll back to an earlier version, or restore the file"
            )
        files[file] = data
    differing = manifest.differences(body.get("libraries", {}))
    if differing and versions != "ignore":
        said = f"was saved with {', '.join(differing)}"
        if versions == "refuse":
            raise InputError(said, file=folder, fix="install those versions, or train it anew")
        warnings.warn(f"{folder}: {said}; its predictions may differ", VersionWarning, stacklevel=3)
    bundle = decode(files, folder=str(folder))
    if bundle.estimator != folder.parent.name:
        raise InputError(
            f"holds the estimator {bundle.estimator!r}", file=folder, fix="move it to that folder"
        )
    return bundle


def damage(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return what is wrong in a version's folder, as (file, what); an intact one gives nothing."""
    if not folder.is_dir():
        return (("", "is not there"),)
    try:
        body = manifest.read(folder)
    except InputError as error:
        return ((MANIFEST, error.problem),)
    out = []
    for file, part in body["files"].items():
        data, why = _checked(folder / file, part["bytes"], part["sha256"])
        if data is None:
            out.append((file, why))
    known = {MANIFEST, *body["files"]}
    out += [
        (path.name, "does not belong here") for path in sorted(folder.iterdir()) if path.name not in known
    ]
    return tuple(out)


def _checked(path: Path, size: int, sha256: str) -> tuple[bytes | None, str]:
    try:
        if path.is_symlink() or not path.is_file():
            return None, "is missing" if not path.exists() else "is not a regular file"
        if path.stat().st_size != size:
            return None, f"has {path.stat().st_size} bytes, and its manifest says {size}"
        data = path.read_bytes()
    except OSError as error:
        return None, f"cannot be read ({error.strerror})"
    if hashlib.sha256(data).hexdigest() != sha256:
        return None, "does not match its hash"
    return data, ""
