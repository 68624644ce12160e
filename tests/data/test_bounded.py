"""What may not be read is refused before it fills the memory, hangs, or reaches a terminal."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest

from tidegrid.data import as_instant, read_cluster, read_jobs, read_traffic
from tidegrid.data import readers as module
from tidegrid.errors import InputError, printable
from tidegrid.files import read_bytes, read_json


@pytest.mark.parametrize("read", [read_jobs, read_traffic, read_cluster, read_json])
def test_only_regular_files_are_read(tmp_path: Path, read: object) -> None:
    """A device or a pipe may never end."""
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "link.parquet").symlink_to(tmp_path / "pipe.csv")
    (tmp_path / "dangling.csv").symlink_to(tmp_path / "absent")
    for path in (tmp_path / "pipe.csv", tmp_path / "link.parquet", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match=r"it is a (device|folder)"):
            read(path)  # type: ignore[operator]
    with pytest.raises(InputError, match="a link to a file that is not there"):
        read(tmp_path / "dangling.csv")  # type: ignore[operator]
    with pytest.raises(InputError):
        read(f"{tmp_path}/nul\0.csv")  # type: ignore[operator]


def test_a_packed_file_is_unpacked_no_further_than_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "bomb.csv.gz"
    path.write_bytes(gzip.compress(b"0" * 5_000_000))
    assert len(read_bytes(path, 6_000_000)) == 5_000_000
    for name, content in (("bomb.csv.gz", path.read_bytes()), ("plain.csv", b"0" * 5_000_000)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="holds more than 1 MiB"):
            read_bytes(tmp_path / name, 2**20)


def test_rows_that_compression_hides_are_counted_before_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "jobs.parquet"
    table = pa.table({"job_id": pa.array(np.zeros(2000, dtype="int8"))})
    pa.parquet.write_table(table, path)
    monkeypatch.setattr(module, "MAX_ROWS", 1999)
    monkeypatch.setattr(pd, "read_parquet", lambda *_: pytest.fail("it was read"))
    with pytest.raises(InputError, match="holds 2,000 rows of 1 columns"):
        read_jobs(path)


@pytest.mark.parametrize("year", ["0001", "1677", "1969", "2200", "2262", "9999"])
def test_dates_at_the_ends_are_refused_with_the_range(tmp_path: Path, year: str) -> None:
    text = f"{year}-09-21T00:12:43Z"
    with pytest.raises(InputError, match="is out of range; give a time between 1970 and 2199"):
        as_instant(text)
    path = tmp_path / "traffic.csv"
    path.write_text(f"series_id,timestamp,value\na,{text},1\n")
    with pytest.raises(InputError, match=r"timestamp: .* is out of range"):
        read_traffic(path)


@pytest.mark.parametrize("cell", ["1e9", "1e30", "-1", "inf", "9" * 400])
@pytest.mark.parametrize("column", ["gpus", "nodes", "cpus", "model_params_b", "seq_len", "mem_mb"])
def test_numbers_beyond_the_machine_are_refused(tmp_path: Path, column: str, cell: str) -> None:
    """Each number has a stated range; a count of 1e9 fits some of them."""
    row = {"job_id": 1, "kind": "training", "status": "completed", "submit_time": "2026-03-02T00:00:00Z",
           "duration_s": 60, "gpus": 1}  # fmt: skip
    path = tmp_path / "jobs.csv"
    pd.DataFrame([row | {column: cell}]).to_csv(path, index=False)
    if cell == "1e9" and column in ("cpus", "model_params_b", "seq_len", "mem_mb"):
        assert len(read_jobs(path)) == 1
        return
    with pytest.raises(InputError, match=f"{column}: "):
        read_jobs(path)


def test_control_codes_reach_no_terminal(tmp_path: Path) -> None:
    """Escaped on the way in where they stand in texts, refused in ids, escaped in every message."""
    nasty = "a\x1b[2J\x9b31m\u202eb\r\x07"
    path = tmp_path / "jobs\x1b[31m.csv"
    row = "{id},training,completed,2026-03-02T00:00:00Z,60,1,{name}\n"
    header = "job_id,kind,status,submit_time,duration_s,gpus,name\n"
    path.write_text(header + row.format(id=1, name=f'"{nasty}"'), encoding="utf-8", newline="")
    name = read_jobs(path)["name"][0]
    assert name == "a\\x1b[2J\\x9b31m\\u202eb\\r\\x07"
    path.write_text(header + row.format(id=f'"{nasty}"', name="x"), encoding="utf-8", newline="")
    with pytest.raises(InputError, match="holds a control character") as error:
        read_jobs(path)
    for text in (str(error.value), name, printable(nasty)):
        assert text.isprintable()
    (tmp_path / "cluster.json").write_text(json.dumps({"pools": [], "x\x1b": 1}))
    with pytest.raises(InputError) as error:
        read_cluster(tmp_path / "cluster.json")
    assert str(error.value).isprintable()
