"""Public holidays by country: one definition for cluster descriptions, demand, synthesis and command line."""

from functools import lru_cache

import pandas as pd

from tidegrid.errors import InputError


@lru_cache(maxsize=64)
def holiday_days(
    country: str, subdivision: str | None = None, first_year: int = 2026, last_year: int = 2026
) -> frozenset[int]:
    """Return the public holidays of a country as days since 1970-01-01, from the package ``holidays``.

    Parameters
    ----------
    country, subdivision
        ISO 3166 codes, such as ``DE`` and ``BY``.
    first_year, last_year
        The years, both included.

    Raises
    ------
    InputError
        There is no calendar of the country, or of its subdivision.
    """
    import holidays

    years = range(first_year, last_year + 1)
    for field, told in (("country", None), ("subdivision", subdivision)):
        try:
            calendar = holidays.country_holidays(country, subdiv=told, years=years)
        except NotImplementedError:
            raise InputError(
                f"there is no holiday calendar for {told or country!r}",
                field=field,
                fix=f"use an ISO 3166 code such as {'DE' if told is None else 'BY of DE'}, or leave it out",
            ) from None
    epoch = pd.Timestamp("1970-01-01")
    return frozenset((pd.Timestamp(day) - epoch).days for day in calendar)
