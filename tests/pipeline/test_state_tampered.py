"""A state that something else wrote to: one line names the store, the table and the row."""

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from command_line import call

NOW, LATER = "2026-03-02T00:00:00Z", "2026-03-02T01:00:00Z"


@pytest.fixture(scope="module")
def ticked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site with one tick behind it."""
    folder = tmp_path_factory.mktemp("site")
    pools = [{"id": "p", "gpus": 4, "gpu_type": "A100-SXM-80GB"}]
    apps = [{"id": "chat", "pool": "p", "held": [3], "capacity": {"units_per_gpu_hour": 5.0}}]
    (folder / "cluster.json").write_text(json.dumps({"pools": pools, "apps": apps}))
    (folder / "requests.csv").write_text(
        f"job_id,kind,submit_time,gpus\na,training,{NOW},1\nb,training,{NOW},8\n"
    )
    with pytest.raises(SystemExit):
        from tidegrid.app.cli import app
        from tidegrid.app.common import run

        run(
            app,
            ["tick", str(folder), "--state", str(folder / "state.db"), "--now", NOW, "--refit-hours", "0"],
        )
    return folder


@pytest.fixture
def site(ticked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(ticked, tmp_path / "site"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("UPDATE tidegrid_commits SET now = 'soon'", "tidegrid_commits, row 1, now"),
        ("UPDATE tidegrid_commits SET now = '9999-01-01T00:00:00Z'", "tidegrid_commits, row 1, now"),
        ("UPDATE tidegrid_commits SET document = '[1'", "tidegrid_commits, row 1, document"),
        ("UPDATE tidegrid_commits SET document = '{}'", "tidegrid_commits, row 1, document.tick"),
        (
            "UPDATE tidegrid_commits SET document = replace(document, '\"running\": 0', '\"running\": []')",
            "tidegrid_commits, row 1, document.running",
        ),
        (
            'UPDATE tidegrid_commits SET document = replace(document, \'"timezone": "UTC"\', \'"timezone": "X"\')',
            "tidegrid_commits, row 1, document.timezone",
        ),
        ("UPDATE tidegrid_plans SET plan = x'00'", "tidegrid_plans, row 1"),
        (
            "UPDATE tidegrid_watched SET first_seen = 'x' WHERE job_id = 'a'",
            "tidegrid_watched, row 1, first_seen",
        ),
        ("UPDATE tidegrid_watched SET gpus = 'many' WHERE job_id = 'b'", "tidegrid_watched, row 2, gpus"),
        ("UPDATE tidegrid_holds SET swaps = 'x'", "tidegrid_holds, row 1, swaps"),
        ("UPDATE tidegrid_hours SET low = 'x'", "tidegrid_hours, row 1, low"),
        ("UPDATE tidegrid_info SET value = 'x' WHERE name = 'schema'", "tables of version x"),
        ("DROP TABLE tidegrid_plans", "no such table: tidegrid_plans"),
    ],
)
def test_a_row_of_another_kind_is_named(
    site: Path, capsys: pytest.CaptureFixture[str], change: str, named: str
) -> None:
    state = site / "state.db"
    with sqlite3.connect(state) as db:
        assert db.execute(change).rowcount != 0
    before = (site / "commit.json").read_bytes()
    code, out, err = call(capsys, "tick", site, "--state", state, "--now", LATER, "--refit-hours", 0)
    assert code == 2 and out == "" and err.count("\n") == 1, err
    assert "state.db" in err and named in err
    assert (site / "commit.json").read_bytes() == before
    for command in (["show"], ["history"], ["history", "--events"]):
        code, _, err = call(capsys, "rolling", *command, "--state", state)
        assert code in (0, 2) and err.count("\n") <= 1 and "a fault of" not in err


@pytest.mark.parametrize(
    "where",
    [
        "postgresql://u@h:99999999/x",
        "postgresql://h:port/x",
        "sqlite://",
        "nosuch://x",
        "x" * 5000,
        "FOLDER",
        "a\0b",
    ],
)
def test_a_place_that_cannot_be_a_state_is_one_line(
    site: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    state = str(site) if where == "FOLDER" else where
    code, out, err = call(capsys, "rolling", "show", "--state", state)
    assert (code == 2 and out == "" and err.count("\n") == 1) or where == "sqlite://"
    assert "a fault of" not in err
