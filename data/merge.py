"""Job history that grows: what was read before and what is read now, each attempt once."""

import pandas as pd

from tidegrid.data.schema import blank
from tidegrid.data.tables import JOBS


def merge_jobs(before: pd.DataFrame, now: pd.DataFrame) -> pd.DataFrame:
    """Return the attempts of two histories, each once, by (job id, submit time); a later reading replaces.

    Merging the same history again changes nothing, so that a timer may do it.

    Parameters
    ----------
    before, now
        Validated job histories.

    Returns
    -------
    DataFrame
        Sorted by submit time and id, with the columns of both; cells of columns that one lacks are empty.
    """
    names = [name for name in JOBS.names if name in before.columns or name in now.columns]
    names += [name for name in [*before.columns, *now.columns] if name not in names]
    names = list(dict.fromkeys(names))
    parts = [_with_columns(frame, names) for frame in (before, now) if len(frame)]
    if not parts:
        return _with_columns(before, names)
    both = pd.concat(parts, ignore_index=True)
    both = both.drop_duplicates(list(JOBS.key), keep="last")
    return both.sort_values(["submit_time", "job_id"], kind="stable", ignore_index=True)


def _with_columns(frame: pd.DataFrame, names: list[str]) -> pd.DataFrame:
    known = {column.name: column for column in JOBS.columns}
    missing = {
        name: blank(known[name], frame.index) if name in known else pd.Series("", index=frame.index)
        for name in names
        if name not in frame.columns
    }
    return frame.assign(**missing)[names]
