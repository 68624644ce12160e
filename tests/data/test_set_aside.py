"""One row never stops all: rows in are rows used and rows told, whatever is wrong with them."""

import json
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tables_by_chance import job_rows, request_rows, traffic_rows

from tidegrid.data import read_jobs, read_requests, read_running, read_traffic
from tidegrid.data.checks import check_table
from tidegrid.data.instants import instant_text
from tidegrid.errors import InputError
from tidegrid.pipeline.site import Site

FAULTS = st.sampled_from(
    ("", "x", "-1", "0", "inf", "1e30", "2.5", "nan", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "2026-03-02",
     "\x1b[2J", "\x9b", "completed", '"', "yes", "1677-09-21T00:00:00Z", "2026-03-02T00:00:00Z", "a,b")
)  # fmt: skip


def as_cells(rows: list[dict[str, object]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows)
    for name in frame.columns:
        if name in ("submit_time", "start_time", "end_time", "deadline", "timestamp"):
            frame[name] = instant_text(pd.to_datetime(frame[name], utc=True))
    return frame.astype(object).where(frame.notna(), "").map(str)


@given(
    table=st.sampled_from(("jobs", "requests", "traffic")),
    data=st.data(),
    faults=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12), FAULTS), max_size=5),
)
def test_rows_in_are_rows_used_and_rows_told(
    tmp_path_factory: pytest.TempPathFactory,
    table: str,
    data: st.DataObject,
    faults: list[tuple[int, int, str]],
) -> None:
    """A law: nothing is lost in silence, and check tells of the same rows."""
    make = {"jobs": job_rows, "requests": request_rows, "traffic": traffic_rows}[table]
    rows = data.draw(make())
    if not rows:
        return
    frame = as_cells(rows)
    for row, column, cell in faults:
        frame.iloc[row % len(frame), column % len(frame.columns)] = cell
    path = tmp_path_factory.mktemp("rows") / f"{table}.csv"
    frame.to_csv(path, index=False)
    aside: list[InputError] = []
    notes: list[str] = []
    read = {"jobs": read_jobs, "requests": read_requests, "traffic": read_traffic}[table]
    try:
        used = read(path, set_aside=aside, **({} if table == "requests" else {"notes": notes}))  # type: ignore[operator]
    except InputError as error:
        assert str(path) in str(error)  # the file as a whole
        assert check_table(table, path).problems
        return
    told = {error.row for error in aside}
    assert len(told) == len(aside) and all(2 <= (row or 0) <= len(frame) + 1 for row in told)
    checked = check_table(table, path)
    assert bool(aside) == bool([p for p in checked.problems if "never falls" not in str(p)])
    if table == "traffic":
        kept = frame[~frame.index.isin([int(row or 0) - 2 for row in told])]
        known = kept["value"].str.lower().isin(("", "nan")).eq(False).sum()
        if not any("divided" in note for note in notes):
            assert used["value"].notna().sum() == known
    else:
        left_out = sum(int(note.split()[0]) for note in notes if "held no GPU" in note)
        assert len(used) + len(aside) + left_out == len(frame)
    again: list[InputError] = []
    if len(used):
        assert checked.frame is not None and len(checked.frame) == len(used)
        read(path, set_aside=again)  # type: ignore[operator]
        assert list(map(str, again)) == list(map(str, aside))


def test_a_problem_of_all_rows_is_the_files(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    header = "job_id,kind,submit_time,gpus\n"
    path.write_text(header + "".join(f"{i},training,2026-03-02T00:00:00,1\n" for i in range(3)))
    with pytest.raises(InputError, match=r"carries no time zone \(and in 2 more rows\)"):
        read_requests(path, set_aside=[])
    path.write_text(header + "1,training,2026-03-02T00:00:00Z,0\n")
    aside: list[InputError] = []
    assert read_requests(path, set_aside=aside).empty and len(aside) == 1


def test_a_row_with_too_many_cells_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text(
        "job_id,kind,submit_time,gpus\n"
        "a,training,2026-03-02T00:00:00Z,1\n"
        "b,training,2026-03-02T00:00:00Z,1,surplus\n\n"
        "c,training,2026-03-02T00:00:00Z,x\n"
    )
    aside: list[InputError] = []
    assert read_requests(path, set_aside=aside)["job_id"].tolist() == ["a"]
    assert [(error.row, error.field, error.item) for error in aside] == [
        (3, "cells", None),
        (5, "gpus", "job c"),
    ]


def test_a_quote_that_is_not_closed_hides_no_rows(tmp_path: Path) -> None:
    """A quoted cell that runs over rows of the table is refused; one that holds a line end is read."""
    row = "{id},training,2026-03-02T00:00:00Z,1,{name}\n"
    path = tmp_path / "requests.csv"
    header = "job_id,kind,submit_time,gpus,name\n"
    names = ['"first', "x", "y", 'last"']
    path.write_text(header + "".join(row.format(id=i, name=name) for i, name in enumerate(names)))
    with pytest.raises(InputError, match="runs over 4 lines and holds rows of the table: a quote is not"):
        read_requests(path)
    path.write_text(
        header + row.format(id=1, name='"two\nlines"') + row.format(id=2, name="z") + "3,training,,1,\n"
    )
    aside: list[InputError] = []
    assert read_requests(path, set_aside=aside)["name"].tolist() == ["two\\nlines", "z"]
    assert [error.row for error in aside] == [5]


CLUSTER = {
    "pools": [{"id": "p", "gpus": 16, "gpu_type": "A100-SXM-80GB", "node_size": 8}],
    "apps": [{"id": "chat", "pool": "p", "held": [14, 15]}],
}
NOW = "2026-03-02T00:00:00Z"


def site(folder: Path, requests: str = "", running: str = "", cluster: object = CLUSTER) -> Path:
    (folder / "cluster.json").write_text(json.dumps(cluster))
    if requests:
        (folder / "requests.csv").write_text("job_id,kind,submit_time,gpus,deadline\n" + requests)
    if running:
        (folder / "running.csv").write_text("job_id,kind,pool,first_gpu,gpus,start_time,priority\n" + running)
    return folder


def test_a_site_is_read_without_the_rows_that_cannot_be_used(tmp_path: Path) -> None:
    good = f"good,training,{NOW},2,\n"
    bad = {
        f"none,training,{NOW},0,\n": "gpus",
        f"late,training,{NOW},1,2026-03-01T00:00:00Z\n": "deadline",
        f"chat,training,{NOW},1,\n": "job_id",
        f"runs,training,{NOW},1,\n": "job_id",
        f"good,training,{NOW},4,\n": "job_id",
    }
    runs = f"runs,training,p,0,2,{NOW},5\n"
    read = Site.read(site(tmp_path, good + "".join(bad), runs + f"chat,training,p,4,1,{NOW},5\n"))
    # a job in both files is told, and runs
    assert read.requests["job_id"].tolist() == ["good", "runs"]
    assert read.running["job_id"].tolist() == ["runs"]
    assert [error.field for error in read.set_aside] == [*bad.values(), "job_id"]
    problems = check_folder(tmp_path)
    assert len(problems) == len(read.set_aside)
    for error in read.set_aside:
        assert any(f"row {error.row}, {error.field}: {error.problem}" in line for line in problems)


def check_folder(folder: Path) -> list[str]:
    from tidegrid.app.commands.history import _check_folder

    return _check_folder(folder, None, True)[1]


def test_gpus_of_a_running_job_that_cannot_be_read_stay_closed(tmp_path: Path) -> None:
    """Something is on them: nothing may be planned there."""
    rows = [
        f"fine,training,p,0,1,{NOW},5",
        "when,training,p,1,1,soon,5",
        f"odd,training,p,2,3,{NOW},5",
        f"twice,training,p,0,2,{NOW},5",
        f"where,training,q,2,1,{NOW},5",
        f"far,training,p,15,4,{NOW},5",
    ]
    read = Site.read(site(tmp_path, running="\n".join(rows) + "\n"))
    assert read.running["job_id"].tolist() == ["fine"] and len(read.set_aside) == 5
    assert read.cluster.pools[0].down == (1, 2, 3, 4)


def test_a_running_job_of_next_year_is_set_aside(tmp_path: Path) -> None:
    read = Site.read(site(tmp_path, f"a,training,{NOW},2,\n", "late,training,p,0,2,2027-01-01T00:00:00Z,5\n"))
    assert read.now == pd.Timestamp(NOW) and read.running.empty
    assert [error.field for error in read.set_aside] == ["start_time"]


def test_names_in_capitals_and_links_that_lead_nowhere_are_refused(tmp_path: Path) -> None:
    folder = site(tmp_path, f"a,training,{NOW},2,\n")
    (folder / "running.csv").symlink_to(folder / "gone.csv")
    with pytest.raises(InputError, match="a link to a file that is not there"):
        Site.read(folder)
    assert any("link" in line for line in check_folder(folder))
    (folder / "running.csv").unlink()
    (folder / "requests.csv").rename(folder / "Requests.CSV")
    with pytest.raises(InputError, match=r"in lower case; call it requests\.csv"):
        Site.read(folder, now=NOW)
    assert any("call it requests.csv" in line for line in check_folder(folder))


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("one_request_without_gpus", "gpus"),
        ("one_deadline_before_submit", "deadline"),
        ("job_named_like_app", "job_id"),
    ],
)
def test_sites_with_one_bad_request_are_read(shared: Path, name: str, field: str) -> None:
    folder = inputs(shared) / name
    read = Site.read(folder)
    assert len(read.requests) == 1 and [error.field for error in read.set_aside] == [field]
    assert len(check_folder(folder)) == 1


def inputs(shared: Path) -> Path:
    folder = shared / "faults" / "inputs"
    if not folder.is_dir():
        pytest.skip(f"the collected inputs are not at {folder}")
    return folder


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("min_replicas_over_pool", "replicas that are always up take 50 GPUs, and pool 'p' has 16"),
        ("swap_cap_below_replica", "2 GPUs a step are less than a replica of 4"),
    ],
)
def test_clusters_that_cannot_be_are_refused(shared: Path, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Site.read(inputs(shared) / name)
    assert any(said in line for line in check_folder(inputs(shared) / name))


@pytest.mark.realdata
def test_a_running_block_of_six_and_a_queue_of_odd_sizes_are_read(shared: Path) -> None:
    read = Site.read(inputs(shared) / "six_gpu_node")
    assert len(read.requests) == 2 and not read.set_aside
    assert any("j6 (6 → 8), j3 (3 → 4)" in note for note in read.notes)


@pytest.mark.realdata
@pytest.mark.parametrize(
    ("name", "rows", "gpus", "told"),
    [
        ("quote_swallows_rows", 6, [2] * 6, 0),
        ("quote_in_job_name", 5, [2, 2, 4, 4, 4], 0),
        ("pipe_in_job_name", 2, [2, 2], 0),
        ("newline_in_job_name", 1, [2], 0),
        ("dash_p_trailing_pipe", 1, [2], 0),
        ("gres_type_starts_with_digit", 5, [4, 2, 1, 2, 4], 0),
        ("reqgres_is_per_node", 1, [32], 0),
        ("start_1s_before_submit", 5, [2] * 5, 1),
        ("dst_start_in_second_hour", 1, [2], 0),
    ],
)
def test_lists_of_slurm_lose_no_row(shared: Path, name: str, rows: int, gpus: list[int], told: int) -> None:
    aside: list[InputError] = []
    jobs = read_jobs(inputs(shared) / f"sacct_{name}.txt", timezone="Europe/Berlin", set_aside=aside)
    assert len(jobs) == rows and jobs["gpus"].tolist() == gpus and len(aside) == told
    if name == "dst_start_in_second_hour":
        assert jobs["start_time"][0] == pd.Timestamp("2026-10-25T01:10Z")


@pytest.mark.realdata
def test_traffic_of_every_clock_is_read_by_one_rule(shared: Path) -> None:
    """Whole hours of UTC, whatever minute a file's hours begin at; a counter is told."""
    folder = inputs(shared)
    newest = read_traffic(folder / "traffic_fold_newest_first.csv", timezone="Europe/Berlin")
    assert newest["value"].tolist() == [float(v) for v in range(100, 125)][-len(newest) :]
    lord_howe = read_traffic(folder / "traffic_lord_howe_dst.csv", timezone="Australia/Lord_Howe")
    assert (lord_howe["timestamp"].dt.minute == 0).all() and lord_howe["value"].dropna().eq(100).all()
    for name in ("half_hour_zone", "stamps_5_min_past"):
        notes: list[str] = []
        hours = read_traffic(folder / name / "traffic.csv", notes=notes)
        assert (hours["timestamp"].dt.minute == 0).all() and any("divided" in note for note in notes)
    notes = []
    read_traffic(folder / "traffic_cumulative_counter.csv", notes=notes)
    assert any("never falls: is it a counter" in note for note in notes)
    assert any(
        "never falls" in str(p)
        for p in check_table("traffic", folder / "traffic_cumulative_counter.csv").problems
    )
    glitch = check_table("traffic", folder / "traffic_glitch_6h_ago.csv")
    assert not glitch.problems


def test_running_rows_are_told_too(tmp_path: Path) -> None:
    path = tmp_path / "running.csv"
    path.write_text(
        f"job_id,kind,pool,first_gpu,gpus,start_time\na,training,p,0,2,{NOW}\nb,training,p,,2,{NOW}\nc,mining,p,4,1,{NOW}\n"
    )
    aside: list[InputError] = []
    assert read_running(path, set_aside=aside)["job_id"].tolist() == ["a"]
    assert [(error.row, error.field) for error in aside] == [(3, "first_gpu"), (4, "kind")]
