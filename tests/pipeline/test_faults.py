"""Sites and files that people had trouble with, each through the command line, with the value that is right."""

import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import call

from tidegrid.scheduler import Plan, Problem, check, solve

pytestmark = pytest.mark.realdata

NOW = "2026-03-02T00:00:00Z"


@pytest.fixture(scope="module")
def inputs(shared: Path) -> Path:
    """The folder of collected inputs; skips where it is absent."""
    folder = shared / "faults" / "inputs"
    if not folder.is_dir():
        pytest.skip(f"the collected inputs are not at {folder}")
    return folder


@pytest.fixture
def site(inputs: Path, tmp_path: Path) -> Any:
    """Return a copy of a collected site by its name."""
    return lambda name: Path(shutil.copytree(inputs / name, tmp_path / name))


def planned(
    capsys: pytest.CaptureFixture[str], folder: Path, *options: str, code: int = 0
) -> tuple[dict[str, Any], Problem]:
    """Plan a site: what is told, and the problem."""
    out = folder / "plan"
    left, text, _ = call(capsys, "plan", folder, "--out", out, "--no-report", "--json", *options)
    assert left == code, text
    problem = Problem.read(out / "problem.json")
    plan = Plan.read(out / "plan.json")
    violations, figures = check(problem, plan)
    assert not violations and all(plan.metrics[name] == pytest.approx(figures[name]) for name in figures)
    return json.loads(text), problem


def ticked(capsys: pytest.CaptureFixture[str], folder: Path, now: str = NOW, code: int = 0) -> dict[str, Any]:
    # one fit a site: what answers is no matter here
    state, models = folder / "state.db", folder / "models"
    argv = ("tick", folder, "--state", state, "--store", models, "--now", now, "--refit-hours", 0, "--json")
    left, text, _ = call(capsys, *argv)
    assert left == code, text
    assert json.loads((folder / "commit.json").read_text()).items() <= json.loads(text).items()
    return dict(json.loads(text))


def test_a_swap_cap_hides_no_unmet_need(site: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """An app that holds nothing and may swap one GPU a step needs 9 and gets 1: 38 GPU-steps are unmet."""
    told, _ = planned(capsys, site("swap_cap_hides_unmet"), "--now", "2026-03-01T12:00:00Z")
    assert told["unmet_gpu_steps"] == 38
    assert "8 GPUs short at step 0" in told["risks"][0] and "its swap cap is 1 GPU a step" in told["risks"][0]


@pytest.mark.parametrize(
    ("name", "app", "gpus"),
    [("no_traffic_file", "chat", 2), ("series_all_empty", "code", 2), ("new_app_no_history", "vision", 1)],
)
def test_an_app_without_traffic_is_planned_at_what_it_holds_by_every_command(
    site: Any, capsys: pytest.CaptureFixture[str], name: str, app: str, gpus: int
) -> None:
    folder = site(name)
    held = next(a for a in json.loads((folder / "cluster.json").read_text())["apps"] if a["id"] == app)
    gpus = max(len(held["held"]), held["capacity"]["min_replicas"])
    told, problem = planned(capsys, folder)
    assert set(problem.app_by_id[app].demand) == {gpus}
    said = f"nothing is known of the traffic of {app} yet"
    assert any(said in note for note in told["notes"])
    document = ticked(capsys, folder)
    assert any(said in event["text"] for event in document["events"])
    assert [len(move["gpus"]) for move in document["apps"] if move["app"] == app] == [gpus]
    if (folder / "traffic.csv").exists():
        code, text, _ = call(capsys, "forecast", folder, "--json")
        found = json.loads(text)
        assert code == 0 and any(said in note for note in found["notes"])
        assert {row["gpus_planned"] for row in found["forecast"] if row["app"] == app} == {gpus}


def test_late_traffic_is_told_by_plan_and_tick(site: Any, capsys: pytest.CaptureFixture[str]) -> None:
    folder = site("series_ended_20_days_ago")
    told, _ = planned(capsys, folder, "--now", "2026-03-01T20:00:00Z")
    said = "the traffic of chat ends at 2026-02-10T00:00:00+00:00"
    assert any(said in note for note in told["notes"])
    events = ticked(capsys, folder, "2026-03-01T20:00:00Z")["events"]
    assert any(said in event["text"] for event in events)


def test_an_app_without_a_throughput_is_planned_at_what_it_holds(
    site: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    told, problem = planned(capsys, site("no_throughput_declared"))
    assert set(problem.apps[0].demand) == {2}
    assert any("chat declares no units_per_gpu_hour" in note for note in told["notes"])


@pytest.mark.parametrize("name", ["half_hour_zone", "stamps_5_min_past"])
def test_hours_off_the_clock_are_planned_and_told(
    site: Any, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    told, problem = planned(capsys, site(name))
    assert any("divided among whole hours of UTC" in note for note in told["notes"])
    assert max(problem.apps[0].demand) >= 8


@pytest.mark.parametrize(
    ("name", "field", "left"),
    [
        ("one_request_without_gpus", "gpus", "j1"),
        ("one_deadline_before_submit", "deadline", "j1"),
        ("job_named_like_app", "job_id", "j2"),
    ],
)
def test_one_row_stops_no_command(
    site: Any, capsys: pytest.CaptureFixture[str], name: str, field: str, left: str
) -> None:
    folder = site(name)
    told, problem = planned(capsys, folder, code=1)
    assert [job.id for job in problem.jobs] == [left]
    assert told["set_aside"] == 1 and told["set_aside_rows"][0]["field"] == field
    document = ticked(capsys, folder, code=1)
    assert document["set_aside"] == 1 and [start["job"] for start in document["start"]] == [left]
    line = [note for note in document["notes"] if note.startswith("set aside: requests.csv, row ")]
    assert len(line) == 1 and field in line[0] and str(folder) not in line[0]
    code, text, err = call(capsys, "predict", folder)
    assert code == 1 and left in text and err.count("set aside: ") == 1


@pytest.mark.parametrize("name", ["min_replicas_over_pool", "swap_cap_below_replica"])
def test_a_cluster_that_cannot_be_is_one_line(
    site: Any, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, out, err = call(capsys, "plan", site(name), "--no-report")
    assert code == 2 and out == "" and err.count("\n") == 1 and "cluster.json, apps[0]." in err


def test_a_request_that_fits_no_block_is_refused_alone(site: Any, capsys: pytest.CaptureFixture[str]) -> None:
    told, problem = planned(capsys, site("six_gpu_node"), code=1)
    assert [job.id for job in problem.jobs] == ["j3"]
    assert [refused["job"] for refused in told["refused"]] == ["j6"]
    assert any("j6 (6 → 8), j3 (3 → 4)" in note for note in told["notes"])


def test_slices_of_a_gpu_are_given_one_by_one(site: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A slice has a share of its GPU's memory, and slices do not work together: no model of 8 or 30 B fits one."""
    folder = site("mig_slices_as_gpus")
    told, problem = planned(capsys, folder, code=1)
    refused = {one["job"]: one["reason"] for one in told["refused"]}
    assert "5" in refused["lora8b"] and "slices" in refused["sft30b"] and not problem.jobs
    queue = pd.read_csv(folder / "requests.csv").drop(
        columns=["variant", "model_params_b", "tokens_per_epoch_m"]
    )
    queue.assign(min_gpus=1, max_gpus=4).to_csv(folder / "requests.csv", index=False)
    _, problem = planned(capsys, folder, "--policy", scaled(folder))
    assert [[shape.gpus for shape in job.shapes] for job in problem.jobs] == [[1], [1, 2]]


def scaled(folder: Path) -> Path:
    """Write a policy that offers a job other sizes than it asks for."""
    path = folder / "policy.json"
    path.write_text('{"scaling": 0.8}')
    return path


@pytest.mark.parametrize("mode", ["fast", "full"])
@pytest.mark.parametrize(
    ("name", "shape"), [("objective_slow_pool", ("h100", 8, 5)), ("objective_widest", ("h100", 8, 2))]
)
def test_a_job_is_worth_its_work_and_not_what_it_occupies(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, shape: Any, mode: str
) -> None:
    """As a site's problems are stated, in work: neither the slow GPUs nor the widest block that ends no sooner."""
    document = json.loads((inputs / f"{name}.json").read_text())
    assert Problem.from_dict(document).version == 1
    for job in document["jobs"]:
        job["work"] = min(s["gpus"] * s["steps"] for s in job["shapes"] if s["pool"] == "h100")
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(document | {"version": 2}))
    code, text, _ = call(capsys, "solve", path, "--mode", mode, "--out", tmp_path / "plan.json")
    (spot,) = Plan.read(tmp_path / "plan.json").placements
    assert code == 0 and (spot.pool, spot.gpus, spot.steps, spot.start) == (*shape, 0), text


def test_a_wild_tail_does_not_make_the_mean(site: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """60 runs of an hour on 2 GPUs: about 2 GPU-hours."""
    code, text, _ = call(capsys, "predict", site("mean_from_wild_tail"), "--json")
    (row,) = json.loads(text)["estimates"]
    assert code == 0 and 1.8 <= row["gpu_hours_mean"] <= 2.4


def test_a_glitch_hours_ago_raises_no_forecast(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One hour of a thousand times the demand, followed by normal ones."""
    told = pd.read_csv(inputs / "traffic_glitch_6h_ago.csv")
    value = told["value"].to_numpy(dtype=float)
    at = int(np.argmax(value))
    told.loc[at, "value"] = value[at] / 1000
    told.to_csv(tmp_path / "plain.csv", index=False)
    peaks = []
    for path in (inputs / "traffic_glitch_6h_ago.csv", tmp_path / "plain.csv"):
        code, text, _ = call(capsys, "forecast", path, "--json")
        rows = json.loads(text)["forecast"]
        assert code == 0
        peaks.append([max(row[level] for row in rows) for level in ("q0.5", "q0.9")])
    assert np.allclose(peaks[0], peaks[1], rtol=0.2)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("traffic_cumulative_counter", "is it a counter"),
        ("traffic_lord_howe_dst", "divided among whole hours"),
        ("traffic_fold_newest_first", ""),
    ],
)
def test_traffic_of_every_clock_is_forecast(
    inputs: Path, capsys: pytest.CaptureFixture[str], name: str, said: str
) -> None:
    zone = "Australia/Lord_Howe" if "lord_howe" in name else "Europe/Berlin"
    code, text, _ = call(capsys, "forecast", inputs / f"{name}.csv", "--timezone", zone, "--json")
    found = json.loads(text)
    assert code == 0 and len(found["forecast"]) == 24
    assert any(said in note for note in found["notes"]) or not said


@pytest.mark.parametrize("weight", ["8", "1e+06"])
def test_no_plan_is_called_optimal_that_is_not(inputs: Path, weight: str) -> None:
    """The best is worth 320.95; a heavy shortfall weight rounds nothing of it away."""
    problem = Problem.read(inputs / f"problem_false_optimal_w{weight}.json")
    plan = solve(problem, "full", deterministic_time=3.0)
    solver = plan.extra["solver"]
    assert solver["bound"] >= 320.953
    assert solver["status"] != "optimal" or plan.metrics["value"] >= 320.953
    assert solver["gap"] == pytest.approx(1 - plan.metrics["objective"] / solver["bound"], abs=1e-7)


def test_small_figures_beside_large_penalties_lose_no_digit(inputs: Path) -> None:
    """Worth of about 2 beside penalties of 1e17: each figure is summed on its own."""
    problem = Problem.read(inputs / "cancel_1_problem.json")
    plan = Plan.read(inputs / "cancel_1_plan.json")
    weight = Fraction(problem.decay)
    exact = sum(
        Fraction(problem.job_by_id[p.job].priority) * p.gpus * weight**t
        for p in plan.placements
        for t in range(p.start, min(p.end, problem.steps))
    )
    violations, figures = check(problem, plan)
    assert figures["value"] == pytest.approx(float(exact), rel=1e-12)
    assert all(said.startswith("metric value is stated as 1.999757") for said in violations)
    again = solve(problem, "fast")
    assert again.metrics["value"] == check(problem, again)[1]["value"]
