"""Put the synthetic cluster together, and write it as files."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data.cluster import Cluster, write_cluster
from tidegrid.data.history import History
from tidegrid.data.instants import UTC_DTYPE, as_instant
from tidegrid.data.inventory import App, Capacity, Pool
from tidegrid.data.readers import complete_jobs
from tidegrid.data.running import check_running
from tidegrid.data.schema import validate
from tidegrid.data.synth.demand import RHYTHMS, demand
from tidegrid.data.synth.people import Recipe, people, recipes
from tidegrid.data.synth.physics import fewest_gpus, hours_of
from tidegrid.data.synth.workload import Attempt, Draft, draft, priority_of, simulate, submissions
from tidegrid.data.tables import REQUESTS, RUNNING, TRAFFIC
from tidegrid.data.writers import write_table
from tidegrid.errors import InputError
from tidegrid.files import make_folder, read_json, write_text
from tidegrid.zones import zone_of

NOW = "2026-04-14T06:00:00+00:00"
"""When the sample's history ends: a Tuesday morning in Berlin, after Easter and the change of the clocks."""

NOTICE = """The files in this folder are synthetic: tidegrid made them up from a seed.

No line describes a real cluster, person, job or service. Figures computed from them show how the product works,
not how well it does on real input.

seed: {seed}
history: {days} days up to {now}
GPUs: {gpus}
"""

# app: (pool's place, share of the pool at its peak, priority, requests that one GPU serves in an hour)
_APPS = {"chat": (0, 0.30, 9, 1800.0), "code": (0, 0.17, 8, 900.0), "search": (1, 0.26, 7, 5200.0)}


@dataclass(frozen=True)
class SampleCluster:
    """A synthetic cluster at an instant.

    Parameters
    ----------
    history
        What is known at ``now``: jobs and traffic.
    requests
        The queue.
    running
        What holds GPUs, each job on a legal block that no app holds.
    cluster
        Pools, apps with the GPUs that they hold, time zone; marked ``synthetic``.
    now
        The instant.
    seed, days
        What it was made from.
    """

    history: History
    requests: pd.DataFrame = field(repr=False)
    running: pd.DataFrame = field(repr=False)
    cluster: Cluster = field(repr=False)
    now: pd.Timestamp
    seed: int
    days: int
    synthetic: bool = True

    def write(self, folder: str | Path) -> dict[str, Path]:
        """Write ``jobs.csv``, ``requests.csv``, ``running.csv``, ``traffic.csv``, ``cluster.json``, ``SYNTHETIC.txt``.

        The same sample gives the same bytes.

        Raises
        ------
        InputError
            The folder cannot be made or written to.
        """
        target = make_folder(folder)
        paths = {name: target / f"{name}.csv" for name in ("jobs", "requests", "running", "traffic")}
        paths["cluster"] = target / "cluster.json"
        paths["notice"] = target / "SYNTHETIC.txt"
        # what marks the folder as synthetic comes first: an interrupted sample can be made again
        text = NOTICE.format(seed=self.seed, days=self.days, now=self.now.isoformat(), gpus=self.cluster.gpus)
        write_text(paths["notice"], text)
        write_cluster(self.cluster, paths["cluster"])
        write_table(self.history.jobs, paths["jobs"])
        write_table(self.requests, paths["requests"])
        write_table(self.running, paths["running"])
        write_table(self.history.traffic, paths["traffic"])
        return paths


def check_replaceable(folder: str | Path, otherwise: str = "name another folder") -> None:
    """Refuse a folder that holds anything but a synthetic site: a sample written there would replace its files.

    Parameters
    ----------
    folder
        Where a sample is to be written; absent, empty or a synthetic site is right.
    otherwise
        What else to do, told with the error.

    Raises
    ------
    InputError
        It holds files and is not marked as synthetic by both ``SYNTHETIC.txt`` and ``cluster.json``.
    """
    target = Path(folder)
    try:
        used = target.is_dir() and any(target.iterdir())
    except OSError as error:
        raise InputError(
            f"cannot be read ({error.strerror})", file=target, fix="name another folder"
        ) from None
    if not used:
        return
    try:
        cluster = read_json(target / "cluster.json")
    except InputError:
        cluster = None
    marked = isinstance(cluster, dict) and cluster.get("synthetic") is True
    if not (marked and (target / "SYNTHETIC.txt").is_file()):
        raise InputError("holds files that are not a synthetic site's", file=target, fix=otherwise)


def synthesise(
    seed: int = 0,
    *,
    days: int = 56,
    gpus: int = 64,
    users: int = 20,
    queue: int = 26,
    now: str = NOW,
    timezone: str = "Europe/Berlin",
) -> SampleCluster:
    """Make up a cluster's past and present.

    Users of four teams run recurring jobs of every kind; some fail, are cancelled or run into their limit; jobs wait
    in a queue; three apps serve a weekly rhythm with noise, public holidays, an outage, a launch and hours that
    collection lost; then a busy morning leaves more requests than GPUs.

    Parameters
    ----------
    seed
        The same seed gives the same sample, to the byte when written.
    days
        Days of history, at least 7.
    gpus
        GPUs of the cluster, at least 8; from 16 on in two pools, of nodes of 8.
    users
        Users, at least 4.
    queue
        Requests that wait.
    now
        The instant at which the history ends, on a whole hour.
    timezone
        The IANA zone whose clock people live by.

    Raises
    ------
    InputError
        A parameter is out of range.
    """
    end = as_instant(now, field="now")
    zone_of(timezone)
    for name, value, low in (
        ("seed", seed, 0),
        ("days", days, 7),
        ("gpus", gpus, 8),
        ("users", users, 4),
        ("queue", queue, 0),
    ):
        if value < low:
            raise InputError(f"{name} is {value}", field=name, fix=f"give at least {low}")
    if end != end.floor("h"):
        raise InputError(
            f"{end.isoformat()} is not on a whole hour", field="now", fix="give minutes and seconds of 0"
        )
    streams = [np.random.default_rng([seed, part]) for part in range(6)]
    begin = end - pd.Timedelta(days=days)
    hours = pd.date_range(begin, periods=days * 24, freq=pd.Timedelta(hours=1))
    outage = (begin + pd.Timedelta(days=days * 0.6)).floor("h") + pd.Timedelta(hours=4)
    down = (outage, outage + pd.Timedelta(hours=3))
    pools = _pools(gpus)
    traffic, apps = _traffic(streams[0], hours, timezone, pools, down)
    capacity = _batch_capacity(pools, apps)
    largest = 4 if gpus < 32 else 8 if gpus < 128 else 16
    while largest > max(capacity.values()):
        largest //= 2
    types = list(capacity)
    book = recipes(streams[2], people(streams[1], users), types, largest)
    rate = _jobs_a_day(book, capacity)
    drafts = submissions(streams[3], book, hours, timezone, rate, largest)
    drafts = [d for d in drafts if any(capacity[t] >= d.gpus for t in _types(d, types))]
    until = days * 86400
    # numbered in order of submission, as a batch system does
    drafts = [_numbered(d, 100001 + i) for i, d in enumerate(drafts)]
    seconds = tuple(int((at - begin).total_seconds()) for at in down)
    attempts, waiting = simulate(drafts, capacity, (seconds[0], seconds[1]), until)
    waiting = _queue(
        streams[4], book, waiting, queue, until, 100001 + len(drafts), largest, sum(capacity.values())
    )
    jobs = complete_jobs(pd.DataFrame([_row(attempt, begin) for attempt in attempts]))
    history = History(jobs, traffic, checked=True).as_of(end)
    requests = _requests(streams[5], waiting, begin, pools)
    running = _running([a for a in attempts if a.end > until], begin, pools)
    cluster = Cluster(timezone=timezone, pools=pools, apps=apps, synthetic=True)
    check_running(cluster, running)
    return SampleCluster(history, requests, running, cluster, end, seed, days)


def _numbered(job: Draft, number: int) -> Draft:
    return replace(job, number=number)


def _types(job: Draft, types: list[str]) -> list[str]:
    return [job.gpu_type] if job.gpu_type else types


def _pools(gpus: int) -> tuple[Pool, ...]:
    h100 = {"id": "h100", "gpu_type": "H100-SXM-80GB", "node_size": 8, "gpus_per_node": 8}
    if gpus < 16:
        return (Pool(gpus=gpus, **h100),)
    first = gpus // 16 * 8
    return (
        Pool(gpus=first, **h100),
        Pool(id="a100", gpus=gpus - first, gpu_type="A100-SXM-80GB", node_size=8, gpus_per_node=8),
    )


def _traffic(
    rng: np.random.Generator,
    hours: pd.DatetimeIndex,
    timezone: str,
    pools: tuple[Pool, ...],
    down: tuple[pd.Timestamp, pd.Timestamp],
) -> tuple[pd.DataFrame, tuple[App, ...]]:
    tables, apps = [], []
    free = {pool.id: pool.gpus for pool in pools}
    for name in RHYTHMS:
        place, share, priority, units = _APPS[name]
        pool = pools[min(place, len(pools) - 1)]
        peak = max(1, round(pool.gpus * share))
        launch = hours[len(hours) * 3 // 10] if name == "chat" else None
        values = demand(rng, name, hours, timezone, peak * units * 0.8, down, launch)
        tables.append(pd.DataFrame({"series_id": name, "timestamp": hours, "value": values}))
        last = float(values[~np.isnan(values)][-1])
        held = int(np.clip(np.ceil(last / (units * 0.8)), 1, peak))
        # apps sit at the far end of their pool, jobs fill it from GPU 0
        top = free[pool.id]
        free[pool.id] -= held
        apps.append(
            App(
                id=name,
                pool=pool.id,
                priority=priority,
                swap_cap=max(2, peak // 5),
                held=tuple(range(top - held, top)),
                series_id=name,
                capacity=Capacity(units_per_gpu_hour=units, min_replicas=1, target_load=0.8),
            )
        )
    traffic = pd.concat(tables, ignore_index=True).astype({"timestamp": UTC_DTYPE})
    return validate(traffic, TRAFFIC), tuple(apps)


def _batch_capacity(pools: tuple[Pool, ...], apps: tuple[App, ...]) -> dict[str, int]:
    """GPUs that the apps' usual peaks leave to batch work, by GPU type."""
    out = {}
    for i, pool in enumerate(pools):
        places = [share for place, share, _, _ in _APPS.values() if min(place, len(pools) - 1) == i]
        peaks = sum(max(1, round(pool.gpus * share)) for share in places)
        held = sum(len(app.held) for app in apps if app.pool == pool.id)
        out[pool.gpu_type] = pool.gpus - max(peaks, held)
    return out


def _jobs_a_day(book: list[Recipe], capacity: dict[str, int]) -> float:
    """Return how many jobs a day load the cluster, and each type that recipes insist on, to three quarters."""
    weight = np.array([recipe.weight for recipe in book])
    weight /= weight.sum()
    total = sum(capacity.values())
    pinned = dict.fromkeys(capacity, 0.0)
    free = 0.0
    for share, recipe in zip(weight, book, strict=True):
        if recipe.gpu_type:
            pinned[recipe.gpu_type] += share * _gpu_hours(recipe, recipe.gpu_type)
        else:
            free += share * sum(_gpu_hours(recipe, kind) * gpus for kind, gpus in capacity.items()) / total
    a_day = [0.75 * 24.0 * total / (free + sum(pinned.values()))]
    a_day += [0.75 * 24.0 * capacity[kind] / hours for kind, hours in pinned.items() if hours > 0]
    return min(a_day)


def _gpu_hours(recipe: Recipe, gpu_type: str = "A100-SXM-80GB") -> float:
    return recipe.gpus * hours_of({"kind": recipe.kind, **recipe.base}, gpu_type, recipe.gpus) * recipe.pace


def _queue(
    rng: np.random.Generator,
    book: list[Recipe],
    waiting: list[Draft],
    size: int,
    until: int,
    number: int,
    largest: int,
    gpus: int,
) -> list[Draft]:
    """Fill the queue up with a busy morning's submissions, well more than a day of the GPUs can do."""
    work = np.array([_gpu_hours(recipe) for recipe in book])
    wanted = 1.8 * 24.0 * gpus / max(size, 1)
    low, high = -2.0, 3.0
    for _ in range(40):
        lean = (low + high) / 2
        weight = np.array([recipe.weight for recipe in book]) ** 0.5 * work**lean
        low, high = (lean, high) if np.average(work, weights=weight) < wanted else (low, lean)
    # most of the queue is new this morning; of what still waits the oldest stay
    out = waiting[: size * 2 // 5]
    times = np.sort(until - rng.integers(60, 4 * 3600, size=max(0, size - len(out))))
    goal = 1.8 * 24.0 * gpus - sum(_gpu_hours(job.recipe) for job in out)
    # of some draws the one nearest to the goal, so that the queue contends for the GPUs whatever the seed
    draws = [rng.choice(len(book), size=len(times), p=weight / weight.sum()) for _ in range(40)]
    chosen = min(draws, key=lambda picks: abs(float(work[picks].sum()) - goal))
    for i, (at, pick) in enumerate(zip(times, chosen, strict=True)):
        out.append(_numbered(draft(rng, book[int(pick)], int(at), largest), number + i))
    return out


def _common(job: Draft, begin: pd.Timestamp) -> dict[str, Any]:
    return {
        "job_id": str(job.number),
        "kind": job.recipe.kind,
        "submit_time": begin + pd.Timedelta(seconds=job.submit),
        "gpus": job.gpus,
        "user": job.recipe.user.name,
        "group": job.recipe.user.team,
        "name": job.recipe.name,
        "requested_walltime_s": job.walltime_h * 3600.0,
        **job.features,
    }


def _row(attempt: Attempt, begin: pd.Timestamp) -> dict[str, Any]:
    return {
        **_common(attempt.draft, begin),
        "gpu_type": attempt.gpu_type,
        "status": attempt.status,
        "raw_status": attempt.raw_status,
        "start_time": begin + pd.Timedelta(seconds=attempt.start),
        "end_time": begin + pd.Timedelta(seconds=attempt.end),
        "duration_s": float(attempt.end - attempt.start),
    }


def _requests(
    rng: np.random.Generator, waiting: list[Draft], begin: pd.Timestamp, pools: tuple[Pool, ...]
) -> pd.DataFrame:
    rows = []
    most = max(pool.gpus for pool in pools) // 2
    for job in waiting:
        row = _common(job, begin)
        fewest = min(job.gpus, fewest_gpus({"kind": job.recipe.kind, **job.features}))
        elastic = job.recipe.kind != "quantization" and rng.random() < 0.7
        row["priority"] = priority_of(job.recipe, rng.random())
        row["min_gpus"] = fewest if elastic else job.gpus
        row["max_gpus"] = max(job.gpus, min(job.gpus * 2, most)) if elastic else job.gpus
        row["gpu_type"] = job.gpu_type
        now = begin + pd.Timedelta(seconds=waiting[-1].submit)
        if rng.random() < 0.15:
            row["deadline"] = (now + pd.Timedelta(hours=int(rng.integers(16, 40)))).ceil("h")
        if rng.random() < 0.1:
            row["earliest_time"] = (now + pd.Timedelta(hours=int(rng.integers(2, 8)))).ceil("h")
        rows.append(row)
    frame = pd.DataFrame(rows, columns=None if rows else [c.name for c in REQUESTS.columns if c.always])
    return validate(frame, REQUESTS)


def _running(attempts: list[Attempt], begin: pd.Timestamp, pools: tuple[Pool, ...]) -> pd.DataFrame:
    rows = []
    for pool in pools:
        first = 0
        here = [a for a in attempts if a.gpu_type == pool.gpu_type]
        # falling sizes from GPU 0 on: every block starts at a multiple of its size, so none crosses a node
        for attempt in sorted(here, key=lambda a: (-a.draft.gpus, a.start, a.draft.number)):
            row = _common(attempt.draft, begin)
            row |= {"pool": pool.id, "first_gpu": first, "gpu_type": pool.gpu_type}
            row["start_time"] = begin + pd.Timedelta(seconds=attempt.start)
            row["priority"] = priority_of(attempt.draft.recipe, (attempt.draft.number % 97) / 97)
            first += attempt.draft.gpus
            rows.append(row)
    frame = pd.DataFrame(rows, columns=None if rows else [c.name for c in RUNNING.columns if c.always])
    return validate(frame, RUNNING)
