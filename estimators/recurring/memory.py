"""What is remembered of past jobs, and what of it each of many jobs could know."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from tidegrid.estimators.recurring.jobs import Jobs
from tidegrid.estimators.recurring.keys import NONE

WINDOW = 48
"""How many durations a key remembers."""

MAX_KEYS = 50_000
"""Keys kept at most, the newest first: it bounds a saved estimator to about 30 MB before compression."""

RING = np.dtype([("hours", "f4"), ("exact", "?"), ("known", "f8")])
"""A remembered job: log hours, whether they are the duration (else a lower bound), when it became known (seconds)."""

PART = 4096
"""Rows whose past is held at once."""

_NEVER = np.array((np.nan, True, np.inf), dtype=RING)


@dataclass(frozen=True)
class Past:
    """What was known of each row's rungs at its instant.

    Attributes
    ----------
    hours, exact : ndarray of shape (rows, rungs, WINDOW)
        Log hours, newest first, NaN beyond; False where one is a lower bound.
    count, open : ndarray of shape (rows, rungs)
        Jobs that had ended, and those submitted but not ended; NaN where a row does not have the rung.
    age, idle : ndarray of shape (rows, rungs)
        Seconds since the newest became known, and since the last submission; NaN for none.
    """

    hours: np.ndarray
    exact: np.ndarray
    count: np.ndarray
    open: np.ndarray
    age: np.ndarray
    idle: np.ndarray


@dataclass
class Memory:
    """For every key the last ``WINDOW`` jobs, in order of becoming known. Slot 0 is nobody's and stays empty.

    Attributes
    ----------
    index : dict of int to int
        The slot of each key.
    ring : ndarray of RING, shape (room, WINDOW)
        Job ``n`` of a key stands at ``n % WINDOW``.
    ended, begun : ndarray of int64
        Jobs ended, and jobs submitted.
    sent : ndarray of shape (room, 2)
        The newest submission and the one before, seconds.
    """

    index: dict[int, int] = field(default_factory=lambda: {NONE: 0})
    ring: np.ndarray = field(default_factory=lambda: np.full((1, WINDOW), _NEVER))
    ended: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    begun: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    sent: np.ndarray = field(default_factory=lambda: np.full((1, 2), -np.inf))

    def slots(self, keys: np.ndarray, admit: bool = False) -> np.ndarray:
        """Return the slot of each key, 0 for one never seen; with ``admit`` every key gets one."""
        flat = keys.ravel().tolist()
        if admit:
            for key in flat:
                self.index.setdefault(key, len(self.index))
            more = len(self.index) - len(self.ended)
            if more > 0:
                more = max(more, len(self.ended) // 2)
                self.ring = np.concatenate([self.ring, np.full((more, WINDOW), _NEVER)])
                self.ended, self.begun = (
                    np.concatenate([counts, np.zeros(more, np.int64)]) for counts in (self.ended, self.begun)
                )
                self.sent = np.concatenate([self.sent, np.full((more, 2), -np.inf)])
        return np.array([self.index.get(key, 0) for key in flat], dtype=np.int64).reshape(keys.shape)

    def submit(self, slots: np.ndarray, instant: float) -> None:
        """Note a submission."""
        self.begun[slots] += 1
        self.sent[slots, 1] = self.sent[slots, 0]
        self.sent[slots, 0] = instant

    def end(self, slots: np.ndarray, hours: float, exact: bool, known: float) -> None:
        """Take in a job that became known."""
        self.ring[slots, self.ended[slots] % WINDOW] = np.array((hours, exact, known), dtype=RING)
        self.ended[slots] += 1

    def recall(self, keys: np.ndarray, now: np.ndarray, own: int) -> Past:
        """Return the past of rows as of ``now`` (seconds); ``own`` is 1 where the rows are among the submissions."""
        slots = self.slots(keys)
        return _past(
            keys, now, self.ring[slots], self.ended[slots], self.begun[slots], self.sent[slots, own], own
        )

    def live(self, keys: np.ndarray, jobs: Jobs, ask: np.ndarray) -> Iterator[Past]:
        """Live through jobs in time; yield the past of those asked, as of their submission, in parts.

        Parameters
        ----------
        keys : ndarray of uint64, shape (jobs, rungs)
        jobs
            The jobs; in the end all of them are remembered.
        ask : ndarray of int
            Places of jobs in ascending order of submission.
        """
        slots = self.slots(keys, admit=True)
        # nobody's slot is left out, so that it stays empty
        own = [row[row > 0] for row in slots]
        hours, exact, known = jobs.log_hours.tolist(), jobs.exact.tolist(), jobs.known.tolist()
        parts = [ask[k : k + PART] for k in range(0, max(len(ask), 1), PART)]
        happened = in_order(jobs)
        for part in parts:
            shape = len(part), slots.shape[1]
            ring, sent = np.empty((*shape, WINDOW), RING), np.empty(shape)
            ended, begun = np.empty(shape, np.int64), np.empty(shape, np.int64)
            i = 0
            while i < len(part):
                submission, row = next(happened)
                if not submission:
                    self.end(own[row], hours[row], exact[row], known[row])
                    continue
                self.submit(own[row], float(jobs.submit[row]))
                if row == part[i]:
                    at = slots[row]
                    ring[i], ended[i], begun[i] = self.ring[at], self.ended[at], self.begun[at]
                    sent[i] = self.sent[at, 1]
                    i += 1
            yield _past(keys[part], jobs.submit[part], ring, ended, begun, sent, 1)
        for submission, row in happened:
            if submission:
                self.submit(own[row], float(jobs.submit[row]))
            else:
                self.end(own[row], hours[row], exact[row], known[row])

    def forget(self) -> None:
        """Drop the keys that have been silent for longest where there are more than ``MAX_KEYS``."""
        if len(self.index) > MAX_KEYS:
            newest = np.argsort(-self.sent[1 : len(self.index), 0], kind="stable")[:MAX_KEYS]
            kept = np.concatenate([[0], 1 + np.sort(newest)])
            keys = np.array(list(self.index), dtype=np.uint64)[kept]
            self.index = {key: slot for slot, key in enumerate(keys.tolist())}
            self.ring, self.sent = self.ring[kept], self.sent[kept]
            self.ended, self.begun = self.ended[kept], self.begun[kept]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what is remembered by name."""
        used = len(self.index)
        rings = {f"ring_{name}": self.ring[name][:used] for name in RING.names or ()}
        counts = {"ended": self.ended[:used], "begun": self.begun[:used], "sent": self.sent[:used]}
        return {"keys": np.array(list(self.index), dtype=np.uint64), **rings, **counts}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Memory":
        """Rebuild the memory from :meth:`arrays`."""
        index = {key: slot for slot, key in enumerate(arrays["keys"].tolist())}
        ring = np.empty((len(index), WINDOW), RING)
        for name in RING.names or ():
            ring[name] = arrays[f"ring_{name}"]
        return cls(index, ring, *(arrays[name].copy() for name in ("ended", "begun", "sent")))


def in_order(jobs: Jobs) -> Iterator[tuple[bool, int]]:
    """Yield (is it a submission, its place) of jobs in time; an end at a submission's instant comes after it."""
    sent, told = np.argsort(jobs.submit, kind="stable"), np.argsort(jobs.known, kind="stable")
    ready = np.searchsorted(jobs.known[told], jobs.submit[sent], side="left")
    ends, done = told.tolist(), 0
    for row, until in zip(sent.tolist(), ready.tolist(), strict=True):
        for k in range(done, until):
            yield False, ends[k]
        done = max(done, until)
        yield True, row
    for row in ends[done:]:
        yield False, row


def _past(
    keys: np.ndarray,
    now: np.ndarray,
    ring: np.ndarray,
    ended: np.ndarray,
    begun: np.ndarray,
    sent: np.ndarray,
    own: int,
) -> Past:
    cells = (ended[..., None] - 1 - np.arange(WINDOW)) % WINDOW
    ring = np.take_along_axis(ring, cells, axis=2)
    # what has become known since a row's instant was not known to it
    late = ~(ring["known"] < now[:, None, None])
    if (late[..., 0] & ~late.all(axis=2)).any():
        ring = np.take_along_axis(ring, np.argsort(late, axis=2, kind="stable"), axis=2)
        late = ~(ring["known"] < now[:, None, None])
    absent = keys == NONE
    hours = np.where(late, np.nan, ring["hours"])
    age = np.where(late[..., 0], np.nan, now[:, None] - ring["known"][..., 0])
    idle = np.where(np.isfinite(sent), np.maximum(now[:, None] - sent, 0.0), np.nan)
    count, waiting = np.where(absent, np.nan, ended), np.maximum(begun - ended - own, 0)
    return Past(hours, ring["exact"], count, np.where(absent, np.nan, waiting), age, idle)
