"""Shadow mode, day by day: what a site did, beside what the decisions that nobody followed would have done.

Each turn is measured from what the site really was at that moment: GPUs that lay idle until the next turn although a
waiting job was to start on them, and what apps held beside what was planned for them. Nothing is added up that could
not have been at once, so that the comparison asks for no simulation.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pandas as pd

from tidegrid.pipeline.memory import Outcome, Watched, iso
from tidegrid.pipeline.rolling import Commit, StateStore

DAYS = 14
"""Days that are shown, the one under way included."""

HOUR = pd.Timedelta(hours=1)


@dataclass(frozen=True)
class Turn:
    """What one decision said: when, the GPUs of each job to start, and each app's GPUs at the site and as planned."""

    now: pd.Timestamp
    starts: Mapping[str, int]
    apps: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Attempt:
    """What the site did with a job: from when it waited, and when it started it; None where it still waits."""

    job: str
    since: pd.Timestamp
    started: pd.Timestamp | None


@dataclass
class Shadow:
    """The turns of the last days, read from the store once each."""

    turns: list[Turn] = field(default_factory=list)
    seen: int = 0

    def follow(self, store: StateStore, commit: Commit) -> None:
        """Take in the commits up to one that were not seen yet."""
        oldest = pd.Timestamp(commit.now) - pd.Timedelta(days=DAYS)
        new = commit.tick - self.seen
        for one in store.commits(new) if new > 0 else ():
            if self.seen < one.tick <= commit.tick:
                self.turns.append(_turn(one))
        self.seen = max(self.seen, commit.tick)
        self.turns = [one for one in self.turns if one.now >= oldest]

    def days(self, store: StateStore, zone: str, now: str) -> list[dict[str, Any]]:
        """Return the days, the newest first; see :func:`days_of`."""
        if not self.turns:
            return []
        first = iso(self.turns[0].now.floor("h"))
        seen: list[Outcome | Watched] = [*store.outcomes(), *store.watched().values()]
        attempts = [
            Attempt(
                one.job_id,
                pd.Timestamp(one.first_seen),
                None if one.started is None else pd.Timestamp(one.started),
            )
            for one in seen
            if one.started is None or one.started >= first
        ]
        needed = {(one.app, pd.Timestamp(one.hour)): one.needed for one in store.unmet() if one.hour >= first}
        return days_of(self.turns, attempts, needed, zone, pd.Timestamp(now))


def _turn(commit: Commit) -> Turn:
    document = commit.document
    return Turn(
        pd.Timestamp(commit.now),
        {str(one["job"]): int(one["gpus"]) for one in document["start"]},
        {
            str(one["app"]): (len(one["gpus"]) - len(one["enter"]) + len(one["leave"]), len(one["gpus"]))
            for one in document["apps"]
        },
    )


def days_of(
    turns: Sequence[Turn],
    attempts: Iterable[Attempt],
    needed: Mapping[tuple[str, pd.Timestamp], float],
    zone: str,
    until: pd.Timestamp,
) -> list[dict[str, Any]]:
    """Return what happened on each day in the site's zone, beside what the turns said, the newest day first.

    Parameters
    ----------
    turns
        By time.
    attempts
        What the site did with jobs.
    needed
        GPUs that apps truly needed, by app and hour, as far as that is known by now.
    zone
        IANA zone of the days.
    until
        Now.

    Returns
    -------
    list of dict
        ``day``; ``started`` (jobs that the site started after they had waited), ``wait_h`` (their mean wait);
        ``sooner`` (those that a turn would have started before the site did), ``sooner_h`` (by how much, on average);
        ``idle_gpu_hours`` (GPUs that lay idle from a turn to the next, or to the job's start if that was before, though
        a waiting job was to start on them); ``held_gpu_hours`` (by apps) and ``planned_gpu_hours`` (for them), over the
        hours whose need is known; ``short_gpu_hours`` and ``planned_short_gpu_hours`` (needed and not held, or not
        planned). Means of nothing are None.
    """
    days: dict[str, dict[str, Any]] = {}

    def of(at: pd.Timestamp) -> dict[str, Any]:
        name = str(at.tz_convert(zone).date())
        sums = ("idle", "held", "planned", "short", "planned_short")
        return days.setdefault(name, {"waits": [], "gains": [], **dict.fromkeys(sums, 0.0)})

    started: dict[str, list[pd.Timestamp]] = {}
    first: dict[str, list[pd.Timestamp]] = {}
    for turn in turns:
        for job in turn.starts:
            first.setdefault(job, []).append(turn.now)
    for one in attempts:
        if one.started is None or not turns or one.started < turns[0].now:
            continue
        started.setdefault(one.job, []).append(one.started)
        day = of(one.started)
        day["waits"].append((one.started - one.since) / HOUR)
        told = [at for at in first.get(one.job, ()) if one.since <= at < one.started]
        if told:
            day["gains"].append((one.started - told[0]) / HOUR)
    for turn, end in pairwise([*turns, Turn(until, {}, {})]):
        for job, gpus in turn.starts.items():
            began = min((at for at in started.get(job, ()) if at >= turn.now), default=end.now)
            of(turn.now)["idle"] += gpus * max(0.0, (min(began, end.now) - turn.now) / HOUR)
        for begin, stop in _hours(turn.now, end.now):
            for app, (site, planned) in turn.apps.items():
                need = needed.get((app, begin.floor("h")))
                if need is None:
                    continue
                hours, day = (stop - begin) / HOUR, of(begin)
                for name, amount in (("held", site), ("planned", planned)):
                    day[name] += amount * hours
                day["short"] += max(0.0, need - site) * hours
                day["planned_short"] += max(0.0, need - planned) * hours
    return [
        {
            "day": name,
            "started": len(day["waits"]),
            "wait_h": _mean(day["waits"]),
            "sooner": len(day["gains"]),
            "sooner_h": _mean(day["gains"]),
            "idle_gpu_hours": round(day["idle"], 3),
            "held_gpu_hours": round(day["held"], 3),
            "planned_gpu_hours": round(day["planned"], 3),
            "short_gpu_hours": round(day["short"], 3),
            "planned_short_gpu_hours": round(day["planned_short"], 3),
        }
        for name, day in sorted(days.items(), reverse=True)
    ]


def _hours(begin: pd.Timestamp, end: pd.Timestamp) -> Iterable[tuple[pd.Timestamp, pd.Timestamp]]:
    """Yield the parts of a span that lie in one hour each."""
    while begin < end:
        stop = min(end, begin.floor("h") + HOUR)
        yield begin, stop
        begin = stop


def _mean(values: Sequence[float]) -> float | None:
    return round(sum(values) / len(values), 3) if values else None


NAMES = (
    "day", "started", "wait_h", "sooner", "sooner_h", "idle_gpu_hours", "held_gpu_hours", "planned_gpu_hours",
    "short_gpu_hours", "planned_short_gpu_hours",
)  # fmt: skip
"""A day's values."""
