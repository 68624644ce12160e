"""What happened since the last decision: who arrived, started, ended, failed, was lost or overran."""

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from tidegrid.data import History
from tidegrid.pipeline.memory import LOST, MISSING, RUNNING, WAITING, Event, Outcome, Watched, iso
from tidegrid.pipeline.state import State

FORGOTTEN = pd.Timedelta(days=14)
"""How long the end of a job that left the site's files is waited for."""

BURST_JOBS, BURST_FACTOR = 10, 3.0
"""A burst: at least so many arrivals since the last tick, and so many times what the last week's rate lets expect."""

SLACK = 1e-3
"""A part of the expected duration by which an end may be early or late before it counts as a surprise."""


@dataclass
class Found:
    """What a loop finds when it reads the world.

    Attributes
    ----------
    watched
        The jobs that wait, run, were lost or are missing, by id.
    outcomes
        Attempts that ended.
    events
        What surprised.
    """

    watched: dict[str, Watched]
    outcomes: list[Outcome] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def first_seen(self) -> dict[str, pd.Timestamp]:
        """Since when each job waits."""
        return {job: pd.Timestamp(entry.first_seen) for job, entry in self.watched.items()}


def reconcile(
    before: dict[str, Watched], state: State, history: History, since: pd.Timestamp | None
) -> Found:
    """Compare the state with what was known at the last decision.

    Parameters
    ----------
    before
        The jobs under watch then.
    state
        What is.
    history
        What has happened.
    since
        The instant of the last decision; None before the first.
    """
    found = Found({})
    for job in state.twice:
        found.events.append(twice_listed(job))
    ended = _ends(before, state, history)
    for job in sorted(before):
        if job in ended:
            _close(before[job], ended[job], found)
    open_before = {job: entry for job, entry in before.items() if job not in ended}
    _see_lost(open_before, state, found)
    _see_running(open_before, state, found)
    _see_waiting(open_before, state, found)
    _see_missing(open_before, state, found)
    _see_burst(before, state, history, since, found)
    return found


def twice_listed(job: str) -> Event:
    """Return the event of a job that the sources name as waiting and as running."""
    return Event("in two files", job, f"{job} is in requests and in running; it runs")


def lost_jobs(state: State) -> list[Event]:
    """Return an event for each job that holds a GPU that is down."""
    out = []
    for row in state.lost.to_dict("records"):
        hours = max(0.0, (state.now - row["start_time"]) / pd.Timedelta(hours=1))
        block = f"{row['pool']} {row['first_gpu']}–{int(row['first_gpu']) + int(row['gpus']) - 1}"
        work = f"{_h(hours)} of work on {row['gpus']} GPUs"
        text = f"{row['job_id']} is lost: a GPU of its block ({block}) is down; {work}"
        out.append(Event("lost", str(row["job_id"]), text))
    return out


def _ends(before: dict[str, Watched], state: State, history: History) -> dict[str, dict[str, object]]:
    """Return the record in job history of each watched job that has ended: its latest end since it was first seen."""
    jobs = history.jobs
    jobs = jobs[
        (jobs["status"] != "running").to_numpy() & jobs["job_id"].astype(str).isin(list(before)).to_numpy()
    ]
    runs = set(state.running["job_id"].astype(str))
    if len(state.lost):
        runs |= set(state.lost["job_id"].astype(str))
    still = runs | set(state.requests["job_id"].astype(str))
    out: dict[str, dict[str, object]] = {}
    for row in jobs.to_dict("records"):
        job = str(row["job_id"])
        entry = before[job]
        end = row["known_at"] if pd.isna(row["end_time"]) else row["end_time"]
        since = pd.Timestamp(entry.started or entry.first_seen)
        # an id may be used again: only an end after this attempt began is this attempt's
        if end >= since and (job not in still or (entry.state == RUNNING and job not in runs)):
            out[job] = {str(name): value for name, value in row.items()} | {"end_time": end}
    return out


def _close(entry: Watched, row: dict[str, object], found: Found) -> None:
    if entry.state == LOST:
        return  # that was its outcome already
    status, end = str(row["status"]), pd.Timestamp(row["end_time"])  # type: ignore[arg-type]
    seconds = row["duration_s"]
    hours = None if pd.isna(seconds) else float(seconds) / 3600  # type: ignore[arg-type, call-overload]
    start = row["start_time"]
    started = entry.started if pd.isna(start) else iso(pd.Timestamp(start))  # type: ignore[arg-type, call-overload]
    found.outcomes.append(_outcome(entry, iso(end), status, started, hours))
    if status != "completed":
        found.events.append(
            Event(status, entry.job_id, f"{entry.job_id} ended as {status} after {_h(hours)}")
        )
    elif hours is not None and entry.est_low is not None and hours < entry.est_low * (1 - SLACK):
        said = (
            f"{entry.job_id} ended after {_h(hours)}; nine in ten such jobs take {_h(entry.est_low)} or more"
        )
        found.events.append(Event("early", entry.job_id, said))


def _outcome(entry: Watched, ended: str, status: str, started: str | None, hours: float | None) -> Outcome:
    return Outcome(
        entry.job_id, ended, status, entry.gpus, entry.first_seen, started, hours, entry.told,
        entry.start_low, entry.start_mid, entry.start_high, entry.end_low, entry.end_mid, entry.end_high,
    )  # fmt: skip


def _see_lost(before: dict[str, Watched], state: State, found: Found) -> None:
    for row, event in zip(state.lost.to_dict("records"), lost_jobs(state), strict=True):
        job = str(row["job_id"])
        entry = before.get(job) or _new(row, RUNNING, iso(row["start_time"]))
        if entry.state != LOST:
            entry = replace(entry, started=entry.started or iso(row["start_time"]))
            hours = max(0.0, (state.now - row["start_time"]) / pd.Timedelta(hours=1))
            found.outcomes.append(_outcome(entry, iso(state.now), "lost", entry.started, hours))
            found.events.append(event)
        found.watched[job] = replace(entry, state=LOST)


def _see_running(before: dict[str, Watched], state: State, found: Found) -> None:
    for row in state.running.to_dict("records"):
        job, start = str(row["job_id"]), iso(row["start_time"])
        entry = before.get(job)
        if entry is None:
            submitted = row["submit_time"]
            entry = _new(row, RUNNING, start if pd.isna(submitted) else iso(submitted))
        if entry.started is not None and entry.started != start:
            entry = replace(entry, overran=False)
        entry = replace(entry, state=RUNNING, started=start, gpus=int(row["gpus"]))
        elapsed = (state.now - pd.Timestamp(start)) / pd.Timedelta(hours=1)
        if not entry.overran and entry.est_high is not None and elapsed > entry.est_high * (1 + SLACK):
            entry = replace(entry, overran=True)
            text = f"{job} has run {_h(elapsed)}; nine in ten such jobs end within {_h(entry.est_high)}"
            found.events.append(Event("overrun", job, text))
        found.watched[job] = entry


def _see_waiting(before: dict[str, Watched], state: State, found: Found) -> None:
    for row in state.requests.to_dict("records"):
        job = str(row["job_id"])
        entry = before.get(job)
        if entry is None:
            entry = _new(row, WAITING, iso(min(row["submit_time"], state.now)))
        elif entry.state == RUNNING:
            text = f"{job} ran and waits again; its waiting counts from {entry.first_seen}"
            found.events.append(Event("requeued", job, text))
        elif entry.state == WAITING and entry.committed is not None:
            text = f"{job} was to start at {entry.committed} and still waits; it is planned again"
            found.events.append(Event("not started", job, text))
            entry = replace(entry, committed=None)
        if entry.state != WAITING:
            # a new attempt is told new times
            entry = _new(row, WAITING, entry.first_seen)
        found.watched[job] = entry


def _see_missing(before: dict[str, Watched], state: State, found: Found) -> None:
    for job in sorted(set(before) - set(found.watched)):
        entry = before[job]
        if entry.state == LOST:
            continue
        if entry.state == WAITING and entry.committed is None:
            found.events.append(Event("withdrawn", job, f"{job} left the queue without having run"))
            continue
        if entry.state != MISSING:
            text = f"{job} has left the queue and does not run, and job history has no record of its end yet"
            found.events.append(Event("missing", job, text))
        last = entry.end_high or entry.started or entry.first_seen
        if state.now - pd.Timestamp(last) < FORGOTTEN:
            found.watched[job] = replace(entry, state=MISSING)


def _see_burst(
    before: dict[str, Watched], state: State, history: History, since: pd.Timestamp | None, found: Found
) -> None:
    if since is None or since >= state.now:
        return
    new = [job for job, entry in found.watched.items() if entry.state == WAITING and job not in before]
    jobs = history.jobs
    week = pd.Timedelta(days=7)
    recent = int(((jobs["submit_time"] > since - week) & (jobs["submit_time"] <= since)).sum())
    expected = recent * ((state.now - since) / week)
    if len(new) >= BURST_JOBS and len(new) > BURST_FACTOR * max(expected, 1.0):
        text = f"{len(new)} jobs arrived since {iso(since)}; the last week's rate lets expect {expected:.1f}"
        found.events.append(Event("burst", "queue", text))


def _new(row: dict[object, object], state: str, first_seen: str) -> Watched:
    return Watched(str(row["job_id"]), state, first_seen, int(row["gpus"]))  # type: ignore[call-overload]


def _h(hours: float | None) -> str:
    if hours is None or not np.isfinite(hours):
        return "an unknown time"
    return f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"
