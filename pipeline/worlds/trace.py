"""What really happens in a replay: jobs with their true durations, and true demand by the hour."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from tidegrid.data import Pool, read_jobs, read_traffic
from tidegrid.data.cluster import laid
from tidegrid.errors import InputError
from tidegrid.pipeline.tracesite import user_priority

HOUR = 3600.0
WARM_UP_HOURS = 14 * 24
"""Hours of traffic before a replay's start that its forecaster may look at: two weeks, the shortest weekly history."""

POOL = "gpus"
"""The name of a replay's one pool."""

SCALING = (0.5, 1.0)
"""Where the true exponents of a job's speed over its GPUs are drawn from, evenly: most of what is published on data
parallel training lies there."""


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
    gpus, node_size, placement
        The pool, as :class:`tidegrid.data.Pool` has it.
    jobs
        Job history in the documented schema, sorted by submit time, fresh index.
    submit_s, duration_s
        Seconds from ``start``, and the true seconds that each job runs on the GPUs that it asks for.
    size
        GPUs that each job holds where it gets what it asks for: in a line a power of two.
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
    sizes : ndarray of shape (jobs, 2) or None
        The fewest and the most GPUs that each job may be given; None where it gets what it asks for alone.
    exponent : ndarray of shape (jobs,) or None
        A job's true speed grows as its GPUs to this power.
    """

    start: pd.Timestamp
    gpus: int
    node_size: int | None
    jobs: pd.DataFrame
    submit_s: np.ndarray
    duration_s: np.ndarray
    size: np.ndarray
    priority: np.ndarray
    limit_s: np.ndarray
    apps: tuple[RealtimeApp, ...]
    end_s: float
    left_out: Mapping[str, int] = field(default_factory=dict)
    timezone: str = "UTC"
    outages: tuple[Outage, ...] = ()
    country: str | None = None
    placement: Literal["line", "node"] = "line"
    sizes: np.ndarray | None = None
    exponent: np.ndarray | None = None

    @cached_property
    def pool(self) -> Pool:
        """The pool, all of its GPUs working."""
        return pool_of(self.gpus, self.node_size, self.placement)

    @cached_property
    def asked(self) -> np.ndarray:
        """GPUs that each job asks for; shape (jobs,)."""
        return self.jobs["gpus"].to_numpy(dtype=np.int64)

    def seconds(self, job: int, gpus: int) -> float:
        """Return the true seconds that a job runs on so many GPUs, whatever its time limit."""
        if self.exponent is None or gpus == self.size[job]:
            return float(self.duration_s[job])
        return float(max(1.0, self.duration_s[job] * (self.asked[job] / gpus) ** self.exponent[job]))

    def least_work(self) -> np.ndarray:
        """Return the fewest GPU-seconds that each job's work can take; shape (jobs,)."""
        at_asked = self.size * self.duration_s
        if self.sizes is None:
            return at_asked
        least = [laid(self.pool, int(low))[0] for low in self.sizes[:, 0]]
        return np.minimum(at_asked, [gpus * self.seconds(j, gpus) for j, gpus in enumerate(least)])

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
        for array in (self.submit_s, self.duration_s, self.size, self.priority, self.demand()):
            h.update(np.ascontiguousarray(array).tobytes())
        for drawn in (self.sizes, self.exponent):
            h.update(b"" if drawn is None else np.ascontiguousarray(drawn).tobytes())
        return h.hexdigest()


def pool_of(gpus: int, node_size: int | None, placement: Literal["line", "node"]) -> Pool:
    """Return a replay's one pool.

    Raises
    ------
    InputError
        Placement is by node, and there are no nodes or not whole ones.
    """
    if placement == "node" and (node_size is None or gpus % node_size):
        raise InputError(
            f"{gpus} GPUs are not whole nodes",
            field="node_size",
            fix="give nodes of which the GPUs are a multiple",
        )
    return Pool(id=POOL, gpus=gpus, gpu_type="any", node_size=node_size, placement=placement)


def held_sizes(pool: Pool, gpus: pd.Series) -> np.ndarray:
    """Return the GPUs that jobs of so many hold in a pool; shape (jobs,)."""
    of = {count: laid(pool, int(count))[0] for count in gpus.unique().tolist()}
    return gpus.map(of).to_numpy(dtype=np.int64)


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
    placement: Literal["line", "node"] = "line",
    elastic: float = 1.0,
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

    Jobs wider than the pool are left out; in a line, GPU counts are rounded up to powers of two. Traffic is repeated
    where the trace is longer, and scaled so that the apps' joint peak is ``realtime_share`` of the pool.

    Parameters
    ----------
    jobs
        A trace that :func:`tidegrid.data.read_jobs` reads, or its table.
    traffic
        Hourly traffic; None for jobs alone.
    gpus, node_size, placement
        The pool, as :class:`tidegrid.data.Pool` has it.
    elastic
        By what factor a job may be given fewer or more GPUs than it asks for. How its speed grows with them is drawn
        for each job from ``SCALING``, with the seed.
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
        Seeds the users' priorities (see :func:`tidegrid.pipeline.tracesite.user_priority`) and the jobs' scaling.
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
    pool = pool_of(gpus, node_size, placement)
    if elastic < 1:
        raise InputError(f"{elastic:g} is below 1", field="elastic", fix="give a factor of 1 or more")
    ends, fits = table["status"] != "running", held_sizes(pool, table["gpus"]) <= gpus
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
    sizes, exponent = _scaling(table["gpus"].to_numpy(dtype=float), gpus, elastic, seed)
    return Trace(
        start=start,
        gpus=gpus,
        node_size=node_size,
        jobs=table,
        submit_s=submit,
        duration_s=np.maximum(table["duration_s"].to_numpy(dtype=float), 1.0),
        size=held_sizes(pool, table["gpus"]),
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
        placement=placement,
        sizes=sizes,
        exponent=exponent,
    )


def _scaling(
    asked: np.ndarray, gpus: int, elastic: float, seed: int
) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Return the sizes that jobs may have, and how each scales; None where each has one."""
    if elastic == 1:
        return None, None
    low, high = np.maximum(1, np.ceil(asked / elastic)), np.minimum(gpus, np.floor(asked * elastic))
    drawn = np.random.default_rng(seed).uniform(*SCALING, len(asked))
    return np.stack([low, high], axis=1).astype(np.int64), drawn


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
