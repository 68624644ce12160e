"""Foreign histories: Slurm's accounting, public GPU traces, the standard workload format."""

from pathlib import Path

import pandas as pd
import pytest

from tidegrid.data import read_jobs, requests_from_trace, slurm_minutes
from tidegrid.data.formats import detect, map_status
from tidegrid.data.slurm import gpus_of
from tidegrid.errors import InputError


@pytest.mark.parametrize(
    ("text", "minutes"),
    [
        ("30", 30),
        ("4:00", 4),
        ("4:00:00", 240),
        ("2-12", 3600),
        ("2-12:30", 3630),
        ("2-12:30:30", 3630.5),
        ("UNLIMITED", None),
        ("Partition_Limit", None),
        (" 00:00:30 ", 0.5),
        ("1-00:00:00", 1440),
        ("", None),
    ],
)
def test_slurm_times_are_read_as_slurm_means_them(text: str, minutes: float | None) -> None:
    """Case D6."""
    assert slurm_minutes(text) == minutes


@pytest.mark.parametrize("text", ["4h", "-5", "1:2:3:4", "1-", "a:b", "1.5"])
def test_what_is_no_slurm_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a Slurm time"):
        slurm_minutes(text)


def test_statuses_of_slurm_and_traces_are_mapped() -> None:
    words = ["COMPLETED", "CANCELLED by 1000", "CANCELLED+", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL", "Pass", "Killed",
             "Failed", "RUNNING", "PENDING", "out of memory", "weird", ""]  # fmt: skip
    assert list(map_status(pd.Series(words))) == [
        "completed", "cancelled", "cancelled", "timeout", "failed", "failed", "completed", "cancelled",
        "failed", "running", "queued", "failed", "", "",
    ]  # fmt: skip


def test_gpus_are_found_in_tres_and_gres() -> None:
    assert gpus_of("billing=1,cpu=2,gres/gpu=1,mem=3800M,node=1") == (1, "")
    assert gpus_of("cpu=8,gres/gpu:a100=2,gres/gpu=2") == (2, "a100")
    assert gpus_of("gres/gpu:h100=4,gres/gpu:a100=2") == (6, "a100=2,h100=4")
    assert gpus_of("gpu:4(S:0-1)") == (4, "") and gpus_of("cpu=8,mem=1G") == (0, "")


SACCT = """JobID|User|Account|JobName|Partition|State|Submit|Start|End|Elapsed|Timelimit|AllocTRES|NNodes
10|ann|lab|sft-8b|gpu|COMPLETED|2026-03-02T00:00:00|2026-03-02T01:00:00|2026-03-02T03:30:00|02:30:00|1-00:00:00|cpu=8,gres/gpu:a100=2,gres/gpu=2|1
10.batch||lab|batch||COMPLETED|2026-03-02T01:00:00|2026-03-02T01:00:00|2026-03-02T03:30:00|02:30:00||cpu=8,gres/gpu=2|1
10.0||lab|python||COMPLETED|2026-03-02T01:00:00|2026-03-02T01:00:00|2026-03-02T03:30:00|02:30:00||cpu=8,gres/gpu=2|1
11|ann|lab|sft-8b|gpu|NODE_FAIL|2026-03-02T00:00:00|2026-03-02T01:00:00|2026-03-02T01:10:00|00:10:00|UNLIMITED|gres/gpu=4|1
11|ann|lab|sft-8b|gpu|COMPLETED|2026-03-02T01:10:01|2026-03-02T02:00:00|2026-03-03T03:00:00|1-01:00:00|UNLIMITED|gres/gpu=4|1
12|bob|lab|cpu|cpu|COMPLETED|2026-03-02T00:00:00|2026-03-02T01:00:00|2026-03-02T03:30:00|02:30:00|4:00:00|cpu=8|1
13|bob|lab|gone|gpu|CANCELLED by 1000|2026-03-02T00:00:00|None|2026-03-02T03:30:00|00:00:00|4:00:00|gres/gpu=1|1
14_[1-9]|bob|lab|array|gpu|PENDING|2026-03-02T00:00:00|Unknown|Unknown|00:00:00|4:00:00|gres/gpu=1|1
15_3|bob|lab|array|gpu|RUNNING|2026-03-02T00:00:00|2026-03-02T05:00:00|Unknown|00:20:00|Partition_Limit|gres/gpu=1|1
16|bob|lab|late|gpu|TIMEOUT|2026-03-02T00:00:00|2026-03-02T05:00:00|2026-03-02T09:00:10|04:00:10|4:00:00|gres/gpu=3|1
"""


def test_sacct_gives_attempts_not_steps(tmp_path: Path) -> None:
    """Case D5: steps are not jobs, a requeued job is two attempts, a node failure is no duration."""
    path = tmp_path / "sacct.txt"
    path.write_text(SACCT)
    notes: list[str] = []
    jobs = read_jobs(path, timezone="UTC", notes=notes)
    assert list(zip(jobs["job_id"], jobs["status"], strict=True)) == [
        ("10", "completed"), ("11", "failed"), ("11", "completed"), ("15_3", "running"), ("16", "timeout"),
    ]  # fmt: skip
    assert list(jobs["gpus"]) == [2, 4, 4, 1, 3]
    assert jobs["duration_s"].tolist()[:3] == [9000.0, 600.0, 90000.0] and pd.isna(jobs["duration_s"][3])
    assert (
        jobs["requested_walltime_s"].tolist()[0] == 86400.0 and jobs["requested_walltime_s"].isna().sum() == 3
    )
    assert jobs["gpu_type"][0] == "a100" and jobs["group"][0] == "lab" and jobs["queue"][0] == "gpu"
    assert len(notes) == 4 and "2 of 10 jobs are steps of jobs" in notes[0]


def test_sacct_needs_a_zone_and_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(SACCT)
    with pytest.raises(InputError, match="carries no time zone"):
        read_jobs(path)
    path.write_text(SACCT.replace("|State|", "|Status|"))
    with pytest.raises(InputError, match="State: the column is missing") as error:
        read_jobs(path, timezone="UTC")
    assert "sacct --format" in str(error.value)
    path.write_text(SACCT.replace("|4:00:00|cpu=8|", "|four|cpu=8|"))
    with pytest.raises(InputError, match="'four' is not a Slurm time") as error:
        read_jobs(path, timezone="UTC")
    assert (error.value.row, error.value.field) == (7, "Timelimit")


def test_an_end_in_the_doubled_autumn_hour_follows_the_elapsed_time(tmp_path: Path) -> None:
    """Started 01:30 summer time, ran 2 h, so the 02:30 of its end is the second one."""
    path = tmp_path / "sacct.txt"
    path.write_text(
        "JobID|State|Submit|Start|End|Elapsed|AllocTRES\n"
        "1|COMPLETED|2026-10-25T01:00:00|2026-10-25T01:30:00|2026-10-25T02:30:00|02:00:00|gres/gpu=1\n"
    )
    job = read_jobs(path, timezone="Europe/Berlin").iloc[0]
    assert job["duration_s"] == 7200.0 and job["end_time"] == pd.Timestamp("2026-10-25T01:30:00Z")


TRACE = """job_id,submit_time,start_time,duration_s,gpus,user,status,submit_s,raw_status,wait_s
57979551.0,2021-05-01T00:00:00,,100,3,u1,COMPLETED,0.0,Pass,5
57979552.0,2021-05-01T00:00:10,,50,0,u1,COMPLETED,10.0,Pass,5
57979553.0,2021-05-01T00:00:20,,0,1,u2,CANCELLED,20.0,Killed,5
57979554.0,2021-05-01T00:00:30,,70,40,u2,Mystery,30.0,Odd,5
"""


def test_a_trace_is_detected_and_mapped(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    assert detect(path) == "trace"
    notes: list[str] = []
    jobs = read_jobs(path, timezone="UTC", notes=notes)
    assert list(jobs["job_id"]) == ["57979551", "57979554"]
    assert list(jobs["status"]) == ["completed", "failed"]
    assert list(jobs["gpus"]) == [3, 40]
    assert list(jobs["known_at_estimated"]) == [1.0, 1.0]
    assert "wait_s" not in jobs.columns and "submit_s" not in jobs.columns
    told = " / ".join(notes)
    assert "unknown status (Odd): they count as failed" in told and "ended without running" in told


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("100,3", "-100,3", "not positive"),
        ("100,3", "abc,3", "not a number"),
        ("57979554.0", "57979551.0", "is already in row 2"),
        ("2021-05-01T00:00:00", "", "is empty"),
        (",100,3", ",,3", "missing"),
    ],
)
def test_a_broken_trace_row_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE.replace(old, new).replace("T00:00:30", "T00:00:00"))
    with pytest.raises(InputError, match=said):
        read_jobs(path, timezone="UTC")


SWF = """; Version: 2.2
; UnixStartTime: 1772409600
1 0 60 3600 4 -1 -1 4 7200 -1 1 3 1 2 1 -1 -1 -1
2 10 -1 0 -1 -1 -1 8 7200 -1 5 3 1 -1 1 -1 -1 -1
3 20 30 100 16 -1 -1 16 -1 -1 0 4 1 -1 1 -1 -1 -1
4 30 30 100 16 -1 -1 16 -1 -1 2 4 1 -1 1 -1 -1 -1
"""


def test_the_standard_workload_format_is_read(tmp_path: Path) -> None:
    """A cancelled job that never ran is left out, and so is a part of a job that its whole row counts."""
    path = tmp_path / "log.swf"
    path.write_text(SWF)
    jobs = read_jobs(path)
    assert list(zip(jobs["job_id"], jobs["status"], jobs["gpus"], strict=True)) == [
        ("1", "completed", 4),
        ("3", "failed", 16),
    ]
    assert jobs["start_time"][0] == pd.Timestamp("2026-03-02T00:01:00Z")
    assert jobs["requested_walltime_s"][0] == 7200.0 and jobs["user"][0] == "u3"
    path.write_text(SWF.replace("UnixStartTime", "Start"))
    with pytest.raises(InputError, match="UnixStartTime"):
        read_jobs(path)
    assert read_jobs(path, start="2026-03-02T00:00:00Z")["job_id"].tolist() == ["1", "3"]
    path.write_text(SWF.replace("3 20 30 100", "3 20 30"))
    with pytest.raises(InputError, match="has 17 fields") as error:
        read_jobs(path)
    assert error.value.row == 5


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TRACE)
    with pytest.raises(InputError, match="format: 'xml' is unknown"):
        read_jobs(tmp_path / "a.csv", format="xml")


@pytest.mark.realdata
def test_public_traces_are_read_whole(shared_data: Path) -> None:
    helios = read_jobs(shared_data / "traces" / "helios_venus15k.csv.gz", timezone="Asia/Shanghai")
    assert len(helios) == 10796 and helios["known_at_estimated"].all()
    drac = read_jobs(shared_data / "traces" / "drac_cedar_gpu.csv.gz", timezone="UTC")
    assert len(drac) == 14149 and not drac["known_at_estimated"].any()
    assert set(drac["status"]) == {"completed", "failed", "cancelled", "timeout"}
    assert not {"wait_s", "eligible_time", "priority", "first_poll"} & set(drac.columns)


@pytest.mark.realdata
def test_a_day_of_a_trace_becomes_a_queue_without_its_future(shared_data: Path) -> None:
    jobs = read_jobs(shared_data / "traces" / "helios_venus15k.csv.gz", timezone="UTC")
    day = requests_from_trace(jobs, "2020-06-10", max_gpus=64)
    assert len(day.requests) > 100 and day.requests["gpus"].max() <= 64
    assert (day.requests["earliest_time"] >= day.start).all()
    assert not {"duration_s", "status", "end_time", "known_at"} & set(day.requests.columns)
    known = day.history.jobs
    assert (known["submit_time"] <= day.start).all() and not set(known["job_id"]) & set(
        day.requests["job_id"]
    )
    changed = jobs.assign(duration_s=jobs["duration_s"].mask(jobs["submit_time"] >= day.start, 1.0))
    pd.testing.assert_frame_equal(
        requests_from_trace(changed, "2020-06-10", max_gpus=64).requests, day.requests
    )
    assert (
        requests_from_trace(jobs, "2020-06-10", at_once=True, limit=9).requests["earliest_time"].isna().all()
    )
    with pytest.raises(InputError, match="no job was submitted on 2019-01-01"):
        requests_from_trace(jobs, "2019-01-01")
