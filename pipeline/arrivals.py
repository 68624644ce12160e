"""What may still arrive, and how long a waiting job is held up by it: jobs that come later may go first."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from tidegrid.data import Cluster, History

FUTURES = 200
"""Futures that are looked at: as many as there are of durations."""

DAYS = 4
"""Days of arrivals that each future holds; past them work goes on arriving at their mean rate."""

OLDEST = 28
"""Days back from which arrivals are drawn."""

SETTLED = 2
"""Days after which the work that arrived in a day is taken to be known: what still runs is in no history."""

LATEST_H = 14 * 24.0
"""Hours from now at which an expected start ends: a job that is always overtaken has no better time."""

SHARES = 64
"""Steps between none and all of the newcomers in which the share that goes before a job is told: each costs a pass."""

PAST = 1e6
"""Hours that lie past all that are looked at."""

LEAST_RATE = 0.02
"""The least share of a pool that is left for what waits, however much arrives."""


@dataclass
class Arrived:
    """The jobs that have arrived, as history tells them one after another.

    Attributes
    ----------
    submitted, gpu_hours
        When each was submitted, in hours since 1970, and what it took.
    types
        Its GPU type, empty where unknown.
    """

    submitted: list[np.ndarray] = field(default_factory=list)
    gpu_hours: list[np.ndarray] = field(default_factory=list)
    types: list[np.ndarray] = field(default_factory=list)

    def see(self, news: History) -> None:
        """Take in jobs that have ended."""
        if not len(news):
            return
        jobs = news.jobs
        ended = jobs["duration_s"].notna().to_numpy() & (jobs["status"] != "running").to_numpy()
        if not ended.any():
            return
        if not ended.all():
            jobs = jobs[ended]
        self.submitted.append(jobs["submit_time"].to_numpy(dtype="datetime64[s]").astype("int64") / 3600)
        gpus, seconds = (jobs[name].to_numpy(dtype=float) for name in ("gpus", "duration_s"))
        self.gpu_hours.append(gpus * seconds / 3600)
        types = (
            jobs["gpu_type"].to_numpy(dtype=object) if "gpu_type" in jobs else np.full(len(jobs), "", object)
        )
        self.types.append(types)

    def again(self, now: pd.Timestamp, cluster: Cluster) -> dict[str, np.ndarray]:
        """Return what may arrive from now on: futures that are each put together from past days at this time of day.

        Returns
        -------
        dict of str to ndarray of shape (FUTURES, 24 * DAYS)
            For each pool the GPU-hours that arrive until the end of each hour. Empty where not one whole day is
            settled. Work of unknown GPU type falls on the pools by their size.
        """
        if not self.submitted:
            return {}
        age = now.timestamp() / 3600 - np.concatenate(self.submitted)
        work, types = np.concatenate(self.gpu_hours), np.concatenate(self.types)
        days = min(OLDEST, int(age.max() // 24)) - SETTLED
        if days < 1:
            return {}
        day = (age // 24).astype(int) - SETTLED
        hour = np.clip(24 - np.ceil(age % 24), 0, 23).astype(int)
        kept = (day >= 0) & (day < days)
        drawn = np.random.default_rng(0).integers(0, days, (FUTURES, DAYS))
        out, gpus = {}, sum(pool.gpus for pool in cluster.pools)
        for pool in cluster.pools:
            alike = sum(one.gpus for one in cluster.pools if one.gpu_type == pool.gpu_type)
            share = np.where(
                types == pool.gpu_type, pool.gpus / alike, np.where(types == "", pool.gpus / gpus, 0.0)
            )
            at = day[kept] * 24 + hour[kept]
            by_day = np.bincount(at, (work * share)[kept], days * 24).reshape(days, 24)
            out[pool.id] = by_day[drawn].reshape(FUTURES, -1).cumsum(axis=1)
        return out


@dataclass(frozen=True)
class Arrivals:
    """What may arrive while the jobs of a plan wait.

    Attributes
    ----------
    work
        As :meth:`Arrived.again` gives it.
    priorities
        Those of the jobs that wait and run, ascending: newcomers are taken to have such ones.
    """

    work: Mapping[str, np.ndarray] = field(default_factory=dict)
    priorities: np.ndarray = field(default_factory=lambda: np.empty(0))
    _done: dict[tuple[str, float, float], np.ndarray] = field(default_factory=dict, init=False, compare=False)

    def ahead(self, priority: float) -> float:
        """Return the share of newcomers that go before a job: those of a higher priority, and half of its equals.

        Rounded to one of ``SHARES``.
        """
        if not len(self.priorities):
            return 0.0
        below, upto = (np.searchsorted(self.priorities, priority, side) for side in ("left", "right"))
        return round(SHARES * (1.0 - float(below + upto) / 2 / len(self.priorities))) / SHARES

    def held_up(self, starts_h: np.ndarray, pool: str, gpus: float, share: float) -> np.ndarray:
        """Return when jobs start that would start at ``starts_h`` if nothing arrived.

        What goes before it takes the pool's GPUs first: the job starts once they have had the time for both (the busy
        period of a queue with priorities, Cobham 1954, Operations Research 2, 70-76, as a flow of work).

        Parameters
        ----------
        starts_h : ndarray of shape (FUTURES,) or (jobs, FUTURES)
            Hours from now.
        gpus
            GPUs of the pool that serve jobs, on average.
        share
            The share of newcomers that goes before them.

        Returns
        -------
        ndarray of the shape of ``starts_h``
            At most ``LATEST_H``, and never before ``starts_h``.
        """
        if pool not in self.work or not share or gpus <= 0:
            return starts_h
        last = self.work[pool].shape[1]
        key = (pool, share, gpus)
        if key not in self._done:
            # how much of the work that is there already is done after so many hours
            left = np.pad(np.arange(1.0, last + 1) - self.work[pool] * (share / gpus), ((0, 0), (1, 0)))
            self._done[key] = np.maximum.accumulate(np.maximum(left, 0.0), axis=1)
        done = self._done[key]
        # each future's hours lie past all of those of the futures before it, so that one search finds all
        rows = np.arange(starts_h.shape[-1])
        apart, at_most = rows * PAST, np.minimum(starts_h, PAST / 2)
        after = np.searchsorted((done + apart[:, None]).ravel(), at_most + apart) - rows * (last + 1)
        k = np.clip(after, 1, last)
        low, high = done[rows, k - 1], done[rows, k]
        inside = k - 1 + (starts_h - low) / np.maximum(high - low, 1e-9)
        rate = max(1.0 - float(self.work[pool][:, -1].mean()) * (share / gpus) / last, LEAST_RATE)
        at = np.where(after > last, last + (starts_h - done[:, -1]) / rate, inside)
        return np.maximum(starts_h, np.minimum(np.where(after == 0, 0.0, at), LATEST_H))
