"""Traffic that a server tells of a site: kept in a file of its folder, and brought up to date before it is read."""

from pathlib import Path
from typing import Any

import pandas as pd

from tidegrid.data import read_cluster, regular_hours, write_table
from tidegrid.data.instants import UTC_DTYPE
from tidegrid.data.prometheus import COLUMNS, PrometheusError, TrafficSource, fetched, traffic_of
from tidegrid.errors import InputError
from tidegrid.files import regular_file

KEPT = "traffic-prometheus.csv"
"""The file of a site's folder that holds the hours that were fetched."""

LATE = pd.Timedelta(hours=3)
"""Traffic is late, and said to be, when the newest known hour began this long ago: it and the next have ended."""

_TYPES: dict[str, Any] = dict(zip(COLUMNS, (str, UTC_DTYPE, float, float, str), strict=True))


def bring_up_to_date(folder: str | Path, source: TrafficSource | None, now: pd.Timestamp) -> list[str]:
    """Fetch the hours that have ended since the last call; return what was odd, a line each.

    A server that does not answer is such a line: what is kept holds until it answers again.

    Parameters
    ----------
    folder
        The site's.
    source
        Where traffic comes from; None for the site's tables alone.
    now
        Hours that have ended by then are wanted.
    """
    if source is None:
        return []
    path, server = Path(folder) / KEPT, source.prometheus
    kept, notes = _kept(path)
    try:
        found, odd = fetched(server, now, kept)
    except PrometheusError as error:
        return [*notes, f"traffic is not brought up to date: {error}"]
    if not found.equals(kept):
        write_table(found, path)
    return [*notes, *odd]


def refresh_site(folder: str | Path, now: pd.Timestamp | None = None) -> list[str]:
    """Bring the traffic of a site's folder up to date, where ``cluster.json`` names a server; return what was odd.

    Parameters
    ----------
    now
        As :func:`bring_up_to_date` takes it; this machine's clock where None.
    """
    described = Path(folder) / "cluster.json"
    if not described.is_file():
        return []
    try:
        source = read_cluster(described).traffic
    except InputError:
        return []  # whoever reads the site tells what is wrong with it
    return bring_up_to_date(folder, source, pd.Timestamp.now("UTC") if now is None else now)


def with_fetched(
    traffic: pd.DataFrame | None,
    folder: str | Path,
    source: TrafficSource | None,
    now: pd.Timestamp | None = None,
    notes: list[str] | None = None,
) -> pd.DataFrame | None:
    """Return a site's traffic with the hours that were fetched, which replace those of its tables.

    Parameters
    ----------
    traffic
        As :func:`tidegrid.data.read_traffic` returns it; None for none.
    folder
        The site's.
    source
        Where traffic comes from; None for the site's tables alone.
    now
        The instant that is planned from, where one is given.
    notes
        Appended to: series whose newest hours are missing.
    """
    if source is None:
        return traffic
    kept, odd = _kept(Path(folder) / KEPT)
    more = traffic_of(kept)
    more = more[more["series_id"].isin(list(source.prometheus.apps)) & more["value"].notna()]
    if notes is not None:
        notes += [*odd, *_late(source, more, now)]
    if more.empty:
        return traffic
    parts = [more] if traffic is None else [more, traffic]
    hours = pd.concat(parts, ignore_index=True).drop_duplicates(["series_id", "timestamp"])
    return regular_hours(hours)


def _late(source: TrafficSource, known: pd.DataFrame, now: pd.Timestamp | None) -> list[str]:
    newest = known.groupby("series_id")["timestamp"].max()
    out = []
    for name in sorted(source.prometheus.apps):
        if name not in newest.index:
            out.append(f"{name}: Prometheus has told no traffic of it")
        elif now is not None and now - newest[name] > LATE:
            out.append(f"{name}: the newest hour that Prometheus has told of is {newest[name].isoformat()}")
    return out


def _kept(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return the hours that were fetched earlier; none, and a note, where their file cannot be used."""
    none = pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in _TYPES.items()})
    if not path.exists():
        return none, []
    try:
        table = pd.read_csv(
            regular_file(path),
            dtype=_TYPES | {"timestamp": str},
            keep_default_na=False,
            na_values={"growth": [""], "scrapes": [""]},
        )
        table["timestamp"] = pd.to_datetime(table["timestamp"], utc=True, format="ISO8601").astype(UTC_DTYPE)
        if tuple(table.columns) != COLUMNS or table["timestamp"].isna().any():
            raise ValueError("other columns")
    except (OSError, ValueError, KeyError, InputError):
        return none, [f"{path.name} cannot be used: its hours are fetched again"]
    return table, []
