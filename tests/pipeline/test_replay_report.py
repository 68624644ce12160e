"""The report of a replay, and ``tidegrid replay`` on files."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import call
from replay_traces import busy, of_jobs

from tidegrid.app.replay_grid import FREE, owners
from tidegrid.app.replay_report import write_replay_report
from tidegrid.pipeline.replay import Result, Trace, replay, trace_from_files
from tidegrid.pipeline.worlds.trace import HOUR

POLICIES = ["fifo", "easy_priority", "rolling", "rolling_perfect", "rolling_medians"]


@pytest.fixture(scope="module")
def played() -> tuple[Trace, list[Result]]:
    trace = busy(jobs=40, hours=14, apps=2)
    return trace, replay(trace, POLICIES)


def test_the_report_is_one_file_that_shows_every_policy_and_needs_nothing_beside_it(
    played: tuple[Trace, list[Result]], tmp_path: Path
) -> None:
    trace, results = played
    write_replay_report(
        trace, results, tmp_path / "one.html", title="Two <apps>", notes=["From & for tests."]
    )
    text = (tmp_path / "one.html").read_text()
    assert "<h1>Two &lt;apps&gt;</h1>" in text and "From &amp; for tests." in text
    for title in (
        "Policies",
        "What forecasts are worth",
        "Waits",
        "Expected ends",
        "Hour by hour",
        "Realtime",
    ):
        assert f"<h2>{title}</h2>" in text
    page = text.split("</script></head><body>")[1]
    for result in results:
        assert f'<td class="l">{result.policy}</td>' in page
        assert f"{result.figures['value']:,.0f}" in page
    for picture in ("overview-0", "overview-1", "window-0", "window-1", "timeline-4", "waiting", "regret"):
        assert f'id="{picture}"' in page
    assert page.count('"showSendToCloud": false') == page.count("Plotly.newPlot(") > 0
    assert "<script src" not in text and "<link" not in text and "<img src" not in page
    write_replay_report(
        trace, results, tmp_path / "two.html", title="Two <apps>", notes=["From & for tests."]
    )
    assert (tmp_path / "two.html").read_bytes() == text.encode()


@pytest.mark.parametrize(
    "trace", [of_jobs([(0, 1, 1)], hours=1), of_jobs([(0, 8, 9), (0, 8, 9)], hours=30, demand=[[0] * 30])]
)
def test_a_replay_of_next_to_nothing_has_a_report(trace: Trace, tmp_path: Path) -> None:
    write_replay_report(trace, replay(trace, ["fifo"]), tmp_path / "small.html", day=99)
    assert "None of these policies tells when a job will end." in (tmp_path / "small.html").read_text()


def test_no_column_of_the_policies_lies_outside_the_page(
    played: tuple[Trace, list[Result]], tmp_path: Path
) -> None:
    """Values and waits are two tables, and the heads of columns wrap."""
    trace, results = played
    write_replay_report(trace, results, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert re.search(r"\bth \{[^}]*white-space: normal", text)
    section = text.split("<h2>Policies</h2>")[1].split("<h2>")[0]
    tables = re.findall(r"<table>.*?</table>", section, re.DOTALL)
    heads = [re.findall(r"<th(?: [^>]*)?>(.*?)</th>", table) for table in tables]
    assert [head[0] for head in heads] == ["policy", "policy"] and max(map(len, heads)) <= 12
    assert "value" in heads[0] and "wait mean,\u00a0h" in heads[1]
    for table in tables:
        assert all(f">{result.policy}<" in table for result in results)


def test_a_share_of_nothing_is_a_dash(tmp_path: Path) -> None:
    """A job of 5 h alone: no job under 4 h was told an end."""
    trace = of_jobs([(0, 1, 5)], hours=8)
    results = replay(trace, ["fifo", "rolling_perfect"])
    assert results[1].figures["eta"]["told"] == 1 and results[1].figures["eta"]["short"]["told"] == 0
    write_replay_report(trace, results, tmp_path / "long.html")
    cells = (tmp_path / "long.html").read_text().split("<h2>Expected ends</h2>")[1].split("</table>")[0]
    assert cells.count("<td>–</td>") == 6 and "100.0 %" in cells and "fifo" not in cells


@pytest.mark.parametrize("k", range(len(POLICIES)))
def test_the_grid_holds_every_gpu_hour_once(played: tuple[Trace, list[Result]], k: int) -> None:
    """Blocks and apps never overlap: what the grid shows of each adds up to what it ran and held."""
    trace, results = played
    outcome = results[k].outcome
    columns = trace.hours * 360
    grid = owners(trace, outcome, 0.0, trace.end_s, columns)
    shown = np.bincount(grid[grid != FREE], minlength=len(trace.jobs) + len(trace.apps)) / 360
    end = np.minimum(outcome.start + trace.duration_s, trace.end_s)
    ran = np.where(np.isfinite(outcome.start), trace.size * (end - outcome.start) / HOUR, 0.0)
    assert shown[: len(trace.jobs)] == pytest.approx(ran, abs=0.05)
    assert shown[len(trace.jobs) :] == pytest.approx(outcome.held.sum(axis=1), abs=0.05)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("traces")
    trace = busy(jobs=80, hours=48)
    trace.jobs[["job_id", "kind", "status", "submit_time", "duration_s", "gpus", "user"]].to_csv(
        folder / "jobs.csv", index=False
    )
    hours = pd.date_range("2026-01-01", periods=15 * 24, freq="h", tz="UTC")
    value = 100 + 50 * np.sin(2 * np.pi * np.arange(len(hours)) / 24)
    pd.DataFrame({"series_id": "chat", "timestamp": hours, "value": value}).to_csv(
        folder / "traffic.csv", index=False
    )
    return str(folder / "jobs.csv"), str(folder / "traffic.csv")


def test_the_command_plays_prints_and_writes_the_report(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, traffic = files
    report = tmp_path / "replay.html"
    two = ("--gpus", "16", "--policy", "fifo", "--policy", "rolling_perfect")
    code, text, _ = call(capsys, "replay", jobs, "--traffic", traffic, *two, "--report", str(report))
    assert code == 0 and "rolling_perfect" in text and "of the limit" in text
    page = report.read_text()
    assert "Replay of jobs.csv" in page and "traffic.csv: chat." in page
    code, text, _ = call(capsys, "replay", jobs, "--traffic", traffic, *two, "--skip-days", "1", "--json")
    found = json.loads(text)["policies"]
    assert code == 0 and list(found) == ["fifo", "rolling_perfect"]
    for key in ("eta", "eta_submit"):
        assert found["fifo"][key]["told"] == 0 and found["fifo"][key]["coverage_80"] is None
        assert 0 <= found["rolling_perfect"][key]["coverage_80"] <= 1
    assert found["fifo"]["jobs"] < 80 and found["fifo"]["by_user"] and found["fifo"]["by_size"]


def test_jobs_that_cannot_run_are_counted(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--gpus", "2", "--node-size", "2", "--policy", "fifo")
    code, text, _ = call(capsys, "replay", files[0], *few)
    assert code == 0 and "jobs of the trace were left out" in text
    late = ("--grid-day", "90", "--report", str(Path(files[0]).with_name("late.html")))
    code, _, said = call(capsys, "replay", files[0], *few, *late)
    assert code == 2 and "--grid-day: the replay has no day 90; give 1 to " in said
    code, text, _ = call(capsys, "replay", files[0], *few, "--json")
    found = json.loads(text)
    assert sum(found["left_out"].values()) + found["policies"]["fifo"]["jobs"] == 80


def test_the_command_searches_parameters(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, traffic = files
    out = tmp_path / "parameters.json"
    tune = ("--gpus", "16", "--days", "0.7", "--tune", "--policy", "rolling_perfect_demand")
    tries = ("--try", "job_quantile=0.5,0.8", "--try", "shortness=0,0.2")
    code, text, _ = call(capsys, "replay", jobs, "--traffic", traffic, *tune, *tries, "--out", str(out))
    assert code == 0 and "best: --set job_quantile=" in text
    parameters = json.loads(out.read_text())
    assert parameters["job_quantile"] in (0.5, 0.8) and parameters["shortness"] in (0, 0.2)
    again = ("--traffic", traffic, *tune[:4], "--policy", "rolling_perfect_demand", "--json")
    best = text.partition("best: ")[2].splitlines()[0].split()
    code, with_file, _ = call(capsys, "replay", jobs, *again, "--parameters", str(out))
    assert code == 0
    assert with_file == call(capsys, "replay", jobs, *again, *best)[1]
    code, text, _ = call(
        capsys,
        "replay",
        jobs,
        "--gpus",
        "16",
        "--days",
        "0.7",
        "--parameters",
        str(out),
        "--set",
        "shortness=0",
    )
    assert code == 0


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["--try", "decay=1"], "--tune"),
        (["--tune", "--try", "magic=1"], "magic"),
        (["--tune", "--try", "decay=high"], "decay=high"),
        (["--tune", "--try", "decay=7"], "decay"),
        (["--tune", "--report", "x.html"], "--tune"),
        (["--set", "magic=1"], "magic"),
        (["--set", "shortness=x"], "--set"),
        (["--policy", "fifo", "--set", "shortness=1"], "--set"),
        (["--tune", "--policy", "fifo"], "--tune"),
        (["--series", "chat"], "--series"),
        (["--grid-day", "1"], "--grid-day"),
        (["--report", "/"], "folder"),
        (["--report", "/nowhere/replay.html"], "/nowhere/replay.html"),
        (["--backend", "dask"], "--scheduler"),
        (["--backend", "nowhere"], "nowhere"),
        (["--backend", "loky", "--scheduler", "tcp://127.0.0.1:1"], "--backend"),
        (["--skip-days", "400"], "skip_days"),
        (["--timezone", "Berlin"], "Europe/Berlin"),
        (["--policy", "magic"], "magic"),
    ],
)
def test_a_wrong_option_is_named_in_one_line(
    files: tuple[str, str], argv: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, "replay", files[0], "--gpus", "16", *argv)
    assert code == 2
    assert named in err and err.count("\n") == 1 and "Traceback" not in err


def test_days_that_are_skipped_are_skipped_in_jobs_and_in_traffic(files: tuple[str, str]) -> None:
    whole = trace_from_files(*files, gpus=16, days=1.5)
    later = trace_from_files(*files, gpus=16, days=0.5, skip_days=1)
    assert later.start == whole.start + pd.Timedelta(days=1)
    kept = whole.submit_s >= 24 * HOUR
    assert np.allclose(later.submit_s, whole.submit_s[kept] - 24 * HOUR)
    assert (later.duration_s == whole.duration_s[kept]).all()
    assert (later.demand() == whole.demand()[:, 24:]).all()
