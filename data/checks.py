"""Every problem of a site's files at once: what reading them, which stops at the first, does not tell."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.data.cluster import Cluster, check_running
from tidegrid.data.formats import detect
from tidegrid.data.readers import Note, complete_jobs, read_jobs, read_raw, without_gpus
from tidegrid.data.schema import Source, Table, Text, typed, validate
from tidegrid.data.tables import JOBS, TABLES, TRAFFIC
from tidegrid.data.traffic import own_names, regular_hours, second_hours
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
    """

    frame: pd.DataFrame | None
    source: Source
    problems: list[InputError]


@dataclass(frozen=True)
class _Log(Source):
    """A source that notes what is wrong with its rows, and does not raise."""

    found: list[InputError] = field(default_factory=list)
    bad: dict[str, set[int]] = field(default_factory=dict)

    def take(self, keep: np.ndarray) -> "_Log":
        return _Log(self.file, super().take(keep).rows, self.found, self.bad)

    def refuse(self, bad: np.ndarray, field: str, problem: Text, fix: str) -> None:
        seen = self.bad.setdefault(field, set())
        # A cell has one problem: that of an unreadable one is not told again as out of range.
        at = [int(i) for i in np.flatnonzero(bad) if self.row(int(i)) not in seen]
        seen.update(self.row(i) for i in at)
        for k, position in enumerate(at[:ROWS]):
            text = problem if isinstance(problem, str) else problem(position)
            more = len(at) - ROWS
            if k == ROWS - 1 and more > 0:
                text += f" (and in {more:,} more row{'s' if more > 1 else ''})"
            self.found.append(InputError(text, file=self.file, row=self.row(position), field=field, fix=fix))

    def good(self) -> np.ndarray:
        """Which of its rows have no problem."""
        wrong = np.array(sorted(set().union(*self.bad.values())), dtype="int64")
        rows = self.rows if self.rows is not None else np.empty(0, dtype="int64")
        return ~np.isin(rows, wrong)


def check_table(
    name: str, path: str | Path, *, timezone: str | None = None, notes: Note | None = None
) -> Checked:
    """Read one table of a site and find what is wrong with it.

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
    table = TABLES[name]
    try:
        if table is JOBS and detect(path) != "tidegrid":
            return Checked(read_jobs(path, timezone=timezone, notes=notes), Source(path), [])
        frame, source = read_raw(path)
        raw = frame
        if table is TRAFFIC:
            frame = own_names(frame, source, notes=notes)
    except InputError as error:
        return Checked(None, Source(path), [error])
    rows = source.rows if source.rows is not None else np.arange(len(frame)) + 2
    # other forms of traffic have names of their own
    misspelt = (
        {} if table is TRAFFIC and len(frame.columns) == len(TRAFFIC.columns) else _misspelt(raw, table)
    )
    log = _Log(source.file, rows)
    for wrong, right in misspelt.items():
        log.found.append(
            InputError(
                "the column is not known, and is not read",
                file=source.file,
                row=1,
                field=wrong,
                fix=f"write {right}, if that is meant",
            )
        )
    try:
        out = _validated(frame, table, Source(source.file, rows), timezone, notes)
        # what validation left out or put in order has no row numbers left; queue and running jobs keep theirs
        return Checked(out, Source(source.file, rows if len(out) == len(rows) else None), log.found)
    except InputError as error:
        first = error
    rest = _collect(frame, table, log, timezone, set(misspelt.values()))
    # Each problem of the file as a whole is found here only where reading stopped at it.
    known = len(log.found) > len(misspelt) or first.field in misspelt.values()
    found = log.found if known else [*log.found, first]
    left, where = rest or (None, log)
    return Checked(left, where, _capped(found, path))


def _validated(
    frame: pd.DataFrame, table: Table, source: Source, timezone: str | None, notes: Note | None
) -> pd.DataFrame:
    if table is JOBS:
        return complete_jobs(frame, source=source, timezone=timezone, notes=notes)
    if table is TRAFFIC:
        frame = second_hours(frame, source, timezone)
        return regular_hours(frame, source=source, timezone=timezone, notes=notes)
    return validate(frame, table, source=source, timezone=timezone)


def _collect(
    frame: pd.DataFrame, table: Table, log: _Log, timezone: str | None, meant: set[str]
) -> tuple[pd.DataFrame, Source] | None:
    """Note every problem, column by column, then what shows across columns in the rows that are left."""
    missing = [c for c in table.columns if c.required and c.name not in frame.columns]
    for column in missing:
        if column.name not in meant:
            log.found.append(
                InputError(
                    "the column is missing",
                    file=log.file,
                    row=1,
                    field=column.name,
                    fix=f"add it: {column.meaning()}",
                )
            )
    if table is JOBS and "gpus" in frame.columns:
        keep = ~without_gpus(frame)
        frame, log = frame[keep].reset_index(drop=True), log.take(keep)
    for column in table.columns:
        if column.name in frame.columns:
            try:
                typed(frame[column.name], column, log, timezone)
            except InputError as error:
                log.found.append(error)
            except ValueError:
                pass  # cells that were noted above stand in the way of the column's type
    good = log.good()
    if missing or not good.any():
        return None
    frame, log = frame[good].reset_index(drop=True), log.take(good)
    try:
        out = _validated(frame, table, log, timezone, None)
    except InputError as error:
        log.found.append(error)
        return None
    if len(out) != len(frame):
        return out, Source(log.file)
    good = log.good()
    return out[good].reset_index(drop=True), log.take(good)


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
    for name in ("requests", "running"):
        frame, log = _noted(tables.get(name))
        if frame is None:
            continue
        if name == "running":
            check_running(cluster, frame, source=log)
            _check_starts(frame, log, tables)
        if "gpu_type" in frame.columns:
            _check_types(frame["gpu_type"], types, log)
        problems += _capped(log.found, log.file)
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
    return problems, notes


def _noted(checked: Checked | None) -> tuple[pd.DataFrame | None, _Log]:
    if checked is None or checked.frame is None:
        return None, _Log()
    rows = checked.source.rows
    return checked.frame, _Log(
        checked.source.file, np.arange(len(checked.frame)) + 2 if rows is None else rows
    )


def _check_types(asked: pd.Series, types: list[str], log: _Log) -> None:
    def fix(kind: str) -> str:
        near = nearest(kind, types)
        return f"write {near}" if near else f"use one of {', '.join(types)}"

    for kind in sorted(set(asked) - {"", *types}):
        log.refuse((asked == kind).to_numpy(), "gpu_type", f"no pool has GPUs of type {kind!r}", fix(kind))


def _check_starts(running: pd.DataFrame, log: _Log, tables: Mapping[str, Checked]) -> None:
    known = []
    for name, column in (("jobs", "known_at"), ("traffic", "timestamp"), ("requests", "submit_time")):
        checked = tables.get(name)
        if checked is not None and checked.frame is not None and len(checked.frame):
            known.append(checked.frame[column].max())
    if not known:
        return
    last = max(known)
    starts = running["start_time"]
    log.refuse(
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
