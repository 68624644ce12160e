"""What each way of handing over needs of a Slurm, and whether it is there."""

import getpass
from dataclasses import dataclass

from tidegrid.pipeline.worlds.slurm.commands import CONFIG, Slurm, SlurmError
from tidegrid.pipeline.worlds.slurm.entities import Snapshot
from tidegrid.pipeline.worlds.slurm.facts import Facts
from tidegrid.pipeline.worlds.slurm.site import SlurmSite


@dataclass(frozen=True)
class Need:
    """Something that is needed: for what, whether it is there (None where that is not known), and how to get it."""

    what: str
    ways: str
    met: bool | None
    fix: str


def needs_of(slurm: Slurm, snapshot: Snapshot, facts: Facts, site: SlurmSite) -> list[Need]:
    """Return what the three ways need."""
    config, user = _config(slurm), getpass.getuser()
    level = _read(slurm, "sacctmgr", "-n", "-P", "show", "user", user, "format=AdminLevel")
    operator = level.strip() in ("Operator", "Administrator") or user == "root" if level is not None else None
    administrator = level.strip() == "Administrator" or user == "root" if level is not None else None
    tres = config.get("AccountingStorageTRES", "")
    sacct = config.get("AccountingStorageType", "")
    flags = config.get("AccountingStoreFlags", "")
    multifactor = config.get("PriorityType")
    gate = config.get("JobSubmitPlugins")
    marked = sum(job.gated for job in snapshot.jobs)
    return [
        Need(
            "accounting by slurmdbd", "all", _known(config, "slurmdbd" in sacct),
            "AccountingStorageType=accounting_storage/slurmdbd: durations are learnt from what has run",
        ),
        Need(
            "GPUs in accounting, by type", "all", _known(config, "gres/gpu:" in tres),
            "AccountingStorageTRES=gres/gpu,gres/gpu:TYPE for each type",
        ),
        Need(
            "comments of jobs in accounting", "all", _known(config, "comment" in flags),
            "AccountingStoreFlags=job_comment: features in comments then reach the estimators; docs/slurm.md says how",
        ),
        Need(
            "an operator's account", "rank, start", operator,
            f"sacctmgr add user {user} account=root adminlevel=Operator; modify user … set … where it is known already",
        ),
        Need(
            "an administrator's account", "write_eta", administrator,
            f"sacctmgr modify user {user} set adminlevel=Administrator: no operator may write admin comments",
        ),
        Need(
            "multifactor priorities", "rank", _known(config, multifactor == "priority/multifactor"),
            "PriorityType=priority/multifactor: with priority/basic, Nice does not reorder jobs that wait already",
        ),
        Need(
            "the gate", "start", _known(config, "lua" in (gate or "")) or bool(marked),
            "JobSubmitPlugins=lua, and job_submit.lua of tidegrid beside slurm.conf",
        ),
        Need(
            "partitions that are there", "rank, start",
            set(site.partitions) <= {one.name for one in snapshot.partitions},
            "name partitions of scontrol show partition in slurm.json",
        ),
        Need(
            "jobs that can be planned", "all", len(facts.requests) > 0 or not facts.waits, "see above why they are not",
        ),
    ]  # fmt: skip


def _known(config: dict[str, str], met: bool) -> bool | None:
    return met if config else None


def _config(slurm: Slurm) -> dict[str, str]:
    text = _read(slurm, *CONFIG)
    pairs = (line.partition("=") for line in (text or "").splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def _read(slurm: Slurm, *words: str) -> str | None:
    try:
        return slurm.read(*words)
    except SlurmError:
        return None
