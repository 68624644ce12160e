"""Whom to believe: which mean of the past's answer and the trees' has been closest for the user's recent jobs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tidegrid.estimators.recurring.keys import NONE, RUNGS

SHARES = np.array([1.0, 0.5, 0.0])
"""What the past's answer weighs against the trees' in each answer that there is to choose from."""

CAP = 2.3
"""Error in log time from which a miss is a miss: a decade."""

KEEP = 0.99
"""What an outcome still weighs when the next comes in: about a hundred outcomes count."""

SHRINK = 10.0
"""Outcomes at which a record is believed by half against the next coarser one."""

BURST_S = 3600.0
"""Jobs of a user and size submitted with no longer gaps are one burst; it counts as the root of its jobs."""

_RUNGS = [RUNGS.index(name) for name in ("site", "user", "user+gpus")]


@dataclass
class Record:
    """For each key the weighted losses of the answers and their weight, and where its burst stands.

    Attributes
    ----------
    losses : dict of int to list of float
        By key: the weighted sum of each answer's losses, then the sum of weights.
    bursts : dict of int to list of float
        By key of user and GPUs: the newest submission of the burst in seconds, and its jobs so far.
    """

    losses: dict[int, list[float]] = field(default_factory=dict)
    bursts: dict[int, list[float]] = field(default_factory=dict)

    def choice(self, keys: list[int]) -> int:
        """Return the place in ``SHARES`` of the best answer for the keys of a row; the past's before any outcome."""
        best = [0.0] * len(SHARES)
        for key in keys:
            if key in self.losses:
                *losses, weight = self.losses[key]
                best = [
                    (loss + SHRINK * mean) / (weight + SHRINK)
                    for loss, mean in zip(losses, best, strict=True)
                ]
        return best.index(min(best))

    def weight(self, key: int, submit: float) -> float:
        """Return what a job adds to the weight of its burst."""
        newest, place = self.bursts.get(key, (-np.inf, 0.0))
        place = place + 1.0 if submit - newest <= BURST_S else 1.0
        self.bursts[key] = [max(newest, submit), place]
        return float(place**0.5 - (place - 1.0) ** 0.5)

    def add(self, keys: list[int], losses: list[float], weight: float) -> None:
        """Take in an outcome."""
        keep = KEEP**weight
        for key in keys:
            if key != NONE:
                before = self.losses.get(key, [0.0] * (len(SHARES) + 1))
                self.losses[key] = [
                    keep * old + weight * new for old, new in zip(before, [*losses, 1.0], strict=True)
                ]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the record as arrays by name."""
        out = {}
        for name, table in vars(self).items():
            out[f"{name}_keys"] = np.fromiter(table, dtype=np.uint64, count=len(table))
            out[name] = np.array(list(table.values()), dtype=float)
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Record":
        """Rebuild the record from :meth:`arrays`."""
        names = ("losses", "bursts")
        return cls(*(dict(zip(arrays[f"{n}_keys"].tolist(), arrays[n].tolist(), strict=True)) for n in names))


def record_keys(keys: np.ndarray) -> list[list[int]]:
    """Return each row's keys of site, user, and user with these GPUs."""
    return list(keys[:, _RUNGS].tolist())


def losses(error: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the loss of errors (truth less answer, log time), 0 to 1; a lower bound tells only of answers below."""
    return np.minimum(np.where(exact, np.abs(error), np.maximum(error, 0.0)), CAP) / CAP
