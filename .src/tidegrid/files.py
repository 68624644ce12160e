"""Whole files or none: everything that tidegrid writes is written aside and then renamed."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegrid.errors import InputError


@contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that replaces it when the block ends without an error.

    Raises
    ------
    InputError
        The folder does not exist or cannot be written to.
    """
    target = Path(path)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror})",
            file=target,
            fix="name a folder that exists and is writable",
        ) from None
    os.close(handle)
    aside = Path(name)
    try:
        yield aside
        umask = os.umask(0)
        os.umask(umask)
        aside.chmod(0o666 & ~umask)
        aside.replace(target)
    except OSError as error:
        raise InputError(
            f"cannot be written ({error.strerror})", file=target, fix="name a file, not a folder"
        ) from None
    finally:
        aside.unlink(missing_ok=True)


def make_folder(path: str | Path) -> Path:
    """Make a folder, and those above it, where absent; return it.

    Raises
    ------
    InputError
        It is a file, or cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InputError("is a file, not a folder", file=folder, fix="name a folder") from None
    except OSError as error:
        raise InputError(
            f"the folder cannot be made ({error.strerror})",
            file=folder,
            fix="name one that can be made and written to",
        ) from None
    return folder


def check_outputs(*paths: str | Path | None) -> None:
    """Refuse files that could not be written, before the work rather than after it; None is passed over.

    Raises
    ------
    InputError
        The folder of one does not exist or cannot be written to, or the file is a folder.
    """
    for path in paths:
        if path is None:
            continue
        target = Path(path)
        if not target.parent.is_dir():
            raise InputError(
                "cannot be written (no such folder)", file=target, fix="name a folder that exists"
            )
        if target.is_dir():
            raise InputError("is a folder", file=target, fix="name a file in it")
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise InputError(
                "cannot be written (permission denied)", file=target, fix="name a folder that is writable"
            )


def write_text(path: str | Path, text: str) -> None:
    """Write ``text`` as UTF-8, whole or not at all."""
    with writing(path) as aside:
        aside.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as JSON with one trailing newline, whole or not at all."""
    write_text(path, json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file.

    Raises
    ------
    InputError
        The file is absent, unreadable, empty, not UTF-8 or not JSON; line and column are named.
    """
    source = Path(path)
    try:
        text = source.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})", file=source, fix="name an existing file"
        ) from None
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", file=source, fix="save it as UTF-8 JSON") from None
    try:
        return json.loads(text)
    except RecursionError:
        raise InputError("is nested too deeply", file=source, fix="write plain JSON") from None
    except json.JSONDecodeError as error:
        raise InputError(
            f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            file=source,
            fix="write one JSON object",
        ) from None
