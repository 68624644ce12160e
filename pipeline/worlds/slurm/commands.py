"""Slurm's own commands: run as lists of arguments, never through a shell; each that changes something is logged."""

import json
import math
import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import pandas as pd

from tidegrid.data.sacct import FIELDS
from tidegrid.errors import InputError, TidegridError
from tidegrid.files import regular_file
from tidegrid.pipeline.worlds.slurm.entities import QueueJob, Snapshot
from tidegrid.pipeline.worlds.slurm.read import jobs_of, limits_in, nodes_in, partitions_in, reservations_in

SEEN = {
    "squeue.json": ("squeue", "--json"),
    "nodes.txt": ("scontrol", "show", "node", "-o"),
    "partitions.txt": ("scontrol", "show", "partition", "-o"),
    "reservations.txt": ("scontrol", "show", "reservation", "-o"),
    "qos.txt": (
        "sacctmgr", "-P", "show", "qos", "format=Name,GrpTRES,MaxTRESPU,MaxTRESPA,GrpJobs,MaxJobsPU,MaxJobsPA",
    ),
    "associations.txt": (
        "sacctmgr", "-P", "show", "associations", "format=Account,ParentName,User,GrpTRES,GrpJobs,MaxJobs",
    ),
}  # fmt: skip
"""The commands that tell the state of a cluster, each under the name of the file that may stand in for it."""

SACCT = ("sacct", "-a", "-D", "-X", "-P", f"--format={FIELDS}")
"""The command that tells what has run; its times are seconds since 1970, whatever the zone."""

CONFIG = ("scontrol", "show", "config")
"""The command that tells how Slurm is configured."""

MOST_JOBS = 200
"""Jobs that one command names: a command line has a limited length, and a failure names fewer."""


class SlurmError(TidegridError):
    """A command of Slurm failed; its own words are told."""


@dataclass(frozen=True)
class Done:
    """A command that was run, or would have been: its arguments, exit code (None in a dry run) and what it said."""

    words: tuple[str, ...]
    code: int | None
    said: str

    @property
    def failed(self) -> bool:
        """Whether it was run and failed."""
        return bool(self.code)


class Runner(Protocol):
    """Runs a command: arguments in, exit code, standard output and standard error out."""

    def __call__(self, words: Sequence[str], timeout: float) -> tuple[int, str, str]:
        """Run it."""
        ...


def run_here(words: Sequence[str], timeout: float) -> tuple[int, str, str]:
    """Run a command on this machine, with times in UTC and in Slurm's usual form."""
    environment = {
        k: v for k, v in os.environ.items() if not k.startswith(("SQUEUE_", "SACCT_", "SINFO_", "SLURM_TIME"))
    }
    try:
        done = subprocess.run(
            list(words),
            env=environment | {"TZ": "UTC", "LC_ALL": "C.UTF-8"},
            capture_output=True,
            timeout=timeout,
        )
    except FileNotFoundError:
        raise InputError(
            "is not on this machine", field=words[0], fix="run tidegrid where Slurm's commands are installed"
        ) from None
    except subprocess.TimeoutExpired:
        return 124, "", f"no answer in {timeout:g} s"
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


class Saved:
    """Runs nothing: answers the commands of ``SEEN`` from files of these names.

    Parameters
    ----------
    folder
        Where they lie, with ``config.txt`` and ``sacct.txt`` beside them; these and those of ``sacctmgr`` may be
        absent.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, words: Sequence[str], timeout: float) -> tuple[int, str, str]:
        """Answer from a file."""
        name = next((name for name, command in SEEN.items() if command == tuple(words)), None)
        if "sacct" in words[:3]:
            name = "sacct.txt"
        path = self.folder / (name or "config.txt")
        if (name is None and tuple(words) != CONFIG) or (name in (None, "sacct.txt") and not path.exists()):
            return 1, "", "it is not among the saved output"
        if words[0] == "sacctmgr" and not path.exists():
            return 0, "", ""
        try:
            return 0, regular_file(path).read_text(encoding="utf-8", errors="replace"), ""
        except OSError as error:
            raise InputError(
                f"cannot be read ({error.strerror})",
                file=path,
                fix=f"write it: {' '.join(words)} > {name}",
            ) from None


class Slurm:
    """Slurm, through its commands.

    Parameters
    ----------
    log
        Where every command that changes something is written with its outcome, a line of JSON each; None for nowhere.
    dry_run
        Log what would be run, and run nothing that changes anything.
    run
        How commands are run.
    timeout
        Seconds that a command may take.

    Attributes
    ----------
    failures
        What Slurm said of each change that it refused.
    """

    def __init__(
        self, log: Path | None = None, *, dry_run: bool = True, run: Runner = run_here, timeout: float = 60.0
    ) -> None:
        self.log, self.dry_run, self.run, self.timeout = log, dry_run, run, timeout
        self.failures: list[str] = []

    def read(self, *words: str) -> str:
        """Return what a command that only reads prints.

        Raises
        ------
        SlurmError
            It failed.
        """
        code, out, said = self.run(words, self.timeout)
        if code:
            raise SlurmError(f"{' '.join(words)}: {_line(said or out) or f'exit code {code}'}")
        return out

    def snapshot(self) -> Snapshot:
        """Read the whole cluster: the queue first, so that a job that ends meanwhile is not taken for lost.

        Raises
        ------
        SlurmError
            A command failed. Limits are an exception: a cluster without accounting has none, and that is told.
        """
        jobs, problems = jobs_of(self.read(*SEEN["squeue.json"]))
        try:
            limits, notes = self._understood(limits_in, "qos.txt", "associations.txt")
        except SlurmError as error:
            limits, notes = [], [f"no limits of QOS and accounts are known: {error}"]
        return Snapshot(
            at=pd.Timestamp.now(tz="UTC").floor("s"),
            nodes=tuple(self._understood(nodes_in, "nodes.txt")),
            partitions=tuple(self._understood(partitions_in, "partitions.txt")),
            reservations=tuple(self._understood(reservations_in, "reservations.txt")),
            jobs=tuple(jobs),
            limits=tuple(limits),
            problems=(*problems, *notes),
        )

    def _understood(self, reader: Callable[..., Any], *names: str) -> Any:
        """Read what commands print; that they print something else is an error that names them."""
        texts = [self.read(*SEEN[name]) for name in names]
        try:
            return reader(*texts)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            said = " and ".join(" ".join(SEEN[name]) for name in names)
            raise SlurmError(
                f"{said}: what it prints cannot be read ({type(error).__name__}: {_line(str(error))})"
            ) from None

    def accounting(self, since: pd.Timestamp) -> str:
        """Return what ``sacct`` tells of all attempts that were in the queue or ran since an instant."""
        window = f"now-{max(1, math.ceil((pd.Timestamp.now(tz='UTC') - since).total_seconds() / 60))}minutes"
        return self.read("env", "SLURM_TIME_FORMAT=%s", *SACCT, "-S", window)

    def job(self, identifier: str) -> QueueJob | None:
        """Return one job as it is now; None where it is no longer in the queue."""
        code, out, _ = self.run(("squeue", "--json", f"--jobs={identifier}"), self.timeout)
        if code:
            return None  # an id that is gone is an error of squeue's
        return next((job for job in jobs_of(out)[0] if job.stands_for(identifier)), None)

    def update(self, jobs: str | Sequence[str], **changes: str) -> list[Done]:
        """Change jobs with ``scontrol update``; many jobs take the same change in few commands."""
        listed = [jobs] if isinstance(jobs, str) else list(jobs)
        words = [f"{name}={value}" for name, value in changes.items()]
        return [
            self.change("scontrol", "update", f"JobId={','.join(listed[at : at + MOST_JOBS])}", *words)
            for at in range(0, len(listed), MOST_JOBS)
        ]

    def change(self, *words: str) -> Done:
        """Run a command that changes something, or only log it in a dry run."""
        if any("\0" in word or "\n" in word for word in words):
            raise SlurmError(f"{words[0]}: an argument holds a control character")
        if self.dry_run:
            done = Done(tuple(words), None, "dry run")
        else:
            code, out, said = self.run(words, self.timeout)
            done = Done(tuple(words), code, _line(said or out))
            if done.failed:
                self.failures.append(done.said)
        if self.log is not None:
            entry = {
                "at": datetime.now(UTC).isoformat(timespec="seconds"), "command": list(done.words),
                "code": done.code, "said": done.said,
            }  # fmt: skip
            with self.log.open("a", encoding="utf-8") as handle:
                handle.write(json.dumps(entry, ensure_ascii=False) + "\n")
        return done


def _line(text: str) -> str:
    return " ".join(text.split())[:500]
