"""An instance of the service as a process of its own."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx


class Running:
    """An instance of the service."""

    def __init__(self, site: Path, log: Path, *more: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "tidegrid", "serve", str(site), "--port", "0", "--refit-hours", "0"]
        self.process = subprocess.Popen([*command, *more], stderr=log.open("w"))
        self.url = ""

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]

    def ready(self, seconds: float = 90) -> dict[str, Any]:
        """Wait until there is something to show."""
        for _ in range(int(seconds / 0.1)):
            assert self.process.poll() is None, self.log.read_text()
            self.url = next((line["url"] for line in self.lines() if line["event"] == "listening"), "")
            if self.url:
                with contextlib.suppress(httpx.HTTPError):
                    answer = httpx.get(f"{self.url}readyz")
                    if answer.status_code == 200:
                        return dict(answer.json())
            time.sleep(0.1)
        raise AssertionError(self.log.read_text())

    def children(self) -> list[int]:
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(number) for number in listed.read_text().split()] if listed.exists() else []

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(5)
