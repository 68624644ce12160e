"""Whole files or none: what is read is bounded, and what is written replaces its target in one step."""

import gzip
import json
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegrid.errors import InputError

MAX_TEXT = 512 * 2**20
"""Bytes of a text file, unpacked, that are read at most: more would not fit the memory of a small machine."""

MAX_JSON = 256 * 2**20
"""Bytes of a JSON file that are read at most; its values take several times as much memory."""

_GZIP = b"\x1f\x8b"
"""The first two bytes of a gzip file (RFC 1952)."""


def regular_file(path: str | Path) -> Path:
    """Return a path that names a regular file.

    Raises
    ------
    InputError
        Nothing is there, a link leads nowhere, or it is a folder, a device, a pipe or a socket: reading one of these
        may never end.
    """
    file = Path(path)
    try:
        mode = os.stat(file).st_mode
    except ValueError:
        raise InputError("is not a file name", file=repr(str(file)), fix="name an existing file") from None
    except OSError as error:
        lost = os.path.islink(file) and not os.path.exists(file)
        said = "it is a link to a file that is not there" if lost else error.strerror
        raise InputError(f"cannot be read ({said})", file=file, fix="name an existing file") from None
    if stat.S_ISREG(mode):
        return file
    kind = "a folder" if stat.S_ISDIR(mode) else "a device, a pipe or a socket"
    raise InputError(f"cannot be read (it is {kind})", file=file, fix="name a regular file")


def read_bytes(path: str | Path, limit: int = MAX_TEXT) -> bytes:
    """Return what a regular file holds, unpacked where it is gzipped, and never more than ``limit`` bytes.

    Raises
    ------
    InputError
        The file cannot be read, is larger than the limit, or is a damaged gzip file.
    """
    content = read_start(path, limit + 1)
    if len(content) > limit:
        raise InputError(
            f"holds more than {limit // 2**20:,} MiB",
            file=path,
            fix="give less of it, or write tables as Parquet",
        )
    return content


def read_start(path: str | Path, count: int) -> bytes:
    """Return the first ``count`` bytes of a regular file, unpacked where it is gzipped.

    Raises
    ------
    InputError
        The file cannot be read, or is a damaged gzip file.
    """
    file = regular_file(path)
    packed = False
    try:
        with file.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            if packed or file.suffix == ".gz":
                with gzip.GzipFile(fileobj=raw) as stream:
                    return stream.read(count)
            return raw.read(count)
    except EOFError:
        raise InputError("ends early: it is cut", file=file, fix="fetch or copy it again, whole") from None
    except (gzip.BadGzipFile, zlib.error):
        if packed:
            raise InputError("is a damaged gzip file", file=file, fix="fetch or copy it again") from None
        raise InputError(
            "is not a gzip file", file=file, fix="compress it with gzip, or drop .gz from its name"
        ) from None
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})", file=file, fix="name an existing file"
        ) from None


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


def check_folder(path: str | Path) -> Path:
    """Refuse a folder that could not be made or written to, before the work rather than after it; return its path.

    Nothing is made: work that fails on its input leaves no empty folder behind.

    Raises
    ------
    InputError
        It, or a folder above it, is a file or cannot be written to.
    """
    folder = Path(path)
    try:
        above = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    except OSError as error:
        raise InputError(
            f"the folder cannot be made ({error.strerror})", file=folder, fix="name another folder"
        ) from None
    if not above.is_dir():
        said = "is a file, not a folder" if above == folder else f"the folder cannot be made ({above} is a file)"
        raise InputError(said, file=folder, fix="name a folder")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(
            "the folder cannot be written to (permission denied)",
            file=folder,
            fix="name one that can be made and written to",
        )
    return folder


def check_outputs(*paths: str | Path | None) -> None:
    """Refuse files that could not be written, before the work rather than after it; None is ignored.

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
        The file is absent, unreadable, too large, not UTF-8 or not JSON; line and column are named.
    """
    source = Path(path)
    try:
        text = read_bytes(source, MAX_JSON).decode("utf-8")
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", file=source, fix="save it as UTF-8 JSON") from None
    return parse_json(text, source)


def parse_json(text: str, source: str | Path) -> Any:
    """Return the values of a JSON text.

    Raises
    ------
    InputError
        It is not JSON; ``source``, line and column are named.
    """
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
    except ValueError:
        raise InputError("holds a number of too many digits", file=source, fix="write plain numbers") from None
