"""Worlds that a loop runs on: each reads its state, and applies what was decided.

A world is a class that meets :class:`World`. ``files`` is a site's folder: what really happens is the site's doing,
and its next files tell. ``slurm`` is a live cluster, through its commands. ``simulated`` is a trace whose truth is
hidden: it is read in the same way, and does what each decision says at once, without a store. What a loop remembers
(swaps, bands, the last plan) is its own, see :mod:`tidegrid.pipeline.control`, and so is the same in all.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import pandas as pd

from tidegrid.data import History
from tidegrid.errors import InputError
from tidegrid.pipeline.rolling.store import Commit
from tidegrid.pipeline.state import State


@dataclass(frozen=True)
class Reading:
    """What a world tells at an instant.

    Attributes
    ----------
    state
        What is.
    news
        What has become known since the reading before: ended jobs, and hours of traffic.
    history
        Returns all that is known.
    set_aside
        Rows that cannot be used, one error each: the rest was read.
    notes
        What was worked out or left out in reading, one line each.
    waits
        Jobs that wait and that the state leaves out because they cannot be planned, by id, and why.
    """

    state: State
    news: History
    history: Callable[[], History]
    set_aside: tuple[InputError, ...] = ()
    notes: tuple[str, ...] = ()
    waits: Mapping[str, str] = field(default_factory=dict)


HOUR = pd.Timedelta(hours=1)


def news_since(history: History, since: pd.Timestamp) -> History:
    """Return the jobs that ended, and the hours of traffic that became known, after an instant."""
    jobs, traffic = history.jobs, history.traffic
    jobs = jobs[((jobs["known_at"] > since) & (jobs["status"] != "running")).to_numpy()]
    hours = traffic[(traffic["timestamp"] + HOUR > since).to_numpy()]
    return History(jobs, hours, checked=True, instant=history.instant)


class World(Protocol):
    """What a loop reads and acts on; any class with these members is one."""

    @property
    def name(self) -> str:
        """What messages call it, such as ``the files of my-site``; plural."""
        ...

    def version(self) -> str:
        """Return the version of what a reading rests on, such as the SHA-256 of files.

        A loop commits one decision for a version and an instant, and none where the version has changed while it
        decided. A live cluster changes at any moment: it gives the version of its configuration alone, and checks
        each job again when a decision is applied.

        Raises
        ------
        InputError
            It cannot be read.
        """
        ...

    def read(self, now: pd.Timestamp, since: pd.Timestamp | None = None) -> Reading:
        """Return what is known.

        Parameters
        ----------
        now
            The instant, UTC: nothing later is told.
        since
            The instant of the reading before; what became known after it is news. None before the first: all is.

        Raises
        ------
        InputError
            It cannot be read; what only a part of it lacks is in :attr:`Reading.set_aside` or :attr:`Reading.notes`.
        """
        ...

    def apply(self, commit: Commit) -> None:
        """Act on the last commit.

        It is called after the commit is stored, and may be called again for the same one, after a restart for
        example: to apply a commit twice must be the same as to apply it once.
        """
        ...
