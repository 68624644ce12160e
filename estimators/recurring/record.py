"""Whom to believe: by how much the past has foretold better than the trees, for the user's jobs of this size."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tidegrid.estimators.recurring.keys import NONE, RUNGS

CAP = 0.69
"""Error in log time from which a miss is a miss: a factor of two."""

KEEP = 0.99
"""What an outcome still weighs when the next comes in: about a hundred outcomes count."""

SHRINK = (5.0, 10.0, 10.0)
"""Outcomes at which the record of the site, the user, the user with these GPUs is believed by half."""

BURST_S = 3600.0
"""Jobs of a user and size submitted with no longer gaps are one burst."""

SURE, LEAD = 0.6, 0.23
"""How much the past's own agreement counts beside the record, and the lead from which the past answers.

Chosen with ``CAP`` and the shrinkages on the traces of Helios Venus (2020) and Alliance Cedar (2021): a low lead gains
median error, a high one rank correlation. Without a record, past jobs answer where they agree by 88 %.
"""

_RUNGS = [RUNGS.index(name) for name in ("site", "user", "user+gpus")]


@dataclass
class Record:
    """For each key the sum of leads and their weight, and where its burst stands.

    Attributes
    ----------
    leads : dict of int to list of float
        By key: the weighted sum of leads, the sum of weights.
    bursts : dict of int to list of float
        By key of user and GPUs: the newest submission of the burst in seconds, and its jobs so far.
    """

    leads: dict[int, list[float]] = field(default_factory=dict)
    bursts: dict[int, list[float]] = field(default_factory=dict)

    def lead(self, keys: list[int]) -> float:
        """Return by how much the past leads for the keys of a row (site, user, user with these GPUs)."""
        out = 0.0
        for key, shrink in zip(keys, SHRINK, strict=True):
            total, weight = self.leads.get(key, (0.0, 0.0))
            out = (total + shrink * out) / (weight + shrink)
        return out

    def counts(self, key: int, submit: float) -> bool:
        """Say whether a job stands for its burst: the 1st, 4th, 9th … does, the root of its jobs in number."""
        newest, place = self.bursts.get(key, (-np.inf, 0.0))
        place = place + 1.0 if submit - newest <= BURST_S else 1.0
        self.bursts[key] = [max(newest, submit), place]
        return round(place**0.5) ** 2 == place

    def add(self, keys: list[int], lead: float) -> None:
        """Take in an outcome."""
        for key in keys:
            if key != NONE:
                total, weight = self.leads.get(key, (0.0, 0.0))
                self.leads[key] = [KEEP * total + lead, KEEP * weight + 1.0]

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the record as arrays by name."""
        out = {}
        for name, table in (("leads", self.leads), ("bursts", self.bursts)):
            out[f"{name}_keys"] = np.fromiter(table, dtype=np.uint64, count=len(table))
            out[name] = np.array(list(table.values()), dtype=float).reshape(-1, 2)
        return out

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> "Record":
        """Rebuild the record from :meth:`arrays`."""
        tables = [
            dict(zip(arrays[f"{name}_keys"].tolist(), arrays[name].tolist(), strict=True))
            for name in ("leads", "bursts")
        ]
        return cls(*tables)


def record_keys(keys: np.ndarray) -> list[list[int]]:
    """Return each row's keys of site, user, and user with these GPUs."""
    return list(keys[:, _RUNGS].tolist())


def loss(error: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return the loss of errors (truth less answer, log time), 0 to 1; a lower bound tells only of answers below."""
    return np.minimum(np.where(exact, np.abs(error), np.maximum(error, 0.0)), CAP) / CAP
