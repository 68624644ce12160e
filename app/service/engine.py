"""What runs in the worker processes: ticks with estimators that stay loaded, and answers to what-ifs."""

import os
import pickle
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from tidegrid.app.service.fared import models_of
from tidegrid.app.service.options import Options
from tidegrid.app.service.shadowing import Shadow
from tidegrid.app.service.view import Moves, View, view_of
from tidegrid.data import as_instant
from tidegrid.errors import InputError
from tidegrid.models import ModelStore
from tidegrid.pipeline.bands import widths_of
from tidegrid.pipeline.champions import preferred
from tidegrid.pipeline.control import REFITTED, champions, remembered, tick
from tidegrid.pipeline.fetched import refresh_site
from tidegrid.pipeline.forecast import RECORD_DAYS
from tidegrid.pipeline.memory import Changes, iso
from tidegrid.pipeline.resident import Resident
from tidegrid.pipeline.rolling import Commit, StateStore
from tidegrid.pipeline.rolling.lease import guard
from tidegrid.pipeline.site import Site
from tidegrid.pipeline.whatif import Basis, Question
from tidegrid.pipeline.worlds.files import Files


@dataclass(frozen=True)
class Ticked:
    """What a tick, or a look at the last one, gives the server.

    Attributes
    ----------
    view
        What the page and the API show.
    basis
        The file that what-ifs are answered from.
    fresh
        Whether a commit was made.
    seconds
        How long it took.
    """

    view: View
    basis: str
    fresh: bool
    seconds: float


class _Led(StateStore):
    """A store that only the leader writes, together with what a refit left to remember."""

    def __init__(self, where: str, holder: str) -> None:
        super().__init__(where)
        self.guard = guard(holder)
        self.remember: dict[str, str] = {}

    def write(self, commit: Commit, changes: Changes) -> None:
        """Write one tick."""
        changes.meta.update(self.remember)
        super().write(commit, changes)
        self.remember = {}


class Engine:
    """The loop on a site's folder, in a process of its own.

    Parameters
    ----------
    options
        How.
    holder
        This instance's name in the lease.
    scratch
        A private folder for the files that what-ifs are answered from.
    """

    step: Callable[[str], None] = staticmethod(lambda text: None)

    def __init__(self, options: Options, holder: str, scratch: str) -> None:
        self.options, self.scratch = options, Path(scratch)
        self.store = _Led(options.store, holder)
        self.models = ModelStore(options.models)
        self.world = Files(options.site, options.timezone, options.out)
        self.moves = Moves()
        self.shadow = Shadow() if options.shadow else None
        self.forecaster: Resident | None = None
        self.handed_over = False

    def begins(self) -> str | None:
        """Return the instant at which a site's own clock begins; None where the service goes by this machine's."""
        site = Site.read(self.options.site, timezone=self.options.timezone)
        wanted = self.options.site_clock
        if not (site.cluster.synthetic if wanted is None else wanted):
            return None
        last = self.store.last()
        return iso(
            site.now if last is None else max(site.now, pd.Timestamp(last.now) + pd.Timedelta(seconds=1))
        )

    def tick(self, now: str) -> Ticked:
        """Tick at an instant."""
        began, moment = time.perf_counter(), as_instant(now)
        how, before = self.options.settings, self.store.last()
        if before is not None and not self.handed_over:
            # a process may have ended between committing and handing over
            self.world.apply(before)
        self.handed_over = True
        for note in refresh_site(self.options.site, moment):
            self.step(note)
        if self.forecaster is None or self._refit_is_due(moment):
            self._prepare(moment)
        commit = tick(self.store, self.world, moment, how, forecaster=self.forecaster, step=self.step)
        return self._ticked(commit, before is None or commit.tick > before.tick, began)

    def look(self) -> Ticked | None:
        """Return what another process committed last; None before the first commit."""
        began, last = time.perf_counter(), self.store.last()
        return None if last is None else self._ticked(last, False, began)

    def promote(self, name: str, version: str | None) -> list[dict[str, Any]]:
        """Make a version of an estimator its champion, or go back to the one before; return the models.

        Raises
        ------
        InputError
            There is no such estimator or version, or none before.
        """
        at = iso(pd.Timestamp.now("UTC").floor("s"))
        if version is None:
            self.models.rollback(name, reason="asked for through the service", at=at)
        else:
            self.models.promote(name, version, reason="asked for through the service", at=at)
        self.forecaster = None  # the next tick loads the champions again
        return models_of(self.models)

    def _refit_is_due(self, now: pd.Timestamp) -> bool:
        hours, before = self.options.settings.refit_hours, self.store.info(REFITTED)
        return (
            hours is not None and before is not None and now - as_instant(before) >= pd.Timedelta(hours=hours)
        )

    def _prepare(self, now: pd.Timestamp, train: bool = True) -> Resident:
        """Load the champions, brought up to date; those of a leader are fitted where there are none, or due."""
        how = self.options.settings if train else replace(self.options.settings, refit_hours=None)
        self.step("reading the site")
        reading = self.world.read(now)
        answers, notes, meta = champions(self.store, reading, self.models, how, self.step)
        recorded = self.store.hours(iso(now - RECORD_DAYS))
        history = reading.history()
        made = Resident(preferred(answers, how.policy.estimators), history, learnt=now, recorded=recorded)
        made.notes = notes
        if train:
            self.store.remember = meta
        self.forecaster = made
        return made

    def _ticked(self, commit: Commit, fresh: bool, began: float) -> Ticked:
        how = self.options.settings
        now = pd.Timestamp(commit.now)
        made = self.forecaster
        if made is None or made.asked is None or made.asked[0].now != now:
            made = self._prepare(now, train=False)
            made.forecast(self.world.read(now).state, how.policy)
        assert made.asked is not None
        memory = remembered(self.store, now, how)
        widths = widths_of(self.store.outcomes(), self.store.watched().values(), now)
        basis = Basis(made, how, memory.last, widths)
        self.step("writing what the page shows")
        seconds = time.perf_counter() - began
        state, history = made.asked[0], made.history
        view = view_of(self.store, commit, state, history, self.models, self.moves, seconds, self.shadow)
        return Ticked(view, self._kept(basis, commit.tick), fresh, time.perf_counter() - began)

    def _kept(self, basis: Basis, number: int) -> str:
        for old in sorted(self.scratch.glob("basis-*"), key=lambda path: path.stat().st_mtime)[:-1]:
            old.unlink(missing_ok=True)
        handle, name = tempfile.mkstemp(prefix=f"basis-{number}-", dir=self.scratch)
        with os.fdopen(handle, "wb") as file:
            pickle.dump(basis, file, protocol=pickle.HIGHEST_PROTOCOL)
        return name


class Answering:
    """Answers what-ifs, in a process of its own, from what the engine left."""

    step: Callable[[str], None] = staticmethod(lambda text: None)

    def __init__(self) -> None:
        self._from = ""
        self._basis: Basis | None = None

    def load(self, path: str) -> None:
        """Take in the basis of a tick before it is asked for."""
        if path != self._from or self._basis is None:
            # written by this service's own engine, in a folder that nobody else may write to
            self._basis, self._from = pickle.loads(Path(path).read_bytes()), path
            _ = self._basis.times

    def ask(self, path: str, question: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a question."""
        try:
            self.load(path)
        except FileNotFoundError:
            raise InputError("a newer commit was made meanwhile", fix="ask again") from None
        assert self._basis is not None
        return self._basis.ask(Question.model_validate(question))
