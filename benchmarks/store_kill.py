"""Kill a process that trains, saves, promotes, rolls back and prunes, and look at what is left.

After each kill -9 the store has to load its champion, list no half version, verify without a problem, hold every
version and decision that the killed process had been told was done, and take the next writer without repair.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.data.synth import synthesise
from tidegrid.errors import InputError
from tidegrid.models import Bundle, Lineage, ModelStore, Retention
from tidegrid.pipeline.train import train

AT = "2026-03-02T00:00:00+00:00"


def write(root: Path, seed: int, told: Callable[..., None]) -> None:
    """Save, promote, roll back and prune made-up models for ever."""
    store, rng = ModelStore(root), np.random.default_rng(seed)
    while True:
        for name in ("training", "realtime"):
            n = int(rng.integers(1, 40_000))
            bundle = Bundle(
                name,
                {"seed": seed},
                {"level": float(rng.normal())},
                {"w": rng.normal(size=n)},
                {"model": "tree " * int(rng.integers(1, 20_000))},
            )
            version = store.save(bundle, created=AT, lineage=Lineage(rows=n))
            told("saved", name, version.id)
            if rng.random() < 0.7:
                store.promote(name, version.id, reason="benchmark", at=AT)
                told("champion", name, version.id)
            elif store.ancestors(name) and rng.random() < 0.5:
                told("champion", name, store.rollback(name, reason="benchmark", at=AT).id)
            if rng.random() < 0.3:
                store.prune(name, Retention(ancestors=2, challengers=2), at=AT)


def teach(root: Path, seed: int, told: Callable[..., None]) -> None:
    """Train the recurring-job estimator for ever, at one instant of the sample's history after another."""
    store, moments = ModelStore(root), random.Random(seed)
    while True:
        now = SAMPLE.now - pd.Timedelta(hours=moments.randrange(24 * 20))
        rule = Retention(ancestors=2, challengers=2)
        for done in train(SAMPLE.history, store, ["recurring"], now=now, retention=rule):
            if done.decision == "promoted":
                told("champion", done.name, done.version)


SAMPLE = synthesise(0, days=30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200, help="how many times to kill (default 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments and of the models")
    parser.add_argument("--longest", type=float, default=0.4, help="longest time before a kill, seconds")
    parser.add_argument("--both", action="store_true", help="two writers at once, both killed")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    if args.kills < 1 or args.longest <= 0:
        raise InputError("nothing to do", field="--kills, --longest", fix="give positive numbers")
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder) / "models", args.kills, args.seed, args.longest, 2 if args.both else 1)
    if args.json:
        print(json.dumps(found))
    else:
        print("| measure | count |\n| --- | --- |")
        for name, value in found.items():
            print(f"| {name} | {value} |")
    faults = sum(found[name] for name in FAULTS)
    sys.exit(1 if faults else 0)


FAULTS = ("champion did not load", "half version listed", "problem found by verify", "finished work lost")


def run(root: Path, kills: int, seed: int, longest: float, writers: int) -> dict[str, int]:
    moments = random.Random(seed)
    found = dict.fromkeys(
        ("kills", "saves told done", "promotions told done", "left a temporary folder", *FAULTS), 0
    )
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        train(SAMPLE.history, ModelStore(folder), ["recurring"], now=SAMPLE.now)
        lesson = time.monotonic() - begun
    for number in range(kills):
        work = teach if number % 4 == 3 else write
        started = [start(work, root, seed * 100_000 + number * 10 + writer) for writer in range(writers)]
        time.sleep(moments.uniform(0.0, 2.0 * lesson if work is teach else longest))
        for process, _ in started:
            os.kill(process, signal.SIGKILL)
        lines = []
        for process, heard in started:
            os.waitpid(process, 0)
            with os.fdopen(heard, encoding="utf-8") as text:
                lines.append(text.read().splitlines())
        found["kills"] += 1
        if root.is_dir():
            judge(root, lines, found)
    return found


def start(work: Callable[..., None], root: Path, seed: int) -> tuple[int, int]:
    """Fork a process that works and tells what is done; returns its id and where it is heard."""
    heard, mouth = os.pipe()
    process = os.fork()
    if process:
        os.close(mouth)
        return process, heard
    try:
        os.close(heard)
        work(root, seed, lambda *words: os.write(mouth, (" ".join(words) + "\n").encode()))
    except BaseException as error:
        os.write(2, f"a writer failed: {type(error).__name__}: {error}\n".encode())
    os._exit(3)


def judge(root: Path, told: list[list[str]], found: dict[str, int]) -> None:
    store = ModelStore(root)
    found["left a temporary folder"] += any(
        path.name.startswith((".part-", ".old-")) for path in root.iterdir()
    )
    for name in store.names():
        listed = store.list(name)
        found["half version listed"] += sum(bool(version.problem) for version in listed)
        for version in listed:
            try:
                store.load(name, version.id)
            except InputError as error:
                found["half version listed"] += 1
                print(f"{name} {version.id}: {error}", file=sys.stderr)
        if store.champion(name) is not None:
            try:
                store.load(name)
            except InputError as error:
                found["champion did not load"] += 1
                print(f"{name}: {error}", file=sys.stderr)
        log = store.log(name)
        saved = {entry.version for entry in log if entry.action == "save"}
        crowned = [entry.version for entry in log if entry.action in ("promote", "rollback")]
        pruned = {
            gone
            for entry in log
            if entry.action == "prune"
            for gone in entry.reason.split(": ")[1].split(", ")
        }
        there = {version.id for version in listed}
        for lines in told:
            for line in lines:
                word, *rest = line.split()
                if word == "saved" and rest[0] == name:
                    found["saves told done"] += 1
                    found["finished work lost"] += rest[1] not in saved or rest[1] not in there | pruned
                if word == "champion" and rest[0] == name:
                    found["promotions told done"] += 1
                    found["finished work lost"] += rest[1] not in crowned
        if crowned and len(told) == 1:
            # one writer: the champion is the last one told, or one decided on after that and before the kill
            last = [line.split()[2] for line in told[0] if line.startswith(f"champion {name} ")]
            now = store.champion(name)
            found["finished work lost"] += (
                bool(last) and now not in crowned[len(crowned) - 1 - crowned[::-1].index(last[-1]) :]
            )
    problems = store.verify()
    found["problem found by verify"] += len(problems)
    for problem in problems:
        print(problem, file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        print(f"store_kill: {error}", file=sys.stderr)
        sys.exit(2)
