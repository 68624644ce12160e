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


NODES = {
    "id": "a",
    "gpus": 16,
    "gpu_type": "A100-SXM-80GB",
    "node_size": 8,
    "placement": "node",
    "nodes": "a[1-2]",
}


def test_all_that_a_site_states_stands_in_the_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = {
        "pools": [NODES | {"down": [15]}],
        "maintenance": [
            {"nodes": "a1", "from": "2026-04-01T06:00:00Z", "to": "2026-04-01T10:00:00Z"},
            {"nodes": "a2", "kind": "drain", "to": "2026-04-01T02:00:00Z"},
            {"pool": "a", "to": "2026-01-01T00:00:00Z"},
        ],
        "tenants": [{"id": "nlp", "limit": 4}],
        "apps": [{"id": "chat", "pool": "a", "held": [4, 5, 6, 7],
                  "capacity": {"units_per_gpu_hour": 100, "gpus_per_replica": 4, "min_replicas": 1}}],
    }  # fmt: skip
    rows = f"j,training,{NOW},3,nlp,,,,,\nk,training,{NOW},12,,j,,,,\nl,training,{NOW},2,,gone,x,2,a2,"
    rows += f"\nm,training,{NOW},2,,,,,,2"
    write(tmp_path, cluster, rows, ",group,after,array,array_limit,allowed_nodes,nodes")
    (tmp_path / "running.csv").write_text(
        "job_id,kind,held,start_time,group,array\n"
        f"r,training,a1:0-1 a2:2,{NOW},nlp,x\ns,training,a2=2,{NOW},,\n"
    )
    hours().assign(value=100.0).to_csv(tmp_path / "traffic.csv", index=False)
    told, problem = plan(capsys, tmp_path)
    assert problem["version"] == 2
    (pool,) = problem["pools"]
    assert (pool["placement"], pool["nodes"]) == ("node", ["a1", "a2"])
    assert pool["closed"] == [
        {"gpus": [15, 16], "from": 0, "to": 48, "kind": "down"},
        {"gpus": [0, 8], "from": 6, "to": 10, "kind": "down"},
        {"gpus": [8, 16], "from": 0, "to": 2, "kind": "drain"},
    ]
    assert problem["tenants"] == [{"id": "nlp", "limit": 4}]
    assert problem["groups"] == [{"id": "x", "most": 2}]
    jobs = {job["id"]: job for job in problem["jobs"]}
    assert set(jobs) == {"j", "k", "l", "m", "r", "s"}
    assert [(s["gpus"], s.get("nodes")) for s in jobs["j"]["shapes"]] == [(3, None)]
    assert [(s["gpus"], s.get("nodes")) for s in jobs["k"]["shapes"]] == [(12, None)]
    (shape,) = jobs["l"]["shapes"]
    assert (shape["gpus"], shape["within"]) == (2, [[8, 8]]) and jobs["m"]["shapes"][0]["nodes"] == 2
    assert (jobs["j"]["tenant"], jobs["k"]["after"], jobs["l"]["group"]) == ("nlp", ["j"], "x")
    assert jobs["r"]["running"]["gpu_ids"] == [0, 1, 10] and jobs["r"]["tenant"] == "nlp"
    assert jobs["r"]["group"] == "x" and jobs["s"]["running"]["gpu_ids"] == [8, 9]
    (app,) = problem["apps"]
    assert (app["replica"], app["floor"], app["held"]) == (4, 4, [[4, 5, 6, 7]])
    assert not any("not planned by" in note for note in told["notes"])


def test_a_job_starts_on_nodes_by_their_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, {"pools": [NODES]}, f"j,training,{NOW},12\nk,training,{NOW},1")
    argv = ("tick", tmp_path, "--state", tmp_path / "s.db", "--now", NOW, "--refit-hours", 0)
    _, text, _ = call(capsys, *argv, "--json")
    starts = {one["job"]: one for one in json.loads(text)["start"]}
    assert starts["j"]["nodes"] == ["a1", "a2"] and len(starts["j"]["gpu_ids"]) == 12
    assert starts["k"]["held"] in ("a1:6", "a1:7", "a2:6", "a2:7")
    _, text, _ = call(capsys, *argv)
    assert starts["k"]["held"] in text
    # what a commit says of a job is what a table of running jobs takes
    rows = "".join(f"{job},training,{one['held']},{NOW}\n" for job, one in starts.items())
    (tmp_path / "running.csv").write_text(f"job_id,kind,held,start_time\n{rows}")
    (tmp_path / "requests.csv").write_text("job_id,kind,submit_time,gpus\n")
    _, problem = plan(capsys, tmp_path)
    held = {job["id"]: job["running"]["gpu_ids"] for job in problem["jobs"]}
    assert held == {job: one["gpu_ids"] for job, one in starts.items()}


def test_a_job_that_comes_after_one_that_cannot_run_waits_and_is_told_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = f"big,training,{NOW},99,\nb,training,{NOW},1,big\nc,training,{NOW},1,b\nd,training,{NOW},1,gone"
    write(tmp_path, {"pools": [NODES]}, rows, ",after")
    argv = ("tick", tmp_path, "--state", tmp_path / "s.db", "--now", NOW, "--refit-hours", 0, "--json")
    _, text, _ = call(capsys, *argv)
    found = json.loads(text)
    assert [one["job"] for one in found["start"]] == ["d"] and found["refused"][0]["job"] == "big"
    assert {one["job"]: one["reason"] for one in found["waiting"]} == {
        "b": "it comes after big, which is not planned",
        "c": "it comes after b, which is not planned",
    }


def test_a_size_that_was_never_seen_is_offered_with_a_stated_scaling_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without features of a model another size tells nothing: one job had 2.87 h on 4 GPUs and 1.13 h on 8."""
    folder = write(tmp_path, {"pools": [NODES]}, f"j,training,{NOW},4,2,8", ",min_gpus,max_gpus")
    _, problem = plan(capsys, folder)
    assert [shape["gpus"] for shape in problem["jobs"][0]["shapes"]] == [4]
    (tmp_path / "policy.json").write_text('{"scaling": 0.5}')
    call(
        capsys,
        "plan",
        folder,
        "--out",
        folder / "plan",
        "--no-report",
        "--now",
        NOW,
        "--policy",
        folder / "policy.json",
    )
    found = pd.read_csv(folder / "plan" / "estimates.csv").set_index("gpus")
    assert list(found.index) == [2, 4, 8] and list(found["asked"]) == [False, True, False]
    middle = found["hours_q0.5"]
    assert middle[2] / middle[4] == pytest.approx(2**0.5, rel=1e-3) == middle[4] / middle[8]
    band = np.log(found["hours_q0.9"] / found["hours_q0.1"])
    assert band[2] > band[4] < band[8]


def test_pools_of_other_types_differ_by_their_data_sheets_with_a_wider_band(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write(tmp_path, {"pools": [POOLS[0] | {"gpus": 32}, POOLS[1]]})
    plan(capsys, folder)
    found = pd.read_csv(folder / "plan" / "estimates.csv").set_index("pool")
    assert found["hours_q0.5"]["a"] / found["hours_q0.5"]["h"] == pytest.approx(989 / 312, rel=0.01)
    band = np.log(found["hours_q0.9"] / found["hours_q0.1"])
    assert band["h"] > band["a"]


def test_a_shape_that_its_limit_will_kill_is_worth_next_to_nothing_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        tmp_path,
        {"pools": [NODES]},
        f"j,training,{NOW},4,1800,ann\nk,training,{NOW},4,,ann",
        ",requested_walltime_s,user",
    )
    ended = [f"2026-03-{day:02}T00:00:00Z" for day in range(2, 30)]
    rows = "".join(
        f"o{i},training,completed,4,{at},{at},{at[:11]}04:00:00Z,ann\n" for i, at in enumerate(ended)
    )
    (tmp_path / "jobs.csv").write_text(
        "job_id,kind,status,gpus,submit_time,start_time,end_time,user\n" + rows
    )
    told, problem = plan(capsys, tmp_path)
    shapes = {job["id"]: job["shapes"][0] for job in problem["jobs"]}
    work = {job["id"]: job["work"] for job in problem["jobs"]}
    assert shapes["j"]["steps"] == 1 and shapes["j"]["success"] < 0.2 and "success" not in shapes["k"]
    # the limit ends how long GPUs are held, not what the work takes
    assert work["k"] == 4 * shapes["k"]["steps"] and work["j"] == work["k"]
    assert any("j on 4 GPUs of a is killed by its time limit in" in line for line in told["risks"])


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
