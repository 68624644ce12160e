"""The service under load, and killed under it.

    python benchmarks/service_load.py load [--seconds 60] [--gpus 1024] [--jobs 1000]
    python benchmarks/service_load.py page --gpus 10000 --jobs 10000
    python benchmarks/service_load.py kill [--kills 50]

A made-up site with the GPUs and jobs that are asked for is served by a process of its own, which ticks every ten
seconds. `load`: 50 clients read a view of the page or an address of the API each second, and 5 what-ifs a second are
asked; latencies, errors, and the memory of the service's processes. `page`: how long the first view and the others take
from the request to the last byte, and in chromium until nothing is asked for any more, where playwright is installed.
`kill`: kill -9 of the server at random moments under that load, restarted at once; every commit is there once and has
the one before it as its last, and the page comes back.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from tidegrid.data.synth import synthesise
from tidegrid.pipeline.rolling import StateStore

READERS, QUESTIONS, EVERY_S = 50, 5, 10.0
PAGES = ("", "plan", "jobs", "forecasts", "savings", "what-if")
ADDRESSES = (
    "state",
    "plan",
    "jobs?limit=100",
    "forecasts",
    "accuracy",
    "savings",
    "events",
    "commits",
    "models",
)


class Server:
    """The service as a process, on a port that stays."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.url = folder, f"http://127.0.0.1:{self.port}/"
        self.start()

    def start(self) -> None:
        """Start it."""
        words = [
            sys.executable,
            "-m",
            "tidegrid",
            "serve",
            str(self.folder / "site"),
            "--port",
            str(self.port),
        ]
        words += ["--every", str(EVERY_S / 60), "--rate", "1e6", "--questions", "1e6", "--refit-hours", "0"]
        with (self.folder / "log").open("a") as log:
            self.process = subprocess.Popen(words, stderr=log, stdout=log)

    def ready(self, seconds: float = 300) -> float:
        """Wait until there is something to show; return how long it took."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            try:
                if httpx.get(f"{self.url}readyz", timeout=5).status_code == 200:
                    return time.monotonic() - began
            except httpx.HTTPError:
                pass
            time.sleep(0.05)
        raise SystemExit((self.folder / "log").read_text()[-2000:])

    def family(self) -> list[int]:
        """Return the ids of its processes."""
        found = [self.process.pid]
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                except (OSError, ValueError, IndexError):
                    continue
                if parent == self.process.pid:
                    found.append(int(entry.name))
        return found

    def memory(self) -> float:
        """Return the MiB that its processes hold."""
        pages = 0
        for pid in self.family():
            try:
                pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            except OSError:
                continue
        return pages * resource.getpagesize() / 2**20

    def cpu(self) -> float:
        """Return the CPU seconds that its processes have used."""
        ticks = 0
        for pid in self.family():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def end(self, how: int = signal.SIGTERM) -> float:
        """End it; return how long it took."""
        began = time.monotonic()
        self.process.send_signal(how)
        self.process.wait(30)
        return time.monotonic() - began


def made(folder: Path, gpus: int, jobs: int, seed: int) -> None:
    """Write the site."""
    sample = synthesise(seed, days=28, gpus=gpus, users=60, queue=jobs)
    sample.write(folder / "site")
    shutil.rmtree(folder / "site" / "models", ignore_errors=True)


class Load:
    """What clients do, and what came of it."""

    def __init__(self, url: str, jobs: list[str], seed: int) -> None:
        self.url, self.jobs, self.rng = url, jobs, random.Random(seed)
        self.reads: list[tuple[float, str]] = []
        self.answers: list[float] = []
        self.errors: list[str] = []
        self.lost = 0
        self.killing = False

    async def read(self, client: httpx.AsyncClient, until: float) -> None:
        """Read something each second."""
        await asyncio.sleep(self.rng.random())
        while time.monotonic() < until:
            what = self.rng.choice(
                [*PAGES, *(f"api/v1/{one}" for one in ADDRESSES), f"api/v1/jobs/{self.rng.choice(self.jobs)}"]
            )
            began = time.monotonic()
            await self.ask(client.get(self.url + what), what, self.reads)
            await asyncio.sleep(max(0.0, 1.0 - (time.monotonic() - began)))

    async def question(self, client: httpx.AsyncClient, until: float) -> None:
        """Ask what would be, five times a second in all."""
        pending: set[asyncio.Task[None]] = set()
        number = 0
        while time.monotonic() < until:
            number += 1
            body: dict[str, Any] = {"policy": {"decay": round(0.9 + 0.001 * (number % 90), 4)}}
            if number % 2:
                gpus = 2 ** self.rng.randrange(5)
                body = {"job": {"kind": "training", "gpus": gpus, "walltime_h": self.rng.choice([1, 4, 12])}}
            asked = self.ask(client.post(self.url + "api/v1/what-if", json=body), "what-if", None)
            pending.add(asyncio.create_task(asked))
            pending = {one for one in pending if not one.done()}
            await asyncio.sleep(1 / QUESTIONS)
        await asyncio.gather(*pending)

    async def ask(self, call: Any, what: str, kept: list[tuple[float, str]] | None) -> None:
        """Send one request and note how long the answer took."""
        began = time.monotonic()
        try:
            answer = await call
        except httpx.HTTPError as error:
            if self.killing:
                self.lost += 1
            else:
                self.errors.append(f"{what}: {type(error).__name__}")
            return
        took = time.monotonic() - began
        if answer.status_code != 200:
            if self.killing and answer.status_code == 503:
                self.lost += 1
            else:
                self.errors.append(f"{what}: {answer.status_code} {answer.text[:100]}")
        elif kept is None:
            self.answers.append(took)
        else:
            kept.append((took, what))

    async def run(self, seconds: float) -> None:
        """Let everybody ask for so long."""
        until = time.monotonic() + seconds
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(timeout=30, limits=limits) as client:
            await asyncio.gather(
                self.question(client, until), *(self.read(client, until) for _ in range(READERS))
            )


def told(name: str, took: list[float]) -> None:
    ms = 1000 * np.array(took or [np.nan])
    p50, p95, p99 = np.percentile(ms, [50, 95, 99])
    print(f"{name}: {len(took)}, p50 {p50:.0f} ms, p95 {p95:.0f}, p99 {p99:.0f}, most {ms.max():.0f}")


def load(server: Server, args: argparse.Namespace) -> None:
    """Measure the service under load."""
    jobs = [one["job"] for one in httpx.get(f"{server.url}api/v1/jobs?limit=10000").json()["jobs"]]
    print(f"{args.gpus} GPUs, {len(jobs)} jobs")
    first = httpx.get(f"{server.url}api/v1/state").json()["tick"]
    httpx.post(f"{server.url}api/v1/what-if", json={"policy": {"decay": 0.9}}, timeout=60)
    asyncio.run(Load(server.url, jobs, 1).run(5))
    work = Load(server.url, jobs, args.seed)
    before, cpu, began = server.memory(), server.cpu(), time.monotonic()
    asyncio.run(work.run(args.seconds))
    seconds = time.monotonic() - began
    told("reads", [took for took, _ in work.reads])
    told("what-ifs", work.answers)
    slow: dict[str, list[float]] = {}
    for took, what in work.reads:
        slow.setdefault(what if "jobs/" not in what else "api/v1/jobs/ID", []).append(took)
    for what, times in sorted(slow.items(), key=lambda one: -float(np.percentile(one[1], 95)))[:5]:
        print(f"  {what or 'now'}: p95 {1000 * np.percentile(times, 95):.0f} ms")
    ticks = httpx.get(f"{server.url}api/v1/state").json()["tick"] - first
    print(f"errors: {len(work.errors)} {work.errors[:3]}; ticks {ticks} in {seconds:.0f} s")
    print(
        f"memory {before:.0f} MiB before, {server.memory():.0f} after; {server.cpu() - cpu:.1f} CPU s of the service"
    )
    print(f"ended in {server.end():.1f} s")


def page(server: Server, args: argparse.Namespace) -> None:
    """Measure how long views take to open."""
    for what in PAGES:
        began = time.monotonic()
        answer = httpx.get(server.url + what, timeout=60)
        size = len(answer.content) / 1024
        print(
            f"{what or 'now'}: {answer.status_code}, {1000 * (time.monotonic() - began):.0f} ms, {size:.0f} KiB"
        )
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        print("no playwright here: the browser was not measured")
        return
    chrome = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chrome, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 1300, "height": 900})
        for what in PAGES:
            began = time.monotonic()
            tab.goto(server.url + what, wait_until="load")
            print(f"{what or 'now'} in chromium: {time.monotonic() - began:.2f} s")
        browser.close()


def kill(server: Server, args: argparse.Namespace) -> None:
    """Kill the service at random moments under load."""
    jobs = [one["job"] for one in httpx.get(f"{server.url}api/v1/jobs?limit=10000").json()["jobs"]]
    rng, work, back = random.Random(args.seed), Load(server.url, jobs, args.seed), []
    work.killing = True

    async def kills() -> None:
        for _ in range(args.kills):
            await asyncio.sleep(rng.uniform(0.2, args.apart))
            server.end(signal.SIGKILL)
            server.start()
            back.append(await asyncio.to_thread(server.ready))

    async def both() -> None:
        asked = asyncio.create_task(work.run(1e9))
        await kills()
        asked.cancel()

    asyncio.run(both())
    time.sleep(EVERY_S)
    server.end()
    store = StateStore(server.folder / "site" / "state.db")
    commits = store.commits()
    numbers = [one.tick for one in commits]
    instants = [one.now for one in commits]
    keys = [one.input_key for one in commits]
    print(
        f"{args.kills} kills: {len(commits)} commits, without a gap: {numbers == list(range(1, len(numbers) + 1))}"
    )
    print(
        f"each once: {len(set(keys)) == len(keys)}, in the order of time: {instants == sorted(set(instants))}"
    )
    handed = json.loads((server.folder / "site" / "commit.json").read_text())
    print(f"commit.json is the last one: {handed == commits[-1].document}")
    print(f"back after {np.median(back):.1f} s (most {max(back):.1f}); {work.lost} requests met no server")
    print(f"other errors: {len(work.errors)} {work.errors[:3]}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("measure", choices=("load", "page", "kill"))
    parser.add_argument("--gpus", type=int, default=1024)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--apart", type=float, default=8.0, help="most seconds from a start to the next kill")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    server = None
    try:
        made(folder, args.gpus, args.jobs, args.seed)
        server = Server(folder)
        print(f"first view after {server.ready():.1f} s")
        {"load": load, "page": page, "kill": kill}[args.measure](server, args)
    finally:
        if server is not None and server.process.poll() is None:
            server.end(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
