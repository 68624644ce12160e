"""Files that survive a kill: synced before they are renamed, and one writer at a time."""

import contextlib
import errno
import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegrid.errors import InputError

fcntl: Any
try:
    import fcntl
except ImportError:  # not on Windows; an exclusive file stands in
    fcntl = None

PART = ".part-"
"""How the name of an unfinished file or folder begins; no reader lists such a name."""
OLD = ".old-"
"""How the name of a folder that is being deleted begins."""


MOST_TEXT = 16 << 20
"""The most bytes that a manifest, a log or an alias file may have."""


def read_bounded(path: Path, most: int) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes; a pipe or a device is never opened.

    Raises
    ------
    InputError
        The file is absent, cannot be read, is not a regular file, or is larger.
    """
    fix = "restore it, or use another version"
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InputError("is not a regular file", file=path, fix=fix)
        if found.st_size > most:
            raise InputError(f"has {found.st_size:,} bytes, more than {most:,}", file=path, fix=fix)
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", file=path, fix=fix) from None


def refusal(error: OSError, path: Path) -> InputError:
    """Return a failed write as an error that says what to do."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    fix = "free some space; what was there before is untouched" if full else "name a folder that is writable"
    return InputError(f"cannot be written ({error.strerror or error})", file=path, fix=fix)


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and have it on disk before returning."""
    with path.open("xb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: a temporary file is written, synced and renamed, and the folder is synced."""
    aside = path.with_name(f"{PART}{path.name}")
    try:
        aside.unlink(missing_ok=True)
        write_file(aside, data)
        aside.replace(path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise


def append_line(path: Path, line: bytes) -> None:
    """Append one line to a log and sync it; a line that a kill or a full disk cut short is removed first."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
    try:
        size = os.lseek(handle, 0, os.SEEK_END)
        os.lseek(handle, 0, os.SEEK_SET)
        raw = os.read(handle, size) if size else b""
        whole = raw.rfind(b"\n") + 1
        if whole != size:
            os.ftruncate(handle, whole)
        os.lseek(handle, whole, os.SEEK_SET)
        try:
            rest = memoryview(line + b"\n")
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
        except OSError:
            # half a line would be ignored by readers, but leave none behind where that is possible
            with contextlib.suppress(OSError):
                os.ftruncate(handle, whole)
            raise
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk; a no-op where folders cannot be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES):
            raise
    finally:
        os.close(handle)


def remove_folder(folder: Path, bin_: Path) -> None:
    """Delete a folder so that it is there whole or not at all: renamed out of sight, then emptied."""
    bin_.mkdir(exist_ok=True)
    gone = bin_ / f"{OLD}{folder.parent.name}-{folder.name}"
    if gone.exists():
        shutil.rmtree(gone)
    folder.rename(gone)
    sync_folder(folder.parent)
    shutil.rmtree(gone, ignore_errors=True)


def sweep(folder: Path) -> None:
    """Remove what an interrupted writer left behind; only for the one who holds the lock."""
    for path in folder.iterdir():
        if path.name.startswith((PART, OLD)):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


@contextmanager
def locked(root: Path, timeout: float) -> Iterator[None]:
    """Hold the store's only write lock.

    The lock is the operating system's (``flock``), which dies with its process; where there is none, an
    exclusively created file that names its owner.

    Raises
    ------
    InputError
        Another process kept the lock for ``timeout`` seconds, or the folder cannot be written to.
    """
    path = root / ".lock"
    until = time.monotonic() + timeout
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666) if fcntl is not None else None
    except OSError as error:
        raise refusal(error, path) from None
    try:
        while not (_flocked(handle, path) if handle is not None else _owned(root / ".lock-owner")):
            if time.monotonic() >= until:
                raise InputError(
                    f"another process has been writing to the store for {timeout:g} s",
                    file=root,
                    fix="wait for it to end, then try again",
                )
            time.sleep(0.02)
        try:
            yield
        finally:
            if handle is None:
                (root / ".lock-owner").unlink(missing_ok=True)
    finally:
        if handle is not None:
            os.close(handle)


def _flocked(handle: int, path: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise refusal(error, path) from None
    return True


def _owned(path: Path) -> bool:
    me = f"{os.getpid()} {socket.gethostname()}"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        _break_stale(path)
        return False
    except PermissionError as error:
        if path.exists():
            return False
        raise refusal(error, path) from None
    except OSError as error:
        raise refusal(error, path) from None
    os.write(handle, me.encode())
    os.close(handle)
    return True


def _break_stale(path: Path) -> None:
    # only an owner on this host can be known to be dead
    try:
        pid, _, host = path.read_text(encoding="utf-8").partition(" ")
        if host != socket.gethostname() or _alive(int(pid)):
            return
        aside = path.with_name(f"{PART}lock-{os.getpid()}")
        path.replace(aside)
        if aside.read_text(encoding="utf-8") == f"{pid} {host}":
            aside.unlink(missing_ok=True)
        else:  # another waiter was faster, and this is its lock: hand it back
            aside.replace(path)
    except (OSError, ValueError):
        return


def _alive(pid: int) -> bool:
    if os.name == "nt":
        # signal 0 would kill there; ask for a handle instead
        import ctypes

        kernel: Any = ctypes.windll.kernel32  # type: ignore[attr-defined]
        opened = kernel.OpenProcess(0x1000, False, pid)
        if opened:
            kernel.CloseHandle(opened)
        return bool(opened)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
