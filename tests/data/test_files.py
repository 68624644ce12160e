"""Files in and out: CSV, gzip and Parquet give the same table back, and no file can crash a reader."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables_by_chance import job_rows, request_rows, traffic_rows

from tidegrid.data import (
    History,
    read_cluster,
    read_jobs,
    read_requests,
    read_running,
    read_traffic,
    regular_hours,
    validate,
    write_table,
)
from tidegrid.data.readers import complete_jobs, read_raw
from tidegrid.data.tables import REQUESTS
from tidegrid.errors import InputError

ENDINGS = st.sampled_from((".csv", ".csv.gz", ".parquet"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@given(job_rows(), ENDINGS)
def test_history_written_and_read_is_equal(folder: Path, rows: list[dict[str, object]], ending: str) -> None:
    table = complete_jobs(pd.DataFrame(rows))
    write_table(table, folder / f"jobs{ending}")
    pd.testing.assert_frame_equal(read_jobs(folder / f"jobs{ending}", format="tidegrid"), table)


@given(request_rows(), ENDINGS)
def test_requests_written_and_read_are_equal(
    folder: Path, rows: list[dict[str, object]], ending: str
) -> None:
    frame = pd.DataFrame(rows, columns=list(rows[0]) if rows else ["job_id", "kind", "submit_time", "gpus"])
    table = validate(frame, REQUESTS)
    write_table(table, folder / f"requests{ending}")
    pd.testing.assert_frame_equal(read_requests(folder / f"requests{ending}"), table)


@given(traffic_rows(), ENDINGS)
def test_traffic_written_and_read_is_equal(folder: Path, rows: list[dict[str, object]], ending: str) -> None:
    table = regular_hours(pd.DataFrame(rows))
    write_table(table, folder / f"traffic{ending}")
    pd.testing.assert_frame_equal(read_traffic(folder / f"traffic{ending}"), table)


def test_the_same_table_gives_the_same_bytes(folder: Path) -> None:
    table = regular_hours(
        pd.DataFrame({"series_id": "a", "timestamp": ["2026-03-02T00:00Z"], "value": [0.1]})
    )
    for ending in (".csv", ".csv.gz", ".parquet"):
        write_table(table, folder / f"a{ending}")
        write_table(table.copy(), folder / f"b{ending}")
        assert (folder / f"a{ending}").read_bytes() == (folder / f"b{ending}").read_bytes()


READERS: tuple[Callable[..., object], ...] = (
    read_jobs,
    read_requests,
    read_running,
    read_traffic,
    read_cluster,
)


@given(
    st.sampled_from(READERS),
    st.binary(max_size=200),
    st.sampled_from((".csv", ".csv.gz", ".parquet", ".swf")),
)
def test_no_bytes_can_crash_a_reader(
    folder: Path, read: Callable[..., object], content: bytes, ending: str
) -> None:
    """Whatever a file holds, the answer is a table or one line that names the file."""
    path = folder / f"noise{ending}"
    path.write_bytes(content)
    try:
        read(path)
    except InputError as error:
        assert str(path) in str(error)


_CELLS = st.sampled_from(
    ("", "1", "-1", "0", "inf", "nan", "x", '"', "2026-03-02T00:00:00Z", "2026-03-02", "completed", "training", "1e400",
     "99999999999999999999", "é", "|", ";", "2-12:30", "true", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z")
)  # fmt: skip
_HEADERS = st.sampled_from(
    (
        "job_id,kind,status,submit_time,start_time,end_time,duration_s,gpus",
        "job_id,submit_time,start_time,end_time,duration_s,gpus,status,submit_s",
        "JobID|State|Submit|Start|End|ElapsedRaw|Timelimit|AllocTRES",
        "job_id,kind,submit_time,gpus,priority,deadline,requested_walltime_s,packing",
        "job_id,kind,pool,first_gpu,gpus,start_time,priority,user",
        "series_id,timestamp,value",
        "series_id,hour,value",
        "time,vc,running_gpu_num",
    )
)


@given(st.sampled_from(READERS[:4]), _HEADERS, st.lists(st.lists(_CELLS, min_size=8, max_size=8), max_size=4))
def test_no_cells_can_crash_a_reader(
    folder: Path, read: Callable[..., object], header: str, rows: list[list[str]]
) -> None:
    separator = "|" if "|" in header else ","
    width = header.count(separator) + 1
    path = folder / "cells.csv"
    path.write_text("\n".join([header, *(separator.join(row[:width]) for row in rows)]) + "\n")
    for timezone in (None, "Europe/Berlin"):
        try:
            read(path, timezone=timezone)
        except InputError as error:
            assert str(path) in str(error)


def test_files_that_are_not_tables_are_named(tmp_path: Path) -> None:
    cases: dict[str, tuple[bytes, str]] = {
        "absent.csv": (b"", "cannot be read"),
        "latin.csv": ("job_id,näme\n".encode("latin-1"), "not UTF-8"),
        "ragged.csv": (b"job_id,kind\na,b,c\n", "not a table"),
        "semicolon.csv": (b"job_id;kind\na;b\n", "no comma"),
        "twice.csv": (b"job_id,job_id\na,b\n", "there twice"),
        "unnamed.csv": (b"job_id,\na,b\n", "no name"),
        "plain.csv.gz": (b"job_id,kind\n", "not a gzip file"),
        "cut.csv.gz": (gzip.compress(b"job_id,kind\na,b\n")[:-6], "ends early: it is cut; fetch"),
        "flipped.csv.gz": (gzip.compress(b"job_id,kind\n")[:10] + b"\xff" * 20, "is a damaged gzip file"),
        "altered.csv.gz": (gzip.compress(b"job_id,kind\n")[:-8] + b"\0" * 8, "is a damaged gzip file"),
        "cpu.csv": (
            b"job_id,kind,status,submit_time,gpus\na,training,failed,2026-03-02T00:00Z,0\n",
            "held a GPU",
        ),
        "text.parquet": (b"job_id,kind\n", "not Parquet"),
    }
    for name, (content, said) in cases.items():
        path = tmp_path / name
        if name != "absent.csv":
            path.write_bytes(content)
        with pytest.raises(InputError, match=said) as error:
            read_jobs(path)
        assert error.value.file == str(path)


def test_a_gzip_file_is_read_whatever_its_name(tmp_path: Path) -> None:
    content = b"job_id,kind\na,b\n"
    for name, written in (("plain.csv", content), ("packed.csv", gzip.compress(content))):
        (tmp_path / name).write_bytes(written)
    pd.testing.assert_frame_equal(read_raw(tmp_path / "packed.csv")[0], read_raw(tmp_path / "plain.csv")[0])
    (tmp_path / "cut.csv").write_bytes(gzip.compress(content)[:-6])
    with pytest.raises(InputError, match="ends early"):
        read_raw(tmp_path / "cut.csv")


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_jobs(tmp_path)
    with pytest.raises(InputError, match=r"use \.csv"):
        write_table(pd.DataFrame(), tmp_path / "table.txt")


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_table(pd.DataFrame({"a": [1]}), tmp_path / "absent" / "table.csv")
    assert list(tmp_path.iterdir()) == []


def test_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "traffic.csv"
    path.write_bytes("\ufeffseries_id,timestamp,value\r\na,2026-03-02T00:00:00Z,1\r\n".encode())
    assert len(read_traffic(path)) == 1


def test_a_history_of_nothing_is_a_history() -> None:
    history = History()
    assert len(history) == 0 and history.training_frame()[0].empty
    assert len(history.as_of("2026-03-02T00:00:00Z").traffic) == 0
