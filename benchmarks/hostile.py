"""Give every command inputs that nobody means well with, and count what comes of it.

Each case runs in a process of its own, with a limit of time and memory, on a fresh copy of a small site. It is right
where the command ends with exit code 0, 1 or 2 and says no word of a fault of its own; with code 2 it says one line on
standard error and leaves no new file, and no output holds a control code. A service that stands is asked to end, by
SIGTERM, and has to.
"""

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from slurm_snapshot import NOW as SLURM_NOW
from slurm_snapshot import Made

from tidegrid.app.cli import app
from tidegrid.app.common import run
from tidegrid.data.synth import synthesise

NOW, LATER = "2026-04-14T06:00:00Z", "2026-04-14T07:00:00Z"
_SLURM = datetime.fromtimestamp(SLURM_NOW, UTC).isoformat()

CPU_SECONDS, WALL_SECONDS, MEMORY = 60, 240, 2 * 2**30
"""Limits of a case; the address space may be twice the memory, of which much is only reserved."""

SERVED_SECONDS = 15
"""How long a service stands before it is asked to end."""

TABLES = ("jobs.csv", "traffic.csv", "requests.csv", "running.csv")

Change = Callable[[Path], None]
Case = tuple[str, list[str], Callable[[Path], None]]
"""A name, the command line with paths relative to the copy, and what is done to the copy before."""


def _replaced(path: Path) -> Path:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def _cell(path: Path, text: str) -> None:
    """Put a text in the last cell of every fifth row of a table, or of every text of a JSON file."""
    if path.suffix == ".json":
        path.write_text(path.read_text().replace('"id": "', f'"id": {json.dumps(text)[:-1]}'))
        return
    rows = path.read_text().splitlines()
    for k in range(1, len(rows), 5):
        cells = rows[k].split(",")
        cells[k % len(cells)] = text
        rows[k] = ",".join(cells)
    path.write_text("\n".join(rows) + "\n")


FILES: dict[str, Change] = {
    "empty": lambda p: _replaced(p).touch(),
    "absent link": lambda p: _replaced(p).symlink_to("nowhere"),
    "loop of links": lambda p: _replaced(p).symlink_to(p.name),
    "folder": lambda p: _replaced(p).mkdir(),
    "pipe": lambda p: os.mkfifo(_replaced(p)),
    "endless device": lambda p: _replaced(p).symlink_to("/dev/zero"),
    "nul bytes": lambda p: p.write_bytes(b"\0" * 4096),
    "noise": lambda p: p.write_bytes(random.Random(1).randbytes(20_000)),
    "utf-16": lambda p: p.write_text(p.read_text(), encoding="utf-16"),
    "cut in a third": lambda p: os.truncate(p, p.stat().st_size // 3),
    "cut by a byte": lambda p: os.truncate(p, p.stat().st_size - 2),
    "first line alone": lambda p: p.write_text(p.read_text().split("\n")[0] + "\n") and None,
    "bad zip": lambda p: p.write_bytes(b"\x1f\x8b" + p.read_bytes()),
    "long cell": lambda p: _cell(p, "9" * 200_000),
    "huge number": lambda p: _cell(p, "1e308"),
    "infinite": lambda p: _cell(p, "inf"),
    "negative": lambda p: _cell(p, "-1"),
    "year 9999": lambda p: _cell(p, "9999-12-31T23:59:59Z"),
    "year 1": lambda p: _cell(p, "0001-01-01T00:00:00Z"),
    "control codes": lambda p: _cell(p, "\x1b[2J\x9b31m\u202e\x07"),
    "markup": lambda p: _cell(p, "[bold]<script>$\\frac{</script>"),
    "open quote": lambda p: _cell(p, '"'),
}  # fmt: skip
"""What may be wrong with a file."""

_CELLS = ("long cell", "huge number", "infinite", "negative", "year 9999", "year 1", "control codes", "markup",
          "open quote", "utf-16", "first line alone")  # fmt: skip
"""Those that rewrite the text of a file."""

JSONS: dict[str, Change] = {
    "list": lambda p: p.write_text("[]") and None,
    "number": lambda p: p.write_text("1e999") and None,
    "not finite": lambda p: p.write_text(p.read_text().replace(": 1", ": NaN")) and None,
    "deep": lambda p: p.write_text("[" * 100_000) and None,
    "deep object": lambda p: p.write_text('{"pools":' * 50_000) and None,
    "numbers as text": lambda p: p.write_text(p.read_text().replace(": 1", ': "1"')) and None,
    "large numbers": lambda p: p.write_text(p.read_text().replace(": 1", ": 1" + "0" * 40)) and None,
    "negative numbers": lambda p: p.write_text(p.read_text().replace(": 1", ": -1")) and None,
    "truth for numbers": lambda p: p.write_text(p.read_text().replace(": 1", ": true, \"x\": 1")) and None,
    "no lists": lambda p: p.write_text(p.read_text().replace("[", '{"a": [').replace("]", "]}")) and None,
}  # fmt: skip
"""What else may be wrong with a JSON file."""

STATE = (
    "UPDATE tidegrid_commits SET document = '{}'", "UPDATE tidegrid_commits SET document = 'x'",
    "UPDATE tidegrid_commits SET now = 'x'", "UPDATE tidegrid_commits SET now = '9999-12-31T00:00:00Z'",
    "UPDATE tidegrid_commits SET tick = 9000000000000000000", "UPDATE tidegrid_plans SET plan = x'00'",
    "UPDATE tidegrid_watched SET first_seen = 'x'", "UPDATE tidegrid_watched SET gpus = 'x'",
    "UPDATE tidegrid_hours SET low = 'x'", "UPDATE tidegrid_holds SET swaps = 'x'",
    "UPDATE tidegrid_info SET value = '9' WHERE name = 'schema'", "DROP TABLE tidegrid_hours",
    "INSERT INTO tidegrid_info VALUES ('refitted', 'x') ON CONFLICT (name) DO UPDATE SET value = 'x'",
)  # fmt: skip
"""What may have happened to a state."""

TRAFFIC = "history import site/traffic.csv --table traffic --out out.csv"

OPTIONS = (
    "replay site/jobs.csv --gpus 1000000000", "replay site/jobs.csv --gpus 64 --days 1e308",
    "replay site/jobs.csv --gpus 64 --skip-days 3000", "replay site/jobs.csv --gpus 64 --set rounds=1e12",
    "replay site/jobs.csv --gpus 64 --set step_minutes=1e9", "replay site/jobs.csv --gpus 64 --set decay=1e-300",
    "replay site/jobs.csv --gpus 64 --set demand_quantile=nan", "replay site/jobs.csv --gpus 64 --seed -5",
    "replay site/jobs.csv --gpus 64 --node-size 1000000000", "replay site/jobs.csv --gpus 64 --country ZZ",
    "replay site/jobs.csv --gpus 64 --timezone ../../etc/passwd", "replay site/jobs.csv --gpus 64 --jobs 99999",
    "replay site/jobs.csv --gpus 64 --parameters site/cluster.json", "replay site --gpus 64",
    "replay /dev/zero --gpus 64",
    "evaluate site --folds 1000000000", "evaluate site --share inf", "evaluate site --only nobody",
    "history synth out --users 1000000000", "history synth out --days 1000000000", "history synth out --queue 1e9",
    "history synth out --gpus 1000000000", "history synth out --seed 99999999999999999999",
    "history synth out --now 9999-12-31T23:00:00Z", "history synth out --timezone Mars/Olympus",
    "history import site/jobs.csv --out out.xyz", "history import site/jobs.csv --out /dev/null/x.csv",
    "history import site/traffic.csv --table traffic --start 0001-01-01T00:00:00Z --out out.csv",
    "history import site/jobs.csv --format sacct --out out.csv",
    "history import site/jobs.csv --format swf --out out.csv",
    "history import site/cluster.json --out out.csv", "history day site/jobs.csv 9999-12-31 --out out",
    "history day site/jobs.csv 2026-13-45 --out out", "history check /dev/zero", "history check /",
    "forecast site --hours 100000", "forecast site --units-per-gpu-hour 1e-300", "forecast site --quantile nan",
    "forecast site --min-replicas 1000000000000", "forecast site --series nobody", "forecast site --country ZZ",
    "forecast /dev/stdin", "forecast backtest site --last-days 1000000000", "forecast backtest site --last-days 3000",
    "tick site --state s.db --now 2262-04-12T00:00:00Z", "tick site --state s.db --now tomorrow",
    "tick site --state / --now NOW", "tick site --state /dev/zero --now NOW", "tick site --state nosuch://x --now NOW",
    "tick site --state postgresql://h:99999999/x --now NOW", "tick nowhere --state s.db --now NOW",
    "tick site --state s.db --now NOW --time-limit 1e300", "tick site --state s.db --now NOW --out /dev/full/x",
    "plan site --now 1677-09-21T00:00:00Z --out out", "plan site --mode full --time-limit nan --out out",
    "plan site --policy site/cluster.json --out out", "plan site --policy site --out out", "plan site --out /proc/x",
    "plan site --out site/cluster.json", "predict site --explain nobody", "predict site --requests /dev/zero",
    "predict site --out /", "predict site --store /etc/passwd", "rolling show --state /dev/null",
    "rolling history --state site/state.db --last 99999999999999999999", "rolling show --state site/cluster.json",
    "train site --only nobody", "train site --store /dev/null/x", "train site --jobs 1000000",
    "models list /", "models list site/cluster.json", "models show site/models realtime ../../..",
    "models promote site/models realtime 9999 --reason x --at 9999-12-31T00:00:00Z",
    "models prune site/models --max-mb -1", "models rollback site/models nobody --reason x",
    "models show site/models ../../etc champion", "solve problem.json --time-limit 1e300 --mode full",
    "solve problem.json --mode nosuch", "check plan.json problem.json", "explain problem.json plan.json --job nobody",
    "compare problem.json --repeats 1000000000", "bench nosuch", "estimators check nobody", "plan " + "x" * 5000,
    "forecast " + "x" * 300, "solve \x1b[2J", "models list \x9b31m", "estimators check ../../x",
)  # fmt: skip
"""Command lines that are asked for as they stand."""

SLURM_READS = {
    "saved/squeue.json": ("slurm check slurm --from saved --now SLURM", "slurm tick slurm --from saved --now SLURM"),
    "saved/nodes.txt": ("slurm check slurm --from saved --now SLURM", "slurm tick slurm --from saved --now SLURM"),
    "saved/partitions.txt": ("slurm tick slurm --from saved --now SLURM",),
    "saved/sacct.txt": ("slurm tick slurm --from saved --now SLURM", "slurm trial --from saved --days 2 --gpus 16"),
    "saved/qos.txt": ("slurm check slurm --from saved --now SLURM",),
    "slurm/slurm.json": ("slurm tick slurm --from saved --now SLURM", "slurm run slurm --turns 1"),
    "slurm/state.db": ("eta 1000 --state slurm/state.db", "slurm tick slurm --from saved --now SLURM"),
}  # fmt: skip
"""Which commands read what a Slurm and its site say."""

SERVED = {
    "cluster.json": ("noise", "empty", "endless device", "control codes"),
    "requests.csv": ("open quote", "huge number", "pipe"),
    "traffic.csv": ("year 9999", "bad zip"),
    "state.db": ("noise", "folder", "cut in a third"),
    "models": ("empty", "pipe"),
}
"""Which files of a site that is served have which faults."""

LATER_OPTIONS = (
    "slurm check nowhere --from saved", "slurm check slurm --from nowhere", "slurm check slurm --from /dev/zero",
    "slurm check slurm --from saved --now 1677-09-21T00:00:00Z", "slurm check slurm --now SLURM", "slurm check slurm",
    "slurm tick slurm --from saved --now tomorrow", "slurm tick /proc/x --from saved --now SLURM",
    "slurm tick slurm --from saved --now SLURM --state /dev/zero", "slurm tick saved/squeue.json --from saved",
    "slurm tick slurm --from saved --now SLURM --policy slurm/slurm.json", "slurm tick slurm",
    "slurm run slurm --every 1e300", "slurm run slurm --turns 0", "slurm run slurm --turns 1", "slurm run /dev/null",
    "slurm release-all nowhere", "slurm release-all slurm", "slurm release-all /dev/null",
    "slurm trial --from nowhere", "slurm trial --from saved --days 1e300", "slurm trial --from saved --gpus 1000000000",
    "slurm trial --from saved --gpu-type nosuch --out out.html", "slurm trial --from saved --days 2 --gpus 16 --out /",
    "slurm trial --from saved --days 2 --gpus 16 --learn-days 3650 --out out.html", "slurm trial --from /dev/zero",
    "slurm trial --from saved --days 2 --gpus 16 --timezone ../../etc/passwd --out out.html", "slurm trial",
    "eta", "eta 1000", "eta 1000 --gpus 4 --state slurm/state.db", "eta nobody --state slurm/state.db",
    "eta \x1b[2J --state slurm/state.db", "eta --gpus 1000000000 --state slurm/state.db",
    "eta --gpus 4 --time 1e300 --state slurm/state.db", "eta --gpus 4 --time -5 --state slurm/state.db",
    "eta --gpus 4 --time 99999999999-23:59:59 --state slurm/state.db", "eta --gpus 4 --time nan --state slurm/state.db",
    "eta --gpus 4 --nodes 3 --state slurm/state.db", "eta --gpus 4 --pool nosuch --state slurm/state.db",
    "eta 1000 --state /dev/zero", "eta 1000 --state saved/squeue.json", "eta 1000 --state postgresql://h:99999999/x",
    "eta 1000 --state nosuch://x", "eta 1000 --state slurm", "eta 1000 --state " + "x" * 5000,
    "serve nowhere", "serve /dev/zero", "serve site --host 256.1.1.1", "serve site --host 0.0.0.0 --port 0",
    "serve site --port 99999999", "serve site --port 0 --every 1e300", "serve site --port 0 --store /dev/zero",
    "serve site --port 0 --store nosuch://x", "serve site --port 0 --models /dev/null/x", "serve site --rate nan",
    "serve site --port 0 --timezone ../../etc/passwd", "serve site --port 0 --policy site/cluster.json",
    "serve site --log-level LOUD", "serve site --port 0 --name \x1b[2J", "serve site --port 0 --seed -1",
    "serve site --port 1", "token create \x1b[2J --store s.db", "token list --store /dev/zero",
    "token revoke ../../x --store s.db", "token create x --store site/cluster.json",
)  # fmt: skip
"""Command lines of a live Slurm, of its users and of the service, asked for as they stand."""

READS = {
    "cluster.json": ("plan site --out out", "tick site --state s.db --now NOW", "history check site", "forecast site"),
    "jobs.csv": ("plan site --out out", "replay site/jobs.csv --gpus 64 --days 1 --policy fifo", "history check site"),
    "traffic.csv": ("forecast site", "tick site --state s.db --now NOW", TRAFFIC),
    "requests.csv": ("plan site --out out", "predict site", "tick site --state s.db --now NOW"),
    "running.csv": ("plan site --out out", "tick site --state site/state.db --now LATER", "history check site"),
}  # fmt: skip
"""Which commands read a file."""


def cases() -> Iterator[Case]:
    """Yield the cases."""
    for file, commands in READS.items():
        for k, (name, change) in enumerate(FILES.items()):
            # each fault meets two of the commands that read the file
            for command in {commands[k % len(commands)], commands[(k + 1) % len(commands)]}:
                yield f"{file}: {name}", command.split(), lambda root, c=change, f=file: c(root / "site" / f)
    for name, change in JSONS.items():
        for file, command in (
            ("site/cluster.json", "plan site --out out"), ("problem.json", "solve problem.json"),
            ("problem.json", "check problem.json plan.json"), ("plan.json", "check problem.json plan.json"),
            ("plan.json", "explain problem.json plan.json"),
        ):  # fmt: skip
            yield f"{file}: {name}", command.split(), lambda root, c=change, f=file: c(root / f)
    for name in ("empty", "pipe", "noise", "cut in a third", "endless device", "folder"):
        for command in (
            "models verify site/models",
            "plan site --out out",
            "models show site/models realtime",
        ):
            for pick in (0, 1, -1):

                def tampered(root: Path, change: Change = FILES[name], pick: int = pick) -> None:
                    found = sorted(p for p in (root / "site" / "models").rglob("*") if p.is_file())
                    change(found[pick])

                yield f"model store: {name} ({pick})", command.split(), tampered
    for change_ in STATE:
        for command in (
            "tick site --state site/state.db --now LATER",
            "rolling history --state site/state.db",
        ):

            def changed(root: Path, text: str = change_) -> None:
                with sqlite3.connect(root / "site" / "state.db") as db:
                    db.execute(text)

            yield f"state: {change_}", command.split(), changed
    for line in (*OPTIONS, *LATER_OPTIONS):
        yield "options", line.split(" "), lambda root: None
    for k, (file, commands) in enumerate(SLURM_READS.items()):
        faults = {**FILES, **(JSONS if file.endswith(".json") else {})}
        for i, (name, change) in enumerate(faults.items()):
            if file.endswith(".db") and name in _CELLS:
                continue
            # a third of the faults for each file, all of them over the files
            if (i + k) % 3 == 0:
                line = commands[i // 3 % len(commands)]
                yield f"{file}: {name}", line.split(), lambda root, c=change, f=file: c(root / f)
    for file, names in SERVED.items():
        for name in names:

            def served(root: Path, change: Change = FILES[name], file: str = file) -> None:
                change(root / "site" / file)

            yield f"served {file}: {name}", ["serve", "site", "--port", "0", "--refit-hours", "0"], served


def _called(argv: list[str]) -> int:
    sys.argv = ["tidegrid", *argv]
    try:
        run(app, argv)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 1


def prepare(root: Path) -> None:
    """Make the site that each case gets a copy of: a store, a state, a problem and its plan beside it."""
    synthesise(1, days=14, gpus=16, users=6, queue=8).write(root / "site")
    os.chdir(root)
    _called(["train", "site", "--only", "realtime", "--only", "recurring", "--now", NOW])
    _called(f"tick site --state site/state.db --now {NOW} --refit-hours 0".split())
    _called(f"plan site --out . --no-report --now {NOW}".split())
    Made(20, 20, 0).write(root / "saved", 300)
    (root / "slurm").mkdir()
    (root / "slurm" / "slurm.json").write_text('{"mode": "start"}')
    _called(f"slurm tick slurm --from saved --now {_SLURM}".split())


def tree(root: Path) -> set[str]:
    """Return the files and folders below a folder."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def play(base: Path, argv: list[str], change: Callable[[Path], None], root: Path) -> str:
    """Run one case in a process of its own; return its outcome."""
    copy = root / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(base, copy, symlinks=True)
    change(copy)
    words = [{"NOW": NOW, "LATER": LATER, "SLURM": _SLURM}.get(word, word) for word in argv]
    before = tree(copy)
    out, err = root / "out.txt", root / "err.txt"
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
            resource.setrlimit(resource.RLIMIT_AS, (2 * MEMORY, 2 * MEMORY))
            os.chdir(copy)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for path, number in ((out, 1), (err, 2)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            code = _called(words)
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + WALL_SECONDS
    ask = time.monotonic() + SERVED_SECONDS if argv[0] == "serve" else end
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > ask:
            os.kill(child, signal.SIGTERM)
            ask = end
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.wait4(child, 0)
            return "hang"
        time.sleep(0.01)
    said = err.read_text(errors="replace")
    told = out.read_text(errors="replace") + said
    if os.WIFSIGNALED(status):
        return "hang" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "crash of the process"
    code = os.WEXITSTATUS(status)
    new = tree(copy) - before
    if "a fault of tidegrid's own" in told or "Traceback" in told or code not in (0, 1, 2):
        return "traceback"
    if usage.ru_maxrss * 1024 > MEMORY:
        return "memory"
    if any(".part" in name for name in new) or (code == 2 and new - {"s.db"}):
        return "half-written"
    if any(not (mark.isprintable() or mark in "\n\t") for mark in told):
        return "control code"
    one_line = said.count("\n") == 1 and said.startswith("error: ")
    if code == 2 and not one_line and argv[:2] != ["history", "check"]:
        return "not one line"
    return "right"


def main() -> None:
    """Run the cases and print the counts by outcome, and each that is not right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many minutes")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many cases at the beginning")
    parser.add_argument("--only", default="", help="only cases whose name or command holds this")
    wanted = parser.parse_args()
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "base").mkdir()
        with (root / "prepare.txt").open("w") as log, contextlib.redirect_stdout(log):
            prepare(root / "base")
        os.chdir(root)
        everything = list(cases())
        random.Random(0).shuffle(everything)
        end = time.monotonic() + 60 * wanted.minutes
        for name, argv, change in everything[wanted.skip :]:
            if time.monotonic() > end:
                break
            if wanted.only not in f"{name} {' '.join(argv)}":
                continue
            found = play(root / "base", argv, change, root)
            outcomes[found] += 1
            if found != "right":
                shown = " ".join(argv)[:100]
                last = (root / "err.txt").read_text(errors="replace").strip().split("\n")[-1][:200]
                print(f"{found}: {name}: {shown!r}: {last!r}", flush=True)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**10
    counts = dict(outcomes.most_common())
    played = f"{sum(outcomes.values())} of {len(everything)} cases from {wanted.skip} on"
    print(f"{played}: {counts}; largest process {peak:,.0f} MiB")


if __name__ == "__main__":
    main()
