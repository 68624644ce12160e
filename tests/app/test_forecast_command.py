"""``tidegrid forecast`` and ``forecast backtest``: output, files, and one-line errors."""

import json

import numpy as np
import pandas as pd
import pytest

from tidegrid.app.cli import app
from tidegrid.app.common import run


@pytest.fixture
def traffic(tmp_path):
    t = np.arange(24 * 21)
    rng = np.random.default_rng(0)
    values = (100 + 60 * np.sin(2 * np.pi * t / 24)) * np.exp(0.1 * rng.standard_normal(len(t)))
    path = tmp_path / "traffic.csv"
    pd.DataFrame({"series_id": "chat", "hour": t, "value": values}).to_csv(path, index=False)
    return path


def called(*arguments):
    with pytest.raises(SystemExit) as leaving:
        run(app, [str(a) for a in arguments])
    return leaving.value.code


def test_forecast_prints_the_series_and_writes_quantiles_and_picture(traffic, tmp_path, capsys):
    out, picture = tmp_path / "f.csv", tmp_path / "f.png"
    code = called(
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
    text = capsys.readouterr().out
    assert code == 0 and "chat" in text and "site history" in text
    frame = pd.read_csv(out)
    assert len(frame) == 48 and (frame["q0.1"] <= frame["q0.9"]).all()
    assert (frame["gpus_ramped"].diff().dropna().abs() <= 1).all()
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_forecast_json_is_one_object(traffic, capsys):
    assert called("forecast", traffic, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["forecast"]) == 24 and found["series"][0]["unique_id"] == "chat"


def test_backtest_prints_its_measures(traffic, capsys):
    assert called("forecast", "backtest", traffic, "--last-days", 2) == 0
    text = capsys.readouterr().out
    assert "MASE" in text and "chat" in text and "mean" in text


def test_an_unknown_series_is_one_line_and_code_2(traffic, capsys):
    assert called("forecast", traffic, "--series", "nope") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "there is no series 'nope'" in err
