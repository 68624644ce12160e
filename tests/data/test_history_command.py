"""``tidegrid history``: synth, import, check."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tidegrid.app.commands import history
from tidegrid.data import read_jobs
from tidegrid.errors import InputError

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


def test_a_failed_import_writes_nothing(tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    source.write_text("series_id,hour,value\na,0,1\na,0,2\n")
    out = tmp_path / "traffic.csv"
    assert isinstance(run("import", source, "--table", "traffic", "--out", out).exception, InputError)
    assert not out.exists()
    assert run("import", source, "--table", "traffic", "--duplicates", "mean", "--out", out).exit_code == 0
    assert isinstance(run("import", source, "--table", "cats", "--out", out).exception, InputError)
