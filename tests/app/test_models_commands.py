"""``models``, ``estimators`` and ``evaluate``: what they print, what they change, and their exit codes."""

import json
import re
from pathlib import Path

import pytest
from command_line import call

from tidegrid.data.synth import synthesise
from tidegrid.models import Bundle, ModelStore

AT = "2026-03-02T00:00:00Z"


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Two champions of one estimator, one after the other."""
    made = ModelStore(tmp_path / "models")
    for level in (1.0, 2.0):
        made.save(Bundle("recurring", {}, {"level": level}), created=AT)
        made.promote("recurring", reason="test", at=AT)
    return made


def test_list_and_show_tell_the_champion(store: ModelStore, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = call(capsys, "models", "list", str(store.root))
    assert code == 0 and "champion" in text and "000002-" in text
    code, text, _ = call(capsys, "models", "list", str(store.root), "--json")
    versions = json.loads(text)["versions"]
    assert [v["aliases"] for v in versions] == [[], ["champion"]]
    code, text, _ = call(capsys, "models", "show", str(store.root), "recurring", "1", "--json")
    shown = json.loads(text)
    assert shown["manifest"]["schema"] == 1 and [e["action"] for e in shown["log"]][-1] == "promote"
    code, text, _ = call(capsys, "models", "show", str(store.root), "recurring")
    assert code == 0 and "bundle.json" in text and "test" in text


def test_rollback_and_promote_move_the_champion(
    store: ModelStore, capsys: pytest.CaptureFixture[str]
) -> None:
    name = ("recurring",)
    code, text, _ = call(capsys, "models", "rollback", str(store.root), *name, "--reason", "worse")
    assert (
        code == 0
        and "000001-" in text
        and store.champion(
            "recurring",
        ).startswith("000001-")
    )  # type: ignore[union-attr]
    assert store.log("recurring")[-1].reason == "worse"
    code, _, err = call(capsys, "models", "rollback", str(store.root), *name, "--reason", "again")
    assert code == 2 and "cannot go back" in err and len(err.splitlines()) == 1
    code, _, _ = call(capsys, "models", "promote", str(store.root), *name, "2", "--reason", "ok", "--at", AT)
    assert code == 0 and store.log("recurring")[-1].at == "2026-03-02T00:00:00+00:00"


def test_a_reason_is_asked_for(store: ModelStore, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "models", "promote", str(store.root), "recurring", "1")
    assert code == 2 and "--reason" in err
    code, _, err = call(capsys, "models", "promote", str(store.root), "recurring", "1", "--reason", " ")
    assert code == 2 and "reason" in err


def test_verify_finds_a_flipped_byte(store: ModelStore, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = call(capsys, "models", "verify", str(store.root))
    assert code == 0 and "no problems" in text
    file = store.show("recurring").folder / "bundle.json"
    raw = bytearray(file.read_bytes())
    raw[20] ^= 1
    file.write_bytes(raw)
    code, text, _ = call(capsys, "models", "verify", str(store.root))
    assert code == 1 and "bundle.json: does not match its hash" in text
    code, text, _ = call(capsys, "models", "verify", str(store.root), "--json")
    assert code == 1 and len(json.loads(text)["problems"]) == 1


def test_prune_says_what_went(store: ModelStore, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = call(capsys, "models", "prune", str(store.root), "--ancestors", "0", "--json")
    assert code == 0 and [len(v) for v in json.loads(text)["deleted"].values()] == [1]
    assert len(store.list()) == 1


@pytest.mark.parametrize("command", ["list", "verify", "prune"])
def test_no_such_store_is_one_line(tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "models", command, str(tmp_path / "nowhere"))
    assert code == 2 and "no such folder" in err and len(err.splitlines()) == 1
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("command", ["list", "verify", "prune", "show"])
def test_an_unknown_estimator_is_one_line(
    store: ModelStore, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, "models", command, str(store.root), "nope")
    assert code == 2 and "use one of: recurring" in err and len(err.splitlines()) == 1


def test_a_sites_folder_stands_for_its_store(store: ModelStore, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = call(capsys, "models", "list", str(store.root.parent), "--json")
    assert code == 0 and len(json.loads(text)["versions"]) == 2


def test_the_estimators_are_listed_and_checked(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = call(capsys, "estimators", "list", "--json")
    listed = json.loads(text)
    assert code == 0 and not listed["failures"]
    assert {"training", "quantization", "batch_inference", "realtime", "recurring"} <= {
        e["name"] for e in listed["estimators"]
    }
    code, text, _ = call(capsys, "estimators", "check", "quantization")
    assert code == 0 and "BROKEN" not in text and "promises kept" in text
    code, _, err = call(capsys, "estimators", "check", "nope")
    assert code == 2 and "use one of" in err and len(err.splitlines()) == 1


def test_evaluate_writes_tables_and_the_calibration_plot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    synthesise(2, days=14).write(tmp_path / "site")
    args = ["evaluate", str(tmp_path / "site"), "--only", "recurring", "--folds", "1"]
    code, text, _ = call(capsys, *args, "--out", str(tmp_path / "out"), "--json")
    found = json.loads(text)
    assert code == 0 and found["table"][0]["estimator"] == "recurring" and found["table"][0]["rows"] > 20
    names = {"answers.csv", "table.csv", "by_user.csv", "by_size.csv", "by_basis.csv", "calibration.png"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    code, text, _ = call(capsys, *args, "--by", "size")
    assert code == 0 and "GPU" in text and "Synthetic data" in text
    monkeypatch.setattr("tidegrid.pipeline.evaluate.SHOWN", 2)
    code, text, _ = call(capsys, *args, "--by", "user")
    assert (
        len(re.findall("^ *recurring ", text, re.MULTILINE)) == 2
        and "only the 2 largest of each estimator are shown" in text
    )
    code, text, _ = call(capsys, *args, "--by", "user", "--json")
    assert (
        len(json.loads(text)["table"]) == len((tmp_path / "out" / "by_user.csv").read_text().splitlines()) - 1
    )
    code, _, err = call(capsys, *args, "--by", "colour")
    assert code == 2 and "user, size or basis" in err
