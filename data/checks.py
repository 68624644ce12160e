"""Every problem of a site's files at once: what reading them, which stops at the first, does not tell."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.data.cluster import Cluster, rounded_sizes
from tidegrid.data.formats import detect, read_jobs
from tidegrid.data.nodelist import nodes_of
from tidegrid.data.readers import Note, add_note, completed_jobs, read_raw, without_gpus
from tidegrid.data.running import place_running
from tidegrid.data.schema import Table, typed, validated
from tidegrid.data.source import Log, Source
from tidegrid.data.tables import JOBS, REQUESTS, RUNNING, TABLES, TRAFFIC
from tidegrid.data.traffic import counters, own_names, regular_hours
from tidegrid.errors import InputError

MOST = 20
"""The problems of one file that are told."""

ROWS = 3
"""The rows that are named for one problem of a column."""

ALIKE = 0.8
"""The likeness of two names (0 to 1, as `difflib` counts it) from which one is taken for a misspelling of the other."""

LATEST_START = pd.Timedelta(days=1)
"""How long after everything else that is known a running job may start."""


@dataclass(frozen=True)
class Checked:
    """A table that was checked.

    Attributes
    ----------
    frame
        Its rows that are right, validated; None where none could be read.
    source
        Where these rows stand in the file.
    problems
        What is wrong with the others, and with the file.
    unreadable
        Whether the file as a whole cannot be used.
    """

    frame: pd.DataFrame | None
    source: Source
    problems: list[InputError]
    unreadable: bool = False


def check_table(
    name: str, path: str | Path, *, timezone: str | None = None, notes: Note | None = None
) -> Checked:
    """Read one table of a site as every command does, and tell all that is wrong with it.

    Parameters
    ----------
    name
        ``jobs``, ``requests``, ``running`` or ``traffic``.
    path
        Its file.
    timezone
        The IANA zone of times that carry none.
    notes
        Appended to: what was left out or worked out.
    """
    table, log = TABLES[name], Log()
    try:
        if table is JOBS and detect(path) != "tidegrid":
            aside: list[InputError] = []
            jobs = read_jobs(path, timezone=timezone, notes=notes, set_aside=aside)
            return Checked(jobs, Source(path), _capped(aside, path))
        frame, source = read_raw(path, log=log)
    except InputError as error:
        return Checked(None, Source(path), [error], unreadable=True)
    # other forms of traffic have names of their own
    own = table is TRAFFIC and len(frame.columns) == len(TRAFFIC.columns)
    misspelt = {} if own else _misspelt(frame, table)
    found = [
        InputError(
            "the column is not known, and is not read",
            file=source.file,
            row=1,
            field=wrong,
            fix=f"write {right}, if that is meant",
        )
        for wrong, right in misspelt.items()
    ]
    out: pd.DataFrame | None = None
    stopped: InputError | None = None
    try:
        if table is TRAFFIC:
            frame = own_names(frame, source, notes=notes)
        out, source = _validated(frame, table, source, timezone, notes)
    except InputError as error:
        stopped = error
        missing = [c for c in table.columns if c.required and c.name not in frame.columns]
        found += [
            InputError(
                "the column is missing",
                file=source.file,
                row=1,
                field=column.name,
                fix=f"add it: {column.meaning()}",
            )
            for column in missing
            if column.name not in misspelt.values()
        ]
        if missing:
            _check_cells(frame, table, source, timezone)
    told = [problem for group in log.groups for problem in _first_rows(group)]
    known = told or found
    # what stopped the reading is told above, where it is a matter of rows or of missing columns
    problems = [*found, *told] if stopped is None or known else [stopped]
    if out is not None and table is TRAFFIC:
        problems += [
            InputError(
                f"series {series!r} never falls",
                file=source.file,
                field="value",
                fix="give the demand in each hour; of a counter, the difference between two hours",
            )
            for series in counters(out)
        ]
    return Checked(out, source, _capped(problems, path), unreadable=stopped is not None)


def _validated(
    frame: pd.DataFrame, table: Table, source: Source, timezone: str | None, notes: Note | None
) -> tuple[pd.DataFrame, Source]:
    if table is JOBS:
        return completed_jobs(frame, source, timezone, notes)
    if table is TRAFFIC:
        return regular_hours(frame, source=source, timezone=timezone, notes=notes), Source(source.file)
    return validated(frame, table, source, timezone)


def _check_cells(frame: pd.DataFrame, table: Table, source: Source, timezone: str | None) -> None:
    """Note what is wrong with the columns that are there, where others are missing."""
    source = source.about(frame, table.item, table.key[0])
    if table is JOBS and "gpus" in frame.columns:
        keep = ~without_gpus(frame)
        frame, source = frame[keep].reset_index(drop=True), source.take(keep)
    for column in table.columns:
        if column.name in frame.columns:
            typed(frame[column.name], column, source, timezone)


def _first_rows(group: list[InputError]) -> list[InputError]:
    """Return the first problems of one kind, the last of them saying how many more rows have it."""
    shown, more = group[:ROWS], len(group) - ROWS
    if more <= 0:
        return shown
    last = shown[-1]
    also = f" (and in {more:,} more row{'s' if more > 1 else ''})"
    counted = InputError(
        last.problem + also, file=last.file, row=last.row, field=last.field, fix=last.fix, item=last.item
    )
    return [*shown[:-1], counted]


def _misspelt(frame: pd.DataFrame, table: Table) -> dict[str, str]:
    """Return the unknown columns whose names are much like that of a known one that is not there."""
    absent = [name for name in table.names if name not in frame.columns]
    out: dict[str, str] = {}
    for name in map(str, frame.columns):
        near = nearest(name, absent) if name not in table.names else None
        if near is not None:
            out[name] = near
            absent.remove(near)
    return out


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that another is likely a misspelling of; None where none is like it."""
    by_lower = {one.strip().lower(): one for one in known}
    found = get_close_matches(name.strip().lower(), list(by_lower), n=1, cutoff=ALIKE)
    return by_lower[found[0]] if found else None


def settle(
    cluster: Cluster,
    requests: tuple[pd.DataFrame, Source],
    running: tuple[pd.DataFrame, Source],
    notes: Note | None = None,
) -> tuple[tuple[pd.DataFrame, Source], tuple[pd.DataFrame, Source]]:
    """Return queue and running jobs without the rows that do not fit the cluster or each other.

    A job has a name of its own: one that is called as an app is refused. A request for a job that runs is told and
    stays in the table: the job runs, and whoever reads both may say so. Running jobs are placed
    (:func:`tidegrid.data.place_running`). The commands and ``history check`` share this.

    Parameters
    ----------
    cluster
        Its pools, nodes, apps and tenants.
    requests, running
        The validated tables and where their rows came from; with logs, bad rows are noted there and left out.
    notes
        Appended to: sizes that are rounded up.

    Raises
    ------
    InputError
        A row does not fit, and its source has no log.
    """
    (queue, asked), (busy, held) = requests, running
    asked = asked.about(queue, REQUESTS.item, "job_id")
    held = held.about(busy, RUNNING.item, "job_id")
    apps = {app.id for app in cluster.apps}
    for frame, source in ((queue, asked), (busy, held)):
        source.refuse(
            frame["job_id"].isin(apps).to_numpy(dtype=bool),
            "job_id",
            lambda at, frame=frame: f"an app is called {frame['job_id'].iloc[at]!r} too",  # type: ignore[misc]
            "give each job and each app its own name",
        )
    _check_places(cluster, queue, asked)
    queue, asked = asked.usable(queue)
    asked.refuse(
        queue["job_id"].isin(set(busy["job_id"])).to_numpy(dtype=bool),
        "job_id",
        "the job is running already",
        "leave it out of the queue, or out of the running jobs",
    )
    busy, held = held.usable(busy)
    busy, held = place_running(cluster, busy, held)
    for note in rounded_sizes(cluster, queue):
        add_note(notes, note)
    return (queue, asked), (busy, held)


def _check_places(cluster: Cluster, queue: pd.DataFrame, source: Source) -> None:
    """Refuse requests for pools or nodes of which the cluster has none."""
    pools = {pool.id for pool in cluster.pools}
    nodes = {name for pool in cluster.pools for name in pool.nodes}
    for column, known, split in (
        ("allowed_pools", pools, str.split),
        ("allowed_nodes", nodes, nodes_of),
    ):
        if column not in queue.columns:
            continue
        wrong: dict[str, str] = {}
        for text in pd.unique(queue[column]):
            try:
                asked = split(text) if text else []
            except InputError as error:
                wrong[text] = error.problem
                continue
            if asked and not known.intersection(asked):
                wrong[text] = f"the cluster has no {asked[0]!r}"
        source.refuse(
            queue[column].isin(list(wrong)).to_numpy(dtype=bool),
            column,
            lambda at, column=column, wrong=wrong: wrong[queue[column].iloc[at]],  # type: ignore[misc]
            "use the names of cluster.json",
        )


def check_together(cluster: Cluster, tables: Mapping[str, Checked]) -> tuple[list[InputError], list[str]]:
    """Find what is wrong between a site's files, each of which may be right alone.

    Returns
    -------
    (list of InputError, list of str)
        Problems; and notes of what a plan would want and can do without.
    """
    problems: list[InputError] = []
    notes: list[str] = []
    types = sorted({pool.gpu_type for pool in cluster.pools})
    parts = {}
    for name, table in (("requests", REQUESTS), ("running", RUNNING)):
        frame, source = _noted(tables.get(name))
        if frame is None:
            frame = validated(pd.DataFrame(columns=table.names), table, source)[0]
        parts[name] = (frame, source)
    queue, busy = settle(cluster, parts["requests"], parts["running"], notes)
    _check_starts(*busy, tables)
    for frame, source in (queue, busy):
        if "gpu_type" in frame.columns:
            _check_types(frame["gpu_type"], types, source)
        if source.log is not None:
            told = [problem for group in source.log.groups for problem in _first_rows(group)]
            problems += _capped(told, source.file)
    traffic = tables.get("traffic")
    if traffic is not None and traffic.frame is not None:
        known = set(map(str, traffic.frame["series_id"]))
        free = sorted(known - {app.series for app in cluster.apps})
        for app in cluster.apps:
            if app.series in known:
                continue
            near = nearest(app.series, free)
            if near is None:
                notes.append(f"traffic has no series for {app.id}: its demand is unknown")
                continue
            problems.append(
                InputError(
                    f"there is no series {app.series!r}, which app {app.id!r} has in cluster.json",
                    file=traffic.source.file,
                    field="series_id",
                    fix=f"the nearest is {near!r}: write one name in both files",
                )
            )
    for app in cluster.apps:
        if app.capacity.units_per_gpu_hour is None:
            notes.append(f"app {app.id} declares no units_per_gpu_hour: its traffic does not tell its GPUs")
    return problems, notes


def _noted(checked: Checked | None) -> tuple[pd.DataFrame | None, Source]:
    if checked is None or checked.frame is None:
        return None, Source(log=Log())
    rows = checked.source.rows
    return checked.frame, Source(
        checked.source.file, np.arange(len(checked.frame)) + 2 if rows is None else rows, Log()
    )


def _check_types(asked: pd.Series, types: list[str], source: Source) -> None:
    def fix(kind: str) -> str:
        near = nearest(kind, types)
        return f"write {near}" if near else f"use one of {', '.join(types)}"

    for kind in sorted(set(asked) - {"", *types}):
        source.refuse((asked == kind).to_numpy(), "gpu_type", f"no pool has GPUs of type {kind!r}", fix(kind))


def _check_starts(running: pd.DataFrame, source: Source, tables: Mapping[str, Checked]) -> None:
    known = []
    for name, column in (("jobs", "known_at"), ("traffic", "timestamp"), ("requests", "submit_time")):
        checked = tables.get(name)
        if checked is not None and checked.frame is not None and len(checked.frame):
            known.append(checked.frame[column].max())
    if not known:
        return
    last = max(known)
    starts = running["start_time"]
    source.refuse(
        (starts > last + LATEST_START).to_numpy(),
        "start_time",
        lambda at: late_start(starts.iloc[at]),
        f"correct the time; the other files end at {last.isoformat()}",
    )


def late_start(start: pd.Timestamp) -> str:
    """Return what is wrong with a running job that starts later than ``LATEST_START`` allows."""
    return f"{start.isoformat()} is more than a day after everything else that is known"


def _capped(found: list[InputError], path: str | Path | None) -> list[InputError]:
    if len(found) <= MOST:
        return found
    more = len(found) - MOST
    return [*found[:MOST], InputError(f"{more} more problem{'s' if more > 1 else ''}", file=path)]
