"""The service's own loop: who leads, when a tick is due, what is shown, and who is told."""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from tidegrid.app.service.engine import Answering, Engine, Ticked
from tidegrid.app.service.logs import log
from tidegrid.app.service.options import Options
from tidegrid.app.service.tokens import Tokens
from tidegrid.app.service.view import View
from tidegrid.app.service.worker import Worker
from tidegrid.errors import InputError, TidegridError, printable
from tidegrid.pipeline.memory import iso
from tidegrid.pipeline.rolling import StateStore
from tidegrid.pipeline.rolling.lease import Lease
from tidegrid.pipeline.site import FILES
from tidegrid.scheduler import StalePlanError

RETRY_SECONDS = 5.0
"""After how long a tick that failed for another reason than its input is made again."""

QUEUED = 1000
"""Messages that a listener may leave unread; a slower one is let go, and comes back by itself."""


@dataclass
class Counts:
    """What is counted since the process began."""

    ticks: int = 0
    failures: int = 0
    stale: int = 0
    questions: int = 0
    seconds: float = 0.0


@dataclass
class Clock:
    """Which instant it is for the site.

    Attributes
    ----------
    begins
        The instant at which a site's own time began when the process did; None for this machine's clock.
    """

    begins: pd.Timestamp | None = None
    since: float = field(default_factory=time.monotonic)

    def now(self) -> pd.Timestamp:
        """Return the instant, in whole seconds."""
        if self.begins is None:
            return pd.Timestamp.now("UTC").floor("s")
        return (self.begins + pd.Timedelta(seconds=time.monotonic() - self.since)).floor("s")


class Service:
    """One instance of the service.

    Parameters
    ----------
    options
        How.
    worker
        What long work runs in.

    Attributes
    ----------
    view, basis
        What is shown, and the file that what-ifs are answered from; None and empty before the first commit.
    leading
        Whether this instance ticks.
    questions
        How many what-ifs wait for their answers.
    doing
        What is being done; empty when nothing is.
    problem
        Why the last tick failed, in one line; None where it did not.
    """

    def __init__(self, options: Options, worker: type[Worker] = Worker) -> None:
        self.options = options
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.view: View | None = None
        self.basis = ""
        self.leading = False
        self.doing = "starting"
        self.problem: str | None = None
        self.counts = Counts()
        self.clock: Clock | None = None
        self.ticked_at = time.monotonic()
        self.questions = 0
        self.stopping = asyncio.Event()
        self.store = StateStore(options.store)
        self.lease = Lease(self.store, self.holder, options.lease_seconds)
        self.tokens = Tokens(self.store)
        # what-ifs are answered from files that this process's children write: nobody else may write there
        self._scratch = tempfile.mkdtemp(prefix="tidegrid-")
        self.engine = worker("engine", Engine, (options, self.holder, self._scratch), self._told)
        self.answering = worker("what-if", Answering, ())
        self._wanted: list[str] = ["start"]
        self._wake = asyncio.Event()
        self._listeners: set[asyncio.Queue[tuple[str, dict[str, Any]] | None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._files: object = None
        self._due: pd.Timestamp | None = None
        self._retry_at = 0.0
        self._loop: asyncio.AbstractEventLoop | None = None

    # life ----------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to lead or to wait."""
        self._loop = asyncio.get_running_loop()
        await asyncio.to_thread(self.tokens.refresh)
        log("service starts", site=str(self.options.site), store=self.store.where, instance=self.holder)
        self._tasks = [asyncio.create_task(self._beats()), asyncio.create_task(self._turns())]

    def let_go(self) -> None:
        """Let listeners go, from a signal's handler."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._let_go)

    def _let_go(self) -> None:
        self.stopping.set()
        for queue in list(self._listeners):
            queue.put_nowait(None)

    async def stop(self) -> None:
        """End within seconds: a tick that is under way is committed whole or not at all."""
        self._let_go()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(self.engine.stop(), self.answering.stop())
        with contextlib.suppress(TidegridError):
            await asyncio.to_thread(self.lease.release)
        self.store.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        log("service ends", instance=self.holder)

    async def _beats(self) -> None:
        """Keep the lease, and what is known of tokens, up to date."""
        while True:
            led = self.leading
            try:
                self.leading = await asyncio.to_thread(self.lease.hold)
                await asyncio.to_thread(self.tokens.refresh)
            except TidegridError as error:
                self.leading = False
                self._failed(error, "the store does not answer")
            if self.leading != led:
                log("leads" if self.leading else "waits", instance=self.holder)
                self.publish("state", self.state())
                self._wake.set()
            await asyncio.sleep(max(0.2, self.options.lease_seconds / 4))

    # ticks ---------------------------------------------------------------------------------------

    def want(self, reason: str) -> None:
        """Ask for a tick as soon as may be."""
        self._wanted.append(reason)
        self._wake.set()

    async def _turns(self) -> None:
        while True:
            try:
                if self.leading:
                    await self._lead()
                else:
                    await self._follow()
            except TidegridError as error:
                self._failed(error, "turn failed")
            except Exception as error:
                # a fault must not end the loop: it is told, and the next turn comes
                logging.getLogger("tidegrid").error("fault", exc_info=error)
                self.problem = printable(f"a fault of tidegrid's own: {type(error).__name__}: {error}")
                self._retry_at = time.monotonic() + RETRY_SECONDS
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.options.watch_seconds):
                    await self._wake.wait()
            self._wake.clear()

    async def _lead(self) -> None:
        if self.clock is None:
            begins = await self.engine.call("begins")
            self.clock = Clock(None if begins is None else pd.Timestamp(begins))
        now = self.clock.now()
        files = await asyncio.to_thread(_signature, self.options.site)
        if self._files is not None and files != self._files:
            # an exporter may write several files: only once they rest
            await asyncio.sleep(min(1.0, self.options.watch_seconds))
            if files == await asyncio.to_thread(_signature, self.options.site):
                self._wanted.append("the files changed")
        if self._due is not None and now >= self._due:
            self._wanted.append("schedule")
        if not self._wanted or time.monotonic() < self._retry_at:
            return
        reasons, self._wanted = list(dict.fromkeys(self._wanted)), []
        every = pd.Timedelta(minutes=self.options.every_minutes)
        self._due = now.floor("D") + (now - now.floor("D")) // every * every + every
        self._files = files
        await self._tick(now, reasons)

    async def _tick(self, now: pd.Timestamp, reasons: list[str]) -> None:
        self.doing = "ticking"
        self.publish("state", self.state())
        began = time.monotonic()
        try:
            ticked: Ticked = await self.engine.call("tick", iso(now))
        except TidegridError as error:
            self.counts.failures += 1
            if isinstance(error, StalePlanError):
                self.counts.stale += 1
            if not isinstance(error, InputError):
                # the same input may do: the files changed meanwhile, or a process died
                self._wanted += reasons
                self._retry_at = time.monotonic() + RETRY_SECONDS
            self._failed(error, "tick failed", reasons=reasons, now=iso(now))
            return
        finally:
            self.doing = ""
            self.counts.seconds = time.monotonic() - began
        self.problem = None
        self.counts.ticks += ticked.fresh
        log(
            "tick",
            tick=ticked.view.tick,
            now=ticked.view.now,
            reasons=reasons,
            seconds=round(ticked.seconds, 3),
            starts=len(ticked.view.commit["start"]),
            fresh=ticked.fresh,
        )
        await self._show(ticked)

    async def _follow(self) -> None:
        """Show what another instance committed."""
        last = await asyncio.to_thread(self.store.last)
        if last is None or (self.view is not None and self.view.tick == last.tick):
            self.doing = "" if self.view is not None else "waiting for the leader's first tick"
            return
        self.doing = "reading the last commit"
        ticked: Ticked | None = await self.engine.call("look")
        self.doing = ""
        if ticked is not None:
            await self._show(ticked)

    async def _show(self, ticked: Ticked) -> None:
        self.view, self.basis, self.ticked_at = ticked.view, ticked.basis, time.monotonic()
        self.publish("commit", {"tick": ticked.view.tick, "now": ticked.view.now})
        self.publish("state", self.state())
        await self.answering.call("load", ticked.basis)

    def _failed(self, error: TidegridError, event: str, **fields: Any) -> None:
        if str(error) != self.problem:
            log(event, logging.WARNING, problem=str(error), **fields)
            self.publish("problem", {"text": str(error)})
        self.problem = str(error)

    def _told(self, text: str) -> None:
        """Take in what the engine says that it does; called from another thread."""
        self.doing = text
        if self._loop is not None and not self.stopping.is_set():
            self._loop.call_soon_threadsafe(self.publish, "state", self.state())

    # what callers ask ----------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether there is something to show."""
        return self.view is not None

    def state(self) -> dict[str, Any]:
        """Return what this instance does."""
        return {
            "leading": self.leading,
            "doing": self.doing,
            "problem": self.problem,
            "shadow": self.options.shadow,
            "tick": None if self.view is None else self.view.tick,
            "now": None if self.view is None else self.view.now,
        }

    def shown(self) -> View:
        """Return the view.

        Raises
        ------
        NotReadyError
            There is none yet.
        """
        if self.view is None:
            raise NotReadyError(f"nothing is planned yet ({self.doing or 'waiting'}); ask again in a moment")
        return self.view

    async def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Answer a what-if from the state of the last commit."""
        self.shown()
        self.counts.questions += 1
        self.questions += 1
        try:
            return dict(await self.answering.call("ask", self.basis, question))
        finally:
            self.questions -= 1

    async def promote(self, name: str, version: str | None) -> list[dict[str, Any]]:
        """Make a version of an estimator its champion, or go back to the one before; the next tick uses it."""
        models: list[dict[str, Any]] = await self.engine.call("promote", name, version)
        if self.view is not None:
            self.view = replace(self.view, models=models)
        self.want(f"the champion of {name} changed")
        return models

    def publish(self, kind: str, data: dict[str, Any]) -> None:
        """Tell everybody who listens."""
        for queue in list(self._listeners):
            if queue.qsize() >= QUEUED:
                self._listeners.discard(queue)
                queue.put_nowait(None)
            else:
                queue.put_nowait((kind, data))

    async def listen(self) -> AsyncIterator[tuple[str, dict[str, Any]] | None]:
        """Yield what is published, as (kind, data); None now and then, so that a lost listener is noticed."""
        queue: asyncio.Queue[tuple[str, dict[str, Any]] | None] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            yield ("state", self.state())
            while not self.stopping.is_set():
                try:
                    async with asyncio.timeout(15):
                        found = await queue.get()
                except TimeoutError:
                    yield None
                    continue
                if found is None:
                    return
                yield found
        finally:
            self._listeners.discard(queue)


class NotReadyError(TidegridError):
    """There is nothing to show yet."""


def _signature(site: Path) -> object:
    """Return what changes when a file of the site does, without reading it."""
    out = []
    for name in FILES:
        try:
            found = (site / name).stat()
        except OSError:
            continue
        out.append((name, found.st_mtime_ns, found.st_size, found.st_ino))
    return tuple(out)
