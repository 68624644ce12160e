"""IANA time zones by name: one definition for history, demand, planner and command line."""

from functools import lru_cache
from zoneinfo import ZoneInfo

from tidegrid.errors import InputError


@lru_cache(maxsize=64)
def zone_of(name: str) -> ZoneInfo:
    """Return an IANA zone by name.

    Raises
    ------
    InputError
        There is no such zone.
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise InputError(
            f"{name!r} is not a time zone",
            field="timezone",
            fix="give an IANA name such as UTC or Europe/Berlin",
        ) from None
