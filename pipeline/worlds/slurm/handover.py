"""What a decision becomes in Slurm: told (advise), an order (rank), or starts on the intended nodes (start).

Jobs that tidegrid starts are not held for ever: the gate sets their begin time to an hour from now, and each turn
renews it. When tidegrid dies, the last renewal runs out and Slurm starts them by itself.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import monotonic, sleep
from typing import Annotated, Any, Literal, Self

import pandas as pd
from pydantic import AfterValidator, TypeAdapter, ValidationError

from tidegrid.data import as_instant
from tidegrid.errors import InputError
from tidegrid.files import read_json, write_json
from tidegrid.pipeline.worlds.slurm.commands import Slurm, SlurmError
from tidegrid.pipeline.worlds.slurm.entities import MARK, QueueJob
from tidegrid.pipeline.worlds.slurm.site import SlurmSite
from tidegrid.validation import first_error

PATIENCE_S = 30.0
"""How long a turn waits beyond ``verify_seconds`` for Slurm to look at the jobs that are to start."""

_NOT_LOOKED_AT = frozenset({"", "None", "BeginTime"})
"""Reasons of a job that the scheduler has not come to since it was told to start."""


_REPAIR = "mend it, or delete it; what it names is then no longer taken back"
"""What can be done about a memory that cannot be read."""


def _instant_or_none(text: str) -> str:
    if text:
        as_instant(text, field="not_before")
    return text


@dataclass
class Attempt:
    """A start that Slurm did not make: how often, why, and from when on it is tried again."""

    times: int = 0
    reason: str = ""
    not_before: Annotated[str, AfterValidator(_instant_or_none)] = ""


@dataclass
class Memory:
    """What has to outlive a restart, kept in a file that is written before Slurm is changed.

    Attributes
    ----------
    path
        The file; None for none.
    attempts
        Starts that Slurm did not make, by job.
    ranked
        The jobs whose order was changed, and the ``Nice`` that each had before.
    pinned
        The jobs that were told to start on some nodes and are not known to run, and the list of nodes that each
        asked for itself.
    """

    path: Path | None = None
    attempts: dict[str, Attempt] = field(default_factory=dict)
    ranked: dict[str, int] = field(default_factory=dict)
    pinned: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what an earlier process wrote; empty where there is none.

        Raises
        ------
        InputError
            It is not what was written; the field is named.
        """
        if not path.exists():
            return cls(path)
        try:
            told = TypeAdapter(cls).validate_python(read_json(path))
        except ValidationError as error:
            found = first_error(error)
            raise InputError(found.problem, file=path, field=found.field, fix=_REPAIR) from None
        return replace(told, path=path)

    def save(self) -> None:
        """Write it atomically."""
        if self.path is not None:
            told = asdict(self)
            del told["path"]
            write_json(self.path, told)

    def forget(self, waiting: Iterable[str]) -> None:
        """Drop the jobs that no longer wait."""
        known = set(waiting)
        for jobs in (self.attempts, self.ranked, self.pinned):
            for job in set(jobs) - known:
                del jobs[job]


@dataclass(frozen=True)
class Start:
    """A start that the plan wants: the job as Slurm's commands take it, and the nodes it is to lie on."""

    job: str
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """What became of one start."""

    job: str
    state: Literal["started", "not started", "gone", "backing off", "dry run"]
    reason: str = ""


def advise(
    slurm: Slurm, jobs: Iterable[QueueJob], expected: Mapping[str, pd.Timestamp], rule: SlurmSite
) -> int:
    """Write the expected start of waiting jobs into their admin comment where it has changed; return how many.

    Parameters
    ----------
    expected
        The expected start of each job or task of an array, UTC.
    """
    if not rule.write_eta:
        return 0
    told = 0
    for job in jobs:
        at = min((expected[name] for name in job.ids if name in expected), default=None)
        if at is None or not job.is_pending or not rule.covers(job):
            continue
        text = f"expected start {at.tz_convert('UTC'):%Y-%m-%dT%H:%MZ}"
        text = f"{MARK}; {text}" if job.gated else text
        if job.admin_comment != text:
            if any(done.failed for done in slurm.update(job.id, AdminComment=text)):
                break  # what one job is refused, all are: only an administrator may write it
            told += 1
    return told


def rank(
    slurm: Slurm, jobs: Iterable[QueueJob], order: Sequence[str], rule: SlurmSite, memory: Memory
) -> int:
    """Put the first waiting jobs into the plan's order by lowering priorities with ``Nice``; return the changes.

    A job that stands where it should is left alone, and none is raised above what Slurm and its user give it. Jobs
    that are held have no priority and are left out; an array is ranked as a whole.
    """
    record = {
        name: job for job in jobs if job.is_pending and not job.held and rule.covers(job) for name in job.ids
    }
    first = dict.fromkeys(record[name].id for name in order if name in record)
    by_id = {job.id: job for job in record.values()}
    changes: dict[str, int] = {}
    above: int | None = None
    for name in list(first)[: rule.rank_most]:
        job = by_id[name]
        own = memory.ranked.get(name, job.nice)
        natural = job.priority + job.nice - own
        wanted = natural if above is None else min(natural, above - 1)
        if wanted < 1:
            break  # Slurm knows no lower priority
        if wanted != job.priority:
            changes[name] = own + natural - wanted
            memory.ranked.setdefault(name, own)
        above = wanted
    if changes and not slurm.dry_run:
        memory.save()
    done = [slurm.update(name, Nice=str(nice)) for name, nice in changes.items()]
    return sum(not any(each.failed for each in one) for one in done)


def renew(
    slurm: Slurm, jobs: Iterable[QueueJob], starting: Iterable[str], rule: SlurmSite, now: pd.Timestamp
) -> int:
    """Keep the jobs that are to wait where they are for another while; return how many were renewed.

    Only jobs that the gate has marked, whose begin time lies nearer than half of the hold: a begin time that a user
    set further away stays.
    """
    soon, leaving = now + pd.Timedelta(minutes=rule.hold_minutes) / 2, set(starting)
    due = [
        job.id
        for job in jobs
        if job.gated and rule.covers(job) and job.id not in leaving
        and (job.eligible is None or job.eligible < soon)
    ]  # fmt: skip
    if due:
        slurm.update(due, StartTime=f"now+{rule.hold_minutes}minutes")
    return len(due)


def start(
    slurm: Slurm,
    starts: Sequence[Start],
    jobs: Mapping[str, QueueJob],
    rule: SlurmSite,
    memory: Memory,
    now: pd.Timestamp,
) -> list[Outcome]:
    """Start jobs on the intended nodes, and verify each; one that Slurm does not start waits again, ever longer.

    Parameters
    ----------
    jobs
        The queue, by the id that Slurm's commands take.
    """
    out: list[Outcome] = []
    begun: list[Start] = []
    for wanted in starts:
        attempt = memory.attempts.get(wanted.job)
        if attempt is not None and attempt.not_before and now < pd.Timestamp(attempt.not_before):
            out.append(Outcome(wanted.job, "backing off", attempt.reason))
            continue
        job = jobs.get(wanted.job)
        if job is None or not job.gated:
            out.append(Outcome(wanted.job, "gone", "it does not wait, or is not tidegrid's to start"))
            continue
        # the queue was read before the plan was made: a job that has started since must not be resized
        fresh = job if slurm.dry_run else slurm.job(wanted.job)
        if fresh is None or not fresh.is_pending:
            out.append(Outcome(wanted.job, "gone", "it no longer waits"))
            continue
        if not slurm.dry_run:
            memory.pinned.setdefault(wanted.job, ",".join(fresh.required_nodes))
            memory.save()
        done = slurm.update(wanted.job, **_changes(fresh, wanted.nodes))
        if any(each.failed for each in done):
            out.append(_taken_back(slurm, wanted.job, done[0].said, memory, now, rule))
        else:
            begun.append(wanted)
    if slurm.dry_run:
        return out + [Outcome(each.job, "dry run") for each in begun]
    if begun:
        _let_slurm_look(slurm, begun, rule)
    out += [_verified(slurm, each, rule, memory, now) for each in begun]
    if out:
        memory.save()
    return out


def recover(
    slurm: Slurm, jobs: Mapping[str, QueueJob], rule: SlurmSite, memory: Memory, now: pd.Timestamp
) -> list[Outcome]:
    """Take starts back that an earlier process asked for and did not see through, for it was ended."""
    memory.forget(jobs)
    out = []
    for name in list(memory.pinned):
        fresh = slurm.job(name)
        if fresh is not None and fresh.is_pending:
            out.append(_taken_back(slurm, name, fresh.reason, memory, now, rule))
        else:
            del memory.pinned[name]
    if out:
        memory.save()
    return out


def _changes(job: QueueJob, nodes: tuple[str, ...]) -> dict[str, str]:
    changes = {"StartTime": "now", "ReqNodeList": ",".join(nodes)}
    # ReqNodeList means "at least these nodes": GPUs asked for as a total would spread over more. Where they are asked
    # for by node, a number of nodes would change how many GPUs the job gets.
    if job.gpus_per_node is None and len(nodes) == 1:
        changes["NumNodes"] = "1-1"
    return changes


def _let_slurm_look(slurm: Slurm, begun: Sequence[Start], rule: SlurmSite) -> None:
    """Wait until Slurm has looked at the jobs that are to start: a busy one takes its time."""
    sleep(rule.verify_seconds)
    end = monotonic() + PATIENCE_S
    for each in begun:
        while monotonic() < end:
            job = slurm.job(each.job)
            if job is None or not job.is_pending or job.reason not in _NOT_LOOKED_AT:
                break
            sleep(1.0)


def _verified(slurm: Slurm, wanted: Start, rule: SlurmSite, memory: Memory, now: pd.Timestamp) -> Outcome:
    job = slurm.job(wanted.job)
    if job is not None and job.is_pending:
        return _taken_back(slurm, wanted.job, job.reason, memory, now, rule)
    memory.attempts.pop(wanted.job, None)
    memory.pinned.pop(wanted.job, None)
    if job is not None and job.node_names and set(job.node_names) != set(wanted.nodes):
        return Outcome(
            wanted.job, "started", f"on {','.join(job.node_names)}, not on {','.join(wanted.nodes)}"
        )
    return Outcome(wanted.job, "started")


def _taken_back(
    slurm: Slurm, name: str, reason: str, memory: Memory, now: pd.Timestamp, rule: SlurmSite
) -> Outcome:
    """Let a job wait again, where it asked to run, for twice as long at each attempt."""
    slurm.update(name, ReqNodeList=memory.pinned.get(name, ""), StartTime=f"now+{rule.hold_minutes}minutes")
    memory.pinned.pop(name, None)
    attempt = memory.attempts.setdefault(name, Attempt())
    attempt.times += 1
    attempt.reason = reason
    minutes = min(rule.hold_minutes, 2 ** min(attempt.times - 1, 10))
    attempt.not_before = (now + pd.Timedelta(minutes=minutes)).isoformat()
    return Outcome(name, "not started", reason)


def release_all(slurm: Slurm, jobs: Iterable[QueueJob], memory: Memory) -> dict[str, int]:
    """Undo everything: every marked job may start at once and where it asked to, and changed orders are taken back.

    Raises
    ------
    SlurmError
        Slurm refused a change; what is left to undo is still known.
    """
    waiting = {name: job for job in jobs if job.is_pending for name in {job.id, *job.ids}}
    memory.forget(waiting)
    failed: list[str] = []

    def undo(names: str | Sequence[str], **changes: str) -> bool:
        bad = [done.said for done in slurm.update(names, **changes) if done.failed]
        failed.extend(bad)
        return not bad

    for name, nodes in list(memory.pinned.items()):
        if undo(name, ReqNodeList=nodes) and not slurm.dry_run:
            del memory.pinned[name]
    gated = sorted({job.id for job in waiting.values() if job.gated})
    marked = 0
    if gated:
        undo(gated, StartTime="now")
        # an operator may start jobs, but only an administrator may write admin comments
        unmarked = slurm.update(gated, AdminComment="")
        marked = len(gated) if any(done.failed for done in unmarked) else 0
    ranked = list(memory.ranked)
    for name, nice in list(memory.ranked.items()):
        if undo(name, Nice=str(nice)) and not slurm.dry_run:
            del memory.ranked[name]
    if not slurm.dry_run:
        memory.attempts.clear()
        memory.save()
    if failed:
        raise SlurmError(f"{len(failed)} changes failed, the first: {failed[0]}")
    told = {"released": len(gated), "ranks taken back": len(ranked)}
    return told | ({"marks left, which only an administrator may remove": marked} if marked else {})


def log_lines(path: Path) -> list[dict[str, Any]]:
    """Return the log of commands; a last line that a kill cut short is left out."""
    if not path.exists():
        return []
    out = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        try:
            out.append(json.loads(line))
        except ValueError:
            continue
    return out
