"""Random sites with random faults put in: nothing crashes, no row is lost in silence, stated figures are true."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import call

from tidegrid.data.cells import MISSING
from tidegrid.data.instants import instant_text
from tidegrid.errors import InputError
from tidegrid.estimators import Estimator
from tidegrid.pipeline.champions import calendar_of, fit_all
from tidegrid.pipeline.decide import decide
from tidegrid.pipeline.forecast import Estimating
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.site import Site
from tidegrid.scheduler import check

NOW = pd.Timestamp("2026-03-29T00:30:00+00:00")
"""An hour before the clocks of Europe go forward."""

CELLS = (
    "", "x", "-1", "0", "inf", "nan", "1e30", "2.5", "1e-320", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z",
    "1677-09-21T00:00:00Z", "2026-03-29T02:30:00", "\x1b[2J", "\x9b", "a,b", "q", "p q", "none", "\u202e", "10" * 40,
)  # fmt: skip
"""What a cell may hold that somebody's exporter went wrong in."""


def random_site(rng: np.random.Generator, folder: Path) -> dict[str, int]:
    """Write a small site with faults; return how many rows each table has."""
    pools = [{"id": "p", "gpus": int(rng.integers(4, 33)), "gpu_type": "A100-SXM-80GB"}]
    pools += (
        [{"id": "q", "gpus": 8, "gpu_type": "H100-SXM-80GB", "node_size": 8}] if rng.random() < 0.5 else []
    )
    shares = [1.0] if rng.random() < 0.5 else [0.25, 0.75]
    apps = [
        {"id": f"app{k}", "pool": "p", "series_id": "chat", "series_share": share, "held": [k]}
        | {"swap_cap": int(rng.choice([1, 4])), "capacity": {"units_per_gpu_hour": 50.0}}
        for k, share in enumerate(shares)
    ]
    if rng.random() < 0.3:
        apps.append({"id": "new", "pool": "p", "capacity": {}})
    cluster = {"timezone": "Europe/Berlin", "country": "DE", "pools": pools, "apps": apps}
    (folder / "cluster.json").write_text(json.dumps(cluster))

    def at(hours: np.ndarray) -> pd.Series:
        return instant_text(pd.Series(NOW - pd.to_timedelta(np.round(hours * 60), unit="min")))

    n = int(rng.integers(4, 40))
    submit = rng.uniform(30, 300, n)
    jobs = pd.DataFrame({"job_id": [f"old{i}" for i in range(n)], "kind": "training", "user": "u", "gpus": 1})
    jobs = jobs.assign(
        status=rng.choice(["completed", "failed", "timeout"], n), submit_time=at(submit),
        start_time=at(submit - 1), end_time=at(submit - 1 - rng.uniform(0.1, 20, n)), duration_s="",
    )  # fmt: skip
    n = int(rng.integers(2, 16))
    requests = pd.DataFrame({"job_id": [f"new{i}" for i in range(n)], "kind": "training", "user": "u"})
    requests = requests.assign(
        gpus=rng.integers(1, 9, n), priority=rng.integers(1, 11, n), submit_time=at(rng.uniform(0, 30, n)),
        deadline="", allowed_pools=rng.choice(["", "p", "p q"], n), model_params_b="", requested_walltime_s=3600,
    )  # fmt: skip
    running = pd.DataFrame({"job_id": ["run0"], "kind": "training", "pool": "p", "first_gpu": 2, "gpus": 2})
    running = running.assign(start_time=at(np.array([2.0])))
    hours = np.arange(24 * 10, 0, -1)
    value = np.round(100 + 50 * np.sin(hours / 24 * 2 * np.pi) + rng.normal(0, 5, len(hours)), 3)
    traffic = pd.DataFrame({"series_id": "chat", "timestamp": at(hours + 0.5), "value": value})
    rows = {}
    for name, table in (("jobs", jobs), ("requests", requests), ("running", running), ("traffic", traffic)):
        cells = table.astype(object).map(str)
        for _ in range(int(rng.integers(0, 4))):
            row, column = rng.integers(len(cells)), rng.integers(1, len(cells.columns))
            cells.iloc[row, column] = str(rng.choice(CELLS))
        if rng.random() < 0.3:
            cells = pd.concat([cells, cells.iloc[[0]]], ignore_index=True)  # a row twice
        cells.to_csv(folder / f"{name}.csv", index=False)
        rows[name] = len(cells)
    return rows


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Estimator]:
    """Estimators of a site without history: what they answer is no matter here."""
    folder = tmp_path_factory.mktemp("plain")
    random_site(np.random.default_rng(0), folder)
    (folder / "jobs.csv").unlink()
    (folder / "traffic.csv").unlink()
    site = Site.read(folder, now=NOW)
    return fit_all(site.history, ["recurring", "training"], **calendar_of(site.cluster))


@pytest.mark.parametrize("seed", (*range(12), 37, 49, 71))
def test_rows_in_are_rows_used_and_rows_told_and_figures_are_the_checkers(
    tmp_path: Path, plain: dict[str, Estimator], seed: int
) -> None:
    rows = random_site(np.random.default_rng([29, seed]), tmp_path)
    try:
        site = Site.read(tmp_path, now=NOW)
    except InputError as error:
        # a file as a whole, or no row of it: it is named
        assert str(tmp_path) in str(error) and "\n" not in str(error)
        return
    told: dict[str, int] = {}
    for problem in site.set_aside:
        assert str(problem).isprintable()
        name = Path(str(problem.file)).stem
        told[name] = told.get(name, 0) + 1
    assert len(site.requests) + told.get("requests", 0) == rows["requests"]
    assert len(site.running) + told.get("running", 0) == rows["running"]
    left_out = sum(int(note.split()[0]) for note in site.notes if "held no GPU" in note)
    later = (Site.read(tmp_path, now="2030-01-01T00:00:00Z")).history
    assert len(later.jobs) + told.get("jobs", 0) + left_out == rows["jobs"]
    lost = {problem.row for problem in site.set_aside if Path(str(problem.file)).stem == "traffic"}
    cells = pd.read_csv(tmp_path / "traffic.csv", dtype=str, keep_default_na=False)["value"].str.strip()
    known = [cell.lower() not in MISSING for row, cell in enumerate(cells, 2) if row not in lost]
    assert int(later.traffic["value"].notna().sum()) == sum(known)

    policy = Policy(horizon_hours=12, lookahead_hours=0)
    decision = decide(site.state(), Estimating(plain, site.history), policy, rounds=5)
    violations, figures = check(decision.problem, decision.plan)
    assert violations == []
    assert {name: decision.plan.metrics[name] for name in figures} == pytest.approx(figures)
    # each request is placed, waits with a reason, or is refused with one
    said = {one["job"] for one in decision.explained.extra["explanations"]} | {
        job for job, _ in decision.refused
    }
    assert set(site.state().requests["job_id"]) <= said
    need = decision.forecast.demand.gpus
    held = {entry.app: [len(cells) for cells in entry.cells] for entry in decision.plan.apps}
    assert decision.unmet == sum(
        max(0, int(n) - h) for app in held for n, h in zip(need[app], held[app], strict=False)
    )


@pytest.mark.parametrize("seed", range(6))
def test_every_command_goes_on_without_the_same_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    """No command has a fault of its own, and all that read the tables leave out the same rows of them."""
    folder = tmp_path / "site"
    folder.mkdir()
    random_site(np.random.default_rng([31, seed]), folder)
    now, store, state = NOW.isoformat(), folder / "models", tmp_path / "state.db"
    whole = {
        "train": ("train", folder, "--only", "recurring", "--now", now),
        "predict": ("predict", folder, "--now", now),
        "plan": ("plan", folder, "--now", now, "--out", tmp_path / "plan", "--no-report"),
        "tick": ("tick", folder, "--state", state, "--store", store, "--now", now, "--refit-hours", 0),
    }
    parts = {
        "jobs": ("replay", folder / "jobs.csv", "--gpus", 32, "--policy", "fifo", "--days", 1),
        "traffic": ("forecast", folder, "--hours", 2),
    }
    told: dict[str, dict[str, int]] = {}
    for name, argv in {**whole, **parts}.items():
        code, out, err = call(capsys, *argv, "--json")
        assert code in (0, 1, 2) and "fault of tidegrid" not in err, (name, err)
        if code == 2:
            assert err.count("\n") == 1 and err.startswith("error: "), (name, err)
            continue
        found = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        if name == "tick":
            assert found["set_aside"] == sum("set aside: " in note for note in found["notes"])
            told[name] = {"all": found["set_aside"]}
            continue
        assert found["set_aside"] == len(found["set_aside_rows"]) and (code == 1 or not found["set_aside"])
        files = [Path(row["file"]).stem for row in found["set_aside_rows"]]
        told[name] = {"all": len(files)} | {table: files.count(table) for table in parts}
    counts = {told[name]["all"] for name in whole if name in told}
    assert len(counts) <= 1, told
    for table, (command, *_) in parts.items():
        if table in told and "plan" in told:
            assert told[table][table] == told["plan"][table], command
    code, out, err = call(capsys, "history", "check", folder, "--json")
    assert code in (0, 1, 2) and "fault of tidegrid" not in err
    if counts and counts != {0}:
        assert code and json.loads(out)["problems"]
