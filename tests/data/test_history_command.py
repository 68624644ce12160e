"""``tidegrid history``: synth, import, check."""

import json
from pathlib import Path

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner, Result

from tidegrid.app.commands import history
from tidegrid.data import read_jobs
from tidegrid.errors import InputError

READ = "2026-04-01T00:00:00+00:00"
SITE = {"cluster.json", "jobs.csv", "requests.csv", "running.csv", "traffic.csv", "SYNTHETIC.txt"}


def run(*arguments: object) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    history.register(app)
    return CliRunner().invoke(app, ["history", *map(str, arguments)])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample") / "site"
    result = run("synth", folder, "--days", 10, "--gpus", 16, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["synthetic"] is True
    return folder


def test_synth_writes_a_site_and_says_that_it_is_synthetic(site: Path, tmp_path: Path) -> None:
    assert {path.name for path in site.iterdir()} == SITE
    result = run("synth", tmp_path / "other", "--days", 10, "--gpus", 16)
    assert "synthetic" in result.output
    for name in SITE:
        assert (tmp_path / "other" / name).read_bytes() == (site / name).read_bytes()


def test_synth_replaces_a_sample_and_nothing_else_without_force(site: Path, tmp_path: Path) -> None:
    """A site that is not synthetic, or not known to be, is left as it is."""
    mine = copied(site, tmp_path)
    assert run("synth", mine, "--days", 10, "--gpus", 16).exit_code == 0
    cluster = json.loads((mine / "cluster.json").read_text()) | {"synthetic": False}
    (mine / "cluster.json").write_text(json.dumps(cluster))
    (mine / "jobs.csv").write_text("mine")
    refused = run("synth", mine, "--days", 10, "--gpus", 16)
    assert isinstance(refused.exception, InputError) and "--force" in str(refused.exception)
    assert (mine / "jobs.csv").read_text() == "mine"
    assert run("synth", mine, "--days", 10, "--gpus", 16, "--force").exit_code == 0
    assert (mine / "jobs.csv").read_bytes() == (site / "jobs.csv").read_bytes()
    (mine / "SYNTHETIC.txt").unlink()
    assert isinstance(run("synth", mine, "--days", 10, "--gpus", 16).exception, InputError)


def test_check_finds_nothing_wrong_with_a_sample(site: Path) -> None:
    result = run("check", site)
    assert result.exit_code == 0 and "no problem found" in result.output and "synthetic" in result.output
    told = json.loads(run("check", site, "--json").output)
    assert {f["table"] for f in told["files"]} == {"cluster", "jobs", "requests", "running", "traffic"}
    assert told["problems"] == []


def test_check_names_every_file_with_a_problem(site: Path, tmp_path: Path) -> None:
    for path in site.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    jobs = (tmp_path / "jobs.csv").read_text().split("\n")
    jobs[4] = (
        jobs[4]
        .replace("completed", "vanished")
        .replace("failed", "vanished")
        .replace("cancelled", "vanished")
    )
    (tmp_path / "jobs.csv").write_text("\n".join(jobs))
    (tmp_path / "cluster.json").write_text(
        (tmp_path / "cluster.json").read_text().replace('"gpus": 8', '"gpus": 0', 1)
    )
    result = run("check", tmp_path)
    assert result.exit_code == 2
    assert "jobs.csv, row 5, status: 'vanished' is unknown" in result.output
    assert "pool 'h100' has 0 GPUs" in result.output
    (tmp_path / "cluster.json").unlink()
    assert "there is no cluster.json" in run("check", tmp_path).output


def test_check_reads_one_file(site: Path, tmp_path: Path) -> None:
    assert run("check", site / "jobs.csv").exit_code == 0
    other = tmp_path / "mine.csv"
    other.write_bytes((site / "jobs.csv").read_bytes())
    assert isinstance(run("check", other).exception, InputError)
    assert run("check", other, "--table", "jobs").exit_code == 0
    assert isinstance(run("check", tmp_path / "absent").exception, InputError)


def test_import_writes_a_table_and_tells_what_it_left_out(tmp_path: Path) -> None:
    source = tmp_path / "sacct.txt"
    source.write_text(
        "JobID|State|Submit|Start|End|Elapsed|AllocTRES\n"
        "1|COMPLETED|2026-03-02T00:00:00|2026-03-02T01:00:00|2026-03-02T02:00:00|01:00:00|gres/gpu=2\n"
        "1.batch|COMPLETED|2026-03-02T00:00:00|2026-03-02T01:00:00|2026-03-02T02:00:00|01:00:00|gres/gpu=2\n"
    )
    out = tmp_path / "jobs.csv"
    result = run("import", source, "--timezone", "Europe/Berlin", "--kind", "quantization", "--out", out)
    assert result.exit_code == 0 and "1 of 2 jobs are steps of jobs" in result.output
    assert read_jobs(out)["kind"].tolist() == ["quantization"]
    told = json.loads(run("import", source, "--timezone", "UTC", "--out", out, "--json").output)
    assert told["rows"] == 1 and told["notes"]


def test_an_import_goes_on_without_a_row_that_cannot_be_used(tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    source.write_text("series_id,hour,value\na,0,1\na,0,2\na,1,3\n")
    out = tmp_path / "traffic.csv"
    result = run("import", source, "--table", "traffic", "--out", out)
    assert result.exit_code == 1 and "set aside: " in result.output and "row 3, timestamp" in result.output
    assert len(out.read_text().splitlines()) == 3
    told = json.loads(run("import", source, "--table", "traffic", "--out", out, "--json").stdout)
    assert (told["rows"], told["set_aside"]) == (2, 1)
    assert told["set_aside_rows"][0]["item"] == "series a" and told["set_aside_rows"][0]["row"] == 3
    assert run("import", source, "--table", "traffic", "--duplicates", "mean", "--out", out).exit_code == 0


def test_a_failed_import_writes_nothing(tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    source.write_text("series_id,hour,worth\na,0,1\n")
    out = tmp_path / "traffic.csv"
    assert isinstance(run("import", source, "--table", "traffic", "--out", out).exception, InputError)
    assert not out.exists()
    assert isinstance(run("import", source, "--table", "cats", "--out", out).exception, InputError)


def copied(site: Path, folder: Path) -> Path:
    for path in site.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def edit(path: Path, column: str, cells: dict[int, str]) -> None:
    """Write cells of a column by their row in the file."""
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    for row, cell in cells.items():
        frame.loc[row - 2, column] = cell
    frame.to_csv(path, index=False)


def problems_of(folder: Path) -> list[str]:
    return list(json.loads(run("check", folder, "--json").output)["problems"])


def test_check_tells_every_kind_of_problem_of_a_file(site: Path, tmp_path: Path) -> None:
    """Up to three rows of each problem are named, and what shows across columns in the rows that are left."""
    jobs = copied(site, tmp_path) / "jobs.csv"
    edit(jobs, "status", {3: "compleeted", 4: "done", 5: "ok", 6: "fine", 7: "good"})
    edit(jobs, "gpus", {8: "-2", 9: "many"})
    edit(jobs, "end_time", {12: "2001-01-01T00:00:00+00:00"})
    told = problems_of(tmp_path)
    assert all(line.startswith(f"{jobs}, row ") for line in told)
    assert [line.removeprefix(f"{jobs}, ").split(";")[0] for line in told] == [
        "row 3, status: 'compleeted' is unknown",
        "row 4, status: 'done' is unknown",
        "row 5, status: 'ok' is unknown (and in 2 more rows)",
        "row 9, gpus: 'many' is not a number",
        "row 8, gpus: '-2' is too small",
        "row 12, end_time: end_time is before start_time",
    ]


def test_check_caps_what_it_tells_of_one_file(site: Path, tmp_path: Path) -> None:
    requests = copied(site, tmp_path) / "requests.csv"
    for column in ("kind", "priority", "gpus", "submit_time", "deadline", "max_gpus", "requested_walltime_s"):
        edit(requests, column, dict.fromkeys((2, 3, 4), "?"))
    told = problems_of(tmp_path)
    assert len(told) == 21
    assert told[-1] == f"{requests}: 1 more problem"


def test_check_suggests_the_name_of_a_misspelt_column(site: Path, tmp_path: Path) -> None:
    """An optional column would be passed over in silence; a required one is told once."""
    requests = copied(site, tmp_path) / "requests.csv"
    header, rest = requests.read_text().split("\n", 1)
    header = header.replace("priority", "prority").replace("kind", "Kind")
    requests.write_text(f"{header},mine\n" + "\n".join(f"{line}," for line in rest.splitlines()) + "\n")
    assert problems_of(tmp_path) == [
        f"{requests}, row 1, Kind: the column is not known, and is not read; write kind, if that is meant",
        f"{requests}, row 1, prority: the column is not known, and is not read; write priority, if that is meant",
    ]


def test_check_finds_what_does_not_fit_between_files(site: Path, tmp_path: Path) -> None:
    """A series misspelt, a GPU type that no pool has, a pool that is not there, a start far in the future."""
    folder = copied(site, tmp_path)
    cluster = json.loads((folder / "cluster.json").read_text())
    series = cluster["apps"][0]["series_id"] or cluster["apps"][0]["id"]
    cluster["apps"][0]["series_id"] = series + "x"
    (folder / "cluster.json").write_text(json.dumps(cluster))
    edit(folder / "requests.csv", "gpu_type", {3: cluster["pools"][0]["gpu_type"] + "1"})
    (folder / "running.csv").write_text(
        "job_id,kind,pool,first_gpu,gpus,start_time\n"
        f"a,training,elsewhere,0,1,{READ}\n\n"
        f"b,training,{cluster['pools'][0]['id']},0,1,2031-01-01T00:00:00+00:00\n"
    )
    told = "\n".join(problems_of(folder))
    right = cluster["pools"][0]["gpu_type"]
    assert f"requests.csv, row 3, gpu_type: no pool has GPUs of type '{right}1'; write {right}" in told
    assert "running.csv, row 2, pool: there is no pool 'elsewhere'; use one of" in told
    assert "running.csv, row 4, start_time: 2031-01-01T00:00:00+00:00 is more than a day after" in told
    assert f"traffic.csv, series_id: there is no series '{series}x'" in told
    assert f"the nearest is '{series}'" in told
    assert run("check", folder).exit_code == 1


def test_check_notes_a_series_that_is_like_no_other(site: Path, tmp_path: Path) -> None:
    """An app may be too new for a series: its demand is guessed, which is no mistake."""
    folder = copied(site, tmp_path)
    cluster = json.loads((folder / "cluster.json").read_text())
    cluster["apps"][0]["series_id"] = "zzzz"
    (folder / "cluster.json").write_text(json.dumps(cluster))
    told = json.loads(run("check", folder, "--json").output)
    assert told["problems"] == []
    assert any("traffic has no series for" in note for note in told["notes"])


def test_check_tells_all_problems_of_a_cluster(site: Path, tmp_path: Path) -> None:
    folder = copied(site, tmp_path)
    cluster = json.loads((folder / "cluster.json").read_text())
    cluster["pools"][0]["gpus"] = 0
    cluster["apps"][0]["priority"] = 11
    cluster["colour"] = "red"
    (folder / "cluster.json").write_text(json.dumps(cluster))
    told = problems_of(folder)
    assert [line.split(", ")[1].split(":")[0] for line in told] == [
        "pools[0].gpus", "apps[0].priority", "colour",
    ]  # fmt: skip


def test_check_tells_all_problems_of_traffic(site: Path, tmp_path: Path) -> None:
    traffic = copied(site, tmp_path) / "traffic.csv"
    edit(traffic, "value", {4: "-1", 5: "lots"})
    edit(traffic, "timestamp", {7: "noon"})
    told = [line.removeprefix(f"{traffic}, ").split(";")[0] for line in problems_of(tmp_path)]
    assert told == [
        "row 7, timestamp: 'noon' is not a time",
        "row 5, value: 'lots' is not a number",
        "row 4, value: '-1' is too small",
    ]


def test_synth_takes_its_folder_as_an_option_too(tmp_path: Path) -> None:
    result = run("synth", "--out", tmp_path / "a", "--days", 10, "--gpus", 16)
    assert result.exit_code == 0 and (tmp_path / "a" / "cluster.json").is_file()
    assert "no folder is named" in str(run("synth").exception)
    assert "two folders are named" in str(run("synth", tmp_path / "a", "--out", tmp_path / "b").exception)


def test_import_refuses_options_of_another_table(site: Path, tmp_path: Path) -> None:
    result = run("import", site / "jobs.csv", "--fill", "zero", "--out", tmp_path / "jobs.csv")
    assert "--fill: the table jobs has no use for it; leave it out, or choose --table traffic" in str(
        result.exception
    )
    assert not (tmp_path / "jobs.csv").exists()


@pytest.mark.parametrize(
    ("table", "option", "value", "said"),
    [
        ("jobs", "kind", "quantization", "a file of the format tidegrid tells the kind of each job"),
        ("jobs", "kind", "nope", "a file of the format tidegrid tells the kind of each job"),
        ("jobs", "start", "nonsense", "a file of the format tidegrid tells the instants of its jobs"),
        ("jobs", "format", "nope", "'nope' is unknown; use one of tidegrid, trace, sacct, swf"),
        ("traffic", "start", "2026-03-02T00:00:00Z", "its rows tell their instants"),
        ("traffic", "fill", "nope", "'nope' is unknown; use one of none, zero"),
        ("traffic", "duplicates", "nope", "'nope' is unknown; use one of error, first"),
    ],
)
def test_import_ignores_no_option(
    site: Path, tmp_path: Path, table: str, option: str, value: str, said: str
) -> None:
    out = tmp_path / "out.csv"
    result = run("import", site / f"{table}.csv", "--table", table, f"--{option}", value, "--out", out)
    assert isinstance(result.exception, InputError) and said in str(result.exception)
    assert result.exception.field == option and not out.exists()


def test_import_appends_as_a_timer_would(tmp_path: Path) -> None:
    """Merged by job and submit time, the same again changes nothing, and a window without jobs is fine."""
    header = "JobID|State|Submit|Start|End|ElapsedRaw|AllocTRES\n"
    row = "{id}|{state}|1772438400|1772439000|{end}|{s}|gres/gpu=1\n"
    first = header + row.format(id=1, state="RUNNING", end="Unknown", s=60)
    second = header + row.format(id=1, state="COMPLETED", end=1772442600, s=3600)
    second += row.format(id=2, state="COMPLETED", end=1772442600, s=3600)
    source, out = tmp_path / "sacct.txt", tmp_path / "jobs.csv"
    for text, statuses in (
        (header, []),
        (first, ["running"]),
        (second, ["completed"] * 2),
        (header, ["completed"] * 2),
    ):
        source.write_text(text)
        for _ in range(2):
            assert run("import", source, "--append", "--out", out).exit_code == 0
            assert read_jobs(out)["status"].tolist() == statuses
    before = out.read_bytes()
    told = json.loads(run("import", source, "--append", "--out", out, "--json").stdout)
    assert (told["rows"], told["read"], told["set_aside"]) == (2, 0, 0) and out.read_bytes() == before
    source.write_text(second.replace("|1772438400|", "|soon|", 1))
    result = run("import", source, "--append", "--out", out)
    assert result.exit_code == 1 and "row 2, submit_time: 'soon' is not a time" in result.output
    assert len(read_jobs(out)) == 2


def test_import_tells_a_zone_that_is_likely_wrong(tmp_path: Path) -> None:
    """Times of sacct are local to whoever ran it: a zone that shifts them into the future is told."""
    soon = (pd.Timestamp.now(tz="UTC") + pd.Timedelta(hours=5)).strftime("%Y-%m-%dT%H:%M:%S")
    source = tmp_path / "sacct.txt"
    source.write_text(
        f"JobID|State|Submit|Start|End|ElapsedRaw|AllocTRES\n1|RUNNING|{soon}|{soon}|Unknown|5|gres/gpu=1\n"
    )
    result = run("import", source, "--timezone", "UTC", "--out", tmp_path / "jobs.csv")
    assert "hours in the future: is the time zone right" in result.output
