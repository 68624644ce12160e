"""A site made of public traces: a day of a job trace as the queue, hourly traffic as realtime demand."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.data import App, Capacity, Cluster, Pool, read_jobs, read_traffic, requests_from_trace
from tidegrid.errors import InputError
from tidegrid.pipeline.site import Site

HOURS_KEPT_BACK = 24
"""Hours at a traffic file's end that lie after the day's start: they are the demand that the plan cannot see."""


def user_priority(user: str, seed: int = 0) -> int:
    """Return a user's priority, 1 to 10: the SHA-256 of ``seed:user`` modulo 10, plus 1.

    No public trace carries priorities; this rule gives each user one, the same on every machine.
    """
    digest = hashlib.sha256(f"{seed}:{user}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % 10 + 1


def site_from_traces(
    jobs: str | Path,
    traffic: str | Path | None,
    day: str,
    *,
    gpus: int = 64,
    node_size: int | None = 8,
    series: Sequence[str] = (),
    realtime_share: float = 0.25,
    swap_cap: int = 4,
    limit: int | None = None,
    timezone: str = "UTC",
    seed: int = 0,
    notes: list[str] | None = None,
    set_aside: list[InputError] | None = None,
) -> Site:
    """Make a site: a day of a trace's submissions waits at the day's start, the days before are history.

    Parameters
    ----------
    jobs
        A job trace that :func:`tidegrid.data.read_jobs` reads.
    traffic
        Hourly traffic; its last 24 h are laid after the day's start, so the plan cannot see them. None for a
        cluster without apps.
    day
        The local date.
    gpus, node_size
        The cluster's one pool.
    series
        The traffic series to use, one app each; all of the longest where empty.
    realtime_share
        The apps' joint peak as a share of the cluster; each app's throughput of a GPU follows from it.
    swap_cap
        GPUs that each app may exchange between steps.
    limit
        At most so many requests.
    timezone
        The zone of times in the traces that carry none, and of the local week.
    seed
        Seeds the users' priorities.
    notes, set_aside
        As :func:`tidegrid.data.read_jobs` takes them.

    Raises
    ------
    InputError
        A file is not usable, the day has no submissions, or a series is unknown.
    """
    history = read_jobs(jobs, timezone=timezone, notes=notes, set_aside=set_aside)
    hours = None
    apps: tuple[App, ...] = ()
    if traffic is not None:
        read = read_traffic(traffic, timezone=timezone, notes=notes, set_aside=set_aside)
        hours = _laid_at(read, series, day, timezone)
        apps = _apps(hours, gpus, realtime_share, swap_cap)
    cut = requests_from_trace(
        history, day, timezone=timezone, max_gpus=gpus, limit=limit, at_once=True, traffic=hours
    )
    user = cut.requests["user"].where(cut.requests["user"] != "", cut.requests["group"])
    requests = cut.requests.assign(
        priority=[user_priority(name, seed) for name in user],
        # in their order, but all before the start: the queue of a site never lies in its future
        submit_time=cut.requests["submit_time"] - pd.Timedelta(days=1),
    )
    gpu_type = (
        str(requests["gpu_type"].replace("", np.nan).dropna().iloc[0]) if _typed(requests) else "unknown"
    )
    pool = Pool(id="gpus", gpus=gpus, gpu_type=gpu_type, node_size=node_size)
    cluster = Cluster(timezone=timezone, pools=(pool,), apps=apps)
    running = Site.no_running()
    return Site(Path(jobs).parent, cluster, cut.history, requests, running, cut.start)


def _typed(requests: pd.DataFrame) -> bool:
    return bool((requests["gpu_type"] != "").any())


def _laid_at(traffic: pd.DataFrame, series: Sequence[str], day: str, timezone: str) -> pd.DataFrame:
    lengths = traffic.groupby("series_id").size()
    wanted = list(series) or sorted(lengths.index[lengths == lengths.max()])
    for name in wanted:
        if name not in lengths.index:
            known = ", ".join(map(str, lengths.index[:5]))
            raise InputError(f"there is no series {name!r}", field="series", fix=f"use some of {known}")
    kept = traffic[traffic["series_id"].isin(wanted)]
    start = pd.Timestamp(day, tz=timezone).tz_convert("UTC")
    end = kept["timestamp"].max() + pd.Timedelta(hours=1)
    return kept.assign(timestamp=kept["timestamp"] + (start + pd.Timedelta(hours=HOURS_KEPT_BACK) - end))


def _apps(traffic: pd.DataFrame, gpus: int, share: float, swap_cap: int) -> tuple[App, ...]:
    peaks = traffic.groupby("series_id")["value"].max()
    budget = max(1.0, gpus * share / len(peaks))
    return tuple(
        App(
            id=str(name),
            pool="gpus",
            priority=8,
            swap_cap=swap_cap,
            held=tuple(range(gpus - round(budget * (k + 1)), gpus - round(budget * k))),
            series_id=str(name),
            capacity=Capacity(units_per_gpu_hour=float(peak) / budget, min_replicas=1),
        )
        for k, (name, peak) in enumerate(peaks.items())
    )
