"""What really happens in a replay: jobs with their true durations, and true demand by the hour."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.data import block_size, read_jobs, read_traffic
from tidegrid.errors import InputError
from tidegrid.pipeline.tracesite import user_priority

HOUR = 3600.0
WARM_UP_HOURS = 14 * 24
"""Hours of traffic before a replay's start that its forecaster may look at: two weeks, the shortest weekly history."""


@dataclass(frozen=True)
class RealtimeApp:
    """An app of a replay.

    Parameters
    ----------
    id
        Its name.
    priority
        1 to 10.
    swap_cap
        GPUs that may enter or leave an hour; None for no cap.
    traffic
        Units an hour, ``WARM_UP_HOURS`` before the start and then the whole replay; NaN is a collection gap.
    units_per_gpu
        Units an hour that one GPU serves.
    """

    id: str
    priority: int
    swap_cap: int | None
    traffic: np.ndarray
    units_per_gpu: float

    def gpus(self) -> np.ndarray:
        """Return the GPUs truly needed in each hour of the replay; a gap needs what the hour before it needed."""
        return self._needed()[WARM_UP_HOURS:]

    def gpus_before(self) -> int:
        """Return the GPUs needed in the last hour before the replay."""
        return int(self._needed()[WARM_UP_HOURS - 1])

    def _needed(self) -> np.ndarray:
        filled = pd.Series(self.traffic).ffill().fillna(0.0).to_numpy()
        return np.ceil(filled / self.units_per_gpu - 1e-9).astype(np.int64)


@dataclass(frozen=True)
class Outage:
    """A GPU that does not work from one second of a replay until another; the job on it fails."""

    gpu: int
    from_s: float
    until_s: float


@dataclass(frozen=True)
class Trace:
    """A trace to replay on one pool.

    Parameters
    ----------
    start
        Instant of second 0, UTC.
    gpus, node_size
        The pool.
    jobs
        Job history in the documented schema, sorted by submit time, fresh index.
    submit_s, duration_s
        Seconds from ``start``, and the true seconds that each job runs.
    block
        GPUs of each job's block, a power of two.
    priority
        1 to 10, by user.
    limit_s
        The requested time limit in seconds, NaN where the trace has none.
    apps
        Realtime apps.
    end_s
        Where the replay ends.
    left_out
        Jobs of the trace that cannot be played, by why.
    timezone
        The IANA zone of the local week.
    outages
        GPUs that fail.
    country
        ISO 3166 code of the public holidays that demand follows; None for none.
    """

    start: pd.Timestamp
    gpus: int
    node_size: int | None
    jobs: pd.DataFrame
    submit_s: np.ndarray
    duration_s: np.ndarray
    block: np.ndarray
    priority: np.ndarray
    limit_s: np.ndarray
    apps: tuple[RealtimeApp, ...]
    end_s: float
    left_out: Mapping[str, int] = field(default_factory=dict)
    timezone: str = "UTC"
    outages: tuple[Outage, ...] = ()
    country: str | None = None

    @property
    def hours(self) -> int:
        """Hours of the replay, the last one begun included."""
        return int(np.ceil(self.end_s / HOUR - 1e-9))

    def demand(self) -> np.ndarray:
        """Return the true GPUs of each app in each hour, shape (apps, hours)."""
        return np.array([app.gpus()[: self.hours] for app in self.apps], np.int64).reshape(-1, self.hours)

    def without_apps(self) -> "Trace":
        """Return the same jobs on the same pool, alone."""
        return replace(self, apps=())

    def equal_priorities(self) -> "Trace":
        """Return the same trace with every priority 5."""
        return replace(self, priority=np.full_like(self.priority, 5))

    def digest(self) -> str:
        """Return the SHA-256 of all that a policy is measured on."""
        h = hashlib.sha256()
        for array in (self.submit_s, self.duration_s, self.block, self.priority, self.demand()):
            h.update(np.ascontiguousarray(array).tobytes())
        return h.hexdigest()


def at_far_end(gpus: int, counts: Sequence[int]) -> list[list[int]]:
    """Return the GPUs of apps that hold so many each, from the pool's last GPU down, the first app outermost."""
    cells = []
    top = gpus
    for count in counts:
        first = max(0, top - count)
        cells.append(list(range(first, top)))
        top = first
    return cells


def trace_from_files(
    jobs: str | Path | pd.DataFrame,
    traffic: str | Path | None,
    *,
    gpus: int,
    node_size: int | None = 8,
    series: Sequence[str] = (),
    realtime_share: float = 0.25,
    swap_cap: int | None = None,
    realtime_priority: int = 8,
    days: float | None = None,
    skip_days: int = 0,
    timezone: str = "UTC",
    country: str | None = None,
    seed: int = 0,
    notes: list[str] | None = None,
    set_aside: list[InputError] | None = None,
) -> Trace:
    """Make a trace from a file of jobs and one of hourly traffic.

    Jobs wider than the pool are left out; GPU counts are rounded up to powers of two. Traffic is repeated where the
    trace is longer, and scaled so that the apps' joint peak is ``realtime_share`` of the pool.

    Parameters
    ----------
    jobs
        A trace that :func:`tidegrid.data.read_jobs` reads, or its table.
    traffic
        Hourly traffic; None for jobs alone.
    gpus, node_size
        The pool.
    series
        The traffic series to use, one app each; all of the longest where empty.
    realtime_share
        The apps' joint peak as a share of the pool.
    swap_cap
        GPUs that an app may exchange an hour; an eighth of its peak, at least 4, where absent.
    realtime_priority
        Priority of the apps.
    days
        Replay only so many days of the trace.
    skip_days
        Leave out the first days of the trace and of the traffic, to tune on one part and score on another.
    timezone
        The zone of times in the traces that carry none.
    country
        ISO 3166 code of the public holidays that demand follows; None for none.
    seed
        Seeds the users' priorities (see :func:`tidegrid.pipeline.tracesite.user_priority`).
    notes
        Appended to: what was worked out or left out in reading.
    set_aside
        Appended to: rows that cannot be used, one error each; where absent, the first of them raises.

    Raises
    ------
    InputError
        A file is not usable, a series is unknown, no job fits the pool, or none is left.
    """
    table = (
        jobs
        if isinstance(jobs, pd.DataFrame)
        else read_jobs(jobs, timezone=timezone, notes=notes, set_aside=set_aside)
    )
    ends, fits = table["status"] != "running", block_size(table["gpus"]) <= gpus
    why = {"without an end": int((~ends).sum()), f"wider than {gpus} GPUs": int((ends & ~fits).sum())}
    left_out = {cause: count for cause, count in why.items() if count}
    table = table[ends & fits]
    table = table.sort_values(["submit_time", "job_id"], kind="stable", ignore_index=True)
    if table.empty:
        raise InputError(f"no job fits {gpus} GPUs", field="gpus", fix="give a larger pool")
    start = table["submit_time"].iloc[0].floor("h") + pd.Timedelta(days=skip_days)
    table = table[table["submit_time"] >= start].reset_index(drop=True)
    if table.empty:
        raise InputError(f"no job is left after {skip_days} days", field="skip_days", fix="skip fewer days")
    submit = (table["submit_time"] - start).dt.total_seconds().to_numpy()
    if days is not None:
        kept = submit < days * 24 * HOUR
        table, submit = table[kept].reset_index(drop=True), submit[kept]
    end = days * 24 * HOUR if days is not None else float(np.ceil(submit[-1] / HOUR + 1e-9) * HOUR)
    user = table["user"].where(table["user"] != "", table["group"])
    of_user = {name: user_priority(name, seed) for name in sorted(set(user))}
    hours = int(np.ceil(end / HOUR - 1e-9))
    return Trace(
        start=start,
        gpus=gpus,
        node_size=node_size,
        jobs=table,
        submit_s=submit,
        duration_s=np.maximum(table["duration_s"].to_numpy(dtype=float), 1.0),
        block=block_size(table["gpus"]).to_numpy(),
        priority=user.map(of_user).to_numpy(dtype=np.int64),
        limit_s=table["requested_walltime_s"].to_numpy(dtype=float),
        apps=()
        if traffic is None
        else _apps(
            read_traffic(traffic, timezone=timezone, notes=notes, set_aside=set_aside),
            series,
            gpus,
            realtime_share,
            swap_cap,
            realtime_priority,
            hours,
            skip_days,
        ),
        end_s=end,
        left_out=left_out,
        timezone=timezone,
        country=country,
    )


def _apps(
    table: pd.DataFrame,
    series: Sequence[str],
    gpus: int,
    share: float,
    swap_cap: int | None,
    priority: int,
    hours: int,
    skip_days: int,
) -> tuple[RealtimeApp, ...]:
    lengths = table.groupby("series_id").size()
    wanted = list(series) or sorted(lengths.index[lengths == lengths.max()])
    for name in wanted:
        if name not in lengths.index:
            known = ", ".join(map(str, lengths.index[:5]))
            raise InputError(f"there is no series {name!r}", field="series", fix=f"use some of {known}")
    curves = {}
    for name in wanted:
        values = table.loc[table["series_id"] == name, "value"].to_numpy(dtype=float)
        first, last = skip_days * 24, skip_days * 24 + WARM_UP_HOURS + hours
        repeats = -(-last // len(values))
        # isolated zeros of a busy series are collection gaps, not an hour without demand
        values = np.where((values == 0) & (np.nanmedian(values) > 0), np.nan, values)
        curves[name] = np.tile(values, repeats)[first:last]
    filled = {name: pd.Series(v).ffill().bfill().to_numpy() for name, v in curves.items()}
    # each app has its share of the joint peak by its own peak's share of the units' sum of peaks
    normal = {name: v / v.max() for name, v in filled.items()}
    joint = np.sum(list(normal.values()), axis=0).max()
    apps = []
    for name in wanted:
        peak = gpus * share / joint
        cap = swap_cap if swap_cap is not None else max(4, round(peak / 8))
        apps.append(RealtimeApp(name, priority, cap, curves[name], float(np.nanmax(curves[name])) / peak))
    return tuple(apps)
