"""Writers of the documented tables."""

import gzip
import io
from pathlib import Path

import pandas as pd

from tidegrid.data.instants import instant_text
from tidegrid.errors import InputError
from tidegrid.files import writing


def write_table(frame: pd.DataFrame, path: str | Path) -> None:
    """Write a table as CSV (``.csv``, ``.csv.gz``) or Parquet (``.parquet``), whole or not at all.

    Instants are written as ISO 8601 in UTC, whole numbers without a fraction, missing cells empty; reading gives
    the same table back. The same table gives the same bytes.

    Raises
    ------
    InputError
        The name ends in none of these, or the folder cannot be written to.
    """
    target = Path(path)
    name = target.name
    if not name.endswith((".csv", ".csv.gz", ".parquet")):
        raise InputError(
            f"{target.suffix or 'no ending'} is not a table's ending",
            file=target,
            fix="use .csv, .csv.gz or .parquet",
        )
    with writing(target) as aside:
        if name.endswith(".parquet"):
            frame.to_parquet(aside, index=False)
            return
        content = csv_text(frame).encode("utf-8")
        if name.endswith(".gz"):
            packed = io.BytesIO()
            # no name and no time inside, so that the same table gives the same bytes
            with gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as stream:
                stream.write(content)
            content = packed.getvalue()
        aside.write_bytes(content)


def csv_text(frame: pd.DataFrame) -> str:
    """Return a table as CSV text."""
    out: dict[str, pd.Series] = {}
    for name, column in frame.items():
        if isinstance(column.dtype, pd.DatetimeTZDtype):
            out[str(name)] = instant_text(column)
        elif pd.api.types.is_float_dtype(column.dtype):
            values = column.to_numpy()
            texts = [_number_text(v) for v in values.tolist()]
            out[str(name)] = pd.Series(texts, index=column.index, dtype=object)
        else:
            out[str(name)] = column
    return str(pd.DataFrame(out, index=frame.index).to_csv(index=False, lineterminator="\n"))


def _number_text(value: float) -> str:
    if value != value:
        return ""
    # below 2**53 a whole float is exact as an integer
    return str(int(value)) if abs(value) < 9e15 and value == int(value) else repr(value)
