"""A site's folder: the files that the main job reads, by their usual names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pandas as pd

from tidegrid.data import (
    REQUESTS,
    RUNNING,
    Cluster,
    History,
    as_instant,
    check_running,
    read_cluster,
    read_jobs,
    read_requests,
    read_running,
    read_traffic,
    write_cluster,
    write_table,
)
from tidegrid.data.checks import LATEST_START, late_start
from tidegrid.data.schema import Table, blank
from tidegrid.errors import InputError
from tidegrid.files import make_folder
from tidegrid.pipeline.state import State

ENDINGS = (".csv", ".csv.gz", ".parquet")
"""The endings that a table may have, in the order in which they are looked for."""

TABLES = ("jobs", "traffic", "requests", "running")

FILES = ("cluster.json", *(f"{table}{ending}" for table in TABLES for ending in ENDINGS))
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
    """

    folder: Path
    cluster: Cluster
    history: History
    requests: pd.DataFrame
    running: pd.DataFrame
    now: pd.Timestamp

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
            The folder or ``cluster.json`` is absent, or a file is not usable; file, row and column are named.
        """
        root = Path(folder)
        if not root.is_dir():
            raise InputError(
                "is not a folder",
                file=root,
                fix="name a folder with cluster.json, jobs.csv, traffic.csv, requests.csv",
            )
        cluster = read_cluster(root / "cluster.json")
        jobs = _table(root, "jobs")
        traffic = _table(root, "traffic")
        requests = _table(root, "requests")
        running = _table(root, "running")
        history = History(
            read_jobs(jobs, timezone=timezone) if jobs else None,
            read_traffic(traffic, timezone=timezone) if traffic else None,
            checked=True,
        )
        queue = read_requests(requests, timezone=timezone) if requests else _empty(REQUESTS)
        busy = read_running(running, timezone=timezone) if running else _empty(RUNNING)
        check_running(cluster, busy, file=running)
        moment = (
            as_instant(now, field="now") if now is not None else last_instant(history, queue, busy, running)
        )
        return cls(root, cluster, history.as_of(moment), queue, busy, moment)

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


def _table(root: Path, name: str) -> Path | None:
    found = [root / f"{name}{ending}" for ending in ENDINGS if (root / f"{name}{ending}").is_file()]
    if len(found) > 1:
        raise InputError(f"there is {found[0].name} and {found[1].name}", file=root, fix="keep one of them")
    return found[0] if found else None


def _empty(table: Table) -> pd.DataFrame:
    return pd.DataFrame({c.name: blank(c, pd.RangeIndex(0)) for c in table.columns if c.always})


def last_instant(
    history: History, requests: pd.DataFrame, running: pd.DataFrame, running_file: Path | None = None
) -> pd.Timestamp:
    """Return the last instant that history, queue or running jobs know of, up to the next whole minute.

    Raises
    ------
    InputError
        There is no instant at all, or a running job starts more than a day after all else.
    """
    others = _known(history, requests, running.head(0))
    started = running["start_time"].max()
    if others and not pd.isna(started) and started > max(others) + LATEST_START:
        raise InputError(
            late_start(started),
            file=running_file,
            row=int(running["start_time"].argmax()) + 2,
            field="start_time",
            fix="correct the time, or state the instant with --now",
        )
    instants = others + ([] if pd.isna(started) else [started])
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
