"""A real Prometheus reads the rules, scrapes the service, and knows every metric that rules and dashboard name."""

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / "build" / "prometheus" / "usr" / "bin"


def program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    if found is None:
        pytest.skip(f"there is no {name}")
    return found


def test_the_rules_are_rules() -> None:
    done = subprocess.run(
        [program("promtool"), "check", "rules", ROOT / "deploy" / "alerts.yml"],
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def prometheus(served: str, tmp_path: Path) -> Iterator[str]:
    """The address of a Prometheus that scrapes the service every second."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = (ROOT / "deploy" / "prometheus.yml").read_text()
    text = text.replace("127.0.0.1:8080", urlsplit(served).netloc).replace("30s", "1s")
    (tmp_path / "prometheus.yml").write_text(text)
    shutil.copy(ROOT / "deploy" / "alerts.yml", tmp_path)
    words = [f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    running = subprocess.Popen(
        [program("prometheus"), *words, f"--web.listen-address=127.0.0.1:{port}"], stderr=subprocess.DEVNULL
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(20)


def test_it_scrapes_every_metric_that_is_named(prometheus: str, served: str) -> None:
    httpx.post(f"{served}api/v1/what-if", json={"policy": {"decay": 0.9}})
    known: set[str] = set()
    for _ in range(100):
        time.sleep(0.3)
        try:
            known = set(httpx.get(f"{prometheus}/api/v1/label/__name__/values").json()["data"])
        except httpx.HTTPError:
            continue
        if "tidegrid_leader" in known:
            break
    named = set()
    for file in ("alerts.yml", "grafana/tidegrid.json"):
        named |= set(re.findall(r"\btidegrid_[a-z_]+\b", (ROOT / "deploy" / file).read_text()))
    # what nothing has come of yet has no sample: no job that was told an end has ended, no hour has come
    later = {"tidegrid_forecast_coverage", "tidegrid_eta_coverage", "tidegrid_eta_error_minutes"}
    assert named - known <= later
    found = httpx.get(f"{prometheus}/api/v1/query", params={"query": "tidegrid_leader"}).json()
    assert [one["value"][1] for one in found["data"]["result"]] == ["1"]
    dashboard = json.loads((ROOT / "deploy" / "grafana" / "tidegrid.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": target["expr"]})
            assert answer.json()["status"] == "success", target["expr"]
    rules = httpx.get(f"{prometheus}/api/v1/rules").json()["data"]["groups"][0]["rules"]
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}
