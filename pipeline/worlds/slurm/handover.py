"""What a decision becomes in Slurm: told (advise), an order (rank), or starts on the intended nodes (start).

Jobs that tidegrid starts are not held for ever: the gate sets their begin time to an hour from now, and each turn
renews it. When tidegrid dies, the last renewal runs out and Slurm starts them by itself.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import sleep
from typing import Annotated, Any, Literal, Self

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidegrid.errors import InputError
from tidegrid.files import read_json, write_json
from tidegrid.pipeline.worlds.slurm.commands import Slurm
from tidegrid.pipeline.worlds.slurm.records import QueueJob

MARK = "tidegrid:gate"
"""How the admin comment of a job begins that the gate has put under tidegrid's control."""


class Handover(BaseModel):
    """How decisions are handed over: the file ``slurm.json`` of a site.

    Attributes
    ----------
    mode
        ``advise``: nothing is changed. ``rank``: Slurm places, tidegrid orders. ``start``: tidegrid starts the jobs
        that the gate has marked.
    dry_run
        Only log what would be run.
    partitions
        The partitions whose jobs are handed over; empty for all.
    write_eta
        Write the expected start into the admin comment of waiting jobs.
    hold_minutes
        How long a waiting job stays put after the last turn before Slurm may start it by itself.
    verify_seconds
        How long to wait before a start is verified.
    rank_most
        How many of the first jobs of the plan are ranked.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    mode: Literal["advise", "rank", "start"] = "advise"
    dry_run: bool = True
    partitions: list[str] = Field(default_factory=list)
    write_eta: bool = False
    hold_minutes: Annotated[int, Field(ge=5, le=1440)] = 60
    verify_seconds: Annotated[float, Field(ge=0, le=300)] = 5.0
    rank_most: Annotated[int, Field(ge=1, le=10_000)] = 100

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the file; the defaults where it is absent.

        Raises
        ------
        InputError
            A field is unknown, or out of range; it is named.
        """
        if not path.exists():
            return cls()
        try:
            return cls.model_validate(read_json(path))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or None
            raise InputError(
                f"is not right ({first['msg'].lower()})",
                file=path,
                field=place,
                fix=f"the fields are {', '.join(cls.model_fields)}",
            ) from None

    def covers(self, job: QueueJob) -> bool:
        """Whether a job is handed over: every partition that it may run in is named here."""
        return not self.partitions or set(job.partitions) <= set(self.partitions)


@dataclass
class Attempt:
    """A start that Slurm did not make: how often, why, and from when on it is tried again."""

    times: int = 0
    reason: str = ""
    not_before: str = ""


@dataclass
class Memory:
    """What has to outlive a restart: failed attempts by job, and the jobs whose order was changed."""

    attempts: dict[str, Attempt] = field(default_factory=dict)
    ranked: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what an earlier process wrote; empty where there is none."""
        if not path.exists():
            return cls()
        try:
            told = read_json(path)
            attempts = {str(job): Attempt(**entry) for job, entry in told["attempts"].items()}
            return cls(attempts, [str(job) for job in told["ranked"]])
        except (TypeError, KeyError, AttributeError):
            raise InputError("is not what tidegrid wrote", file=path, fix="delete it") from None

    def write(self, path: Path) -> None:
        """Write it, whole or not at all."""
        write_json(path, asdict(self))


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
    slurm: Slurm, jobs: Iterable[QueueJob], expected: Mapping[str, pd.Timestamp], rule: Handover
) -> int:
    """Write the expected start of waiting jobs into their admin comment where it has changed; return how many.

    Parameters
    ----------
    expected
        The expected start of each job, UTC.
    """
    if not rule.write_eta:
        return 0
    told = 0
    for job in jobs:
        at = expected.get(job.id)
        if at is None or not job.is_pending or not rule.covers(job):
            continue
        text = f"expected start {at.tz_convert('UTC'):%Y-%m-%dT%H:%MZ}"
        text = f"{MARK}; {text}" if is_gated(job) else text
        if job.admin_comment != text:
            slurm.update(job.id, AdminComment=text)
            told += 1
    return told


def rank(slurm: Slurm, jobs: Iterable[QueueJob], order: Sequence[str], rule: Handover, memory: Memory) -> int:
    """Put the first waiting jobs into the plan's order by lowering priorities with ``Nice``; return the changes.

    A job that stands where it should is left alone. Jobs that are held have no priority and are left out.
    """
    by_id = {job.id: job for job in jobs if job.is_pending and not job.held and rule.covers(job)}
    changes = 0
    above: int | None = None
    for name in [name for name in order if name in by_id][: rule.rank_most]:
        job = by_id[name]
        natural = job.priority + job.nice
        wanted = natural if above is None else min(natural, above - 1)
        if wanted != job.priority:
            slurm.update(name, Nice=str(natural - wanted))
            changes += 1
            if name not in memory.ranked:
                memory.ranked.append(name)
        above = wanted
    return changes


def renew(
    slurm: Slurm, jobs: Iterable[QueueJob], starting: Iterable[str], rule: Handover, now: pd.Timestamp
) -> int:
    """Keep the jobs that are to wait where they are for another while; return how many were renewed.

    Only jobs that the gate has marked, whose begin time lies nearer than half of the hold: a begin time that a user
    set further away stays.
    """
    soon = now + pd.Timedelta(minutes=rule.hold_minutes) / 2
    due = [
        job.id
        for job in jobs
        if is_gated(job) and rule.covers(job) and job.id not in set(starting)
        and (job.eligible is None or job.eligible < soon)
    ]  # fmt: skip
    if due:
        slurm.update(due, StartTime=f"now+{rule.hold_minutes}minutes")
    return len(due)


def is_gated(job: QueueJob) -> bool:
    """Whether the gate has put a waiting job under tidegrid's control; interactive jobs and het jobs never are."""
    return job.is_pending and job.batch and job.het_job is None and job.admin_comment.startswith(MARK)


def start(
    slurm: Slurm,
    starts: Sequence[Start],
    jobs: Mapping[str, QueueJob],
    rule: Handover,
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
        if job is None or not is_gated(job):
            out.append(Outcome(wanted.job, "gone", "it does not wait, or is not tidegrid's to start"))
            continue
        # the queue was read before the plan was made: a job that has started since must not be resized
        fresh = job if slurm.dry_run else slurm.job(wanted.job)
        if fresh is None or not fresh.is_pending:
            out.append(Outcome(wanted.job, "gone", "it no longer waits"))
            continue
        done = slurm.update(wanted.job, **_changes(fresh, wanted.nodes))
        if any(each.failed for each in done):
            out.append(_failed(wanted.job, done[0].said, memory, now, rule))
        else:
            begun.append(wanted)
    if slurm.dry_run:
        return out + [Outcome(each.job, "dry run") for each in begun]
    if begun:
        sleep(rule.verify_seconds)
    for each in begun:
        out.append(_verified(slurm, each, rule, memory, now))
    return out


def _changes(job: QueueJob, nodes: tuple[str, ...]) -> dict[str, str]:
    changes = {"StartTime": "now", "ReqNodeList": ",".join(nodes)}
    # ReqNodeList means "at least these nodes": GPUs asked for as a total would spread over more. Where they are asked
    # for by node, a number of nodes would change how many GPUs the job gets.
    if job.gpus_per_node is None and len(nodes) == 1:
        changes["NumNodes"] = "1-1"
    return changes


def _verified(slurm: Slurm, wanted: Start, rule: Handover, memory: Memory, now: pd.Timestamp) -> Outcome:
    job = slurm.job(wanted.job)
    if job is None or not job.is_pending:
        memory.attempts.pop(wanted.job, None)
        if job is not None and job.node_names and set(job.node_names) != set(wanted.nodes):
            return Outcome(
                wanted.job, "started", f"on {','.join(job.node_names)}, not on {','.join(wanted.nodes)}"
            )
        return Outcome(wanted.job, "started")
    slurm.update(wanted.job, ReqNodeList="", StartTime=f"now+{rule.hold_minutes}minutes")
    return _failed(wanted.job, job.reason, memory, now, rule)


def _failed(name: str, reason: str, memory: Memory, now: pd.Timestamp, rule: Handover) -> Outcome:
    attempt = memory.attempts.setdefault(name, Attempt())
    attempt.times += 1
    attempt.reason = reason
    minutes = min(rule.hold_minutes, 5 * 2 ** min(attempt.times - 1, 10))
    attempt.not_before = (now + pd.Timedelta(minutes=minutes)).isoformat()
    return Outcome(name, "not started", reason)


def release_all(slurm: Slurm, jobs: Iterable[QueueJob], memory: Memory) -> dict[str, int]:
    """Undo everything: every marked job may start at once and anywhere, and every changed order is taken back."""
    waiting = {job.id: job for job in jobs if job.is_pending}
    gated = [name for name, job in waiting.items() if is_gated(job)]
    for name in gated:
        # a list of nodes is changed job by job, and an array as a whole has none
        if waiting[name].required_nodes:
            slurm.update(name, ReqNodeList="")
    if gated:
        slurm.update(gated, StartTime="now", AdminComment="")
    ranked = [name for name in memory.ranked if name in waiting]
    if ranked:
        slurm.update(ranked, Nice="0")
    memory.ranked.clear()
    memory.attempts.clear()
    return {"released": len(gated), "ranks taken back": len(ranked)}


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
