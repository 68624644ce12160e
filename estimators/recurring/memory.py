"""What is remembered of finished jobs: for every key the last durations, in order of becoming known."""

from dataclasses import dataclass, field

import numpy as np

from tidegrid.estimators.recurring.keys import NONE

WINDOW = 20
"""How many durations a key remembers: the window of the rolling median that is the usual baseline."""

GRID = np.array(
    [
        0.001,
        0.005,
        0.01,
        0.025,
        *np.round(np.arange(0.05, 0.951, 0.05), 2).tolist(),
        0.975,
        0.99,
        0.995,
        0.999,
    ]
)
"""The levels at which a predictive distribution is sampled."""

PRIOR_ATOMS = 24


@dataclass
class Memory:
    """The last ``WINDOW`` durations of every key, and how often each key was seen.

    Attributes
    ----------
    keys : ndarray of uint64, shape (slots,)
        The keys in use, sorted.
    values : ndarray of float32, shape (slots, WINDOW)
        Ring buffers of log hours.
    flags : ndarray of int8, shape (slots, WINDOW)
        1 where the value is the true duration, 0 where it is a lower bound.
    counts : ndarray of int64, shape (slots,)
        Jobs seen.
    last : ndarray of float64, shape (slots,)
        When the newest became known, in seconds since 1970.
    """

    keys: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.uint64))
    values: np.ndarray = field(default_factory=lambda: np.empty((0, WINDOW), dtype=np.float32))
    flags: np.ndarray = field(default_factory=lambda: np.empty((0, WINDOW), dtype=np.int8))
    counts: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    last: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.float64))

    def copy(self) -> "Memory":
        """Return a copy that can learn on its own."""
        return Memory(*(getattr(self, f).copy() for f in ("keys", "values", "flags", "counts", "last")))

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
        merged = np.concatenate([self.keys, new])
        order = np.argsort(merged, kind="stable")
        grow = len(new)
        self.keys = merged[order]
        self.values = np.concatenate([self.values, np.zeros((grow, WINDOW), np.float32)])[order]
        self.flags = np.concatenate([self.flags, np.zeros((grow, WINDOW), np.int8)])[order]
        self.counts = np.concatenate([self.counts, np.zeros(grow, np.int64)])[order]
        self.last = np.concatenate([self.last, np.full(grow, -np.inf)])[order]
