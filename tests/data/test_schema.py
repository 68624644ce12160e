"""Tables are typed and checked: every problem is one line that names file, row, column and fix."""

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from tables_by_chance import job_rows, request_rows, traffic_rows

from tidegrid.data import (
    JOBS,
    REQUESTS,
    RUNNING,
    TABLES,
    App,
    Capacity,
    Cluster,
    History,
    Pool,
    check_running,
    read_jobs,
    read_requests,
    regular_hours,
    validate,
)
from tidegrid.data.formats import FORMATS
from tidegrid.data.readers import complete_jobs
from tidegrid.data.schema import as_markdown
from tidegrid.errors import InputError

HEADER = "job_id,kind,status,submit_time,start_time,end_time,duration_s,gpus,user"
GOOD = "1,training,completed,2026-03-02T00:00:00Z,2026-03-02T01:00:00Z,2026-03-02T03:00:00Z,,4,ann"


def refused(path: Path, text: str) -> InputError:
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_jobs(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    return error.value


def test_a_good_row_is_typed_and_completed(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"{HEADER}\n{GOOD}\n")
    job = read_jobs(path).iloc[0]
    assert job["duration_s"] == 7200.0
    assert job["gpus"] == 4
    assert job["known_at"] == pd.Timestamp("2026-03-02T03:00:00Z")
    assert job["known_at_estimated"] == 0.0
    assert job["group"] == "" and math.isnan(job["requested_walltime_s"])


@pytest.mark.parametrize(
    ("cells", "row", "field", "said"),
    [
        ({"duration_s": "abc"}, 3, "duration_s", "'abc' is not a number"),
        ({"duration_s": "-5"}, 3, "duration_s", "not positive"),
        ({"duration_s": "inf"}, 3, "duration_s", "not finite"),
        ({"duration_s": "0", "start_time": "", "end_time": ""}, 3, "duration_s", "not positive"),
        ({"duration_s": "NaN", "start_time": "", "end_time": ""}, 3, "duration_s", "missing"),
        (
            {"job_id": "1", "submit_time": "2026-03-02T00:00:00+00:00"},
            3,
            "job_id + submit_time",
            "already in row 2",
        ),
        ({"submit_time": "2026-03-02T00:00:00"}, 3, "submit_time", "carries no time zone"),
        ({"submit_time": "2026-03-02"}, 3, "submit_time", "carries no time zone"),
        ({"submit_time": "yesterday"}, 3, "submit_time", "is not a time"),
        ({"submit_time": ""}, 3, "submit_time", "is empty"),
        ({"end_time": "2026-03-02T00:30:00Z"}, 3, "end_time", "end_time is before start_time"),
        ({"start_time": "2026-03-01T00:30:00Z"}, 3, "start_time", "start_time is before submit_time"),
        ({"status": "exploded"}, 3, "status", "'exploded' is unknown"),
        ({"kind": "mining"}, 3, "kind", "'mining' is unknown"),
        ({"gpus": "-1"}, 3, "gpus", "too small"),
        ({"gpus": "1.5"}, 3, "gpus", "not a whole number"),
        ({"status": "running"}, 3, "status", "running job has an end_time"),
        ({"job_id": "a\x07b"}, 3, "job_id", "control character"),
        ({"submit_time": "0001-01-01T00:00:00Z"}, 3, "submit_time", "is out of range"),
        ({"end_time": "9999-12-31T23:59:59Z"}, 3, "end_time", "is out of range"),
        ({"gpus": "1e30"}, 3, "gpus", "too large"),
    ],
)
def test_a_bad_cell_is_named(tmp_path: Path, cells: dict[str, str], row: int, field: str, said: str) -> None:
    """One line: file, row counted from the header, column, what is wrong; and what would be right."""
    bad = dict(zip(HEADER.split(","), GOOD.replace("1,", "2,", 1).split(","), strict=True)) | cells
    error = refused(tmp_path / "jobs.csv", f"{HEADER}\n{GOOD}\n{','.join(bad.values())}\n")
    assert (error.row, error.field) == (row, field)
    assert said in str(error) and error.fix


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    error = refused(tmp_path / "jobs.csv", "job_id,kind,status,gpus\n1,training,completed,4\n")
    assert error.field == "submit_time" and "the column is missing" in str(error)


def test_all_missing_columns_are_named_and_the_kind_last(tmp_path: Path) -> None:
    """Foreign histories have no kind: what else they lack comes first, and the header is told."""
    error = refused(tmp_path / "jobs.csv", "job_id,submit_time,status\n1,2026-03-02T00:00:00Z,COMPLETED\n")
    assert error.field == "gpus"
    assert error.problem == (
        "the column is missing, as are duration_s, kind; the header has job_id, submit_time, status"
    )


def test_the_error_says_how_many_more_rows_have_it(tmp_path: Path) -> None:
    rows = "\n".join(GOOD.replace("1,", f"{i},", 1).replace("ann", "ann") for i in range(2, 6))
    rows = rows.replace("2026-03-02T00:00:00Z", "2026-03-02T00:00:00")
    error = refused(tmp_path / "jobs.csv", f"{HEADER}\n{GOOD}\n{rows}\n")
    assert error.row == 3 and "(and in 3 more rows)" in str(error)


def test_rows_are_counted_in_the_file_not_in_what_is_left(tmp_path: Path) -> None:
    """Blank lines and jobs without GPUs are left out and still counted."""
    without = GOOD.replace("1,", "7,", 1).replace(",4,", ",0,")
    bad = GOOD.replace("1,", "8,", 1).replace("completed", "odd")
    assert refused(tmp_path / "jobs.csv", f"{HEADER}\n{without}\n\n{GOOD}\n{bad}\n").row == 5
    assert refused(tmp_path / "jobs.csv", f"\n{HEADER}\n{bad}\n").row == 3


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff"])
def test_an_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    assert "is empty" in str(refused(tmp_path / "jobs.csv", text))


def test_a_history_and_a_queue_may_be_empty(tmp_path: Path) -> None:
    """A window of time in which nobody used GPUs is a history without rows."""
    (tmp_path / "jobs.csv").write_text(HEADER + "\n")
    assert read_jobs(tmp_path / "jobs.csv").empty
    (tmp_path / "requests.csv").write_text("job_id,kind,submit_time,gpus\n")
    queue = read_requests(tmp_path / "requests.csv")
    assert len(queue) == 0 and queue["submit_time"].dtype == "datetime64[us, UTC]"


def test_a_stated_zone_reads_naive_times(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"{HEADER}\n{GOOD.replace('Z', '')}\n")
    assert read_jobs(path, timezone="Europe/Berlin")["submit_time"][0] == pd.Timestamp("2026-03-01T23:00:00Z")
    with pytest.raises(InputError, match="is not a time zone"):
        read_jobs(path, timezone="Mars/Base")


def test_a_local_time_that_the_spring_night_skips_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    text = GOOD.replace("Z", "").replace("2026-03-02T00:00:00", "2026-03-29T02:30:00")
    path.write_text(f"{HEADER}\n{text.replace('2026-03-02', '2026-03-30')}\n")
    with pytest.raises(InputError, match="does not exist in Europe/Berlin"):
        read_jobs(path, timezone="Europe/Berlin")


def test_whole_float_ids_lose_their_fraction(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text(f"{HEADER}\n{GOOD.replace('1,', '57979551.0,', 1)}\n")
    assert read_jobs(path)["job_id"][0] == "57979551"


def test_one_id_with_two_submits_is_two_attempts(tmp_path: Path) -> None:
    """A requeued job keeps its id (case D5): the key is id and submit time."""
    path = tmp_path / "jobs.csv"
    again = GOOD.replace("T00:00:00Z", "T04:00:00Z").replace("T01", "T05").replace("T03", "T06")
    path.write_text(f"{HEADER}\n{GOOD.replace('completed', 'failed')}\n{again}\n")
    assert list(read_jobs(path)["status"]) == ["failed", "completed"]


def test_jobs_without_gpus_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    rows = [
        GOOD,
        GOOD.replace("1,", "2,", 1).replace(",4,", ",0,"),
        GOOD.replace("1,", "3,", 1).replace(",4,", ",,"),
    ]
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    notes: list[str] = []
    assert len(read_jobs(path, notes=notes)) == 1
    assert notes == ["2 of 3 jobs held no GPU and are left out"]


def test_known_at_is_flagged_where_no_start_is_known() -> None:
    table = complete_jobs(
        pd.DataFrame(
            {
                "job_id": ["a", "b", "c"],
                "kind": "training",
                "status": ["completed", "failed", "running"],
                "submit_time": "2026-03-02T00:00:00Z",
                "start_time": [None, "2026-03-02T01:00:00Z", "2026-03-02T02:00:00Z"],
                "duration_s": [60.0, 120.0, None],
                "gpus": 1,
            }
        )
    )
    assert list(table["known_at_estimated"]) == [1.0, 0.0, 0.0]
    assert list(table["known_at"].dt.strftime("%H:%M")) == ["00:01", "01:02", "02:00"]


@pytest.mark.parametrize("cell", ["0", "-3", "inf", "nan x"])
@pytest.mark.parametrize("field", ["requested_walltime_s", "duration_s"])
def test_a_request_without_a_sane_duration_is_refused_by_name(tmp_path: Path, field: str, cell: str) -> None:
    """Case D7: zero, negative, infinite or unreadable: refused; an empty cell means that no limit is stated."""
    path = tmp_path / "requests.csv"
    path.write_text(f"job_id,kind,submit_time,gpus,{field}\nx,training,2026-03-02T00:00:00Z,2,{cell}\n")
    with pytest.raises(InputError) as error:
        read_requests(path)
    assert (error.value.row, error.value.field) == (2, field)
    path.write_text(f"job_id,kind,submit_time,gpus,{field}\nx,training,2026-03-02T00:00:00Z,2,\n")
    assert math.isnan(read_requests(path)[field][0])


def test_a_request_states_its_gpu_range_in_order() -> None:
    row = {"job_id": "x", "kind": "training", "submit_time": "2026-03-02T00:00:00Z", "gpus": 4}
    for cells, field in (({"min_gpus": 8}, "min_gpus"), ({"max_gpus": 2}, "max_gpus"), ({"gpus": 0}, "gpus")):
        with pytest.raises(InputError) as error:
            validate(pd.DataFrame([row | cells]), REQUESTS)
        assert error.value.field == field
    table = validate(pd.DataFrame([row]), REQUESTS)
    assert (table["min_gpus"][0], table["max_gpus"][0], table["priority"][0]) == (4, 4, 5)
    assert table["priority"].dtype == np.int64


def test_two_running_blocks_on_one_gpu_are_refused() -> None:
    row = {
        "job_id": "x",
        "kind": "training",
        "pool": "p",
        "first_gpu": 0,
        "gpus": 4,
        "start_time": "2026-03-02T00:00:00Z",
    }
    cluster = Cluster(pools=(Pool(id="p", gpus=8, gpu_type="x"), Pool(id="q", gpus=8, gpu_type="x")))
    for other, said in (({"first_gpu": 2}, "overlaps"), ({"first_gpu": 4, "gpus": 3}, "power of two")):
        rows = validate(pd.DataFrame([row, row | {"job_id": "y"} | other]), RUNNING)
        with pytest.raises(InputError, match=said) as error:
            check_running(cluster, rows)
        assert error.value.row == 3
    check_running(cluster, validate(pd.DataFrame([row, row | {"job_id": "y", "pool": "q"}]), RUNNING))


@given(job_rows())
def test_validation_never_mutates_and_is_idempotent(rows: list[dict[str, object]]) -> None:
    frame = pd.DataFrame(rows)
    before = frame.copy(deep=True)
    once = complete_jobs(frame)
    pd.testing.assert_frame_equal(frame, before)
    pd.testing.assert_frame_equal(complete_jobs(once), once)
    assert list(once.columns)[: len(JOBS.names[:4])] == list(JOBS.names[:4])


@given(request_rows())
def test_requests_are_valid_whatever_their_optional_cells(rows: list[dict[str, object]]) -> None:
    frame = pd.DataFrame(rows, columns=list(rows[0]) if rows else ["job_id", "kind", "submit_time", "gpus"])
    table = validate(frame, REQUESTS)
    assert (table["min_gpus"] <= table["gpus"]).all() and (table["gpus"] <= table["max_gpus"]).all()


@given(job_rows(), traffic_rows())
def test_a_history_takes_any_valid_tables(
    jobs: list[dict[str, object]], traffic: list[dict[str, object]]
) -> None:
    history = History(pd.DataFrame(jobs), pd.DataFrame(traffic))
    assert len(history.finished()) + len(history.censored()) + len(history.running()) == len(jobs)
    pd.testing.assert_frame_equal(history.traffic, regular_hours(pd.DataFrame(traffic)))


def test_the_documentation_lists_the_tables_as_they_are() -> None:
    """``docs/data-formats.md`` holds each table's columns, and names every format and cluster field."""
    text = (Path(__file__).parents[2] / "docs" / "data-formats.md").read_text(encoding="utf-8")
    for table in TABLES.values():
        assert as_markdown(table) in text and table.doc in text
    for record in (Pool, App, Capacity, Cluster):
        for field in record.model_fields:
            assert field in text
    for name in FORMATS[1:]:
        assert f"**`{name}`**" in text
