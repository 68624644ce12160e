"""Traffic from a real Prometheus whose past is known: restarts, moved pods, outages of the server and of an app."""

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pandas as pd
import pytest

from tidegrid.pipeline.fetched import refresh_site
from tidegrid.pipeline.site import Site

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / "build" / "prometheus" / "usr" / "bin"
SCRAPE_S, HOURS = 30, 72
APPS = ("chat", "search")
SERVER_DOWN = (30.2, 31.7)
"""Hours between which nothing is scraped."""
APP_GONE = (50.0, 54.0)
"""Hours between which the first app has no pod."""


def program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(UNPACKED))
    if found is None:
        pytest.skip(f"there is no {name}")
    return found


def past(begin: int, rng: np.random.Generator) -> tuple[str, dict[str, np.ndarray]]:
    """Return scrapes as OpenMetrics text, and each app's true traffic by hour."""
    times = np.arange(0, HOURS * 3600, SCRAPE_S)
    seen = ~((times >= SERVER_DOWN[0] * 3600) & (times < SERVER_DOWN[1] * 3600))
    lines, ups, truth = [], [], {}
    for k, app in enumerate(APPS):
        total = np.zeros(HOURS)
        for pod in range(5):
            rate = 40.0 * (1.2 + np.sin(2 * np.pi * (times / 86_400 + 0.1 * k))) * rng.uniform(0.5, 1.5)
            grown = rng.poisson(rate).astype(float)
            # a pod that moves is another one from then on; one that restarts counts from 0
            names, number, count = [], 0, 0.0
            values = np.zeros(len(times))
            for i, t in enumerate(times):
                if rng.random() < SCRAPE_S / (20 * 3600):
                    number, count = number + 1, 0.0
                elif rng.random() < SCRAPE_S / (15 * 3600):
                    count = 0.0
                if k == 0 and APP_GONE[0] * 3600 <= t < APP_GONE[1] * 3600:
                    names.append("")
                    count = 0.0
                    grown[i] = 0.0
                    continue
                count += grown[i]
                values[i] = count
                names.append(f"{app}-{pod}-{number}")
            np.add.at(total, times // 3600, grown)
            for i in np.flatnonzero(seen):
                if names[i]:
                    labels = f'namespace="prod",app="{app}",pod="{names[i]}"'
                    lines.append((labels, begin + int(times[i]), values[i]))
        truth[app] = total
    ups = [('job="vllm"', begin + int(t), 1.0) for t in times[seen]]
    text = ["# TYPE vllm:prompt_tokens counter"]
    text += [f"vllm:prompt_tokens_total{{{labels}}} {value} {at}" for labels, at, value in sorted(lines)]
    text += ["# TYPE up gauge", *(f"up{{{labels}}} {value} {at}" for labels, at, value in ups), "# EOF"]
    return "\n".join(text) + "\n", truth


@pytest.fixture(scope="module")
def known(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[str, pd.Timestamp, dict[str, np.ndarray]]]:
    """The address of a Prometheus, the first hour of its past, and the truth."""
    folder = tmp_path_factory.mktemp("prometheus")
    begin = (int(time.time()) // 3600 - HOURS) * 3600
    text, truth = past(begin, np.random.default_rng(7))
    (folder / "past.txt").write_text(text)
    (folder / "prometheus.yml").write_text("scrape_configs: []\n")
    words = [
        program("promtool"),
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        folder / "past.txt",
        folder / "data",
    ]
    subprocess.run(words, check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = subprocess.Popen(
        [
            program("prometheus"), f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}",
            "--storage.tsdb.retention.time=10y",
        ],
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(100):
            time.sleep(0.2)
            try:
                if httpx.get(f"{url}/-/ready").status_code == 200:
                    break
            except httpx.HTTPError:
                continue
        yield url, pd.Timestamp(begin, unit="s", tz="UTC"), truth
    finally:
        running.terminate()
        running.wait(20)


def test_hours_are_those_that_really_were_and_the_rest_is_unknown(
    known: tuple[str, pd.Timestamp, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    url, begin, truth = known
    counter = {"metrics": ["vllm:prompt_tokens_total"]}
    apps = {app: counter | {"selector": f'namespace="prod", app="{app}"'} for app in APPS}
    described = {
        "timezone": "UTC",
        "pools": [{"id": "a", "gpus": 8, "gpu_type": "H100-SXM-80GB"}],
        "apps": [
            {"id": app, "pool": "a", "priority": 5, "capacity": {"units_per_gpu_hour": 50_000}}
            for app in APPS
        ],
        "traffic": {"prometheus": {"url": url, "days": 30, "up": 'job="vllm"', "apps": apps}},
    }
    (tmp_path / "cluster.json").write_text(json.dumps(described))
    now = begin + pd.Timedelta(hours=HOURS, minutes=10)
    # as a service asks: some hours at first, the others as they end
    for at in (begin + pd.Timedelta(hours=40), *(now - pd.Timedelta(hours=h) for h in (5, 4, 3, 2, 1, 0))):
        assert refresh_site(tmp_path, at) == []
    traffic = Site.read(tmp_path, now=now).history.traffic
    off = []
    for app in APPS:
        hours = traffic[traffic["series_id"] == app].set_index("timestamp")["value"]
        for h, actual in enumerate(truth[app]):
            told = hours.get(begin + pd.Timedelta(hours=h), np.nan)
            if h in (30, 31):
                assert np.isnan(told), h
            elif app == APPS[0] and APP_GONE[0] <= h < APP_GONE[1]:
                # the hour in which the app vanishes still sees its last samples
                assert told <= (0.02 * truth[app].max() if h == APP_GONE[0] else 0), (h, told)
            else:
                off.append(abs(told / actual - 1))
    # the first hour begins without a sample before it
    assert np.median(off) < 0.005 and np.quantile(off, 0.95) < 0.03 and max(off) < 0.1, np.sort(off)[-5:]
    print(f"median error {100 * np.median(off):.2f} %, worst {100 * max(off):.2f} % of {len(off)} hours")
