"""Slurm's accounting: any name, delimiter, dialect and zone, and what attempts of one job are."""

import json
import re
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegrid.data import read_jobs
from tidegrid.data.formats import detect
from tidegrid.data.merge import merge_jobs
from tidegrid.data.nodelist import as_indices, indices_of, nodes_of
from tidegrid.data.sacct import FIELDS
from tidegrid.data.slurm import gpus_of, node_types, zone_warning
from tidegrid.errors import InputError

HEADER = "JobID|User|Account|JobName|Partition|State|Submit|Start|End|ElapsedRaw|Timelimit|AllocTRES"
SHORT = "JobID|State|Submit|Start|End|ElapsedRaw|AllocTRES\n"
ROW = (
    "{id}|ana|nlp|{name}|gpu|COMPLETED|2026-03-02T08:00:00|2026-03-02T08:10:00|2026-03-02T09:10:00|3600|02:00:00"
    "|cpu=8,gres/gpu=2"
)


def read(path: Path, text: str, timezone: str | None = "UTC", **more: object) -> pd.DataFrame:
    path.write_text(text, encoding="utf-8")
    return read_jobs(path, timezone=timezone, **more)  # type: ignore[arg-type]


def table(*names: str, trailing: str = "") -> str:
    rows = [ROW.format(id=100 + i, name=name) + trailing for i, name in enumerate(names)]
    return "\n".join([HEADER + trailing, *rows]) + "\n"


NAMES = (
    "good",
    'sweep "a',
    'b" c',
    "a|b",
    "|",
    "a||b|c",
    "x\ny",
    "\n\n",
    "tab\there",
    "`quoted`",
    "2|3",
    "ü😀",
    "",
)


@pytest.mark.parametrize("trailing", ["", "|"])
def test_any_name_loses_no_row(tmp_path: Path, trailing: str) -> None:
    """Quotes, delimiters, line ends, tabs: every row is read, and its name is shown on one line."""
    jobs = read(tmp_path / "sacct.txt", table(*NAMES, trailing=trailing))
    assert jobs["job_id"].tolist() == [str(100 + i) for i in range(len(NAMES))]
    assert (jobs["gpus"] == 2).all() and (jobs["duration_s"] == 3600).all()
    shown = dict(zip(NAMES, jobs["name"], strict=True))
    assert shown['sweep "a'] == 'sweep "a' and shown["a|b"] == "a|b" and shown["x\ny"] == "x\\ny"
    assert shown["tab\there"] == "tab\\there"


@settings(max_examples=20)
@given(names=st.lists(st.text(st.sampled_from('ab|"\n\t;, _'), max_size=8), min_size=1, max_size=6))
def test_rows_with_any_names_are_read_or_told(
    tmp_path_factory: pytest.TempPathFactory, names: list[str]
) -> None:
    aside: list[InputError] = []
    path = tmp_path_factory.mktemp("sacct") / "sacct.txt"
    jobs = read(path, table(*names), set_aside=aside)
    assert len(jobs) + len(aside) == len(names)
    assert len(aside) == 0


def test_a_row_that_cannot_be_read_is_told_and_the_rest_imported(tmp_path: Path) -> None:
    aside: list[InputError] = []
    lines = table("a", "b", "c").split("\n")
    lines[2] = "101|ana|nlp|cut"
    jobs = read(tmp_path / "sacct.txt", "\n".join(lines), set_aside=aside)
    assert jobs["job_id"].tolist() == ["100", "102"]
    assert [(error.row, error.item) for error in aside] == [(3, "job 101")]
    with pytest.raises(InputError, match="row 3, cells: has 4 cells, and the header 12"):
        read(tmp_path / "sacct.txt", "\n".join(lines))


@pytest.mark.parametrize("delimiter", ["\x1f", ";;", "@", ",", "\t"])
def test_any_delimiter_is_read(tmp_path: Path, delimiter: str) -> None:
    text = table("a", "b").replace("cpu=8,gres/gpu=2", "gres/gpu=2").replace("|", delimiter)
    assert len(read(tmp_path / "sacct.txt", text, format="sacct")) == 2


def test_seconds_need_no_zone_and_wrong_columns_are_told(tmp_path: Path) -> None:
    text = SHORT + "7|COMPLETED|1772438400|1772439000|1772442600|3600|gres/gpu=1\n"
    job = read(tmp_path / "sacct.txt", text, timezone=None).iloc[0]
    assert job["submit_time"] == pd.Timestamp("2026-03-02T08:00Z") and job["duration_s"] == 3600
    with pytest.raises(InputError, match=r"-P: SLURM_TIME_FORMAT=%s sacct -a -D -X -P"):
        read(tmp_path / "sacct.txt", "JobID    State  Submit\n1  COMPLETED x\n", format="sacct")


@pytest.mark.parametrize(
    ("gres", "gpus", "kind"),
    [
        ("gpu:2080ti:4", 4, "2080ti"),
        ("gpu:3090:2", 2, "3090"),
        ("gpu:3g.20gb:1", 1, "3g.20gb"),
        ("gpu:a100:2(S:0-1)", 2, "a100"),
        ("gpu:tesla:2,gpu:kepler:2", 4, "kepler=2,tesla=2"),
        ("gres:gpu:a100:2", 2, "a100"),
        ("gpu:8", 8, ""),
        ("gpu", 1, ""),
        ("gpu:a100", 1, "a100"),
        ("gpu:a100:2(IDX:0,3),shard:4", 2, "a100"),
        ("gres/gpu:1g.5gb=3,gres/gpu=3", 3, "1g.5gb"),
        ("gres/gpu:a100=24,gres/gpu:v100=2,gres/gpu=26", 26, "a100=24,v100=2"),
        ("(null)", 0, ""),
    ],
)
def test_gpu_counts_are_not_taken_from_types(gres: str, gpus: int, kind: str) -> None:
    assert gpus_of(gres) == (gpus, kind)


def test_gres_counts_are_of_one_node(tmp_path: Path) -> None:
    text = (
        "JobID|State|Submit|Start|End|ElapsedRaw|NNodes|ReqGRES\n"
        "1|COMPLETED|2026-03-02T08:00:00|2026-03-02T08:10:00|2026-03-02T09:10:00|3600|4|gpu:8\n"
    )
    assert read(tmp_path / "sacct.txt", text)["gpus"].tolist() == [32]
    assert read(tmp_path / "sacct.txt", text.replace("ReqGRES", "ReqTRES").replace("gpu:8", "gres/gpu=8"))[
        "gpus"
    ].tolist() == [8]


@pytest.mark.parametrize(
    ("submit", "start", "end", "elapsed", "began"),
    [
        (
            "02:50:00",
            "02:10:00",
            "04:10:00",
            7200,
            "01:10",
        ),  # submitted in the first pass, started in the second
        ("01:00:00", "01:30:00", "02:30:00", 7200, "23:30-1"),
        ("01:00:00", "02:30:00", "02:40:00", 4200, "00:30"),  # over the change
        ("01:00:00", "02:30:00", "02:40:00", 600, "00:30"),
        ("02:40:00", "02:30:00", "02:50:00", 1200, "01:30"),
        ("02:20:00", "02:30:00", "03:30:00", 3600, "01:30"),
    ],
)
def test_an_autumn_hour_is_the_one_that_fits_the_elapsed_time(
    tmp_path: Path, submit: str, start: str, end: str, elapsed: int, began: str
) -> None:
    day = "2026-10-25T"
    text = f"{SHORT}1|COMPLETED|{day}{submit}|{day}{start}|{day}{end}|{elapsed}|gres/gpu=2\n"
    job = read(tmp_path / "sacct.txt", text, timezone="Europe/Berlin").iloc[0]
    hour, _, before = began.partition("-")
    right = pd.Timestamp(f"2026-10-25T{hour}Z") - pd.Timedelta(days=int(before or 0))
    assert job["start_time"] == right
    assert job["end_time"] - job["start_time"] == pd.Timedelta(seconds=elapsed)
    assert job["submit_time"] <= job["start_time"]


def test_attempts_of_a_resized_job_are_one_and_never_run_for_ever(tmp_path: Path) -> None:
    header = SHORT
    first = "63|RESIZING|2026-03-02T08:00:00|2026-03-02T08:00:01|2026-03-02T08:00:16|15|gres/gpu=2\n"
    second = "63|COMPLETED|2026-03-02T08:00:16|2026-03-02T08:00:16|2026-03-02T08:00:31|15|gres/gpu=1\n"
    notes: list[str] = []
    jobs = read(tmp_path / "sacct.txt", header + second + first, notes=notes)
    assert len(jobs) == 1 and jobs["duration_s"][0] == 30 and jobs["gpus"][0] == 2
    assert jobs["submit_time"][0] == pd.Timestamp("2026-03-02T08:00Z") and jobs["status"][0] == "completed"
    assert any("joined" in note for note in notes)
    assert read(tmp_path / "sacct.txt", header + first)["status"].tolist() == ["cancelled"]


def test_a_suspension_is_no_part_of_the_duration(tmp_path: Path) -> None:
    header = "JobID|State|Submit|Start|End|Suspended|AllocTRES\n"
    row = "1|COMPLETED|2026-03-02T08:00:00|2026-03-02T08:00:00|2026-03-02T08:00:22|00:00:07|gres/gpu=2\n"
    assert read(tmp_path / "sacct.txt", header + row)["duration_s"].tolist() == [15.0]


def test_the_node_list_tells_the_type_that_accounting_does_not(tmp_path: Path) -> None:
    (tmp_path / "nodes.txt").write_text(
        "NodeName=a1 Arch=x86_64 Gres=gpu:a100:8 State=IDLE\n"
        "NodeName=v1 Gres=gpu:v100:4(S:0)\nNodeName=c1 Gres=(null)\n"
    )
    types = node_types(tmp_path / "nodes.txt")
    assert types == {"a1": "a100", "v1": "v100"}
    text = "JobID|State|Submit|Start|End|ElapsedRaw|NodeList|AllocTRES\n" + "".join(
        f"{i}|COMPLETED|2026-03-02T08:00:00|2026-03-02T08:00:00|2026-03-02T08:00:22|22|{nodes}|{tres}\n"
        for i, (nodes, tres) in enumerate(
            [
                ("a1", "gres/gpu=2"),
                ("a[1],v1", "gres/gpu=2"),
                ("a1", "gres/gpu:h100=2"),
                ("x[", "gres/gpu=1"),
            ]
        )
    )
    assert read(tmp_path / "sacct.txt", text, nodes=types)["gpu_type"].tolist() == ["a100", "", "h100", ""]


def old(job: dict[str, object]) -> dict[str, object]:
    """A job of sacct 22.05's JSON."""
    return {
        "job_id": 7,
        "name": "a|b\nc",
        "user": "ana",
        "account": "nlp",
        "partition": "gpu",
        "qos": "normal",
        "nodes": "a1",
        "allocation_nodes": 1,
        "array": {"job_id": 0, "task_id": None, "task": None},
        "het": {"job_id": 0, "job_offset": None},
        "comment": {"job": None},
        "state": {"current": "COMPLETED"},
        "time": {
            "submission": 1772438400,
            "start": 1772439000,
            "end": 1772442600,
            "elapsed": 3590,
            "suspended": 10,
            "limit": 120,
        },
        "tres": {
            "requested": [{"type": "cpu", "name": None, "count": 8}],
            "allocated": [{"type": "gres", "name": "gpu:a100", "count": 2}],
        },
    } | job


def new(job: dict[str, object]) -> dict[str, object]:
    """A job of sacct 24.11's JSON."""
    unset = {"set": False, "infinite": False, "number": 0}
    out = old({"state": {"current": ["COMPLETED"]}})
    out["array"] = {"job_id": 0, "task_id": unset, "task": ""}
    out["het"] = {"job_id": 0, "job_offset": unset}
    out["time"] = {**out["time"], "limit": {"set": True, "infinite": False, "number": 120}}  # type: ignore[dict-item]
    return out | job


def test_both_dialects_of_json_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "sacct.json"
    frames = []
    for make in (old, new):
        path.write_text(json.dumps({"meta": {}, "jobs": [make({})]}))
        assert detect(path) == "sacct"
        frames.append(read_jobs(path))
    pd.testing.assert_frame_equal(*frames)
    job = frames[0].iloc[0]
    assert (job["name"], job["gpus"], job["gpu_type"], job["cpus"]) == ("a|b\\nc", 2, "a100", 8)
    assert job["requested_walltime_s"] == 7200 and job["duration_s"] == 3590 and job["qos"] == "normal"


@pytest.mark.parametrize(
    ("states", "status"),
    [
        (["PENDING", "REQUEUED"], "cancelled"),
        (["PENDING", "RESIZING"], "cancelled"),
        (["NODE_FAIL"], "failed"),
        (["TIMEOUT"], "timeout"),
        (["RUNNING"], "running"),
    ],
)
def test_lists_of_states_are_told_by_what_ended(tmp_path: Path, states: list[str], status: str) -> None:
    (tmp_path / "sacct.json").write_text(json.dumps({"jobs": [new({"state": {"current": states}})]}))
    assert read_jobs(tmp_path / "sacct.json")["status"].tolist() == [status]


def test_a_job_of_json_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    aside: list[InputError] = []
    jobs = [
        old({}),
        {"job_id": 8},
        5,
        old({"job_id": 9, "time": {"submission": "soon"}}),
        old({"job_id": 10}),
    ]
    (tmp_path / "sacct.json").write_text(json.dumps({"jobs": jobs}))
    assert read_jobs(tmp_path / "sacct.json", set_aside=aside)["job_id"].tolist() == ["7", "10"]
    assert len(aside) == 3
    for text in ("{}", '{"jobs": 3}', '{"jobs": [' + "1" * 5000 + "]}", "[" * 100_000):
        (tmp_path / "sacct.json").write_text(text)
        with pytest.raises(InputError):
            read_jobs(tmp_path / "sacct.json", format="sacct")


def test_features_come_from_the_comment(tmp_path: Path) -> None:
    comments = [
        '{"variant": "lora_sft", "model_params_b": 8, "kind": "training", "packing": true, "mine": [1]}',
        "{`variant`: `full_sft`, `model_params_b`: `many`}",  # Slurm stores quotes as backticks
        "just a comment",
        '{"kind": "mining", "bits": 4}',
        "{" * 5000,
    ]
    jobs = [old({"job_id": i, "comment": {"job": text}}) for i, text in enumerate(comments)]
    (tmp_path / "sacct.json").write_text(json.dumps({"jobs": jobs}))
    notes: list[str] = []
    table = read_jobs(tmp_path / "sacct.json", kind="quantization", notes=notes)
    assert table["variant"].tolist() == ["lora_sft", "full_sft", "", "", ""]
    assert table["kind"].tolist() == ["training", *["quantization"] * 4]
    assert table["model_params_b"].tolist()[0] == 8.0 and table["packing"].tolist()[0] == 1.0
    assert table["model_params_b"].isna().tolist()[1:] == [True] * 4 and table["bits"].tolist()[3] == 4.0
    assert "2 features in comments cannot be used and are ignored" in notes


def test_an_empty_window_is_a_history_without_rows(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text('{"meta": {}, "jobs": []}')
    cpu = SHORT + "1|COMPLETED|1772438400|1772439000|1772442600|3600|cpu=1\n"
    (tmp_path / "cpu.txt").write_text(cpu)
    (tmp_path / "header.txt").write_text(HEADER + "\n")
    for name in ("none.json", "cpu.txt", "header.txt"):
        assert read_jobs(tmp_path / name).empty


def test_merging_is_idempotent_and_the_later_reading_replaces(tmp_path: Path) -> None:
    first = read(tmp_path / "a.txt", table("a", "b").replace("COMPLETED", "RUNNING", 1))
    second = read(tmp_path / "a.txt", table("a", "b", "c"))
    both = merge_jobs(first, second)
    assert both["job_id"].tolist() == ["100", "101", "102"] and set(both["status"]) == {"completed"}
    pd.testing.assert_frame_equal(merge_jobs(both, second), both)
    pd.testing.assert_frame_equal(merge_jobs(both, both.head(0)), both)
    requeued = second.head(1).assign(submit_time=second["submit_time"] + pd.Timedelta(hours=3))
    assert len(merge_jobs(both, requeued)) == 4


def test_a_wrong_zone_is_told(tmp_path: Path) -> None:
    jobs = read(tmp_path / "a.txt", table("a"))
    newest = pd.Timestamp("2026-03-02T09:10Z")
    assert zone_warning(jobs, newest + pd.Timedelta(minutes=5)) is None
    assert "in the future" in str(zone_warning(jobs, newest - pd.Timedelta(hours=5)))
    assert "before now" in str(zone_warning(jobs, newest + pd.Timedelta(hours=1)))
    assert zone_warning(jobs, newest + pd.Timedelta(days=30)) is None
    assert zone_warning(jobs.head(0), newest) is None


@given(st.lists(st.integers(0, 200), min_size=1, unique=True))
def test_lists_of_indices_survive(numbers: list[int]) -> None:
    assert indices_of(as_indices(numbers), 1000) == sorted(numbers)


def test_lists_of_nodes_are_slurms() -> None:
    assert nodes_of("r[1-2]n[08-09],v1") == ["r1n08", "r1n09", "r2n08", "r2n09", "v1"]
    for text in ("a[1-999999999]", "a[1-999][1-999]", "a[", "a[1-", "a b", "a[x]", "$(rm)", "a[2-1]"):
        with pytest.raises(InputError):
            nodes_of(text)
    for text in ("0-99999999", "1,1", "x", "3-1", "-1"):
        with pytest.raises(InputError):
            indices_of(text, 64)


TOLD = [
    "job_id", "status", "raw_status", "submit_time", "start_time", "end_time", "duration_s", "gpus", "gpu_type", "user",
    "group", "name", "queue", "requested_walltime_s", "known_at", "qos", "nodes", "cpus", "mem_mb", "node_list",
]  # fmt: skip
LATER = ("end_time", "known_at", "duration_s", "status", "raw_status")
"""What another reading of a job that still ran tells otherwise."""


@pytest.mark.realdata
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize(("version", "rows"), [("22.05.8", 250), ("24.11.5", 109)])
def test_text_of_a_live_slurm_says_what_its_json_says(
    shared: Path, tmp_path: Path, version: str, rows: int, zone: str
) -> None:
    """Every row of every list, field by field, whatever the zone that sacct wrote its times in."""
    folder = shared / "slurm" / f"fixtures/slurm-{version}"
    if not folder.is_dir():
        pytest.skip(f"the output of a live Slurm is not at {folder}")
    right, whole = references(folder)
    compared = 0
    for path in [*sorted(folder.glob("sacct_[Pp]_*.txt")), folder / "sacct_P.txt"]:
        if "default" in path.name:
            continue
        text = path.read_text(encoding="utf-8")
        if "epoch" not in path.name and "berlin" not in path.name:
            text = in_zone(text, zone)
        local = "Europe/Berlin" if "berlin" in path.name else zone
        table = read(tmp_path / path.name, text, timezone=local).set_index(["job_id", "submit_time"])
        for reference in (right, whole):
            same = table.index.intersection(reference.index)
            compared += len(same)
            for name in TOLD:
                if name in table.columns and name in reference.columns:
                    ran = reference.loc[same, "status"].eq("running") | table.loc[same, "status"].eq(
                        "running"
                    )
                    at = same[~ran.to_numpy()] if name in LATER else same
                    pd.testing.assert_series_equal(
                        table.loc[at, name], reference.loc[at, name], check_dtype=False, obj=path.name
                    )
    assert compared == rows


@cache
def references(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    key = ["job_id", "submit_time"]
    text = read_jobs(folder / "sacct_P_D.txt", timezone="UTC")
    return read_jobs(folder / "sacct_D.json").set_index(key), text.set_index(key)


def in_zone(text: str, zone: str) -> str:
    """Write the UTC times of a list as a clock of the zone shows them."""

    def local(found: "re.Match[str]") -> str:
        return pd.Timestamp(found.group(), tz="UTC").tz_convert(zone).strftime("%Y-%m-%dT%H:%M:%S")

    return re.sub(r"\b2026-\d\d-\d\dT\d\d:\d\d:\d\d\b", local, text)


def test_the_documented_command_has_the_fields_that_are_read() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data-formats.md").read_text(encoding="utf-8")
    assert f"--format={FIELDS} " in page and FIELDS.endswith("JobName")


_ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=4),
    lambda inside: (
        st.lists(inside, max_size=2)
        | st.dictionaries(
            st.sampled_from(("set", "infinite", "number", "current", "type", "count")), inside, max_size=3
        )
    ),
    max_leaves=5,
)


@given(st.lists(st.tuples(st.sampled_from(sorted(old({}))), _ANY), max_size=4))
def test_no_json_of_a_job_can_crash_the_reader(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, object]]
) -> None:
    path = tmp_path_factory.mktemp("json") / "sacct.json"
    jobs = [old({}), *(new({name: value, "job_id": 8 + i}) for i, (name, value) in enumerate(changes))]
    path.write_text(json.dumps({"jobs": jobs}))
    aside: list[InputError] = []
    notes: list[str] = []
    assert "7" in read_jobs(path, set_aside=aside, notes=notes)["job_id"].tolist()
    assert all(str(error).isprintable() for error in aside)


@given(
    st.lists(
        st.lists(
            st.sampled_from(
                ("1", "7", "COMPLETED", "RUNNING", "RESIZING", "2026-03-02T08:00:00", "Unknown", "1772438400",
                 "99999999999", "gpu:" + "9" * 5000, "gres/gpu=" + "9" * 5000, "gres/gpu=2", "²", "-5", "1.2.3M",
                 "mem=1.2.3M", "4:00:00", "9" * 400, "", "\ud83d", "a[1-", "{`bits`: 1e999}", "\x00")
            ),
            min_size=11,
            max_size=13,
        ),
        max_size=4,
    )
)  # fmt: skip
def test_no_cells_of_a_list_can_crash_the_reader(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]
) -> None:
    path = tmp_path_factory.mktemp("text") / "sacct.txt"
    header = "JobID|State|Submit|Start|End|ElapsedRaw|Suspended|Timelimit|NNodes|ReqMem|ReqTRES|Comment"
    text = "\n".join([header, *("|".join(row) for row in rows)]) + "\n"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    for aside in (None, []):
        try:
            read_jobs(path, timezone="Europe/Berlin", set_aside=aside)
        except InputError as error:
            assert str(error).isprintable()
