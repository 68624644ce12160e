"""``solve``, ``check``, ``compare``, ``explain``, ``bench`` as a user meets them: output and exit codes."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command_line import call

from tidegrid.scheduler import Plan, Problem, is_legal
from tidegrid.scheduler.scenarios import scenario


@pytest.fixture
def tidegrid(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command; return exit code, standard output and standard error."""
    return partial(call, capsys)


@pytest.fixture
def problem_file(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    scenario("mixed_control").write(path)
    return path


@pytest.mark.parametrize("mode", ["fast", "fifo"])
def test_solve_writes_a_legal_plan_with_its_explanations(
    tidegrid: Any, problem_file: Path, mode: str
) -> None:
    target = problem_file.parent / "plan.json"
    code, out, err = tidegrid("solve", problem_file, "--mode", mode, "--out", target)
    assert (code, err) == (0, "")
    plan = Plan.read(target)
    assert is_legal(Problem.read(problem_file), plan)
    assert plan.mode == mode
    assert {"explanations", "risks", "idle_windows"} <= set(plan.extra)
    assert str(target) in out


def test_two_runs_write_the_same_bytes(tidegrid: Any, problem_file: Path, tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        tidegrid("solve", problem_file, "--out", tmp_path / name)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_solve_says_that_something_was_refused(tidegrid: Any, tmp_path: Path) -> None:
    """X needs 16 of 8 GPUs: its reason is printed, and the exit code is 1 (case P9)."""
    job = {"priority": 1, "order": 0, "shapes": [{"pool": "p", "gpus": 16, "steps": 1}]}
    data = {
        "steps": 4, "decay": 1, "shortfall_weight": 8, "pools": [{"id": "p", "gpus": 8}], "apps": [],
        "jobs": [{"id": "X", **job}, {"id": "Y", **job, "shapes": [{"pool": "p", "gpus": 2, "steps": 1}]}],
    }  # fmt: skip
    Problem.from_dict(data).write(tmp_path / "problem.json")
    code, out, _ = tidegrid("solve", tmp_path / "problem.json")
    assert code == 1
    assert "X: refused: it needs 16 GPUs, p has 8" in out
    code, out, _ = tidegrid("solve", tmp_path / "problem.json", "--json")
    assert code == 1
    assert json.loads(out)["metrics"]["placed"] == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not JSON"),
        ("{}", "steps: is missing"),
        (
            '{"steps": 1, "decay": 1, "shortfall_weight": 1, "pools": [{"id": "p", "gpus": 0}]}',
            "pools[0].gpus: 0 is",
        ),
    ],
)
def test_a_bad_problem_is_one_line_and_code_2(tidegrid: Any, tmp_path: Path, text: str, message: str) -> None:
    path, target = tmp_path / "problem.json", tmp_path / "plan.json"
    path.write_text(text)
    code, out, err = tidegrid("solve", path, "--out", target)
    assert (code, out) == (2, "")
    assert message in err
    assert "problem.json" in err
    assert err.count("\n") == 1
    assert not target.exists()


def test_an_unknown_mode_is_one_line_and_code_2(tidegrid: Any, problem_file: Path) -> None:
    for command in ("solve", "compare"):
        code, _, err = tidegrid(command, problem_file, "--mode", "magic")
        assert code == 2
        assert "'magic' is not a mode; write one of fast" in err


def test_a_folder_that_does_not_exist_is_named(tidegrid: Any, problem_file: Path) -> None:
    code, _, err = tidegrid("solve", problem_file, "--out", problem_file.parent / "absent" / "plan.json")
    assert code == 2
    assert "cannot be written" in err


@pytest.mark.parametrize("command", ["compare", "bench"])
def test_a_report_that_cannot_be_written_is_refused_before_the_work(
    tidegrid: Any, tmp_path: Path, command: str
) -> None:
    """Neither the problem nor the scenario is there: the report is looked at first."""
    report = tmp_path / "absent" / "c.html"
    code, _, err = tidegrid(command, tmp_path / "absent.json", "--report", report)
    assert (code, err) == (
        2,
        f"error: {report}: cannot be written (no such folder); name a folder that exists\n",
    )


def test_check_tells_legal_from_illegal(tidegrid: Any, problem_file: Path, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    tidegrid("solve", problem_file, "--out", target)
    assert tidegrid("check", problem_file, target)[:1] == (0,)
    data = json.loads(target.read_text())
    data["placements"][0]["start"] += 1
    target.write_text(json.dumps(data))
    code, out, _ = tidegrid("check", problem_file, target)
    assert code == 1
    assert "not legal" in out
    code, out, _ = tidegrid("check", problem_file, target, "--json")
    assert code == 1
    assert json.loads(out)["legal"] is False


def test_check_says_that_a_plan_answers_another_input(
    tidegrid: Any, problem_file: Path, tmp_path: Path
) -> None:
    target = tmp_path / "plan.json"
    tidegrid("solve", problem_file, "--out", target)
    data = json.loads(problem_file.read_text())
    data["note"] = "changed"
    problem_file.write_text(json.dumps(data))
    code, out, _ = tidegrid("check", problem_file, target)
    assert code == 0
    assert "made for an earlier problem" in out


def test_check_of_a_file_that_is_no_plan_is_code_2(tidegrid: Any, problem_file: Path) -> None:
    code, _, err = tidegrid("check", problem_file, problem_file)
    assert code == 2
    assert "placements: is missing" in err


def test_explain_names_the_reason_of_one_job_and_of_all(
    tidegrid: Any, problem_file: Path, tmp_path: Path
) -> None:
    target = tmp_path / "plan.json"
    tidegrid("solve", problem_file, "--out", target)
    job = Problem.read(problem_file).jobs[0].id
    code, out, _ = tidegrid("explain", problem_file, target, job)
    assert code == 0
    assert out.startswith(job)
    code, out, _ = tidegrid("explain", problem_file, target, "--json")
    assert len(json.loads(out)["explanations"]) == len(Problem.read(problem_file).jobs)
    code, _, err = tidegrid("explain", problem_file, target, "nobody")
    assert code == 2
    assert "no job 'nobody'" in err


def test_compare_sets_modes_side_by_side_with_the_bound(
    tidegrid: Any, problem_file: Path, tmp_path: Path
) -> None:
    report = tmp_path / "report.html"
    code, out, _ = tidegrid(
        "compare", problem_file, "-m", "fast", "-m", "fifo", "--time-limit", 1, "--report", report, "--json"
    )
    record = json.loads(out)
    assert code == 0
    assert [row["mode"] for row in record["modes"]] == ["fast", "fifo"]
    assert all(0 <= row["gap"] <= 1 for row in record["modes"])
    assert record["modes"][0]["gain"]["fifo"] > 0.246
    text = report.read_text()
    assert text.count("<img") == 1
    assert "http" not in text.replace("http-equiv", "")


def test_bench_runs_a_scenario(tidegrid: Any) -> None:
    code, out, _ = tidegrid(
        "bench",
        "scale",
        "-m",
        "fast",
        "-m",
        "fifo",
        "--time-limit",
        0.5,
        "--repeats",
        1,
        "--no-race",
        "--json",
    )
    record = json.loads(out)["scenarios"][0]
    assert (code, record["name"]) == (0, "scale")
    assert "rebuilt" in record["rebuilt"]
    code, out, _ = tidegrid(
        "bench", "scale", "-m", "fast", "-m", "fifo", "--time-limit", 0.5, "--repeats", 1, "--no-race"
    )
    assert "The scenarios are rebuilt" in out
    code, _, err = tidegrid("bench", "nowhere")
    assert code == 2
    assert "'nowhere' is not a scenario" in err


@pytest.mark.parametrize("mode", ["fast", "fifo"])
def test_a_time_limit_for_a_mode_that_has_none_is_refused(
    tidegrid: Any, problem_file: Path, mode: str
) -> None:
    code, out, err = tidegrid("solve", problem_file, "--mode", mode, "--time-limit", 3)
    assert (code, out) == (2, "")
    assert f"--time-limit: mode {mode} does not search until a limit; leave it out" in err


def test_the_search_says_how_far_it_is_beside_clean_output(tidegrid: Any, problem_file: Path) -> None:
    """Lines of progress go to standard error, a line a mode, and while full runs its objective, bound and gap."""
    code, out, err = tidegrid(
        "compare", problem_file, "-m", "fast", "-m", "full", "--time-limit", 1.5, "--repeats", 0, "--json"
    )
    assert code == 0
    assert [row["mode"] for row in json.loads(out)["modes"]] == ["fast", "full"]
    lines = err.splitlines()
    assert {"problem: fast", "problem: full", "problem: proven bound"} <= set(lines)
    searching = [line for line in lines if line.startswith("problem: full: ")]
    assert searching
    assert all("objective" in line and "gap" in line and "of 1.5 s" in line for line in searching)


def test_bound_and_gap_and_status_are_told_in_words(tidegrid: Any, problem_file: Path) -> None:
    code, out, _ = tidegrid("solve", problem_file, "--mode", "full", "--time-limit", 0.5)
    assert code == 0
    assert "proven bound of the objective: " in out
    assert "which no legal plan exceeds" in out
    assert "no plan is better than this one" in out
    code, out, _ = tidegrid("compare", problem_file, "-m", "fast", "--time-limit", 0.5, "--repeats", 0)
    assert code == 0
    assert "which no legal plan exceeds (" in out
    assert "the gap is how far a plan lies below it" in out


def test_times_are_told_in_the_zone_asked_for(tidegrid: Any, problem_file: Path, tmp_path: Path) -> None:
    data = json.loads(problem_file.read_text()) | {"start": "2026-03-02T08:00:00Z"}
    problem_file.write_text(json.dumps(data))
    target = tmp_path / "plan.json"
    assert tidegrid("solve", problem_file, "--out", target)[0] == 0
    assert "08:00–" in tidegrid("explain", problem_file, target)[1]
    there = tidegrid("explain", problem_file, target, "--timezone", "Asia/Tokyo")[1]
    assert "Mon 17:00–" in there
    assert "JST" in there
