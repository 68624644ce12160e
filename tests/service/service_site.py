"""A small site with hostile names, and what runs a service on it in this process."""

import csv
import json
import time
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from tidegrid.app.service.options import Options
from tidegrid.pipeline.control import Settings
from tidegrid.pipeline.policy import Policy

NOW = "2026-03-02T08:00:00+00:00"

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "=cmd|' /C calc'!A0",
    "@SUM(1+1)",
    "{{ 7*7 }}",
    "javascript:alert(3)",
    "a/b/../c?x=1#y",
    "‮evil",
)
"""Texts for every free field: HTML, script, spreadsheet formulas, a template, an address, a direction mark."""


def write_site(folder: Path, *, hostile: bool = True, gpus: int = 16) -> Path:
    """Write a site of one pool, an app, a running job and a queue; free fields hold hostile texts where asked."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = HOSTILE if hostile else tuple(f"t{k}" for k in range(len(HOSTILE)))
    pool, app = (texts[0], texts[1]) if hostile else ("a", "chat")
    cluster = {
        "timezone": "Europe/Berlin",
        "pools": [{"id": pool, "gpus": gpus, "gpu_type": "H100-SXM-80GB", "node_size": 8}],
        "apps": [
            {
                "id": app,
                "pool": pool,
                "priority": 9,
                "swap_cap": 2,
                "held": [gpus - 1],
                "capacity": {"units_per_gpu_hour": 100.0, "min_replicas": 1},
            }
        ],
        "tenants": [{"id": texts[2], "limit": 8}],
        "synthetic": True,
    }
    (folder / "cluster.json").write_text(json.dumps(cluster), encoding="utf-8")
    rows = [
        {
            "job_id": text if hostile else f"q{k}",
            "kind": "training",
            "priority": 1 + k % 9,
            "submit_time": "2026-03-02T06:00:00+00:00",
            "gpus": 2 ** (k % 4),
            "user": texts[(k + 1) % len(texts)],
            "group": texts[(k + 2) % len(texts)],
            "name": texts[(k + 3) % len(texts)],
            "requested_walltime_s": 3600 * (1 + k),
        }
        for k, text in enumerate(texts)
        # control characters are refused in ids, and the pool and the app have the first two
        if text.isprintable()
    ]
    with (folder / "requests.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row for row in rows if row["job_id"] != app)
    running = {"job_id": "r1", "kind": "training", "priority": 5, "pool": pool, "first_gpu": 0, "gpus": 4}
    running |= {"submit_time": "2026-03-02T05:00:00+00:00", "start_time": "2026-03-02T05:30:00+00:00"}
    running |= {"user": texts[3], "group": texts[2], "name": texts[4], "requested_walltime_s": 36000}
    with (folder / "running.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(running))
        writer.writeheader()
        writer.writerow(running)
    with (folder / "traffic.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["series_id", "timestamp", "value"])
        for hour in range(72):
            day, clock = 27 + hour // 24, hour % 24
            date = f"2026-02-{day:02d}" if day <= 28 else f"2026-03-{day - 28:02d}"
            writer.writerow([app, f"{date}T{clock:02d}:00:00+00:00", 100 + 20 * clock])
        for hour in range(8):
            writer.writerow([app, f"2026-03-02T{hour:02d}:00:00+00:00", 100 + 20 * hour])
    return folder


class Here:
    """A worker without a process of its own: what it does is the same."""

    def __init__(self, name: str, make: Any, arguments: tuple[Any, ...], told: Any = None) -> None:
        self.held = make(*arguments)
        self.busy = False

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call the object's method."""
        return getattr(self.held, method)(*arguments)

    async def stop(self) -> None:
        """There is nothing to end."""


def options_of(folder: Path, **more: Any) -> Options:
    """Return the options of a service on a site."""
    settings = Settings(policy=Policy(lookahead_hours=0), refit_hours=None)
    return Options(
        folder, str(folder.parent / "state.db"), folder / "models", settings, watch_seconds=0.2, **more
    )


def wait_for(client: TestClient, path: str = "/readyz", seconds: float = 60.0) -> None:
    """Wait until an address answers well."""
    for _ in range(int(seconds / 0.05)):
        if client.get(path).status_code == 200:
            return
        time.sleep(0.05)
    raise AssertionError(client.get(path).text)
