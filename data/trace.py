"""A day of a trace as a queue, and the days before it as history."""

import datetime as dt
from dataclasses import dataclass

import pandas as pd

from tidegrid.data.history import History
from tidegrid.data.schema import validate
from tidegrid.data.tables import JOBS, REQUESTS
from tidegrid.errors import InputError
from tidegrid.zones import zone_of


@dataclass(frozen=True)
class TraceDay:
    """A trace cut at the start of a day.

    Parameters
    ----------
    start
        The instant at which the day begins.
    history
        What was known then.
    requests
        The day's submissions, as requests that all wait at its start.
    """

    start: pd.Timestamp
    history: History
    requests: pd.DataFrame


def requests_from_trace(
    jobs: pd.DataFrame,
    day: dt.date | str,
    *,
    timezone: str = "UTC",
    max_gpus: int | None = None,
    limit: int | None = None,
    priority: int = 5,
    at_once: bool = False,
    traffic: pd.DataFrame | None = None,
) -> TraceDay:
    """Return a day of submissions as requests, and what was known when it began as history.

    The durations, ends and outcomes of the day are left out: a planner has to estimate them. ``earliest_time`` is
    each job's submit time, so that a plan made at the start of the day may not start a job before it was there.

    Parameters
    ----------
    jobs
        Job history, as :func:`tidegrid.data.read_jobs` returns it.
    day
        A local date.
    timezone
        The IANA zone of the date.
    max_gpus
        Leave out jobs that ask for more.
    limit
        At most so many requests, the earliest.
    priority
        The priority of every request; no public trace carries any.
    at_once
        Let every request start from the first step on, as if all had been submitted just before the day.
    traffic
        Traffic to keep in the history, cut at the same instant.

    Raises
    ------
    InputError
        The day has no submissions.
    """
    zone = zone_of(timezone)
    try:
        date = dt.date.fromisoformat(str(day))
    except ValueError:
        raise InputError(f"{day!r} is not a date", field="day", fix="write it as 2026-03-02") from None
    start = pd.Timestamp(dt.datetime.combine(date, dt.time(), zone)).tz_convert("UTC")
    end = pd.Timestamp(dt.datetime.combine(date + dt.timedelta(days=1), dt.time(), zone)).tz_convert("UTC")
    submitted = (jobs["submit_time"] >= start) & (jobs["submit_time"] < end)
    if max_gpus is not None:
        submitted &= jobs["gpus"] <= max_gpus
    queue = jobs[submitted].sort_values(["submit_time", "job_id"], kind="stable").drop_duplicates("job_id")
    queue = queue.head(limit) if limit is not None else queue
    if queue.empty:
        first, last = jobs["submit_time"].min(), jobs["submit_time"].max()
        raise InputError(
            f"no job was submitted on {date}",
            field="day",
            fix=f"give a day from {first.date()} to {last.date()}",
        )
    known = [c.name for c in JOBS.columns if c.known == "submit" and c.name in queue.columns]
    queue = queue[known].assign(priority=priority).reset_index(drop=True)
    if not at_once:
        queue = queue.assign(earliest_time=queue["submit_time"])
    requests = validate(queue, REQUESTS)
    return TraceDay(start, History(jobs, traffic, checked=True).as_of(start), requests)
