"""Hourly traffic: whole hours of UTC, gaps kept as missing, duplicates refused or merged on request."""

from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pandas as pd

from tidegrid.data.instants import UTC_DTYPE, as_instant, parse_instants, second_of_fold
from tidegrid.data.readers import Note, SetAside, add_note, read_raw, tell
from tidegrid.data.schema import Column, check_columns, header_text, typed, validated
from tidegrid.data.source import Log, Source
from tidegrid.data.tables import TRAFFIC
from tidegrid.errors import InputError
from tidegrid.zones import zone_of

DEFAULT_START = "2024-01-01T00:00:00+00:00"
"""The instant of hour 0 of series without a calendar: a Monday, so that hour 0 is slot 0 of the week in UTC."""

Duplicates = Literal["error", "first", "last", "mean", "sum", "max"]
Fill = Literal["none", "zero", "previous", "linear", "week"]
DUPLICATES, FILLS = get_args(Duplicates), get_args(Fill)

_HOUR = np.timedelta64(3_600_000_000, "us")
_LATEST_HOUR = 2_000_000  # 228 years: a count of hours beyond is a mistake, and would not fit a time stamp

_GRID = 0.9
"""The share of a series' rows that begin at one minute of the hour from which the others are single mistakes."""

COUNTER_HOURS = 48
"""The hours without one fall from which a series that rises is taken for a counter: demand falls every night."""


def read_traffic(
    path: str | Path,
    *,
    start: str | None = None,
    timezone: str | None = None,
    value: str | None = None,
    duplicates: Duplicates = "error",
    fill: Fill = "none",
    notes: Note | None = None,
    set_aside: SetAside | None = None,
) -> pd.DataFrame:
    """Read hourly series.

    Parameters
    ----------
    path
        CSV or Parquet with columns ``series_id,timestamp,value``, ``unique_id,ds,y`` or ``series_id,hour,value``,
        or the virtual-cluster format ``time,vc,…,running_gpu_num``, whose averages of running GPUs are the demand.
    start
        The instant of hour 0 of the third form; :data:`DEFAULT_START` where absent.
    timezone
        The IANA zone of times that carry none. Of two rows with one ambiguous local hour (the clock repeats
        it), the neighbours tell which is the earlier (:func:`second_hours`).
    value
        The column to read as ``value``.
    duplicates
        What to do with two rows of one series and hour: refuse them, or merge them.
    fill
        How to fill gaps; ``"none"`` keeps them as missing.
    notes
        Appended to: gaps, how hour 0 was anchored, hours that were moved to whole hours of UTC, and counters.
    set_aside
        Appended to: one error for each row that cannot be used; the others are returned. Without it the first such
        row raises.

    Returns
    -------
    DataFrame
        ``series_id, timestamp, value`` sorted by both, every hour of UTC from a series' first to its last, NaN for a
        gap. Hours that begin at other minutes are divided among whole ones (:func:`regular_hours`).

    Raises
    ------
    InputError
        A row or a series cannot be used; file, row, column and series are named.
    """
    if fill not in FILLS:
        raise InputError(f"{fill!r} is unknown", field="fill", fix=f"use one of {', '.join(FILLS)}")
    log = None if set_aside is None else Log()
    raw, source = read_raw(path, log=log)
    frame = own_names(raw, source, start=start, value=value, notes=notes)
    check_columns(frame, TRAFFIC, source, header=raw.columns, beside=("value",))
    out = regular_hours(
        frame, source=source, timezone=timezone, duplicates=duplicates, fill=fill, notes=notes
    )
    for series in counters(out):
        add_note(notes, f"series {series!r} never falls: is it a counter? traffic is the demand in each hour")
    tell(log, set_aside)
    return out


def counters(traffic: pd.DataFrame) -> list[str]:
    """Return the series that rise for at least ``COUNTER_HOURS`` known hours and never fall."""
    known = traffic[traffic["value"].notna()]
    if known.empty:
        return []
    grouped = known.groupby("series_id", sort=True)["value"]
    falls = (grouped.diff() < 0).groupby(known["series_id"]).any()
    rises = grouped.last() > grouped.first()
    return [str(name) for name in falls.index[~falls & rises & (grouped.size() >= COUNTER_HOURS)]]


def own_names(
    frame: pd.DataFrame,
    source: Source,
    *,
    start: str | None = None,
    value: str | None = None,
    notes: Note | None = None,
) -> pd.DataFrame:
    """Return ``series_id``, ``timestamp`` and ``value`` of any form that :func:`read_traffic` reads, where there.

    Raises
    ------
    InputError
        The column to read as ``value`` is missing, an hour is not a number, or ``start`` is given for rows that
        tell their instants.
    """
    if {"unique_id", "ds", "y"} <= set(frame.columns):
        frame = frame.rename(columns={"unique_id": "series_id", "ds": "timestamp", "y": "value"})
    if "vc" in frame.columns and "time" in frame.columns and "series_id" not in frame.columns:
        frame = frame.rename(columns={"vc": "series_id", "time": "timestamp"})
        value = value or "running_gpu_num"
    if value is not None and value != "value":
        if value not in frame.columns:
            raise InputError(
                "the column is missing",
                file=source.file,
                row=1,
                field=value,
                fix=f"use one of {', '.join(frame.columns)}",
            )
        frame = frame.drop(columns="value", errors="ignore").rename(columns={value: "value"})
    dated = "timestamp" in frame.columns or "hour" in frame.columns
    if "value" not in frame.columns and "series_id" in frame.columns and dated:
        raise InputError(
            f"the column is missing; the header has {header_text(frame.columns)}",
            file=source.file,
            row=1,
            field="value",
            fix="name the column of the demand so, or tell its name with --value (value=)",
        )
    counted = "hour" in frame.columns and "timestamp" not in frame.columns
    if start is not None and not counted:
        raise InputError(
            "its rows tell their instants", file=source.file, field="start", fix="leave this option out"
        )
    if counted:
        if start is None:
            add_note(notes, f"hour 0 stands for {DEFAULT_START}; state its instant with --start (start=)")
        frame = frame.assign(timestamp=_anchored(frame["hour"], start, source)).drop(columns="hour")
    return frame[[name for name in ("series_id", "timestamp", "value") if name in frame.columns]]


def regular_hours(
    frame: pd.DataFrame,
    *,
    source: Source | None = None,
    timezone: str | None = None,
    duplicates: Duplicates = "error",
    fill: Fill = "none",
    notes: Note | None = None,
) -> pd.DataFrame:
    """Return traffic with every hour of every series, sorted; see :func:`read_traffic`.

    An hour that begins at another minute than 0 (UTC) is divided among the two whole hours that it covers, in
    proportion; a whole hour is known where more than half of it is.

    Raises
    ------
    InputError
        A row or a series cannot be used, and the source has no log.
    """
    source = (source or Source()).about(frame, TRAFFIC.item, "series_id")
    if duplicates not in DUPLICATES:
        raise InputError(
            f"{duplicates!r} is unknown", field="duplicates", fix=f"use one of {', '.join(DUPLICATES)}"
        )
    whole = len(frame)
    frame = second_hours(frame, source, timezone)
    frame, source = source.usable(frame)
    merged, source = _merged(frame, source, timezone, duplicates)
    table, source = validated(merged, TRAFFIC, source, timezone)
    table = table[["series_id", "timestamp", "value"]]
    _refuse_other_grids(table, source, timezone)
    table, source = source.usable(table)
    source.refuse_whole_file(whole, len(table), may_be_empty=False)
    table = _whole_hours(table, notes)
    codes, names = pd.factorize(table["series_id"], sort=True)
    stamps = table["timestamp"].dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    first = _per_series(np.minimum, stamps.view("int64"), codes, len(names)).view("datetime64[us]")
    last = _per_series(np.maximum, stamps.view("int64"), codes, len(names)).view("datetime64[us]")
    lengths = ((last - first) // _HOUR).astype("int64") + 1
    if lengths.sum() > 50 * len(table) + 1_000_000:
        worst = int(np.argmax(lengths))
        raise InputError(
            f"series {names[worst]!r} would span {int(lengths[worst]):,} hours for its few rows",
            file=source.file,
            field="timestamp",
            fix="check the first and last time of the series",
        )
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.full(int(offsets[-1]), np.nan)
    values[offsets[codes] + ((stamps - first[codes]) // _HOUR).astype("int64")] = table["value"].to_numpy()
    within = np.arange(len(values)) - np.repeat(offsets[:-1], lengths)
    out = pd.DataFrame(
        {
            "series_id": pd.Series(list(np.repeat(np.asarray(names, dtype=object), lengths))),
            "timestamp": pd.Series(np.repeat(first, lengths) + within * _HOUR)
            .dt.tz_localize("UTC")
            .astype(UTC_DTYPE),
            "value": values,
        }
    )
    gaps = int(np.isnan(values).sum())
    if gaps:
        said = "are missing and stay so" if fill == "none" else f"were missing and are filled ({fill})"
        add_note(notes, f"{gaps:,} of {len(values):,} hours {said}")
    return fill_gaps(out, fill) if gaps and fill != "none" else out


def _refuse_other_grids(table: pd.DataFrame, source: Source, timezone: str | None) -> None:
    """Refuse the series that are not hourly by UTC or by the zone's clock, which may change by half an hour."""
    stamps = table["timestamp"].dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    series = table["series_id"]
    minute = (stamps - stamps.astype("datetime64[h]")).astype("int64")
    off = pd.Series(minute).groupby(series.to_numpy()).transform("nunique").to_numpy() > 1
    if off.any() and timezone not in (None, "UTC"):
        wall = table["timestamp"].dt.tz_convert(zone_of(str(timezone))).dt.tz_localize(None)
        local = wall.to_numpy(dtype="datetime64[us]")
        minute = (local - local.astype("datetime64[h]")).astype("int64")
        off &= pd.Series(minute).groupby(series.to_numpy()).transform("nunique").to_numpy() > 1
    if not off.any():
        return
    by_minute = pd.Series(minute).groupby([series.to_numpy(), minute]).transform("size").to_numpy()
    rows = pd.Series(minute).groupby(series.to_numpy()).transform("size").to_numpy()
    most = pd.Series(by_minute).groupby(series.to_numpy()).transform("max").to_numpy()
    # of a series without a grid of its own, no row is a whole hour's demand
    differs = off & ((by_minute < most) | (most < _GRID * rows))
    source.refuse(
        differs,
        "timestamp",
        lambda at: f"series {series.iloc[at]!r} is not hourly at {table['timestamp'].iloc[at].isoformat()}",
        "sum or average each series to whole hours, or state the zone of its clock with --timezone",
    )


def _whole_hours(table: pd.DataFrame, notes: Note | None) -> pd.DataFrame:
    """Divide hours that begin at other minutes among the whole hours of UTC that they cover."""
    stamps = table["timestamp"].dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    hours = stamps.astype("datetime64[h]").astype("datetime64[us]")
    late = ((stamps - hours) / _HOUR).astype("float64")
    if not late.any():
        return table
    minutes = {str(s): round(60 * share) for s, share in zip(table["series_id"], late, strict=True) if share}
    name, minute = next(iter(minutes.items()))
    also = f" (and those of {len(minutes) - 1:,} more series)" if len(minutes) > 1 else ""
    add_note(
        notes,
        f"the hours of series {name!r} begin at {minute} minutes past (UTC){also}: "
        "they are divided among whole hours of UTC",
    )
    parts = pd.DataFrame(
        {
            "series_id": np.concatenate([table["series_id"], table["series_id"]]),
            "timestamp": np.concatenate([hours, hours + _HOUR]),
            "weight": np.concatenate([1 - late, late]),
            "value": np.concatenate([table["value"], table["value"]]),
        }
    )
    parts = parts[parts["weight"] > 0]
    known = parts["weight"].where(parts["value"].notna(), 0.0)
    sums = (
        parts.assign(known=known, total=known * parts["value"].fillna(0.0))
        .groupby(["series_id", "timestamp"], sort=True)[["known", "total"]]
        .sum()
        .reset_index()
    )
    # an hour of which half or less is known, as the first and the last often are, is not there
    sums = sums[sums["known"] > 0.5 + 1e-9].reset_index(drop=True)
    return pd.DataFrame(
        {
            "series_id": sums["series_id"].astype(table["series_id"].dtype),
            "timestamp": sums["timestamp"].dt.tz_localize("UTC").astype(UTC_DTYPE),
            "value": sums["total"] / sums["known"],
        }
    )


def fill_gaps(traffic: pd.DataFrame, how: Fill) -> pd.DataFrame:
    """Return regular traffic with its gaps filled, series by series.

    Parameters
    ----------
    traffic
        What :func:`read_traffic` returns.
    how
        ``"zero"``; ``"previous"`` hour; ``"linear"`` in time between the hours around the gap; ``"week"``, the same
        hour of the week before, or after where there is none before. What cannot be filled stays missing.

    Raises
    ------
    InputError
        There is no such way.
    """
    if how not in FILLS:
        raise InputError(f"{how!r} is unknown", field="fill", fix=f"use one of {', '.join(FILLS)}")
    grouped = traffic["value"].groupby(traffic["series_id"], sort=False)
    if how == "none":
        filled = traffic["value"]
    elif how == "zero":
        filled = traffic["value"].fillna(0.0)
    elif how == "previous":
        filled = grouped.ffill()
    elif how == "linear":
        filled = grouped.transform(lambda v: v.interpolate(method="linear", limit_area="inside"))
    else:
        slot = traffic.groupby("series_id", sort=False).cumcount() % 168
        by_slot = [traffic["series_id"], slot]
        filled = traffic["value"].groupby(by_slot, sort=False).ffill()
        filled = filled.groupby(by_slot, sort=False).bfill()
    return traffic.assign(value=filled)


def _per_series(reduce: np.ufunc, values: np.ndarray, codes: np.ndarray, series: int) -> np.ndarray:
    info = np.iinfo("int64")
    out = np.full(series, info.max if reduce is np.minimum else info.min, dtype="int64")
    reduce.at(out, codes, values)
    return out


def _anchored(hours: pd.Series, start: str | None, source: Source) -> pd.Series:
    column = Column(
        "hour",
        "int",
        unit="hours",
        required=True,
        low=-_LATEST_HOUR,
        high=_LATEST_HOUR,
        doc="hour of the series",
    )
    count = typed(hours, column, source, None)
    origin = as_instant(start or DEFAULT_START, field="start")
    return (origin + pd.to_timedelta(count, unit="h")).astype(UTC_DTYPE)


def _merged(
    frame: pd.DataFrame, source: Source, timezone: str | None, duplicates: Duplicates
) -> tuple[pd.DataFrame, Source]:
    if not {"series_id", "timestamp", "value"} <= set(frame.columns) or frame.empty:
        return frame, source
    columns = {
        name: typed(frame[name], TRAFFIC[name], source, timezone)
        for name in ("series_id", "timestamp", "value")
    }
    table, source = source.usable(pd.DataFrame(columns))
    key = ["series_id", "timestamp"]
    doubled = table.duplicated(key).to_numpy()
    if not doubled.any():
        return table, source
    if duplicates == "error":
        source.refuse(
            doubled,
            "timestamp",
            lambda at: (
                f"series {table['series_id'].iloc[at]!r} has {table['timestamp'].iloc[at].isoformat()} twice"
            ),
            "keep one row an hour, or merge them with duplicates=first|last|mean|sum|max",
        )
        return source.usable(table)
    grouped = table.groupby(key, sort=False)["value"]
    # min_count: two missing cells stay missing, they do not sum to zero
    merged = grouped.sum(min_count=1) if duplicates == "sum" else grouped.agg(duplicates)
    return merged.reset_index(), source.take(~doubled)


def second_hours(frame: pd.DataFrame, source: Source, timezone: str | None) -> pd.DataFrame:
    """Return traffic with local times read: of two rows with one ambiguous local hour, one is the hour after the other.

    Which one is told by the rows around them: where a series goes from old to new it is the second, and where it goes
    from new to old the first. Where they do not tell, both rows are refused.

    Raises
    ------
    InputError
        A time cannot be read, or it cannot be told which of two rows is the later, and the source has no log.
    """
    if timezone in (None, "UTC") or not {"timestamp", "series_id"} <= set(frame.columns) or frame.empty:
        return frame
    stamps, _ = parse_instants(frame["timestamp"], "timestamp", source, timezone)
    series = frame["series_id"]
    pairs = pd.DataFrame({"series": series, "at": stamps})
    again = (pairs.duplicated() & stamps.notna()).to_numpy()
    if not again.any():
        return frame.assign(timestamp=stamps)
    later = second_of_fold(stamps, str(timezone))
    again = again & (later != stamps).to_numpy()
    moved = np.zeros(len(frame), dtype=bool)
    unclear: list[int] = []
    for name in pd.unique(series[again]):
        at = np.flatnonzero((series == name).to_numpy())
        local = stamps.iloc[at].dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
        seconds = np.flatnonzero(again[at])
        for second in seconds:
            first = int(np.flatnonzero(local[:second] == local[second])[-1])
            direction = _direction(local, first, int(second))
            if direction == 0:
                unclear += [int(at[first]), int(at[second])]
            else:
                moved[at[second] if direction > 0 else at[first]] = True
    source.refuse(
        np.isin(np.arange(len(frame)), unclear),
        "timestamp",
        lambda at: "the clock has this hour twice, and the rows around do not tell which of two this is",
        "write the offsets of the times, or sort the rows by time",
    )
    return frame.assign(timestamp=stamps.mask(pd.Series(moved, index=stamps.index), later))


def _direction(local: np.ndarray, first: int, second: int) -> int:
    """Return 1 where the rows around two equal times go from old to new, -1 from new to old, 0 where unclear."""
    signs = set()
    if first > 0:
        signs.add(int(np.sign((local[first] - local[first - 1]).astype("int64"))))
    if second + 1 < len(local):
        signs.add(int(np.sign((local[second + 1] - local[second]).astype("int64"))))
    return signs.pop() if len(signs) == 1 and second == first + 1 else 0
