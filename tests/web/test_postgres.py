"""The store in a real PostgreSQL: the same commits as in SQLite, and a service that dies and comes back."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pandas as pd
import pytest
from service_process import Running
from service_site import NOW, write_site

from tidegrid.pipeline.control import Settings, tick
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.rolling import StateStore
from tidegrid.pipeline.worlds.files import Files

SETTINGS = Settings(policy=Policy(lookahead_hours=0), refit_hours=None)


def program(name: str) -> str:
    packaged = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    places = [*packaged, os.environ.get("PATH", "")]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        pytest.skip(f"there is no {name}")
    return found


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The URL of a PostgreSQL without databases of ours, on loopback, ended with the tests."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="tidegrid-pg-", dir="/tmp"))
    # PostgreSQL refuses to run as root
    words: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody")
        words = ["setpriv", "--reuid", "nobody", "--clear-groups"]
    data = folder / "data"
    made = [*words, program("initdb"), "-D", str(data), "-U", "tidegrid", "-A", "trust", "--no-sync"]
    subprocess.run(made, check=True, capture_output=True, cwd=folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    more = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={folder}", "-F"]
    running = subprocess.Popen(
        [*words, program("postgres"), "-D", str(data), "-p", str(port), *more],
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )
    url = f"postgresql+psycopg://tidegrid@127.0.0.1:{port}"
    try:
        for _ in range(100):
            time.sleep(0.1)
            if (
                subprocess.run(
                    [program("pg_isready"), "-h", "127.0.0.1", "-p", str(port)], capture_output=True
                ).returncode
                == 0
            ):
                break
        yield url
    finally:
        # at once, whoever is still connected
        running.send_signal(signal.SIGINT)
        running.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def database(server: str, name: str) -> str:
    """Make a database and return its URL."""
    import psycopg

    plain = server.replace("postgresql+psycopg", "postgresql")
    with psycopg.connect(f"{plain}/postgres", autocommit=True) as link:
        link.execute(f'CREATE DATABASE "{name}"')
    return f"{server}/{name}"


def test_three_ticks_commit_the_same_in_both(server: str, tmp_path: Path) -> None:
    site = write_site(tmp_path / "s")
    told: list[list[str]] = []
    for where in (str(tmp_path / "state.db"), database(server, "ticks")):
        store = StateStore(where)
        for k in range(3):
            now = pd.Timestamp(NOW) + pd.Timedelta(minutes=30 * k)
            tick(store, Files(site), now, SETTINGS)
        # and once more: nothing is committed twice
        tick(store, Files(site), now, SETTINGS)
        told.append([one.text for one in store.commits()])
        assert len(told[-1]) == 3
        told.append([str(one) for one in store.watched()])
        store.close()
    assert told[0] == told[2] and told[1] == told[3]


def test_a_service_on_it_is_killed_and_goes_on_and_two_never_lead(server: str, tmp_path: Path) -> None:
    site, url = write_site(tmp_path / "s", hostile=False), database(server, "service")
    first = Running(site, tmp_path / "a.log", "--store", url)
    second = None
    try:
        assert first.ready()["leading"]
        second = Running(site, tmp_path / "b.log", "--store", url)
        assert second.ready() == {"status": "ready", "leading": False, "tick": 1}
        first.process.kill()
        first.process.wait()
        for _ in range(300):
            if second.ready()["leading"]:
                break
            time.sleep(0.1)
        assert second.ready()["leading"]
        httpx.post(f"{second.url}api/v1/ticks")
        for _ in range(300):
            if second.ready()["tick"] >= 2:
                break
            time.sleep(0.1)
        assert second.end() == 0
        ticks = [one.tick for one in StateStore(url).commits()]
        assert ticks == list(range(1, len(ticks) + 1)) and len(ticks) >= 2
    finally:
        for one in (first, second):
            if one is not None and one.process.poll() is None:
                one.process.kill()
                one.process.wait()
