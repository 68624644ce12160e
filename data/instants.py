"""Instants: text to UTC and back, and the time notations of Slurm."""

import re
from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

from tidegrid.data.cells import MISSING, as_text
from tidegrid.errors import InputError
from tidegrid.zones import zone_of

if TYPE_CHECKING:
    from tidegrid.data.source import Source

UTC_DTYPE: Final = "datetime64[us, UTC]"

EARLIEST: Final = pd.Timestamp("1970-01-01", tz="UTC")
LATEST: Final = pd.Timestamp("2200-01-01", tz="UTC")
"""The span of instants that are read: outside of it a date is a mistake, and calendars come to their ends."""

_SPAN_FIX = "give a time between 1970 and 2199"

_ZONED = r"[T ]\d\d.*(?:[Zz]|[+-]\d\d(?::?\d\d)?)$"
_FIX = "write an ISO 8601 instant with its zone, such as 2026-03-02T08:00:00+00:00"


def parse_instants(
    raw: pd.Series, field: str, source: "Source", timezone: str | None
) -> tuple[pd.Series, np.ndarray]:
    """Return a column as UTC instants, and which of its cells are empty.

    A time without a zone is read in ``timezone``: ambiguous local times resolve to the first instant, nonexistent ones
    are rejected.

    Raises
    ------
    InputError
        A cell is not a time, or carries no zone and none is stated.
    """
    out, absent = _parsed(raw, field, source, timezone)
    beyond = ((out < EARLIEST) | (out >= LATEST)).to_numpy(dtype=bool)
    source.refuse(beyond, field, lambda at: f"{out.iloc[at].isoformat()} is out of range", _SPAN_FIX)
    return out.mask(pd.Series(beyond, index=out.index)) if beyond.any() else out, absent


def _parsed(
    raw: pd.Series, field: str, source: "Source", timezone: str | None
) -> tuple[pd.Series, np.ndarray]:
    if len(raw) == 0:
        return pd.Series([], index=raw.index, dtype=UTC_DTYPE), np.zeros(0, dtype=bool)
    if isinstance(raw.dtype, pd.DatetimeTZDtype):
        return raw.dt.tz_convert("UTC").astype(UTC_DTYPE), raw.isna().to_numpy()
    if pd.api.types.is_datetime64_dtype(raw.dtype):
        absent = raw.isna().to_numpy()
        _refuse_naive(~absent, raw, field, source, timezone)
        return _localised(raw, timezone, field, source), absent
    text = as_text(raw)
    absent = text.str.lower().isin(MISSING).to_numpy()
    zoned = text.str.contains(_ZONED).to_numpy(dtype=bool) & ~absent
    naive = ~zoned & ~absent
    out = pd.Series(pd.NaT, index=raw.index, dtype=UTC_DTYPE)
    if zoned.any():
        parsed = pd.to_datetime(text[zoned], format="ISO8601", utc=True, errors="coerce")
        out.loc[zoned] = parsed.astype(UTC_DTYPE)
    wall = pd.Series(pd.NaT, index=raw.index, dtype="datetime64[us]")
    if naive.any():
        wall.loc[naive] = pd.to_datetime(text[naive], format="ISO8601", errors="coerce").astype(
            "datetime64[us]"
        )
    unread = ~absent & out.isna().to_numpy() & wall.isna().to_numpy()
    source.refuse(unread, field, lambda at: f"{text.iloc[at]!r} is not a time", _FIX)
    if naive.any():
        _refuse_naive(naive, text, field, source, timezone)
        out.loc[naive] = _localised(wall, timezone, field, source)[naive]
    return out, absent


def _refuse_naive(
    naive: np.ndarray, raw: pd.Series, field: str, source: "Source", timezone: str | None
) -> None:
    if timezone is None:
        source.refuse(
            naive,
            field,
            lambda at: f"{str(raw.iloc[at])!r} carries no time zone",
            "write the offset (+00:00), or state the zone of all times with --timezone (timezone=)",
        )


def _localised(wall: pd.Series, timezone: str | None, field: str, source: "Source") -> pd.Series:
    zone = zone_of(timezone or "UTC")
    if timezone in (None, "UTC"):
        return wall.dt.tz_localize("UTC").astype(UTC_DTYPE)
    local = wall.dt.tz_localize(zone, ambiguous=np.ones(len(wall), dtype=bool), nonexistent="NaT")
    source.refuse(
        (local.isna() & wall.notna()).to_numpy(),
        field,
        lambda at: f"{wall.iloc[at].isoformat()} does not exist in {timezone} (clocks go forward)",
        "write the offset of the time, or state the zone that the clock really had",
    )
    return local.dt.tz_convert("UTC").astype(UTC_DTYPE)


def second_of_fold(instants: pd.Series, timezone: str) -> pd.Series:
    """Return instants with those of the first pass of an hour that a clock has twice moved to the second."""
    wall = instants.dt.tz_convert(zone_of(timezone)).dt.tz_localize(None)
    later = wall.dt.tz_localize(
        zone_of(timezone), ambiguous=np.zeros(len(wall), dtype=bool), nonexistent="shift_forward"
    )
    return later.dt.tz_convert("UTC").astype(UTC_DTYPE)


def instant_text(instants: pd.Series) -> pd.Series:
    """Return UTC instants as ISO 8601 text with ``+00:00``, ``""`` for NaT; the inverse of reading them."""
    if len(instants) == 0:
        return pd.Series([], index=instants.index, dtype=object)
    values = instants.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy(dtype="datetime64[us]")
    absent = np.isnat(values)
    whole = bool(np.all(absent | (values == values.astype("datetime64[s]").astype("datetime64[us]"))))
    text = np.char.add(np.datetime_as_string(values, unit="s" if whole else "us"), "+00:00")
    return pd.Series(np.where(absent, "", text).tolist(), index=instants.index, name=instants.name)


def as_instant(value: object, *, field: str = "instant") -> pd.Timestamp:
    """Return one instant as a UTC time stamp.

    Raises
    ------
    InputError
        It is not a time, carries no zone, or lies outside the span that is read.
    """
    try:
        stamp = pd.Timestamp(value)  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError):
        raise InputError(f"{value!r} is not a time", field=field, fix=_FIX) from None
    if pd.isna(stamp):
        raise InputError(f"{value!r} is not a time", field=field, fix=_FIX)
    if stamp.tzinfo is None:
        raise InputError(f"{str(value)!r} carries no time zone", field=field, fix=_FIX)
    if not EARLIEST.year <= stamp.year < LATEST.year:
        raise InputError(f"{str(value)!r} is out of range", field=field, fix=_SPAN_FIX)
    return stamp.tz_convert("UTC")


_NO_LIMIT = frozenset({"unlimited", "partition_limit", "infinite", "none", "", "n/a", "unknown", "invalid"})
_SLURM = re.compile(
    r"^(?:(?P<days>\d+)-(?P<dh>\d+)(?::(?P<dm>\d+)(?::(?P<ds>\d+(?:\.\d+)?))?)?"
    r"|(?P<h>\d+):(?P<hm>\d+):(?P<hs>\d+(?:\.\d+)?)"
    r"|(?P<m>\d+):(?P<s>\d+(?:\.\d+)?)"
    r"|(?P<only>\d+))$"
)


def slurm_minutes(text: str) -> float | None:
    """Return a Slurm time in minutes; None for no limit.

    The notations are those of ``sbatch --time`` (Slurm documentation, ``sbatch(1)``): minutes, ``minutes:seconds``,
    ``hours:minutes:seconds``, ``days-hours``, ``days-hours:minutes`` and ``days-hours:minutes:seconds``.

    Raises
    ------
    InputError
        It is none of them.

    Examples
    --------
    >>> slurm_minutes("2-12:30"), slurm_minutes("30"), slurm_minutes("UNLIMITED")
    (3630.0, 30.0, None)
    """
    cleaned = text.strip()
    if cleaned.lower() in _NO_LIMIT:
        return None
    match = _SLURM.match(cleaned)
    if match is None:
        raise InputError(f"{text!r} is not a Slurm time", fix="write minutes, or days-hours:minutes:seconds")
    part = {name: float(value) for name, value in match.groupdict(default="0").items()}
    minutes = part["days"] * 1440 + part["dh"] * 60 + part["dm"] + part["ds"] / 60
    minutes += part["h"] * 60 + part["hm"] + part["hs"] / 60
    return minutes + part["m"] + part["s"] / 60 + part["only"]
