"""The service as processes: it ends when it is told to, comes back where it was, and two never lead at once."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from command_line import call
from service_process import Running
from service_site import write_site

from tidegrid.pipeline.rolling import StateStore

POLICY = {"lookahead_hours": 0}


@pytest.fixture
def ended() -> Iterator[list[Running]]:
    """Instances that are ended when the test is, however it ends."""
    found: list[Running] = []
    yield found
    for one in found:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.mark.slow
def test_a_killed_leader_is_followed_by_the_one_that_waits_and_nothing_is_committed_twice(
    tmp_path: Path, ended: list[Running]
) -> None:
    site = write_site(tmp_path / "s", hostile=False)
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps(POLICY))
    first = Running(site, tmp_path / "a.log", "--policy", str(policy))
    ended.append(first)
    assert first.ready()["leading"]
    second = Running(site, tmp_path / "b.log", "--policy", str(policy))
    ended.append(second)
    assert second.ready() == {"status": "ready", "leading": False, "tick": 1}
    plans = [httpx.get(f"{one.url}api/v1/plan").json() for one in (first, second)]
    assert plans[0] == plans[1]
    assert httpx.post(f"{second.url}api/v1/ticks").status_code == 503
    # both answer what-ifs from the one commit, and in the same way
    question = {"job": {"gpus": 2, "priority": 10}}
    answers = [
        httpx.post(f"{one.url}api/v1/what-if", json=question, timeout=60).json() for one in (first, second)
    ]
    assert answers[0]["job"] == answers[1]["job"]
    with httpx.stream("GET", f"{second.url}api/v1/events/stream", timeout=30) as stream:
        told = stream.iter_lines()
        assert next(line for line in told if line.startswith("event:")) == "event: state"
        children = first.children()
        first.process.kill()
        first.process.wait()
        assert next(line for line in told if line == "event: commit")
    assert second.ready()["leading"]
    for _ in range(50):
        alive = [number for number in children if Path(f"/proc/{number}/cmdline").exists() and _runs(number)]
        if not alive:
            break
        time.sleep(0.1)
    assert not alive, "the processes of a killed service end by themselves"
    began = time.monotonic()
    assert second.end() == 0
    assert time.monotonic() - began < 5
    assert second.lines()[-1]["event"] == "service ends"
    third = Running(site, tmp_path / "c.log", "--policy", str(policy))
    ended.append(third)
    assert third.ready()["leading"]
    assert third.end() == 0
    store = StateStore(site / "state.db")
    commits = store.commits()
    assert [one.tick for one in commits] == list(range(1, len(commits) + 1))
    assert len({one.input_key for one in commits}) == len(commits)
    assert (site / "commit.json").read_text() == commits[-1].text


def _runs(number: int) -> bool:
    with contextlib.suppress(OSError):
        return " Z " not in Path(f"/proc/{number}/stat").read_text()
    return False


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0", "--port", 0], "there is no token; make one first"),
        (["--host", "192.0.2.1", "--port", 0], "cannot listen on 192.0.2.1"),
        (["--log-level", "loud"], "use DEBUG, INFO, WARNING or ERROR"),
    ],
)
def test_what_cannot_be_served_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[object], said: str
) -> None:
    site = write_site(tmp_path / "s", hostile=False)
    code, out, err = call(capsys, "serve", site, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_a_folder_that_is_none_is_refused_before_a_store_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = call(capsys, "serve", tmp_path / "nowhere")
    assert code == 2
    assert "is not a folder" in err
    assert list(tmp_path.iterdir()) == []


def test_tokens_are_made_listed_and_revoked_by_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ["--store", tmp_path / "state.db"]
    code, made, _ = call(capsys, "token", "create", "ci", "--scope", "read", "--scope", "write", *store)
    assert code == 0
    number = made.split("_")[1]
    code, out, _ = call(capsys, "token", "list", "--json", *store)
    (listed,) = json.loads(out)["tokens"]
    assert (listed["id"], listed["name"], listed["scopes"]) == (number, "ci", ["read", "write"])
    assert made.strip().split("_", 2)[2] not in out
    assert call(capsys, "token", "revoke", number, *store)[0] == 0
    code, _, err = call(capsys, "token", "revoke", number, *store)
    assert (code, err) == (2, f"error: ID: there is no token '{number}'; see tidegrid token list\n")
