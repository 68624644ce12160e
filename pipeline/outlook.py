"""What a user is told of one job, from the store alone: when it starts and ends, why it waits, what would be sooner.

A user waits for the answer, so this reads what it needs and imports little: a file of SQLite is read without pandas.
"""

import json
import math
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import quote

import numpy as np

from tidegrid.errors import InputError
from tidegrid.zones import zone_of

Band = tuple[datetime, datetime, datetime]
"""Instants at the levels 0.1, 0.5 and 0.9."""

LEVELS = ("q0.1", "q0.5", "q0.9")
"""The names of these levels."""

LEAST_PAST, MOST_PAST = 10, 200
"""How many past jobs tell how long one runs that is not submitted yet: at least and at most."""

MOST_SOONER = 5
"""The ways to start sooner that are told."""


@dataclass(frozen=True)
class Way:
    """A way to run: what is asked for, and when it would start, behind all that is planned already.

    Attributes
    ----------
    pool, gpus, nodes, hours
        Where, on how many GPUs of how many nodes, and for how long.
    """

    what: str
    start: datetime
    pool: str = ""
    gpus: int = 0
    nodes: int = 0
    hours: float = 0.0


@dataclass(frozen=True)
class Told:
    """What is known of a job.

    Attributes
    ----------
    state
        ``waiting``, ``starting``, ``running``, ``ended``, ``refused``, ``not submitted`` or ``unknown``.
    as_of
        The instant of the decision that tells it.
    start, end
        Expected, with their 80 % bands; None where no time is told.
    reason
        Why it waits, or how it ended.
    sooner
        What would start sooner.
    by
        Of a job not yet submitted, when its time limit ends it at the latest.
    """

    job: str
    state: str
    as_of: datetime
    zone: str
    start: Band | None = None
    end: Band | None = None
    reason: str = ""
    sooner: tuple[Way, ...] = ()
    notes: tuple[str, ...] = field(default=())
    by: datetime | None = None


@dataclass(frozen=True)
class Kept:
    """What a store holds of its last decision, as JSON values, and how attempts ended, the oldest first."""

    document: Mapping[str, Any]
    problem: Mapping[str, Any]
    plan: Mapping[str, Any]
    forecast: Mapping[str, Any]
    outcomes: Sequence[Mapping[str, Any]]


_OUTCOME = ("job_id", "ended", "status", "started", "end_low", "end_high", "gpus", "hours")


def kept_in(where: str) -> Kept:
    """Return what a store holds, without a change to it.

    Parameters
    ----------
    where
        A file of SQLite, for which the right to read is enough, or a database's URL.

    Raises
    ------
    InputError
        It cannot be read, or holds no decision.
    """
    return _kept_at(where) if "://" in where else _kept_in_file(Path(where))


def _kept_in_file(path: Path) -> Kept:
    if not path.is_file():
        raise InputError("there is no state", file=path, fix="name it with --state or TIDEGRID_STATE")
    try:
        db = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=10)
        try:
            last = db.execute(
                "SELECT tick, document FROM tidegrid_commits ORDER BY tick DESC LIMIT 1"
            ).fetchone()
            if last is None:
                raise _empty(str(path))
            plan = db.execute(
                "SELECT problem, plan, forecast FROM tidegrid_plans WHERE tick = ?", last[:1]
            ).fetchone()
            names = ", ".join(_OUTCOME)
            rows = db.execute(f"SELECT {names} FROM tidegrid_outcomes ORDER BY ended, job_id").fetchall()
        finally:
            db.close()
        parts = [json.loads(zlib.decompress(part)) for part in plan or ()] or [{}, {}, {}]
        outcomes = [dict(zip(_OUTCOME, row, strict=True)) for row in rows]
        return Kept(json.loads(last[1]), parts[0], parts[1], parts[2], outcomes)
    except (sqlite3.Error, zlib.error, ValueError, TypeError) as error:
        raise InputError(
            f"cannot be read ({error})", file=path, fix="name a state that turns have left"
        ) from None


def _kept_at(url: str) -> Kept:
    from dataclasses import asdict

    from tidegrid.pipeline.rolling import StateStore

    state = StateStore(url)
    last = state.last()
    if last is None:
        raise _empty(state.where)
    kept = state.plan(last.tick) or {"problem": {}, "plan": {}, "forecast": {}}
    return Kept(last.document, **kept, outcomes=[asdict(one) for one in state.outcomes()])


def _empty(where: str) -> InputError:
    return InputError(
        "no decision is in it yet", file=where, fix="run a turn first: tidegrid slurm tick SITE"
    )


class Outlook:
    """The last decision, for questions about single jobs.

    Parameters
    ----------
    kept
        What the store holds of it.
    """

    def __init__(self, kept: Kept) -> None:
        self.document, self.problem, self.plan = kept.document, kept.problem, kept.plan
        self.outcomes = kept.outcomes
        etas = kept.forecast.get("etas", {"columns": [], "data": []})
        self.etas = {row[0]: dict(zip(etas["columns"], row, strict=True)) for row in etas["data"]}
        self.now = datetime.fromisoformat(self.document["now"])
        self.zone = str(self.document.get("timezone", "UTC"))

    def told(self, job: str) -> list[Told]:
        """Return what is known of a job, or of each task of an array; empty where it is not known."""
        tasks = sorted({name for name in self._names() if job in (name, _array(name))}, key=_by_number)
        return [self._one(name) for name in tasks] or self._past(job)

    def offered(self, gpus: int, hours: float, nodes: int | None = None, pool: str | None = None) -> Told:
        """Return when a job that is not yet submitted would start and end, behind all others.

        How long it runs inside its limit is what past jobs of its size, or else all past jobs, tell.

        Parameters
        ----------
        gpus, nodes
            What it asks for; as few nodes as hold the GPUs where absent.
        hours
            Its time limit: it ends before.
        pool
            The pool; any where absent.
        """
        pools = [one for one in self.problem.get("pools", ()) if pool in (None, one["id"])]
        ways = [(self._first(one, gpus, nodes, hours), one["id"]) for one in pools]
        at, name = min(ways, key=lambda way: (way[0] is None, way[0] or 0, way[1]), default=(None, ""))
        asked = f"{gpus} GPUs for {_hours(hours)}"
        if at is None:
            why = f"there is no place for {asked} in the next {_hours(self._horizon_h)}"
            sooner = self._sooner(gpus, nodes, hours, pools, None)
            return Told(asked, "not submitted", self.now, self.zone, None, None, why, sooner)
        start = self._band(at)
        end: Band | None = None
        notes: tuple[str, ...] = ()
        ran, whose = self._ran(gpus)
        if ran:
            # each quantile of the start with the same of the time that it runs: the band is no narrower than theirs
            lasts = [min(ran[int(level * (len(ran) - 1))], hours) for level in (0.1, 0.5, 0.9)]
            low, mid, high = (at + timedelta(hours=last) for at, last in zip(start, lasts, strict=True))
            end, notes = (low, mid, high), (f"its end is told by the last {len(ran)} {whose}",)
        by = start[2] + timedelta(hours=hours)
        reason = f"in {name}" + ("" if at else ", as soon as it is submitted")
        sooner = self._sooner(gpus, nodes, hours, pools, at) if at else ()
        return Told(asked, "not submitted", self.now, self.zone, start, end, reason, sooner, notes, by)

    def _ran(self, gpus: int) -> tuple[list[float], str]:
        """Return the hours that past jobs ran, ascending, and whose they are; none where too few are known."""
        known = [(one["gpus"], float(one["hours"])) for one in self.outcomes if one["hours"]]
        same = [hours for size, hours in known if size == gpus][-MOST_PAST:]
        count = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        if len(same) >= LEAST_PAST:
            return sorted(same), f"jobs on {count}"
        every = [hours for _, hours in known][-MOST_PAST:]
        return (sorted(every), "jobs of any size") if len(every) >= LEAST_PAST else ([], "")

    # single jobs ---------------------------------------------------------------------------------

    def _names(self) -> Iterator[str]:
        yield from self.etas
        for key in ("waiting", "refused", "start"):
            for one in self.document.get(key, ()):
                yield str(one["job"])

    def _one(self, job: str) -> Told:
        eta = self.etas.get(job)
        end = None if eta is None else _band_of(eta, "end")
        start = None if eta is None else _band_of(eta, "start")
        if any(one["job"] == job for one in self.document["start"]):
            return Told(job, "starting", self.now, self.zone, start, end, "it is to start now")
        for one in self.document.get("refused", ()):
            if one["job"] == job:
                return Told(job, "refused", self.now, self.zone, reason=one["reason"])
        for one in self.document["waiting"]:
            if one["job"] == job:
                return Told(
                    job, "waiting", self.now, self.zone, start, end, one["reason"], self._changed(job)
                )
        return Told(job, "running", self.now, self.zone, start, end)

    def _past(self, job: str) -> list[Told]:
        last = {
            str(one["job_id"]): one
            for one in self.outcomes
            if job in (one["job_id"], _array(str(one["job_id"])))
        }
        if not last:
            return [Told(job, "unknown", self.now, self.zone, reason="no decision has seen it")]
        return [self._ended(name, last[name]) for name in sorted(last, key=_by_number)]

    def _ended(self, job: str, one: Mapping[str, Any]) -> Told:
        end = datetime.fromisoformat(one["ended"])
        start = None if one["started"] is None else datetime.fromisoformat(one["started"])
        notes = []
        if one["end_low"] is not None and one["end_high"] is not None:
            low, high = (self.local(datetime.fromisoformat(one[name])) for name in ("end_low", "end_high"))
            notes.append(f"at first its end was expected between {low} and {high}")
        began = None if start is None else (start, start, start)
        return Told(
            job, "ended", self.now, self.zone, began, (end, end, end), one["status"], (), tuple(notes)
        )

    def local(self, instant: datetime) -> str:
        """Return an instant as the cluster's wall clock shows it."""
        return f"{instant.astimezone(zone_of(self.zone)):%a %Y-%m-%d %H:%M}"

    def _changed(self, job: str) -> tuple[Way, ...]:
        """Return what would let a waiting job start sooner than its place in the plan."""
        stated = next((one for one in self.problem.get("jobs", ()) if one["id"] == job), None)
        if stated is None or not stated["shapes"] or stated.get("earliest") or stated.get("after"):
            return ()
        shape = stated["shapes"][stated.get("requested") or 0]
        spot = next((p for p in self.plan.get("placements", ()) if p["job"] == job), None)
        hours = shape["steps"] * self._step_h
        pools = [one for one in self.problem["pools"] if one["id"] in {s["pool"] for s in stated["shapes"]}]
        own = None if spot is None else int(spot["start"])
        if own == 0:
            return ()
        return self._sooner(shape["gpus"], shape.get("nodes"), hours, pools, own, job=stated)

    def _sooner(
        self,
        gpus: int,
        nodes: int | None,
        hours: float,
        pools: Sequence[Mapping[str, Any]],
        own: int | None,
        job: Mapping[str, Any] | None = None,
    ) -> tuple[Way, ...]:
        """Return ways that start before step ``own``: fewer GPUs, a shorter time limit, another pool.

        Each is legal beside all that is planned: GPUs that are free, and the limits that the ``job`` counts in.
        """
        tried: list[tuple[str, Iterable[Mapping[str, Any]], int, int | None, float]] = []
        for part in (2, 4, 8):
            if gpus % part == 0:
                count = "1 GPU" if gpus == part else f"{gpus // part} GPUs"
                # a job on fewer GPUs takes the longer for it: the work stays the same
                tried.append((f"{count} for {_hours(hours * part)}", pools, gpus // part, None, hours * part))
        for part in (2, 4):
            if hours / part >= self._step_h:
                tried.append((f"a time limit of {_hours(hours / part)}", pools, gpus, nodes, hours / part))
        given = {pool["id"] for pool in pools}
        for pool in self.problem.get("pools", ()):
            if pool["id"] not in given:
                tried.append((f"GPUs of {pool['id']}", [pool], gpus, nodes, hours))
        found: list[tuple[int, Way]] = []
        for what, where, count_, wide, long in tried:
            steps = [(self._first(pool, count_, wide, long, job), pool) for pool in where]
            at, pool = min(steps, key=lambda one: math.inf if one[0] is None else one[0])
            if at is not None and (own is None or at < own):
                nodes_ = wide or self._fewest(pool, count_)
                found.append((at, Way(what, self._instant(at), str(pool["id"]), count_, nodes_, long)))
        found.sort(key=lambda one: (one[0], one[1].what))
        return tuple(way for _, way in found[:MOST_SOONER])

    # the plan's free GPUs ------------------------------------------------------------------------

    @property
    def _step_h(self) -> float:
        return float(self.problem.get("step_minutes", 60)) / 60

    @property
    def _horizon_h(self) -> float:
        return float(self.problem.get("steps", 0)) * self._step_h

    def _instant(self, step: int) -> datetime:
        return self.now + timedelta(hours=step * self._step_h)

    def _busy(self, pool: Mapping[str, Any], without: str | None) -> np.ndarray:
        """Return which GPUs of a pool are taken in which step. Shape (GPUs, steps), bool."""
        steps = int(self.problem["steps"])
        busy = np.zeros((int(pool["gpus"]), steps), dtype=bool)
        for p in self.plan.get("placements", ()):
            if p["pool"] == pool["id"] and p["job"] != without:
                busy[_ids(p), int(p["start"]) : int(p["start"]) + int(p["steps"])] = True
        for app in self.plan.get("apps", ()):
            for t, cells in enumerate(app["cells"][:steps]):
                flat = [gpu for one in cells for gpu in (one if isinstance(one, list) else [one])]
                if flat and self._pool_of(app["app"]) == pool["id"]:
                    busy[flat, t] = True
        for shut in pool.get("closed") or ():
            busy[shut["gpus"][0] : shut["gpus"][1], int(shut["from"]) : int(shut["to"])] = True
        return busy

    def _pool_of(self, app: str) -> str:
        return next((str(one["pool"]) for one in self.problem["apps"] if one["id"] == app), "")

    def _first(
        self,
        pool: Mapping[str, Any],
        gpus: int,
        nodes: int | None,
        hours: float,
        job: Mapping[str, Any] | None = None,
    ) -> int | None:
        """Return the first step from which so many GPUs are free for so long; None for none inside the horizon."""
        size = int(pool.get("node_size") or pool["gpus"])
        wide = nodes or self._fewest(pool, gpus)
        each = -(-gpus // wide)
        if each > size or gpus > int(pool["gpus"]):
            return None
        busy = self._busy(pool, None if job is None else job["id"])
        full = self._full(pool, gpus, job)
        steps = busy.shape[1]
        taken = np.concatenate([np.zeros((len(busy), 1), np.int64), np.cumsum(busy, axis=1)], axis=1)
        long = max(1, int(np.ceil(hours / self._step_h - 1e-9)))
        for at in range(steps):
            free = taken[:, min(steps, at + long)] == taken[:, at]
            if full[at : at + long].any():
                continue
            if pool.get("placement") != "node":
                if _has_block(free, gpus, size):
                    return at
                continue
            whole = len(free) // size * size
            on_node = free[:whole].reshape(-1, size).sum(axis=1)
            if (on_node >= each).sum() >= wide:
                return at
        return None

    def _fewest(self, pool: Mapping[str, Any], gpus: int) -> int:
        return -(-gpus // int(pool.get("node_size") or pool["gpus"]))

    def _full(self, pool: Mapping[str, Any], gpus: int, job: Mapping[str, Any] | None) -> np.ndarray:
        """Return the steps in which a limit that a job counts in has no room for it. Shape (steps,), bool."""
        out = np.zeros(int(self.problem["steps"]), dtype=bool)
        if job is None:
            return out
        of = {one["id"]: one for one in self.problem["jobs"]}
        for key, owner in (("tenant", job.get("tenant")), ("group", job.get("group"))):
            rule = next((one for one in self.problem.get(f"{key}s", ()) if one["id"] == owner), None)
            if rule is None:
                continue
            most = rule["most"] if key == "group" else rule["limit"]
            here = isinstance(most, Mapping)
            if here and pool["id"] not in most:
                continue
            used = np.zeros(len(out), np.int64)
            for p in self.plan.get("placements", ()):
                counts = p["job"] != job["id"] and of[p["job"]].get(key) == owner
                if counts and (not here or p["pool"] == pool["id"]):
                    used[int(p["start"]) : int(p["start"]) + int(p["steps"])] += (
                        1 if key == "group" else len(_ids(p))
                    )
            out |= used + (1 if key == "group" else gpus) > (most[pool["id"]] if here else most)
        return out

    def _band(self, step: int) -> Band:
        """Return a band around a step, as wide as those of the waiting jobs that are expected near it."""
        at = self._instant(step)
        if step == 0:
            return at, at, at
        waiting = {one["job"] for one in self.document["waiting"]}
        bands = [_band_of(eta, "start") for job, eta in self.etas.items() if job in waiting]
        if not bands:
            return at, at, at
        near = sorted(bands, key=lambda band: abs(band[1] - at))[:20]
        low, high = (
            timedelta(seconds=median((band[i + 1] - band[i]).total_seconds() for band in near))
            for i in (0, 1)
        )
        return max(self.now, at - low), at, at + high


def _band_of(eta: Mapping[str, Any], which: str) -> Band:
    low, mid, high = (datetime.fromisoformat(eta[f"{which}_{level}"]) for level in LEVELS)
    return low, mid, high


def _ids(placement: Mapping[str, Any]) -> list[int]:
    if placement.get("gpu_ids"):
        return list(placement["gpu_ids"])
    first = int(placement["first_gpu"])
    return list(range(first, first + int(placement["gpus"])))


def _has_block(free: np.ndarray, gpus: int, size: int) -> bool:
    """Whether a pool in a line has a free block for so many GPUs: a power of two, in a node or from one's start."""
    block = 1 << max(0, gpus - 1).bit_length()
    if block > len(free):
        return False
    first = np.arange(len(free) - block + 1)
    before = np.concatenate([[0], np.cumsum(free)])
    whole = before[first + block] - before[first] == block
    legal = first // size == (first + block - 1) // size if block <= size else first % size == 0
    return bool((whole & legal).any())


def _array(name: str) -> str:
    """Return the array that a task belongs to; empty for a job of its own."""
    return name.rpartition("_")[0]


def _by_number(name: str) -> tuple[str, int, str]:
    head, _, tail = name.rpartition("_")
    return head, int(tail) if tail.isdigit() else 0, tail


def _hours(hours: float) -> str:
    return f"{hours:.3g} h" if hours >= 1 else f"{60 * hours:.0f} min"
