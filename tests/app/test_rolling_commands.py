"""``tick`` and ``rolling``: what they print and write, and their exit codes."""

import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_line import call

from tidegrid.app.commands import rolling
from tidegrid.data.synth import synthesise
from tidegrid.models import ModelStore
from tidegrid.pipeline.train import train

NOW = "2026-04-14T06:00:00Z"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small synthetic site with a model store."""
    folder = tmp_path_factory.mktemp("site")
    sample = synthesise(1, days=14, gpus=8, users=4, queue=6)
    sample.write(folder)
    (folder / "models").mkdir()
    train(sample.history, ModelStore(folder / "models"), ["recurring", "realtime"], now=sample.now)
    return folder


@pytest.fixture
def site(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "site"))


def test_a_tick_commits_prints_and_can_be_repeated(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = str(site / "state.db")
    code, text, _ = call(capsys, "tick", str(site), "--state", state, "--now", NOW)
    assert code in (0, 1) and "tick 1 at Tue 2026-04-14 08:00" in text and "Synthetic data" in text
    first = (site / "commit.json").read_text()
    again, same, said = call(capsys, "tick", str(site), "--state", state, "--now", NOW)
    assert "tick 1 was already committed for these files and this instant" in said
    assert (again, same) == (code, text) and (site / "commit.json").read_text() == first
    code, text, _ = call(
        capsys, "tick", str(site), "--state", state, "--now", "2026-04-14T06:30:00Z", "--json"
    )
    assert json.loads(text)["tick"] == 2
    code, text, _ = call(capsys, "rolling", "show", "--state", state, "--json")
    shown = json.loads(text)
    assert code == 0 and shown["last"]["tick"] == 2 and shown["accuracy"]["ended"] == 0
    code, text, _ = call(capsys, "rolling", "show", "--state", state)
    assert code == 0 and "80 % band" in text and "realtime unmet" in text
    code, text, _ = call(capsys, "rolling", "history", "--state", state, "--json")
    assert [d["tick"] for d in json.loads(text)["ticks"]] == [1, 2]
    code, text, _ = call(capsys, "rolling", "history", "--state", state)
    assert code == 0 and "times in Europe/Berlin" in text and "Tue 2026-04-14 08:30" in text
    code, text, _ = call(capsys, "rolling", "history", "--state", state, "--events", "--json")
    assert code == 0 and "events" in json.loads(text)
    code, _, error = call(capsys, "tick", str(site), "--state", state, "--now", "2026-04-14T05:00:00Z")
    assert code == 2 and error.count("\n") == 1 and "tick 2 is committed" in error


def test_a_tick_prints_all_times_in_the_sites_zone_and_writes_them_in_utc(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ends of jobs, risks and events stand in one zone, which is named once."""
    traffic = pd.read_csv(site / "traffic.csv")
    traffic[traffic["timestamp"] < "2026-04-13T12:00"].to_csv(site / "traffic.csv", index=False)
    (site / "running.csv").unlink()  # GPUs are free, so that something starts
    _, text, _ = call(capsys, "tick", str(site), "--state", str(site / "state.db"), "--now", NOW)
    document = json.loads((site / "commit.json").read_text())
    assert document["timezone"] == "Europe/Berlin" and text.count("Europe/Berlin") == 1
    assert document["now"] == "2026-04-14T06:00:00+00:00"
    assert "+00:00" not in text and "UTC" not in text
    assert document["start"]
    for start in document["start"]:
        utc = pd.Timestamp(start["end"]["q0.5"])
        assert utc.utcoffset() == pd.Timedelta(0)
        assert f"{utc.tz_convert('Europe/Berlin'):%a %Y-%m-%d %H:%M}" in text
    assert any("ends at 2026-04-13T12:00:00+00:00;" in event["text"] for event in document["events"])
    assert "ends at Mon 2026-04-13 14:00;" in text


@pytest.mark.parametrize("file", ["cluster.json", "jobs.csv"])
def test_a_tick_on_a_site_that_cannot_be_read_leaves_nothing_behind(
    site: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    (site / file).write_bytes(b"\xff\xfe\x00")
    before = sorted(path.name for path in site.rglob("*"))
    code, out, err = call(capsys, "tick", site, "--state", site / "state.db", "--now", NOW)
    assert code == 2 and out == "" and err.count("\n") == 1 and file in err
    assert sorted(path.name for path in site.rglob("*")) == before


def test_brackets_in_a_name_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    start = {"job": "sweep[a]", "pool": "p", "first_gpu": 0, "gpus": 1, "end": {"q0.5": "", "q0.9": ""}}
    document: dict[str, Any] = {
        "synthetic": False,
        "tick": 1,
        "now": "2026-04-14T06:00:00+00:00",
        "running": 0,
    }
    document |= {"start": [start], "waiting": [], "apps": [], "risks": ["app[b] is short"], "notes": []}
    document["events"] = [{"kind": "lost", "text": "sweep[c] is lost"}]
    document["refused"] = [{"job": "sweep[d]", "reason": "[bold] is no GPU"}]
    rolling.print_commit(document)
    text = capsys.readouterr().out
    assert all(name in text for name in ("sweep[a]", "app[b]", "sweep[c]", "sweep[d]: [bold] is no GPU"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["tick", "nowhere", "--state", "STATE", "--now", NOW], "is not a folder"),
        (["tick", "SITE", "--state", "STATE", "--now", "yesterday"], "now: "),
        (["tick", "SITE", "--state", "STATE", "--now", "2026-04-14T06:00:00"], "zone"),
        (["tick", "SITE", "--state", "nosuch://db", "--now", NOW], "cannot be opened"),
        (["rolling", "show", "--state", "STATE"], "there is no state"),
        (["rolling", "history", "--state", "EMPTY"], "there is no state"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], said: str
) -> None:
    places = {"SITE": str(site), "STATE": str(tmp_path / "state.db"), "EMPTY": str(tmp_path / "empty.db")}
    (tmp_path / "empty.db").touch()
    code, out, error = call(capsys, *[places.get(word, word) for word in argv])
    assert code == 2 and out == "" and said in error and error.count("\n") == 1
    assert not (site / "commit.json").exists() and (tmp_path / "empty.db").read_bytes() == b""
