"""A child process that holds an object and answers calls of its methods: long work never stops the server."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from tidegrid.errors import TidegridError

Told = Callable[[str], None]

STOP_SECONDS = 2.0
"""How long a call that is under way may go on when the worker is stopped."""


class WorkerDiedError(TidegridError):
    """The process ended in the middle of a call; the next call starts another one."""


class Worker:
    """A process that is started when it is first called, and again after it died.

    Parameters
    ----------
    name
        What it is called in logs and errors.
    make
        Makes the object, in the child; a function of a module.
    arguments
        What it is made of; they pickle.
    told
        Called with what the object's ``step`` says while a call runs, from another thread.
    """

    def __init__(
        self, name: str, make: Callable[..., Any], arguments: tuple[Any, ...], told: Told | None = None
    ) -> None:
        self.name, self.make, self.arguments = name, make, arguments
        self.told = told or (lambda text: None)
        self.starts = 0
        self._lock = asyncio.Lock()
        self._process: Any = None
        self._pipe: Connection | None = None

    @property
    def busy(self) -> bool:
        """Whether a call is under way."""
        return self._lock.locked()

    async def call(self, method: str, *arguments: Any) -> Any:
        """Return what the object's method returns, or raise what it raises; one call at a time.

        Raises
        ------
        WorkerDiedError
            The process ended.
        """
        async with self._lock:
            return await asyncio.to_thread(self._roundtrip, method, arguments)

    def _roundtrip(self, method: str, arguments: tuple[Any, ...]) -> Any:
        pipe = self._started()
        try:
            pipe.send((method, arguments))
            while True:
                kind, value = pipe.recv()
                if kind == "step":
                    self.told(value)
                elif kind == "done":
                    return value
                else:
                    raise value
        except (EOFError, BrokenPipeError, ConnectionResetError, OSError):
            self.kill()
            raise WorkerDiedError(
                f"the {self.name} process ended in the middle of its work; it is started again"
            ) from None

    def _started(self) -> Connection:
        if self._process is None or not self._process.is_alive() or self._pipe is None:
            # a fresh interpreter: threads and locks of the server are not copied into it
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._process = context.Process(
                target=_serve,
                args=(theirs, self.make, self.arguments),
                name=f"tidegrid {self.name}",
                daemon=True,
            )
            self._process.start()
            theirs.close()
            self.starts += 1
        return self._pipe

    async def stop(self) -> None:
        """Let a call that is under way end, for a moment, and end the process: what it commits is whole or absent."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._lock.acquire()
                self._lock.release()
        self.kill()

    def kill(self) -> None:
        """End the process at once."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.join(1.0)


def _serve(pipe: Connection, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    # the terminal's interrupt goes to the whole group; the server ends this process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _end_with_parent()
    held: Any = None
    while True:
        try:
            method, values = pipe.recv()
        except EOFError:
            return
        try:
            if held is None:
                held = make(*arguments)
                held.step = lambda text: pipe.send(("step", text))
            answer = ("done", getattr(held, method)(*values))
        except Exception as error:  # whatever it is, the server tells it
            answer = ("error", _plain(error))
        pipe.send(answer)


def _plain(error: Exception) -> Exception:
    """Return an error that pickles: tidegrid's own as they are, others by their name."""
    return error if isinstance(error, TidegridError) else FaultError(f"{type(error).__name__}: {error}")


class FaultError(TidegridError):
    """A fault of tidegrid's own in a worker."""


def _end_with_parent() -> None:
    """End this process when the server is gone, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
