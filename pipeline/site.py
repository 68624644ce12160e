"""A site's folder: the files that the main job reads, by their usual names."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pandas as pd

from tidegrid.data import (
    REQUESTS,
    RUNNING,
    Cluster,
    History,
    as_instant,
    read_cluster,
    read_jobs,
    read_traffic,
    write_cluster,
    write_table,
)
from tidegrid.data.checks import LATEST_START, late_start, settle
from tidegrid.data.readers import read_raw
from tidegrid.data.running import unknown_holders
from tidegrid.data.schema import Table, blank, validated
from tidegrid.data.source import Log, Source
from tidegrid.errors import InputError
from tidegrid.files import make_folder
from tidegrid.pipeline.fetched import KEPT, with_fetched
from tidegrid.pipeline.state import State

ENDINGS = (".csv", ".csv.gz", ".parquet")
"""The endings that a table may have, in the order in which they are looked for."""

TABLES = ("jobs", "traffic", "requests", "running")

FILES = ("cluster.json", KEPT, *(f"{table}{ending}" for table in TABLES for ending in ENDINGS))
"""Every name that a file of a site may have."""


@dataclass(frozen=True)
class Site:
    """What a site's folder holds.

    Attributes
    ----------
    folder
        Where it was read from.
    cluster
        ``cluster.json``.
    history
        ``jobs`` and ``traffic``; either may be absent, and is then empty.
    requests, running
        ``requests`` and ``running``; either may be absent, and is then empty.
    now
        The instant that is planned from, in UTC.
    set_aside
        One error for each row of the tables that cannot be used, in the order of the files: the rest was read.
    notes
        What was worked out or left out in reading, one line each.
    """

    folder: Path
    cluster: Cluster
    history: History
    requests: pd.DataFrame
    running: pd.DataFrame
    now: pd.Timestamp
    set_aside: tuple[InputError, ...] = field(default=(), compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def read(
        cls, folder: str | Path, now: str | pd.Timestamp | None = None, timezone: str | None = None
    ) -> Self:
        """Read a folder.

        Parameters
        ----------
        folder
            Holds ``cluster.json`` and, each as ``.csv``, ``.csv.gz`` or ``.parquet``, ``jobs``, ``traffic``,
            ``requests`` and ``running``.
        now
            The instant to plan from; where absent, the last instant that any of the files knows of.
        timezone
            The IANA zone of times that carry none.

        Raises
        ------
        InputError
            The folder or ``cluster.json`` is absent, or a file as a whole is not usable. A row that is not usable
            is in ``set_aside``; the GPUs that a running job's row still names are ``down`` in the cluster.
        """
        root = Path(folder)
        if not root.is_dir():
            raise InputError(
                "is not a folder",
                file=root,
                fix="name a folder with cluster.json, jobs.csv, traffic.csv, requests.csv",
            )
        cluster = read_cluster(root / "cluster.json")
        jobs = table_of(root, "jobs")
        traffic = table_of(root, "traffic")
        requests = table_of(root, "requests")
        running = table_of(root, "running")
        aside: list[InputError] = []
        notes: list[str] = []
        moment = None if now is None else as_instant(now, field="now")
        hours = read_traffic(traffic, timezone=timezone, notes=notes, set_aside=aside) if traffic else None
        history = History(
            read_jobs(jobs, timezone=timezone, notes=notes, set_aside=aside) if jobs else None,
            with_fetched(hours, root, cluster.traffic, moment, notes),
            checked=True,
        )
        asked = _read(requests, REQUESTS, timezone)
        held = _read(running, RUNNING, timezone)
        (queue, _), (busy, placed) = settle(cluster, asked, held, notes)
        if moment is None:
            busy = _without_late_starts(history, queue, busy, placed)
        for _, source in (asked, held):
            aside += source.log.set_aside() if source.log is not None else []
        cluster = _closed_where_unknown(cluster, running, held[1].log, busy)
        if moment is None:
            moment = last_instant(history, queue, busy)
        return cls(root, cluster, history.as_of(moment), queue, busy, moment, tuple(aside), tuple(notes))

    def state(self) -> State:
        """Return the state that the files tell of."""
        known = _known(self.history, self.requests, self.running)
        return State.of(
            self.cluster, self.requests, self.running, self.now, known_until=max(known) if known else None
        )

    @staticmethod
    def no_running() -> pd.DataFrame:
        """Return the table of running jobs of an empty cluster."""
        return _empty(RUNNING)

    @staticmethod
    def check_free(folder: str | Path, otherwise: str = "name another folder") -> None:
        """Refuse a folder that holds a file of a site: writing one there would replace it.

        Parameters
        ----------
        folder
            Where a site is to be written.
        otherwise
            What else to do, told with the error.

        Raises
        ------
        InputError
            It holds a file of a site, which is named; a table in another format would stand beside the new one.
        """
        root = Path(folder)
        for name in FILES:
            if (root / name).exists():
                raise InputError("is there already", file=root / name, fix=otherwise)

    def write(self, folder: str | Path) -> None:
        """Write the site's files into a folder, which is made where absent."""
        root = make_folder(folder)
        write_cluster(self.cluster, root / "cluster.json")
        write_table(self.history.jobs, root / "jobs.csv")
        write_table(self.history.traffic, root / "traffic.csv")
        write_table(self.requests, root / "requests.csv")
        write_table(self.running, root / "running.csv")


def table_of(root: Path, name: str) -> Path | None:
    """Return the file of a table, where there is one.

    A link that leads nowhere is a file that cannot be read, and not an absent one: without running jobs, say, every
    GPU would be taken as free.
    """
    names = [f"{name}{ending}" for ending in ENDINGS]
    there = sorted(entry.name for entry in root.iterdir() if entry.name.lower() in names)
    for other in there:
        if other not in names:
            raise InputError(
                "is not read: the names of a site's files are in lower case",
                file=root / other,
                fix=f"call it {other.lower()}",
            )
    if len(there) > 1:
        raise InputError(f"there is {there[0]} and {there[1]}", file=root, fix="keep one of them")
    return root / there[0] if there else None


def _read(path: Path | None, table: Table, timezone: str | None) -> tuple[pd.DataFrame, Source]:
    if path is None:
        return _empty(table), Source(log=Log())
    frame, source = read_raw(path, log=Log())
    return validated(frame, table, source, timezone)


def _closed_where_unknown(
    cluster: Cluster, path: Path | None, log: Log | None, busy: pd.DataFrame
) -> Cluster:
    """Close the GPUs that rows of running jobs name which cannot be used: something is on them."""
    if path is None or log is None or not log.rows:
        return cluster
    raw, source = read_raw(path, log=Log())
    bad = [i for i in range(len(raw)) if source.row(i) in log.rows]
    return cluster.with_down(unknown_holders(cluster, raw.iloc[bad].reset_index(drop=True), busy))


def _empty(table: Table) -> pd.DataFrame:
    return pd.DataFrame({c.name: blank(c, pd.RangeIndex(0)) for c in table.columns if c.always})


def last_instant(history: History, requests: pd.DataFrame, running: pd.DataFrame) -> pd.Timestamp:
    """Return the last instant that history, queue or running jobs know of, up to the next whole minute.

    Raises
    ------
    InputError
        There is no instant at all.
    """
    instants = _known(history, requests, running)
    if not instants:
        raise InputError("no file holds an instant to plan from", field="now", fix="give --now")
    return pd.Timestamp(max(instants)).ceil("min")


def _known(history: History, requests: pd.DataFrame, running: pd.DataFrame) -> list[pd.Timestamp]:
    """Return the last instant that each of the tables knows of."""
    jobs, traffic = history.jobs, history.traffic
    found = [
        jobs["known_at"].max() if len(jobs) else pd.NaT,
        traffic["timestamp"].max() + pd.Timedelta(hours=1) if len(traffic) else pd.NaT,
        requests["submit_time"].max(),
        running["start_time"].max(),
    ]
    return [instant for instant in found if not pd.isna(instant)]


def _without_late_starts(
    history: History, requests: pd.DataFrame, running: pd.DataFrame, source: Source
) -> pd.DataFrame:
    """Set running jobs aside that start more than a day after all else that is known: they would move the plan."""
    known = _known(history, requests, running.head(0))
    if not known or running.empty:
        return running
    starts = running["start_time"]
    source.refuse(
        (starts > max(known) + LATEST_START).to_numpy(),
        "start_time",
        lambda at: late_start(starts.iloc[at]),
        "correct the time, or state the instant with --now",
    )
    return source.usable(running)[0]
