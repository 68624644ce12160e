"""A live Slurm as a world: its commands are read, and decisions are handed over as the site's file says."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from tidegrid.data import JOBS, History, read_jobs, read_traffic, write_table
from tidegrid.data.merge import merge_jobs
from tidegrid.data.readers import read_table
from tidegrid.data.schema import validate
from tidegrid.errors import InputError
from tidegrid.pipeline.fetched import KEPT, with_fetched
from tidegrid.pipeline.rolling.store import Commit
from tidegrid.pipeline.state import State
from tidegrid.pipeline.worlds import Reading, news_since
from tidegrid.pipeline.worlds.slurm.commands import SEEN, Slurm, SlurmError
from tidegrid.pipeline.worlds.slurm.entities import QueueJob
from tidegrid.pipeline.worlds.slurm.facts import Facts, facts_of
from tidegrid.pipeline.worlds.slurm.handover import (
    Memory,
    Outcome,
    Start,
    advise,
    rank,
    recover,
    renew,
    start,
)
from tidegrid.pipeline.worlds.slurm.read import jobs_of
from tidegrid.pipeline.worlds.slurm.site import FILE, SlurmSite

HISTORY, TRAFFIC, MEMORY, LOG = "jobs.parquet", "traffic.csv", "slurm-memory.json", "slurm-commands.jsonl"
"""Files of the site's folder beside ``slurm.json``: accounting, traffic of apps, what is handed over, commands."""

OVERLAP = pd.Timedelta(hours=1)
"""How far a reading of accounting goes back behind the newest row that is known: slurmdbd may be late."""


@dataclass
class Done:
    """What came of handing a decision over.

    Attributes
    ----------
    starts
        What became of each start.
    changes
        How many jobs were told their expected start, ranked, or kept waiting.
    """

    starts: list[Outcome] = field(default_factory=list)
    changes: dict[str, int] = field(default_factory=dict)


class SlurmWorld:
    """A Slurm cluster.

    Parameters
    ----------
    folder
        The site's folder: ``slurm.json``, and what tidegrid keeps.
    slurm
        Its commands.

    Attributes
    ----------
    facts
        What was read last.
    done
        What came of the last commit.
    """

    def __init__(self, folder: Path, slurm: Slurm) -> None:
        self.folder, self.slurm = folder, slurm
        self.name = f"the files of {folder}"
        self.site = SlurmSite.read(folder / FILE)
        self.facts: Facts | None = None
        self.done = Done()
        self._queue: tuple[QueueJob, ...] | None = None

    def version(self) -> str:
        """Return the SHA-256 of the files that a person writes; what Slurm says changes at any moment."""
        total = hashlib.sha256()
        for name in (FILE, TRAFFIC, KEPT):
            path = self.folder / name
            content = path.read_bytes() if path.exists() else b""
            total.update(f"{name} {len(content)}\n".encode() + content)
        return total.hexdigest()

    def read(self, now: pd.Timestamp, since: pd.Timestamp | None = None) -> Reading:
        """Return what Slurm says, and what its accounting knows."""
        snapshot = self.slurm.snapshot()
        self._queue = snapshot.jobs
        facts = self.facts = facts_of(snapshot, self.site, now)
        notes: list[str] = []
        aside: list[InputError] = []
        history = self._history(now, notes, aside)
        if facts.waits:
            notes.append(f"{len(facts.waits)} waiting jobs cannot be planned; tidegrid slurm check tells why")
        state = State.of(facts.cluster, facts.requests, facts.running, now, known_until=now)
        return Reading(
            state,
            history if since is None else news_since(history, since),
            lambda: history,
            (*facts.set_aside, *aside),
            (*facts.notes, *notes),
            facts.waits,
        )

    def apply(self, commit: Commit) -> None:
        """Hand a commit over: tell, rank or start, as the site's file says."""
        document, rule, now = commit.document, self.site, pd.Timestamp(commit.now)
        queue = self._queue or jobs_of(self.slurm.read(*SEEN["squeue.json"]))[0]
        self._queue, self.done = None, Done()
        expected = {
            one["job"]: pd.Timestamp(one["start"]["q0.5"]) for one in document["waiting"] if one["start"]
        }
        expected |= {one["job"]: now for one in document["start"]}
        by_name = {name: job for job in queue for name in job.ids}
        memory = Memory.read(self.folder / MEMORY)
        changes = self.done.changes
        changes["told"] = advise(self.slurm, queue, expected, rule)
        if rule.mode == "rank":
            changes["ranked"] = rank(self.slurm, queue, _order(expected, by_name), rule, memory)
        if rule.mode == "start":
            if not self.slurm.dry_run:
                self.done.starts += recover(self.slurm, by_name, rule, memory, now)
            starts = [
                Start(one["job"], tuple(one["nodes"]))
                for one in document["start"]
                if one["job"] in by_name and by_name[one["job"]].gated and rule.covers(by_name[one["job"]])
            ]
            changes["kept waiting"] = renew(self.slurm, queue, [one.job for one in starts], rule, now)
            self.done.starts += start(self.slurm, starts, by_name, rule, memory, now)

    def _history(self, now: pd.Timestamp, notes: list[str], aside: list[InputError]) -> History:
        """Return job history: what is kept, with what accounting tells since."""
        path = self.folder / HISTORY
        kept = read_table(path, JOBS) if path.exists() else validate(pd.DataFrame(columns=_REQUIRED), JOBS)
        oldest = now - pd.Timedelta(days=self.site.history_days)
        since = max(oldest, kept["known_at"].max() - OVERLAP) if len(kept) else oldest
        try:
            jobs = attempts_of(self.slurm.accounting(since), notes, aside)
        except SlurmError as error:
            notes.append(f"accounting tells nothing new: {error}")
        else:
            kept = merge_jobs(kept, jobs)
            write_table(kept, path)
        traffic = self.folder / TRAFFIC
        hours = (
            read_traffic(traffic, timezone=self.site.timezone, notes=notes, set_aside=aside)
            if traffic.exists()
            else None
        )
        hours = with_fetched(hours, self.folder, self.site.traffic, now, notes)
        return History(kept, hours, checked=True).as_of(now)


_REQUIRED = [column.name for column in JOBS.columns if column.required] + ["duration_s"]


def attempts_of(text: str, notes: list[str], aside: list[InputError]) -> pd.DataFrame:
    """Return the attempts of jobs that the text of ``sacct`` tells of; rows that cannot be read are set aside."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "sacct.txt"
        path.write_text(text, encoding="utf-8")
        return read_jobs(path, format="sacct", notes=notes, set_aside=aside)


def _order(expected: dict[str, pd.Timestamp], jobs: dict[str, QueueJob]) -> list[str]:
    """Return jobs in the order of their expected start; of those that start together, Slurm's first goes first."""
    known = [name for name in expected if name in jobs]
    return sorted(known, key=lambda name: (expected[name], -jobs[name].priority - jobs[name].nice, name))
