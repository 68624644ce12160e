"""What is remembered of finished jobs: for every key the last durations, in order of becoming known."""

from dataclasses import dataclass, fields

import numpy as np

from tidegrid.estimators.recurring.keys import NONE

WINDOW = 48
"""How many durations a key remembers."""

SUBMISSIONS = 16
"""How many instants of submission a key remembers."""

MAX_KEYS = 200_000
"""Keys kept at most, the newest first: it bounds a saved estimator to about 100 MB before compression."""


@dataclass
class Memory:
    """The last ``WINDOW`` durations of every key, how often it was seen, and when it was last submitted.

    Attributes
    ----------
    keys : ndarray of uint64, shape (slots,)
        The keys in use, sorted.
    values : ndarray of float32, shape (slots, WINDOW)
        Ring buffers of log hours (log shares of the walltime for the ratio columns).
    flags : ndarray of int8, shape (slots, WINDOW)
        1 where the value is the true duration, 0 where it is a lower bound.
    counts : ndarray of int64, shape (slots,)
        Jobs finished.
    last : ndarray of float64, shape (slots,)
        When the newest became known, in seconds since 1970.
    submits : ndarray of float64, shape (slots, SUBMISSIONS)
        Ring buffers of the instants of submission.
    submitted : ndarray of int64, shape (slots,)
        Jobs submitted; those beyond ``counts`` are open: queued or running.
    """

    keys: np.ndarray
    values: np.ndarray
    flags: np.ndarray
    counts: np.ndarray
    last: np.ndarray
    submits: np.ndarray
    submitted: np.ndarray

    @classmethod
    def empty(cls, slots: int = 0) -> "Memory":
        """Return a memory of nothing, with room for ``slots`` keys."""
        return cls(
            np.zeros(slots, dtype=np.uint64),
            np.zeros((slots, WINDOW), dtype=np.float32),
            np.zeros((slots, WINDOW), dtype=np.int8),
            np.zeros(slots, dtype=np.int64),
            np.full(slots, -np.inf),
            np.full((slots, SUBMISSIONS), -np.inf),
            np.zeros(slots, dtype=np.int64),
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def take(self, at: np.ndarray) -> "Memory":
        """Return a copy of the slots at these places (a mask or indices)."""
        return Memory(**{name: array[at] for name, array in self.arrays().items()})

    def slots(self, keys: np.ndarray) -> np.ndarray:
        """Return the slot of each key, -1 where the key is unknown or ``NONE``; same shape as ``keys``."""
        if not len(self.keys):
            return np.full(keys.shape, -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where((self.keys[at] == keys) & (keys != NONE), at, -1)

    def admit(self, keys: np.ndarray) -> None:
        """Make room for keys that are not there yet."""
        new = np.setdiff1d(keys[keys != NONE], self.keys)
        if not len(new):
            return
        more = Memory.empty(len(new))
        more.keys = new
        if not len(self.keys):
            # nothing to merge with: a history of millions of keys is not copied
            self.__dict__.update(more.arrays())
            return
        order = np.argsort(np.concatenate([self.keys, new]), kind="stable")
        for name, array in self.arrays().items():
            setattr(self, name, np.concatenate([array, getattr(more, name)])[order])

    def with_open(self, keys: np.ndarray, submit: np.ndarray) -> "Memory":
        """Return a memory that shares the durations and knows of these open jobs beside."""
        out = Memory(**{**self.arrays(), "submits": self.submits.copy(), "submitted": self.submitted.copy()})
        slots = self.slots(keys)
        for row in np.argsort(submit, kind="stable"):
            for s in slots[row][slots[row] >= 0]:
                out.submits[s, out.submitted[s] % SUBMISSIONS] = submit[row]
                out.submitted[s] += 1
        return out

    def forget(self) -> None:
        """Drop the keys that have been silent for longest where there are more than ``MAX_KEYS``."""
        if len(self.keys) > MAX_KEYS:
            newest = np.argsort(-self.last, kind="stable")[:MAX_KEYS]
            kept = self.take(np.sort(newest))
            for name, array in kept.arrays().items():
                setattr(self, name, array)
