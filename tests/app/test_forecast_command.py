"""``tidegrid forecast`` and ``forecast backtest``: output, files, and one-line errors."""

import json

import numpy as np
import pandas as pd
import pytest
from command_line import call

from tidegrid.estimators.realtime.capacity import PATIENCE, ramp


@pytest.fixture
def traffic(tmp_path):
    t = np.arange(24 * 21)
    rng = np.random.default_rng(0)
    values = (100 + 60 * np.sin(2 * np.pi * t / 24)) * np.exp(0.1 * rng.standard_normal(len(t)))
    path = tmp_path / "traffic.csv"
    pd.DataFrame({"series_id": "chat", "hour": t, "value": values}).to_csv(path, index=False)
    return path


def test_forecast_prints_the_series_and_writes_quantiles_and_picture(traffic, tmp_path, capsys):
    out, picture = tmp_path / "f.csv", tmp_path / "f.png"
    code, text, _ = call(
        capsys,
        "forecast",
        traffic,
        "--hours",
        48,
        "--units-per-gpu-hour",
        50,
        "--swap-cap",
        1,
        "-o",
        out,
        "--picture",
        picture,
    )
    assert code == 0 and "chat" in text and "site history" in text
    frame = pd.read_csv(out)
    assert len(frame) == 48 and (frame["q0.1"] <= frame["q0.9"]).all()
    assert (frame["gpus_planned"].diff().dropna().abs() <= 1).all()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_forecast_json_is_one_object(traffic, capsys):
    code, text, _ = call(capsys, "forecast", traffic, "--json")
    found = json.loads(text)
    assert code == 0 and len(found["forecast"]) == 24 and found["series"][0]["unique_id"] == "chat"


@pytest.mark.parametrize(
    "values", [np.full(400, 7.0), np.zeros(400), np.full(1, 7.0), np.full(5, 7.0)], ids=len
)
def test_forecast_json_writes_null_where_a_skill_cannot_be_told(values, tmp_path, capsys):
    path = tmp_path / "plain.csv"
    pd.DataFrame({"series_id": "chat", "hour": range(len(values)), "value": values}).to_csv(path, index=False)
    picture = tmp_path / "plain.png"
    code, text, _ = call(capsys, "forecast", path, "--json", "--picture", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    told = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert code == 0 and len(told["forecast"]) == 24
    assert told["series"][0]["skill_last_value"] is None


def test_a_glitch_six_hours_ago_moves_nothing(shared, capsys):
    path = shared / "faults" / "inputs" / "traffic_glitch_6h_ago.csv"
    code, text, _ = call(capsys, "forecast", path, "--json")
    value = pd.read_csv(path)["value"]
    usual = value.drop(value.idxmax()).max()
    assert code == 0
    assert max(row["q0.9"] for row in json.loads(text)["forecast"]) < 1.5 * usual


@pytest.fixture
def cluster(tmp_path):
    """Two apps on one series of which one may swap a replica an hour, and a third without history."""
    each = {"units_per_gpu_hour": 10, "gpus_per_replica": 2, "min_replicas": 3}
    apps = [
        {"id": "a", "pool": "p", "series_id": "chat", "series_share": 0.75, "swap_cap": 2, "held": [0, 1, 2]}
        | {"capacity": each},
        {
            "id": "b",
            "pool": "p",
            "series_id": "chat",
            "series_share": 0.25,
            "capacity": {"units_per_gpu_hour": 20},
        },
        {"id": "new", "pool": "p", "capacity": {"units_per_gpu_hour": 20}},
    ]
    pools = [{"id": "p", "gpus": 64, "gpu_type": "H100-SXM-80GB", "down": [1]}]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"timezone": "Europe/Berlin", "pools": pools, "apps": apps}))
    return path


def test_a_cluster_tells_each_apps_capacity_cap_and_held_gpus(traffic, cluster, tmp_path, capsys):
    """The curve of GPUs is the one that the pipeline plans with; an app without traffic keeps what it holds."""
    out = tmp_path / "f.csv"
    code, text, _ = call(capsys, "forecast", traffic, "--cluster", cluster, "-o", out)
    assert code == 0 and "new" in text and "GPUs needed at 0.9" in text and "planned under swap cap" in text
    frame = pd.read_csv(out)
    assert frame.groupby("app").size().to_dict() == {"a": 24, "b": 24, "new": 24}
    a, b = frame[frame["app"] == "a"], frame[frame["app"] == "b"]
    assert (a["gpus_needed"] % 2 == 0).all() and a["gpus_needed"].min() >= 6
    assert a["gpus_planned"].tolist() == ramp(a["gpus_needed"].tolist(), 2, 2, patience=PATIENCE)
    assert b["gpus_needed"].tolist() == np.ceil(b["q0.9"] * 0.25 / 20 - 1e-9).astype(int).tolist()
    assert (
        a["gpus_needed"].tolist()
        == np.maximum(6, 2 * np.ceil(a["q0.9"] * 0.75 / 20 - 1e-9)).astype(int).tolist()
    )
    assert frame.loc[frame["app"] == "new", "basis"].eq("prior: what it holds").all()


def test_a_cluster_and_capacity_options_together_are_refused(traffic, cluster, capsys):
    code, _, err = call(capsys, "forecast", traffic, "--cluster", cluster, "--swap-cap", 2)
    assert code == 2 and err.count("\n") == 1 and "--cluster" in err


def test_an_app_without_declared_throughput_is_planned_at_what_it_holds(traffic, cluster, capsys):
    told = json.loads(cluster.read_text())
    told["apps"][1] |= {"capacity": {"min_replicas": 1}, "held": [4, 5, 6]}
    cluster.write_text(json.dumps(told))
    code, text, _ = call(capsys, "forecast", traffic, "--cluster", cluster, "--json")
    found = json.loads(text)
    assert code == 0 and any("b declares no units_per_gpu_hour" in note for note in found["notes"])
    assert {row["gpus_planned"] for row in found["forecast"] if row["app"] == "b"} == {3}


def test_a_site_is_forecast_with_its_own_cluster(traffic, cluster, capsys):
    """Zone, public holidays and apps are those of its cluster.json; options for capacity take the apps' place."""
    folder = traffic.parent
    told = json.loads(cluster.read_text()) | {"country": "DE"}
    cluster.write_text(json.dumps(told))
    code, own, _ = call(capsys, "forecast", folder, "--json")
    code, named, _ = call(capsys, "forecast", traffic, "--cluster", folder, "--country", "DE", "--json")
    assert code == 0 and own == named and json.loads(own)["forecast"][0]["app"] == "a"
    _, other, _ = call(capsys, "forecast", traffic, "--cluster", folder, "--country", "US", "--json")
    assert json.loads(other)["forecast"] != json.loads(own)["forecast"]
    code, text, _ = call(capsys, "forecast", folder, "--units-per-gpu-hour", 50, "--json")
    assert code == 0 and "app" not in json.loads(text)["forecast"][0]


def test_hours_that_cannot_be_used_are_told_and_left_out(traffic, capsys):
    rows = traffic.read_text().splitlines()
    traffic.write_text("\n".join([*rows[:5], "chat,4,-7", *rows[6:]]) + "\n")
    code, text, _ = call(capsys, "forecast", traffic, "--json")
    found = json.loads(text)
    assert code == 1 and found["set_aside"] == 1 and found["set_aside_rows"][0]["row"] == 6
    assert len(found["forecast"]) == 24
    code, _, err = call(capsys, "forecast", traffic)
    assert code == 1 and err.startswith("set aside: ") and err.count("\n") == 1
    code, _, err = call(capsys, "forecast", "backtest", traffic, "--last-days", 1)
    assert code == 1 and err.startswith("set aside: ")


def test_backtest_prints_its_measures(traffic, capsys):
    code, text, _ = call(capsys, "forecast", "backtest", traffic, "--last-days", 2)
    assert code == 0 and "MASE" in text and "chat" in text and "mean" in text


def test_an_unknown_series_is_one_line_and_code_2(traffic, capsys):
    code, _, err = call(capsys, "forecast", traffic, "--series", "nope")
    assert code == 2 and err.count("\n") == 1 and "there is no series 'nope'" in err


@pytest.mark.parametrize("arguments", [["-o"], ["--picture"], ["backtest", "-o"]])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path, capsys, arguments):
    """The traffic is not there: what is to be written is looked at first."""
    command, option = arguments[:-1], arguments[-1]
    code, _, err = call(capsys, "forecast", *command, tmp_path / "t.csv", option, tmp_path / "absent" / "x")
    assert code == 2 and "x: cannot be written (no such folder)" in err
    code, _, err = call(capsys, "forecast", *command, tmp_path / "t.csv", option, tmp_path)
    assert code == 2 and "is a folder; name a file in it" in err
