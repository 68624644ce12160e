"""Hourly traffic: whole hours of UTC, gaps kept as missing, duplicates refused or merged on request."""

from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from tidegrid.data.instants import UTC_DTYPE, as_instant, parse_instants
from tidegrid.data.readers import Note, add_note, read_raw
from tidegrid.data.schema import Column, Source, check_columns, header_text, typed, validate
from tidegrid.data.tables import TRAFFIC
from tidegrid.errors import InputError

DEFAULT_START = "2024-01-01T00:00:00+00:00"
"""The instant of hour 0 of series without a calendar: a Monday, so that hour 0 is slot 0 of the week in UTC."""

Duplicates = Literal["error", "first", "last", "mean", "sum", "max"]
Fill = Literal["none", "zero", "previous", "linear", "week"]

_HOUR = np.timedelta64(3_600_000_000, "us")
_LATEST_HOUR = 2_000_000  # 228 years: a count of hours beyond is a mistake, and would not fit a time stamp


def read_traffic(
    path: str | Path,
    *,
    start: str | None = None,
    timezone: str | None = None,
    value: str | None = None,
    duplicates: Duplicates = "error",
    fill: Fill = "none",
    notes: Note | None = None,
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
        The IANA zone of times that carry none. In the hour that an autumn night has twice, the first of two rows
        is the first of the two hours.
    value
        The column to read as ``value``.
    duplicates
        What to do with two rows of one series and hour: refuse them, or merge them.
    fill
        How to fill gaps; ``"none"`` keeps them as missing.
    notes
        Appended to: gaps, and how hour 0 was anchored.

    Returns
    -------
    DataFrame
        ``series_id, timestamp, value`` sorted by both, every hour from a series' first to its last, NaN for a gap.

    Raises
    ------
    InputError
        A row or a series cannot be used; file, row, column and series are named.
    """
    raw, source = read_raw(path)
    frame = own_names(raw, source, start=start, value=value, notes=notes)
    check_columns(frame, TRAFFIC, source, header=raw.columns, beside=("value",))
    frame = second_hours(frame, source, timezone)
    return regular_hours(
        frame, source=source, timezone=timezone, duplicates=duplicates, fill=fill, notes=notes
    )


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
        The column to read as ``value`` is missing, or an hour is not a number.
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
    if "hour" in frame.columns and "timestamp" not in frame.columns:
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

    Raises
    ------
    InputError
        A row or a series cannot be used.
    """
    source = source or Source()
    if duplicates not in ("error", "first", "last", "mean", "sum", "max"):
        raise InputError(
            f"{duplicates!r} is unknown", field="duplicates", fix="use error, first, last, mean, sum or max"
        )
    merged = _merged(frame, source, timezone, duplicates)
    table = validate(
        merged,
        TRAFFIC,
        source=source if len(merged) == len(frame) else Source(source.file),
        timezone=timezone,
    )
    table = table[["series_id", "timestamp", "value"]]
    codes, names = pd.factorize(table["series_id"], sort=True)
    stamps = table["timestamp"].dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    first = _per_series(np.minimum, stamps.view("int64"), codes, len(names)).view("datetime64[us]")
    last = _per_series(np.maximum, stamps.view("int64"), codes, len(names)).view("datetime64[us]")
    off = (stamps - first[codes]) % _HOUR != np.timedelta64(0, "us")
    source.refuse(
        off,
        "timestamp",
        lambda at: (
            f"series {table['series_id'].iloc[at]!r} is not hourly at {table['timestamp'].iloc[at].isoformat()}"
        ),
        "sum or average each series to whole hours",
    )
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
    if how not in ("none", "zero", "previous", "linear", "week"):
        raise InputError(f"{how!r} is unknown", field="fill", fix="use none, zero, previous, linear or week")
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
) -> pd.DataFrame:
    if not {"series_id", "timestamp", "value"} <= set(frame.columns) or frame.empty:
        return frame
    columns = {
        name: typed(frame[name], TRAFFIC[name], source, timezone)
        for name in ("series_id", "timestamp", "value")
    }
    table = pd.DataFrame(columns)
    key = ["series_id", "timestamp"]
    doubled = table.duplicated(key).to_numpy()
    if not doubled.any():
        return table
    if duplicates == "error":
        source.refuse(
            doubled,
            "timestamp",
            lambda at: (
                f"series {table['series_id'].iloc[at]!r} has {table['timestamp'].iloc[at].isoformat()} twice"
            ),
            "keep one row an hour, or merge them with duplicates=first|last|mean|sum|max",
        )
        return table[~doubled].reset_index(drop=True)  # for a source that notes and does not raise
    grouped = table.groupby(key, sort=False)["value"]
    # min_count: two missing cells stay missing, they do not sum to zero
    merged = grouped.sum(min_count=1) if duplicates == "sum" else grouped.agg(duplicates)
    return merged.reset_index()


def second_hours(frame: pd.DataFrame, source: Source, timezone: str | None) -> pd.DataFrame:
    """Return traffic with local times read; the second row of a doubled autumn hour is the hour after the first."""
    if timezone in (None, "UTC") or not {"timestamp", "series_id"} <= set(frame.columns):
        return frame
    return frame.assign(timestamp=_second_hours(frame, source, str(timezone)))


def _second_hours(frame: pd.DataFrame, source: Source, timezone: str) -> pd.Series:
    stamps, _ = parse_instants(frame["timestamp"], "timestamp", source, timezone)
    again = pd.DataFrame({"series": frame["series_id"], "at": stamps}).duplicated().to_numpy()
    if not again.any():
        return stamps
    wall = stamps.dt.tz_convert(timezone).dt.tz_localize(None)
    later = wall.dt.tz_localize(timezone, ambiguous=np.zeros(len(wall), dtype=bool), nonexistent="NaT")
    return stamps.mask(pd.Series(again, index=stamps.index), later.dt.tz_convert("UTC").astype(UTC_DTYPE))
