"""What the rolling horizon remembers, as plain records: jobs under watch, outcomes, hours of traffic, events."""

from dataclasses import dataclass, field
from typing import Any

import pandas as pd

WAITING, RUNNING, LOST, MISSING = "waiting", "running", "lost", "missing"


def iso(instant: pd.Timestamp) -> str:
    """Return an instant in UTC as ISO 8601."""
    return pd.Timestamp(instant).tz_convert("UTC").isoformat()


@dataclass(frozen=True)
class Watched:
    """A job that waits, runs, was lost, or left the site's files without a record of its end.

    Attributes
    ----------
    job_id
        Its id.
    state
        ``waiting``, ``running``, ``lost`` or ``missing``.
    first_seen
        From when its waiting counts, ISO 8601 in UTC; kept when the site submits the job again.
    gpus
        GPUs of its block, or those asked for while it waits.
    started
        When it started; None while it waits.
    committed
        When it was last committed to start; None where never.
    est_low, est_high
        The 0.1 and 0.9 quantile of its duration as last planned before it ended, hours.
    told
        The instant at which it was first given expected times; None where never.
    start_low, start_mid, start_high, end_low, end_mid, end_high
        Those expected times at the quantiles 0.1, 0.5 and 0.9.
    overran
        Whether an overrun was reported.
    """

    job_id: str
    state: str
    first_seen: str
    gpus: int
    started: str | None = None
    committed: str | None = None
    est_low: float | None = None
    est_high: float | None = None
    told: str | None = None
    start_low: str | None = None
    start_mid: str | None = None
    start_high: str | None = None
    end_low: str | None = None
    end_mid: str | None = None
    end_high: str | None = None
    overran: bool = False


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended, beside the times that it was first told; ``status`` as in job history, or ``lost``."""

    job_id: str
    ended: str
    status: str
    gpus: int
    first_seen: str
    started: str | None
    hours: float | None
    told: str | None
    start_low: str | None
    start_mid: str | None
    start_high: str | None
    end_low: str | None
    end_mid: str | None
    end_high: str | None


@dataclass(frozen=True)
class Hour:
    """An hour of a series: what a model forecast an hour before it, units, and what came (None: not known yet)."""

    series: str
    hour: str
    low: float
    mid: float
    high: float
    actual: float | None = None
    model: str = "realtime"


@dataclass(frozen=True)
class Hold:
    """GPUs that an app holds from a tick on, and the swaps that this took."""

    app: str
    gpus: int
    swaps: int


@dataclass(frozen=True)
class Unmet:
    """GPU-hours of an app's demand in an hour: what was needed, and what the GPUs that it held left unmet."""

    app: str
    hour: str
    needed: float
    unmet: float


@dataclass(frozen=True)
class Event:
    """A surprise: its kind, whom it concerns, and one line that says what happened."""

    kind: str
    subject: str
    text: str


@dataclass(frozen=True)
class Changes:
    """All that one tick writes, in one transaction."""

    watched: list[Watched]
    outcomes: list[Outcome]
    hours: list[Hour]
    holds: list[Hold]
    unmet: list[Unmet]
    events: list[Event]
    problem: dict[str, Any]
    plan: dict[str, Any]
    forecast: dict[str, Any]
    meta: dict[str, str] = field(default_factory=dict)
