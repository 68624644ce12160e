"""The commands on a site: what they write and print, their exit codes, and one clear line for bad input."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import call

from tidegrid.app.cli import app
from tidegrid.data.synth import synthesise
from tidegrid.estimators.registry import Failure, discover


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic site of two weeks."""
    folder = tmp_path_factory.mktemp("made") / "site"
    synthesise(2, days=14).write(folder)
    return folder


@pytest.fixture
def site(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(made, tmp_path / "site"))


def test_plan_writes_its_files_and_compares_with_fifo(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan"
    code, text, _ = call(capsys, "plan", str(site), "--out", str(out))
    assert code in (0, 1)
    assert "Synthetic data" in text
    assert "fifo" in text
    assert {p.name for p in out.iterdir()} == {
        "problem.json", "plan.json", "estimates.csv", "etas.csv", "report.html", "grid.png",
    }  # fmt: skip
    report = (out / "report.html").read_text(encoding="utf-8")
    assert "Synthetic data" in report
    assert "http-equiv" not in report
    assert "<script src=" not in report
    assert (out / "grid.png").read_bytes().startswith(b"\x89PNG")
    code, text, _ = call(capsys, "check", str(out / "problem.json"), str(out / "plan.json"))
    assert code == 0


def test_plan_for_machines_prints_one_json_object(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = call(capsys, "plan", str(site), "--out", str(tmp_path / "p"), "--no-report", "--json")
    told = json.loads(text)
    assert told["synthetic"] is True
    assert set(told["metrics"]) == {"fast", "fifo", "fifo_backfill"}
    assert code == (1 if told["refused"] else 0)


def test_plan_in_mode_full_takes_workers_and_tells_its_gap_as_it_goes(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--mode", "full", "--time-limit", "1", "--workers", "2", "--no-report")
    code, text, told = call(capsys, "plan", str(site), "--out", str(tmp_path / "p"), *options)
    assert code in (0, 1)
    assert "full" in text
    assert any("gap" in line for line in told.splitlines())
    plan = json.loads((tmp_path / "p" / "plan.json").read_text(encoding="utf-8"))
    assert plan["solver"]["bound"] >= plan["metrics"]["objective"]


def test_plan_twice_writes_the_same_bytes(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        call(capsys, "plan", str(site), "--out", str(tmp_path / name))
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_a_request_that_fits_no_pool_gives_exit_code_1_and_its_reason(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """P9: X is refused with its reason, the others are planned, and the exit code says so."""
    lines = (site / "requests.csv").read_text().splitlines()
    header = lines[0].split(",")
    row = lines[1].split(",")
    row[header.index("job_id")] = "too-wide"
    for name in ("gpus", "min_gpus", "max_gpus"):
        row[header.index(name)] = "4096"
    (site / "requests.csv").write_text("\n".join([*lines, ",".join(row)]) + "\n")
    code, text, _ = call(capsys, "plan", str(site), "--out", str(tmp_path / "p"), "--no-report")
    assert code == 1
    assert "refused: too-wide: needs a block of 4096 GPUs" in text


def test_predict_tells_hours_and_basis_and_explains_a_job(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "estimates.csv"
    code, text, _ = call(capsys, "predict", str(site), "--json", "--out", str(out))
    told = json.loads(text)["estimates"]
    assert code in (0, 1)
    assert out.is_file()
    assert {"hours_q0.1", "hours_q0.5", "hours_q0.9", "gpu_hours_mean", "basis"} <= set(told[0])
    code, text, _ = call(capsys, "predict", str(site), "--explain", told[0]["job_id"])
    assert code == 0
    assert any(c.isdigit() for c in text)
    code, _, err = call(capsys, "predict", str(site), "--explain", "nobody")
    assert code == 2
    assert "there is no request 'nobody'" in err


def spoil(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def drop_column(path: Path, name: str) -> None:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    at = rows[0].index(name)
    path.write_text("\n".join(",".join(r[:at] + r[at + 1 :]) for r in rows) + "\n")


def set_cell(path: Path, column: str, value: str, row: int = 1) -> None:
    rows = [line.split(",") for line in path.read_text().splitlines()]
    rows[row][rows[0].index(column)] = value
    path.write_text("\n".join(",".join(r) for r in rows) + "\n")


ROWS = {
    "text in a number": (lambda s: set_cell(s / "jobs.csv", "gpus", "four"), "row 2", "gpus"),
    "a negative duration": (lambda s: set_cell(s / "jobs.csv", "duration_s", "-5"), "row 2", "duration_s"),
    "an infinite duration": (lambda s: set_cell(s / "jobs.csv", "duration_s", "inf"), "row 2", "duration_s"),
    "a time without a zone": (
        lambda s: set_cell(s / "requests.csv", "submit_time", "2026-03-01T00:00:00"), "row 2", "submit_time",
    ),
    "a negative time limit": (
        lambda s: set_cell(s / "requests.csv", "requested_walltime_s", "-1"), "row 2", "requested_walltime_s",
    ),
    "a time limit of zero": (
        lambda s: set_cell(s / "requests.csv", "requested_walltime_s", "0"), "row 2", "requested_walltime_s",
    ),
    "two running jobs on one GPU": (
        lambda s: set_cell(s / "running.csv", "first_gpu", "0", 1) or set_cell(s / "running.csv", "first_gpu", "0", 2)
        or set_cell(s / "running.csv", "pool", "h100", 1) or set_cell(s / "running.csv", "pool", "h100", 2),
        "running.csv", "first_gpu",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", list(ROWS))
def test_a_row_that_cannot_be_used_is_told_and_the_rest_planned(
    what: str, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiler, *named = ROWS[what]
    spoiler(site)  # type: ignore[operator]
    out = tmp_path / "out"
    code, _, err = call(capsys, "plan", str(site), "--out", str(out), "--no-report")
    assert code == 1 and "Traceback" not in err
    (told,) = [line for line in err.splitlines() if line.startswith("set aside: ")]
    assert all(str(name) in told for name in named)
    assert (out / "plan.json").is_file()


BAD = {
    "a missing column": (lambda s: drop_column(s / "jobs.csv", "gpus"), "jobs.csv", "gpus"),
    "an empty file": (lambda s: (s / "jobs.csv").write_text(""), "jobs.csv", "empty"),
    "a cluster with 0 GPUs": (lambda s: spoil(s / "cluster.json", '"gpus": 32', '"gpus": 0'), "cluster.json", "gpus"),
    "no cluster": (lambda s: (s / "cluster.json").unlink(), "cluster.json", "cannot be read"),
    "a broken cluster": (lambda s: (s / "cluster.json").write_text("{"), "cluster.json", "not JSON"),
}  # fmt: skip


@pytest.mark.parametrize("what", list(BAD))
def test_bad_input_is_one_clear_line_and_exit_code_2_and_nothing_is_written(
    what: str, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiler, *named = BAD[what]
    spoiler(site)  # type: ignore[operator]
    out = tmp_path / "out"
    code, _, err = call(capsys, "plan", str(site), "--out", str(out))
    assert code == 2
    assert err.count("\n") == 1
    assert "Traceback" not in err
    for name in named:
        assert str(name) in err
    assert not out.exists()


@pytest.mark.parametrize(
    "argv",
    [
        "plan SITE --policy SITE/jobs.csv --out OUT",
        "train SITE --only nobody --store OUT",
        "evaluate SITE --only nobody --out OUT",
        "tick SITE --state STATE --store OUT --now 2026-04-14T06:00:00Z --mode magic",
        "history day SITE/cluster.json 2026-04-14 --out OUT",
        "history day SITE/jobs.csv 1999-01-01 --out OUT",
        "history synth OUT --now tomorrow",
    ],
)
def test_input_that_cannot_be_used_leaves_no_folder(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: str
) -> None:
    places = {"SITE": str(site), "OUT": str(tmp_path / "out" / "deep"), "STATE": str(tmp_path / "state.db")}
    for word, place in places.items():
        argv = argv.replace(word, place)
    before = sorted(site.rglob("*"))
    code, out, err = call(capsys, *argv.split())
    assert code == 2 and out == "" and err.count("\n") == 1, err
    assert not (tmp_path / "out").exists() and sorted(site.rglob("*")) == before


def test_train_tells_of_an_estimator_that_does_not_load(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As estimators list does: the others are trained, and the exit code is 1."""
    known = discover()
    broken = replace(known, failures=(Failure("absent", "x:Y", "pkg 1", "no module x"),))
    (site / "traffic.csv").unlink()
    argv = ("train", site, "--only", "quantization", "--only", "realtime", "--store", tmp_path / "models")
    code, _, _ = call(capsys, *argv)
    assert code == 0
    monkeypatch.setattr("tidegrid.pipeline.train.discover", lambda: broken)
    code, text, _ = call(capsys, *argv)
    assert code == 0 and "no hour of traffic is known: realtime cannot be trained yet" in text
    code, text, _ = call(capsys, *argv, "--only", "absent", "--json")
    told = {one["estimator"]: one for one in json.loads(text)["trained"]}
    assert code == 1 and "does not load" in told["absent"]["reason"]
    assert told["realtime"]["decision"] == "nothing"


def test_a_duplicate_request_is_named(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (site / "requests.csv").read_text().splitlines()
    (site / "requests.csv").write_text("\n".join([*lines, lines[1]]) + "\n")
    code, _, err = call(capsys, "plan", str(site), "--out", str(tmp_path / "out"), "--no-report")
    assert code == 1
    assert lines[1].split(",")[0] in err


def test_a_folder_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "plan", str(tmp_path / "nowhere"))
    assert code == 2
    assert "nowhere" in err


def test_an_unknown_mode_is_refused(site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "plan", str(site), "--out", str(tmp_path / "out"), "--mode", "magic")
    assert code == 2
    assert "magic" in err
    assert "fast" in err


def test_every_command_has_an_example_in_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    import typer

    command = typer.main.get_command(app)
    stack = [("tidegrid", command)]
    while stack:
        name, node = stack.pop()
        for child, sub in getattr(node, "commands", {}).items():
            stack.append((f"{name} {child}", sub))
        if not getattr(node, "commands", {}):
            assert "xample" in (node.epilog or "") + (node.help or ""), name


@pytest.mark.parametrize("command", ["plan", "predict"])
def test_a_store_that_was_named_and_is_not_there_is_an_error(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """Estimators are not fitted in its stead without a word."""
    where = str(tmp_path / "NOSUCH")
    out = ["--out", str(tmp_path / "out")] if command == "plan" else []
    code, _, err = call(capsys, command, str(site), "--store", where, *out)
    assert code == 2
    assert f"{where}: there is no such folder; name a model store" in err


def test_a_time_limit_for_mode_fast_is_refused(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "plan", str(site), "--time-limit", "3")
    assert code == 2
    assert "--time-limit: mode fast does not search until a limit" in err


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("plan", "--out"),
        ("evaluate", "--out"),
        ("train", "--store"),
        ("demo", "--out"),
        ("history synth", "--out"),
    ],
)
def test_a_file_where_a_folder_is_to_be_made_is_one_line(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, option: str
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    folder = [] if command in ("demo", "history synth") else [str(site)]
    for path in (taken, taken / "deeper"):
        code, _, err = call(capsys, *command.split(), *folder, option, str(path))
        assert code == 2 and err.startswith(f"error: {path}: ") and "folder" in err
        assert err.count("\n") == 1
    assert taken.read_text() == "mine"


def test_the_readmes_notebook_runs(site: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    block = readme.split("## In a notebook")[1].split("```python\n")[1].split("```")[0]
    told: dict[str, object] = {}
    exec(block.replace("my-site", str(site)), told)  # the file is ours
    decision, forecast = told["decision"], told["forecast"]
    assert len(decision.etas) and decision.plan.metrics["placed"] > 0  # type: ignore[attr-defined]
    assert len(forecast.estimates.table())  # type: ignore[attr-defined]
