"""What cluster.json and the queue say reaches every plan, or is told as not planned by yet."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import call

from tidegrid.data import History
from tidegrid.models import ModelStore
from tidegrid.pipeline.champions import fit_all, load_estimators
from tidegrid.pipeline.train import train

NOW = "2026-04-01T00:00:00Z"
POOLS = [
    {"id": "a", "gpus": 16, "gpu_type": "A100-SXM-80GB", "node_size": 8},
    {"id": "h", "gpus": 16, "gpu_type": "H100-SXM-80GB", "node_size": 8},
]


def write(folder: Path, cluster: dict[str, Any], requests: str = "", columns: str = "") -> Path:
    (folder / "cluster.json").write_text(json.dumps({"pools": POOLS} | cluster))
    head = f"job_id,kind,submit_time,gpus{columns}"
    (folder / "requests.csv").write_text(f"{head}\n{requests or f'j,training,{NOW},1'}\n")
    return folder


def hours(days: int = 14) -> pd.DataFrame:
    """Traffic with busy weekdays, until 2026-04-01."""
    at = pd.date_range(end=pd.Timestamp(NOW) - pd.Timedelta(hours=1), periods=24 * days, freq="h")
    value = np.where(at.day_of_week < 5, 400.0, 80.0) + 50 * np.sin(2 * np.pi * at.hour / 24)
    value += np.random.default_rng(3).normal(0, 8, len(at))
    return pd.DataFrame({"series_id": "chat", "timestamp": at.astype("datetime64[us, UTC]"), "value": value})


def plan(capsys: pytest.CaptureFixture[str], folder: Path, code: int = 0) -> tuple[dict[str, Any], Any]:
    out = folder / "plan"
    left, text, err = call(capsys, "plan", folder, "--out", out, "--no-report", "--json", "--now", NOW)
    assert left == code, err
    return json.loads(text), json.loads((out / "problem.json").read_text())


def test_two_apps_on_one_series_get_their_shares_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = {"pool": "a", "series_id": "chat", "capacity": {"units_per_gpu_hour": 25.0}}
    both = [{"id": "one", "series_share": 0.75, **app}, {"id": "two", "series_share": 0.25, **app}]
    write(tmp_path, {"apps": both})
    hours().to_csv(tmp_path / "traffic.csv", index=False)
    _, problem = plan(capsys, tmp_path)
    one, two = (np.array(found["demand"]) for found in problem["apps"])
    write(tmp_path, {"apps": [{"id": "whole", **app}]})
    _, problem = plan(capsys, tmp_path)
    (whole,) = (np.array(found["demand"]) for found in problem["apps"])
    assert ((one + two - whole >= 0) & (one + two - whole <= 1)).all() and (one > two).all()


def test_what_is_not_planned_by_yet_is_told_by_plan_and_tick(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pools = [POOLS[0] | {"placement": "node"}, POOLS[1]]
    cluster = {
        "pools": pools,
        "maintenance": [{"pool": "a", "from": NOW}, {"pool": "a", "to": "2026-01-01T00:00:00Z"}],
        "tenants": [{"id": "t", "limit": 4}],
    }
    rows = f"j,training,{NOW},1,,,\nk,training,{NOW},1,j,,"
    write(tmp_path, cluster, rows, ",after,array,array_limit")
    told, _ = plan(capsys, tmp_path)
    (line,) = [note for note in told["notes"] if note.startswith("not planned by yet")]
    for part in (
        "1 window of maintenance",
        "the limits of tenants",
        "placement by node in a",
        "of 1 request",
    ):
        assert part in line
    argv = ("tick", tmp_path, "--state", tmp_path / "s.db", "--now", NOW, "--refit-hours", 0, "--json")
    _, text, _ = call(capsys, *argv)
    assert [event["text"] for event in json.loads(text)["events"] if event["kind"] == "not heeded"] == [line]
    write(tmp_path, {})
    told, _ = plan(capsys, tmp_path)
    assert not any("not planned by yet" in note for note in told["notes"])


def test_a_job_is_planned_in_the_pools_that_it_may_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = f"j,training,{NOW},1,h,\nk,training,{NOW},1,,\nl,training,{NOW},1,h,A100-SXM-80GB"
    told, problem = plan(capsys, write(tmp_path, {}, rows, ",allowed_pools,gpu_type"), code=1)
    pools = {job["id"]: {shape["pool"] for shape in job["shapes"]} for job in problem["jobs"]}
    assert pools == {"j": {"h"}, "k": {"a", "h"}}
    assert [one["job"] for one in told["refused"]] == ["l"] and "(h)" in told["refused"][0]["reason"]


def test_a_stated_country_reaches_fresh_fits_and_training(tmp_path: Path) -> None:
    history = History(traffic=hours(), checked=True)
    assert fit_all(history, ["realtime"], country="DE", subdivision="BY")["realtime"].holidays_
    store = ModelStore(tmp_path)
    train(history, store, ["realtime"], now=NOW)
    plain, notes = load_estimators(store, history=history)
    assert plain["realtime"].country is None and not any("holidays" in note for note in notes)
    fresh, notes = load_estimators(store, history=history, country="DE")
    assert fresh["realtime"].country == "DE"
    assert any("trained without the holidays of cluster.json" in note for note in notes)
    train(history, store, ["realtime"], now=NOW, country="DE")
    again, notes = load_estimators(store, history=history, country="DE")
    assert again["realtime"].country == "DE" and not any("holidays" in note for note in notes)


def test_what_estimators_lack_is_said_once_and_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Jobs without features of a model: nothing failed, and recurring answers."""
    write(tmp_path, {})
    ended = "2026-03-30T00:00:00Z,2026-03-30T00:00:00Z,2026-03-30T02:00:00Z"
    rows = "".join(f"o{i},training,completed,1,{ended}\n" for i in range(12))
    head = "job_id,kind,status,gpus,submit_time,start_time,end_time\n"
    (tmp_path / "jobs.csv").write_text(head + rows)
    code, text, _ = call(capsys, "train", tmp_path, "--only", "training", "--only", "quantization")
    assert code == 0 and "failed" not in text and text.count("nothing to learn from yet") == 1
    assert "training (no job that has ended tells " in text and "quantization" not in text
    code, text, _ = call(capsys, "train", tmp_path, "--only", "training", "--json")
    assert [one["decision"] for one in json.loads(text)["trained"]] == ["nothing"]
    told, _ = plan(capsys, tmp_path)
    assert "nothing to learn from yet: training (" in told["notes"][-1]
    assert not any("prior answers" in note for note in told["notes"])


def test_rows_of_a_trace_that_cannot_be_used_are_told_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head = "job_id,kind,status,gpus,submit_time,start_time,end_time\n"
    good = "".join(
        f"j{i},training,completed,1,2026-03-30T0{i}:00:00Z,2026-03-30T0{i}:00:00Z,2026-03-30T0{i}:30:00Z\n"
        for i in range(6)
    )
    trace = tmp_path / "trace.csv"
    trace.write_text(head + good + "bad,training,completed,x,2026-03-30T01:00:00Z,,\n")
    code, text, _ = call(capsys, "replay", trace, "--gpus", 4, "--policy", "fifo", "--json")
    found = json.loads(text)
    assert code == 1 and found["set_aside"] == 1 and found["set_aside_rows"][0]["row"] == 8
    assert found["policies"]["fifo"]["jobs"] == 6
    code, text, err = call(
        capsys, "history", "day", trace, "2026-03-30", "--gpus", 4, "--out", tmp_path / "day"
    )
    assert code == 1 and err.startswith("set aside: ") and "6 requests" in text
