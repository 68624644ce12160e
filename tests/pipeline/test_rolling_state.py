"""The rolling horizon's state: one commit an input, whole or not at all, and never over a newer input."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import sqlalchemy as sa
from rolling_site import HOUR, START, Curve, Told, World
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from tidegrid.data import read_requests
from tidegrid.errors import InputError
from tidegrid.pipeline.control import Settings, tick
from tidegrid.pipeline.control import tick as run_tick
from tidegrid.pipeline.memory import Changes
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.rolling import Commit, StateStore, store
from tidegrid.pipeline.worlds.files import Files
from tidegrid.scheduler import StalePlanError

SMALL = Settings(policy=Policy(horizon_hours=8, lookahead_hours=8))


def busy(folder: Path) -> World:
    """Eight GPUs, an app, a running job and a queue."""
    world = World(folder, apps={"chat": (9, 2, [1.0, 2.0, 3.0, 2.0, 1.0])}, held={"chat": [7]})
    world.run("r", 0, 2, 3)
    for k, (gpus, hours, priority) in enumerate([(4, 2, 5), (2, 6, 3), (1, 1, 8), (4, 4, 2)]):
        world.submit(f"j{k}", gpus, hours, priority)
    return world


def answers(world: World) -> dict[str, Any]:
    return {"recurring": Told(1.5), "realtime": Curve({a: app[2] for a, app in world.apps.items()})}


def once(state: StateStore, world: World, out: Path | None = None) -> Commit:
    return tick(state, Files(world.write(), out=out), world.now, SMALL, estimators=answers(world))


def test_the_same_tick_twice_commits_once_and_says_the_same(tmp_path: Path) -> None:
    world, state = busy(tmp_path / "site"), StateStore(tmp_path / "state.db")
    out = tmp_path / "commit.json"
    first = once(state, world, out=out)
    out.unlink()  # as if the process had died between the store and the file
    second = once(state, world, out=out)
    assert first == second and len(state.commits()) == 1
    assert out.read_text() == first.text and json.loads(first.text)["start"]


def test_an_unchanged_input_gives_the_same_plan_to_the_byte(tmp_path: Path) -> None:
    """P10: two stores, one input; and a chain of runs on a queue that does not change moves nothing."""
    world = busy(tmp_path / "site")
    texts = {once(StateStore(tmp_path / f"{k}.db"), world).text for k in range(3)}
    assert len(texts) == 1


def test_an_input_is_not_committed_again_under_other_settings(tmp_path: Path) -> None:
    world, state = busy(tmp_path / "site"), StateStore(tmp_path / "state.db")
    once(state, world)
    with pytest.raises(InputError, match="another policy"):
        tick(state, Files(world.folder), world.now, Settings(), estimators=answers(world))


def test_an_instant_before_the_last_commit_is_refused(tmp_path: Path) -> None:
    world, state = busy(tmp_path / "site"), StateStore(tmp_path / "state.db")
    once(state, world)
    with pytest.raises(StalePlanError, match="later than"):
        tick(state, Files(world.folder), world.now - HOUR, SMALL, estimators=answers(world))


def test_an_old_commit_does_not_replace_a_newer_file(tmp_path: Path) -> None:
    world, state, out = busy(tmp_path / "site"), StateStore(tmp_path / "state.db"), tmp_path / "commit.json"
    once(state, world, out=out)
    tick(state, Files(world.folder, out=out), world.now + HOUR, SMALL, estimators=answers(world))
    newer = out.read_text()
    tick(state, Files(world.folder, out=out), world.now, SMALL, estimators=answers(world))
    assert out.read_text() == newer


def test_a_plan_is_refused_where_the_files_changed_meanwhile(tmp_path: Path) -> None:
    """P11: an arrival while the planner runs."""
    world, state = busy(tmp_path / "site"), StateStore(tmp_path / "state.db")

    class Late(Told):
        def predict_quantiles(self, X: pd.DataFrame, levels: Any = (0.1, 0.5, 0.9)) -> pd.DataFrame:
            world.submit("late", 8, 1, 10)
            world.write()
            return super().predict_quantiles(X, levels)

    folder = world.write()
    with pytest.raises(StalePlanError, match="changed while the plan was made"):
        tick(state, Files(folder), world.now, SMALL, estimators=answers(world) | {"recurring": Late()})
    assert state.last() is None and not state.watched()
    assert "late" in read_requests(folder / "requests.csv")["job_id"].tolist()
    assert once(state, world).tick == 1


def test_of_two_ticks_at_once_the_second_is_refused(tmp_path: Path) -> None:
    """P11: another process commits while this one plans."""
    world, state = busy(tmp_path / "site"), StateStore(tmp_path / "state.db")
    other = StateStore(tmp_path / "state.db")

    class Overtaken(Told):
        def predict_quantiles(self, X: pd.DataFrame, levels: Any = (0.1, 0.5, 0.9)) -> pd.DataFrame:
            if other.last() is None:
                run_tick(other, Files(world.folder), world.now + HOUR, SMALL, estimators=answers(world))
            return super().predict_quantiles(X, levels)

    folder = world.write()
    with pytest.raises(StalePlanError, match="was committed while"):
        tick(state, Files(folder), world.now, SMALL, estimators=answers(world) | {"recurring": Overtaken()})
    assert [c.now for c in state.commits()] == [(world.now + HOUR).isoformat()]


class Killed(BaseException):
    """What a kill looks like from inside."""


def run(folder: Path, ticks: int, die_at: int | None = None) -> tuple[list[str], list[str]]:
    """Tick with a world that obeys; die at the n-th statement to the store, restart, and go on."""
    folder.mkdir()
    state, world = StateStore(folder / "state.db"), busy(folder / "site")
    said: list[str] = []

    def count(_c: Any, _k: Any, statement: str, *_: Any) -> None:
        said.append(statement)
        if len(said) == die_at:
            raise Killed

    sa.event.listen(state.engine, "before_cursor_execute", count)
    for _ in range(ticks):
        try:
            commit = once(state, world)
        except Killed:
            state.close()
            state = StateStore(folder / "state.db")
            commit = once(state, world)
        world.obey(commit.document)
        world.advance()
    return [c.text for c in state.commits()], said


def test_a_tick_that_dies_at_any_statement_leaves_nothing_and_the_next_is_the_same(tmp_path: Path) -> None:
    whole, said = run(tmp_path / "whole", 2)
    second = [i for i, text in enumerate(said) if text.startswith("UPDATE tidegrid_info")][1]
    moments = range(second + 1, len(said), 3)
    assert len(moments) >= 4  # inside the second tick's one transaction
    for die_at in moments:
        assert run(tmp_path / str(die_at), 2, die_at)[0] == whole


def test_waiting_counts_from_the_first_sight_whatever_the_site_says_later(tmp_path: Path) -> None:
    world, state = busy(tmp_path / "site"), StateStore(tmp_path / "state.db")
    once(state, world)
    seen = state.watched()["j3"].first_seen
    state.close()
    world.advance()
    world.waiting["j3"]["submit_time"] = world.now.isoformat()  # submitted again
    again = StateStore(tmp_path / "state.db")
    once(again, world)
    assert again.watched()["j3"].first_seen == seen == START.isoformat()


def test_the_plan_and_what_it_rested_on_are_kept(tmp_path: Path) -> None:
    world, state = busy(tmp_path / "site"), StateStore(tmp_path / "state.db")
    commit = once(state, world)
    kept = state.plan(commit.tick)
    assert kept is not None and kept["plan"]["problem_sha256"] == commit.document["problem_sha256"]
    assert set(kept["forecast"]) == {"durations", "remaining_h", "traffic", "gpus", "etas"}
    assert state.plan(99) is None


def test_a_file_that_is_no_state_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, and long enough to be looked at " * 20)
    with pytest.raises(InputError, match=r"text\.db.*cannot be used"):
        StateStore(tmp_path / "text.db")
    with pytest.raises(InputError, match="there is no state"):
        StateStore.existing(tmp_path / "none.db")
    with pytest.raises(InputError, match="cannot be used"):
        StateStore(tmp_path / "no" / "folder" / "state.db")
    with pytest.raises(InputError, match="cannot be opened"):
        StateStore("nosuch://host/name")


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    state = StateStore(tmp_path / "state.db")
    with state.transaction() as db:
        db.execute(sa.text("UPDATE tidegrid_info SET value = '0' WHERE name = 'schema'"))
    with pytest.raises(InputError, match="version 0"):
        StateStore(tmp_path / "state.db")


def test_a_commit_out_of_turn_is_refused(tmp_path: Path) -> None:
    state = StateStore(f"sqlite:///{tmp_path / 'state.db'}")
    nothing = Changes([], [], [], [], [], [], {}, {}, {})
    empty = ("start", "apps", "waiting", "refused", "risks", "events", "notes")
    document = {"tick": 1, "now": START.isoformat(), "plan_sha256": "", "running": 0, "synthetic": False}
    text = json.dumps(document | {name: [] for name in empty})
    with pytest.raises(StalePlanError):
        state.write(Commit(2, "k", "s", START.isoformat(), text), nothing)
    state.write(Commit(1, "k", "s", START.isoformat(), text), nothing)
    assert [c.tick for c in state.commits()] == [1]


def test_the_tables_can_be_made_in_postgresql() -> None:
    for table in store._META.sorted_tables:
        text = str(CreateTable(table).compile(dialect=postgresql.dialect()))
        assert text.strip().startswith(f"CREATE TABLE {table.name}") and "AUTO" not in text.upper()
