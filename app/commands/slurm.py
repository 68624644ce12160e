"""``slurm``: look at a live Slurm, plan it turn by turn, hand over by the site's rule, and take everything back."""

import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegrid.app.common import (
    DONE,
    MOST_GPUS,
    REFUSED,
    JsonFlag,
    PolicyOption,
    SeedOption,
    TraceZoneOption,
    count,
    print_json,
    progress,
    say,
    set_aside_json,
    table,
    tell,
    tell_set_aside,
)

if TYPE_CHECKING:
    import pandas as pd

    from tidegrid.pipeline.control import Settings
    from tidegrid.pipeline.rolling import Commit, StateStore
    from tidegrid.pipeline.worlds.slurm.commands import Slurm
    from tidegrid.pipeline.worlds.slurm.facts import Facts
    from tidegrid.pipeline.worlds.slurm.needs import Need
    from tidegrid.pipeline.worlds.slurm.site import SlurmSite
    from tidegrid.pipeline.worlds.slurm.world import SlurmWorld

MOST_SHOWN = 12
"""The reasons and notes that ``check`` prints."""

slurm = typer.Typer(
    name="slurm",
    help="Plan a live Slurm: look first, then advise, rank or start; everything can be taken back.",
    no_args_is_help=True,
)

Site = Annotated[
    Path, typer.Argument(help="The site's folder: slurm.json, and what tidegrid keeps; may be empty.")
]
From = Annotated[
    Path | None,
    typer.Option("--from", help="Read saved output from this folder instead of asking Slurm; dry run."),
]
State = Annotated[
    str | None,
    typer.Option("--state", "-s", help="The state: a file or a database's URL; default SITE/state.db."),
]
Now = Annotated[
    str | None,
    typer.Option("--now", help="With --from, the instant of the saved output; default: its file's."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(slurm, epilog="Example: `tidegrid slurm check` on a machine that has squeue")


@slurm.command("check", epilog="Example: `tidegrid slurm check my-site`, or `--from saved-output`")
def check(
    site: Annotated[
        Path | None, typer.Argument(help="The site's folder; the defaults of slurm.json without one.")
    ] = None,
    from_: From = None,
    now: Now = None,
    json_: JsonFlag = False,
) -> None:
    """Tell what tidegrid sees of a Slurm, what it cannot plan by, and what each way of handing over would need."""
    from dataclasses import asdict

    from tidegrid.pipeline.worlds.slurm.facts import facts_of
    from tidegrid.pipeline.worlds.slurm.needs import needs_of
    from tidegrid.pipeline.worlds.slurm.site import FILE, SlurmSite

    how = SlurmSite.read(site / FILE) if site else SlurmSite()
    asked = _slurm(from_, None, dry_run=True)
    with progress("reading Slurm", quiet=json_):
        snapshot = asked.snapshot()
        at = _instant(from_, now)
        facts = facts_of(snapshot, how, at)
        needed = needs_of(asked, snapshot, facts, how)
    if json_:
        told = {
            "mode": how.mode,
            "dry_run": how.dry_run,
            "cluster": facts.cluster.to_dict(),
            "waiting": len(facts.requests),
            "running": len(facts.running),
            "not_planned": dict(facts.waits),
            "needs": [asdict(one) for one in needed],
            "notes": list(facts.notes),
        }
        print_json(told | set_aside_json(facts.set_aside))
    else:
        _print_check(how, at, facts, needed)
        tell_set_aside(facts.set_aside)
    raise typer.Exit(REFUSED if facts.set_aside else DONE)


@slurm.command("tick", epilog="Example: `tidegrid slurm tick my-site`")
def tick(
    site: Site,
    state: State = None,
    policy: PolicyOption = None,
    from_: From = None,
    now: Now = None,
    seed: SeedOption = 0,
    json_: JsonFlag = False,
) -> None:
    """Read a Slurm, plan it, commit the plan, and hand it over as slurm.json says: one turn."""
    opened, how = _opened(site, state), _settings(site, policy, seed)
    with _alone(site), progress("reading Slurm", quiet=json_) as step:
        world, commit = _turn(site, opened, how, from_, now, step)
    done = world.done
    if json_:
        handed = {
            "mode": world.site.mode,
            "dry_run": world.slurm.dry_run,
            "changes": done.changes,
            "starts": [vars(one) for one in done.starts],
        }
        print_json(commit.document | {"handed_over": handed})
    else:
        from tidegrid.app.commands.rolling import print_commit

        print_commit(commit.document)
        for line in _said(world):
            say(line)
    raise typer.Exit(REFUSED if commit.document.get("set_aside") else DONE)


@slurm.command(
    "run", epilog="Example: `tidegrid slurm run my-site --every 60`; end it with Ctrl-C or SIGTERM"
)
def run(
    site: Site,
    every: Annotated[
        float, typer.Option("--every", min=1.0, max=3600.0, help="Seconds from turn to turn.")
    ] = 60.0,
    turns: Annotated[
        int | None, typer.Option("--turns", min=1, max=10**9, help="Stop after so many turns.")
    ] = None,
    state: State = None,
    policy: PolicyOption = None,
    seed: SeedOption = 0,
) -> None:
    """Turn after turn until it is ended; a turn that fails is told, and the next one goes on."""
    from tidegrid.errors import InputError, TidegridError

    opened, how = _opened(site, state), _settings(site, policy, seed)
    number, ended = 0, _ended_by_signal()
    with _alone(site):
        while not ended():
            number += 1
            began = time.monotonic()
            try:
                world, commit = _turn(site, opened, how)
                document = commit.document
                head = f"turn {document['tick']} at {document['now']}: {count(document['running'], 'job')} running, "
                _log(head + f"{len(document['waiting'])} waiting; {'; '.join(_said(world))}")
            except TidegridError as error:
                if number == 1 and isinstance(error, InputError):
                    raise
                _log(f"this turn failed: {error}")
            if turns is not None and number >= turns:
                break
            while not ended() and time.monotonic() - began < every:
                time.sleep(min(0.5, max(0.01, every - (time.monotonic() - began))))


@slurm.command("release-all", epilog="Example: `tidegrid slurm release-all my-site`")
def release_all(
    site: Site,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only log what would be run.")] = False,
    json_: JsonFlag = False,
) -> None:
    """Take everything back: jobs that the gate holds may start at once, nodes and orders are as users asked."""
    from tidegrid.errors import InputError
    from tidegrid.pipeline.worlds.slurm.commands import SEEN
    from tidegrid.pipeline.worlds.slurm.handover import Memory
    from tidegrid.pipeline.worlds.slurm.handover import release_all as release
    from tidegrid.pipeline.worlds.slurm.read import jobs_of
    from tidegrid.pipeline.worlds.slurm.world import LOG, MEMORY

    if not site.is_dir():
        raise InputError("is no folder", file=site, fix="name the site whose jobs are to be given back")
    asked = _slurm(None, site / LOG, dry_run=dry_run)
    with _alone(site):
        jobs, _ = jobs_of(asked.read(*SEEN["squeue.json"]))
        done = release(asked, jobs, Memory.read(site / MEMORY))
    if json_:
        print_json(done | {"dry_run": dry_run})
    else:
        say(
            ", ".join(f"{what}: {number}" for what, number in done.items())
            + (" (dry run)" if dry_run else "")
        )


@slurm.command(
    "trial", epilog="Example: `tidegrid slurm trial --days 14 --out trial.html` on a machine that has sacct"
)
def trial(
    days: Annotated[float, typer.Option("--days", min=0.5, max=366.0, help="The last days to play.")] = 14.0,
    out: Annotated[Path, typer.Option("--out", "-o", help="The report to write.")] = Path("trial.html"),
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="Read sacct.txt, and nodes.txt if it is there, from this folder."),
    ] = None,
    gpu_type: Annotated[
        str | None, typer.Option("--gpu-type", help="The GPU type to play; default: all that jobs ran on.")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", min=1, max=MOST_GPUS, help="GPUs of that type; default: those of its nodes."),
    ] = None,
    learn_days: Annotated[
        int, typer.Option("--learn-days", min=0, max=3650, help="Days of accounting before, to learn from.")
    ] = 30,
    timezone: TraceZoneOption = "UTC",
    json_: JsonFlag = False,
) -> None:
    """Play the last days from accounting alone: what the site ran beside what tidegrid would have run."""
    import pandas as pd

    from tidegrid.app.replay_report import write_replays_report
    from tidegrid.errors import InputError
    from tidegrid.files import check_outputs
    from tidegrid.pipeline.replay.recorded import recorded
    from tidegrid.pipeline.replay.recorded import trial as play
    from tidegrid.pipeline.worlds.slurm.commands import SEEN, SlurmError
    from tidegrid.pipeline.worlds.slurm.read import nodes_in
    from tidegrid.pipeline.worlds.slurm.world import attempts_of

    check_outputs(out)
    asked, notes, aside = _slurm(from_, None, dry_run=True), list[str](), list[InputError]()
    with progress("reading accounting", quiet=json_) as step:
        now = pd.Timestamp.now(tz="UTC").floor("s")
        jobs = attempts_of(asked.accounting(now - pd.Timedelta(days=days + learn_days)), notes, aside)
        jobs = jobs[jobs["start_time"].notna()]
        if jobs.empty:
            raise InputError("no job of it held a GPU and started", field="sacct", fix="give more days")
        if from_ is not None:
            now = max(jobs["known_at"].max(), jobs["start_time"].max()).ceil("min")
        try:
            nodes = [node for node in nodes_in(asked.read(*SEEN["nodes.txt"])) if node.gpus]
        except (SlurmError, InputError):
            nodes = []
        since = now - pd.Timedelta(days=days)
        recent = jobs[(jobs["known_at"] > since) | (jobs["status"] == "running")]
        used = (recent["gpus"] * recent["duration_s"].fillna(0)).groupby(recent["gpu_type"]).sum()
        kinds = [str(kind) for kind in used.sort_index().sort_values(ascending=False, kind="stable").index]
        if gpu_type is not None and gpu_type not in kinds:
            known = ", ".join(kinds)
            raise InputError(f"no job ran on {gpu_type!r}", field="--gpu-type", fix=f"use one of {known}")
        if gpus is not None and gpu_type is None and len(kinds) > 1:
            raise InputError("there are several GPU types", field="--gpus", fix="add --gpu-type")
        replays = {}
        for kind in kinds if gpu_type is None else [gpu_type]:
            name = kind or "GPUs of no type"
            step(f"playing {days:g} days of {name}")
            sizes = [node.gpus[kind] for node in nodes if kind in node.gpus]
            cut = recorded(
                jobs[jobs["gpu_type"] == kind],
                now,
                days,
                gpus=gpus or sum(sizes) or None,
                node_size=max(sizes, default=8),
                placement="node",
                timezone=timezone,
            )
            if not (gpus or sizes):
                notes.append(
                    f"{name}: {cut.trace.gpus} GPUs, the most that were in use at once; --gpus says otherwise"
                )
            elif len(set(sizes)) > 1:
                notes.append(f"{name}: its nodes are unlike; played as nodes of {max(sizes)}")
            replays[name] = (cut.trace, play(cut))
        notes.append("The site: when each job really started. All jobs have one priority.")
        notes.append("Every policy begins with what ran and waited at the site when the days began.")
        notes.append("Each GPU type is played by itself: a job keeps to the type that it ran on.")
        notes.append("rolling is tidegrid, easy_limits a backfill queue.")
        step(f"drawing {out}")
        title = f"Trial: the last {days:g} days of {', '.join(replays)}"
        write_replays_report(replays, out, title=title, notes=notes)
    if json_:
        told = [
            {
                "gpu_type": name,
                "gpus": trace.gpus,
                "policies": {r.policy: dict(r.figures) for r in results},
            }
            for name, (trace, results) in replays.items()
        ]
        print_json({"report": str(out), "gpu_types": told, "notes": notes} | set_aside_json(aside))
    else:
        rows = [
            [
                name, r.policy, f"{r.figures['completed']:,} of {r.figures['jobs']:,}",
                f"{100 * r.figures['utilization']:.1f} %", f"{r.figures['value']:,.0f}",
                f"{r.figures['wait_h']['mean']:.2f}", f"{r.figures['wait_h']['p95']:.2f}",
                _share(r.figures["eta_submit"]["coverage_80"]), _share(r.figures["eta_submit"]["within_30_min"]),
            ]
            for name, (_, results) in replays.items()
            for r in results
        ]  # fmt: skip
        columns = [
            "GPUs",
            "",
            "ended",
            "utilization",
            "value",
            "mean wait, h",
            "95th wait, h",
            "ends in 80 % band",
            "within 30 min",
        ]
        table(title, columns, rows)
        tell(notes)
        say(f"report: {out}")
        tell_set_aside(aside)
    raise typer.Exit(REFUSED if aside else DONE)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def _slurm(from_: Path | None, log: Path | None, *, dry_run: bool) -> "Slurm":
    from tidegrid.pipeline.worlds.slurm.commands import Saved, Slurm, run_here

    return Slurm(log, dry_run=dry_run or from_ is not None, run=Saved(from_) if from_ else run_here)


def _instant(from_: Path | None, now: str | None) -> "pd.Timestamp":
    import pandas as pd

    from tidegrid.data import as_instant
    from tidegrid.errors import InputError

    if now is not None and from_ is None:
        raise InputError("a live Slurm is read as of now", field="--now", fix="leave it out, or add --from")
    if now is not None:
        return as_instant(now, field="now")
    if from_ is not None and (from_ / "squeue.json").exists():
        return pd.Timestamp((from_ / "squeue.json").stat().st_mtime, unit="s", tz="UTC").floor("s")
    return pd.Timestamp.now(tz="UTC").floor("s")


def _opened(site: Path, state: str | None) -> "StateStore":
    from tidegrid.files import make_folder
    from tidegrid.pipeline.rolling import StateStore
    from tidegrid.pipeline.worlds.slurm.site import FILE, SlurmSite

    SlurmSite.read(site / FILE)  # it is refused by name before a state is made
    return StateStore(state or make_folder(site) / "state.db")


def _settings(site: Path, policy: Path | None, seed: int) -> "Settings":
    from tidegrid.pipeline.control import Settings
    from tidegrid.pipeline.policy import Policy
    from tidegrid.pipeline.worlds.slurm.site import FILE, SlurmSite

    path = policy or site / "policy.json"
    rule = SlurmSite.read(site / FILE)
    return Settings(
        policy=Policy.read(path) if policy or path.exists() else Policy(),
        seed=seed,
        candidates=rule.planned_jobs,
    )


@contextmanager
def _alone(site: Path) -> Iterator[None]:
    """Let one process at a time hand over."""
    from tidegrid.files import make_folder
    from tidegrid.models.durable import locked

    with locked(make_folder(site / "lock"), 5.0):
        yield


def _turn(
    site: Path,
    state: "StateStore",
    how: "Settings",
    from_: Path | None = None,
    now: str | None = None,
    step: Any = lambda text: None,
) -> "tuple[SlurmWorld, Commit]":
    import pandas as pd

    from tidegrid.files import make_folder
    from tidegrid.models import ModelStore
    from tidegrid.pipeline.control import tick as run_tick
    from tidegrid.pipeline.fetched import bring_up_to_date
    from tidegrid.pipeline.worlds.slurm.site import FILE, SlurmSite
    from tidegrid.pipeline.worlds.slurm.world import LOG, SlurmWorld

    rule = SlurmSite.read(site / FILE)
    world = SlurmWorld(site, _slurm(from_, site / LOG, dry_run=rule.dry_run))
    models, moment = ModelStore(make_folder(site / "models")), _instant(from_, now)
    for note in bring_up_to_date(site, rule.traffic, pd.Timestamp(moment)):
        step(note)
    return world, run_tick(state, world, moment, how, models=models, step=step)


def _said(world: "SlurmWorld") -> list[str]:
    """Return what came of handing over, a line each."""
    dry = " (dry run)" if world.slurm.dry_run else ""
    changed = [f"{number} {what}" for what, number in world.done.changes.items() if number]
    lines = [f"{world.site.mode}{dry}: {', '.join(changed) or 'nothing to change'}"]
    for state, number in Counter(one.state for one in world.done.starts).items():
        told = [f"{one.job} {one.reason}" for one in world.done.starts if one.state == state and one.reason]
        lines.append(f"{number} {state}" + (f": {'; '.join(told[:5])}" if told else ""))
    if refused := world.slurm.failures:
        lines.append(f"Slurm refused {count(len(refused), 'change')}: {refused[0]}")
    return lines


def _ended_by_signal() -> Any:
    """Return a function that says whether the process was asked to end; a turn under way is seen through."""
    asked: list[int] = []
    for one in (signal.SIGTERM, signal.SIGINT):
        signal.signal(one, lambda number, frame: asked.append(number))
    return lambda: bool(asked)


def _log(text: str) -> None:
    from tidegrid.errors import printable

    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def _print_check(how: "SlurmSite", at: "pd.Timestamp", facts: "Facts", needed: "list[Need]") -> None:
    from tidegrid.data import gpu_ids

    held: Counter[str] = Counter()
    for pool, ids in zip(facts.running["pool"], gpu_ids(facts.running), strict=True):
        held[str(pool)] += len(ids)
    shut: dict[str, set[int]] = {pool.id: set(pool.down) for pool in facts.cluster.pools}
    for window in facts.cluster.maintenance:
        if (window.start is None or window.start <= at) and (window.end is None or window.end > at):
            for name, gpus in facts.cluster.closed_gpus(window).items():
                shut[name].update(gpus)
    rows = [
        [
            pool.id, pool.gpu_type, str(len(pool.nodes)), str(pool.gpus), str(held[pool.id]),
            str(len(shut[pool.id])),
        ]
        for pool in facts.cluster.pools
    ]  # fmt: skip
    table("GPUs", ["pool", "type", "nodes", "GPUs", "in use", "closed"], rows, left=2)
    say(
        f"{count(len(facts.running), 'GPU job')} running; {len(facts.requests)} of "
        f"{count(len(facts.requests) + len(facts.waits), 'waiting GPU job')} can be planned"
    )
    reasons = Counter(facts.waits.values()).most_common(MOST_SHOWN)
    if reasons:
        table("Not planned", ["reason", "jobs"], [[why, str(number)] for why, number in reasons])
    if facts.notes:
        say("What a plan does not know, or takes another way:", style="bold")
        tell(facts.notes[:MOST_SHOWN])
        if len(facts.notes) > MOST_SHOWN:
            say(f"and {len(facts.notes) - MOST_SHOWN} more; --json lists all")
    words = {True: "yes", False: "no", None: "not known"}
    lines = [[one.what, one.ways, words[one.met], "" if one.met else one.fix] for one in needed]
    table("Needs", ["what", "for", "there", "otherwise"], lines, left=4)
    say(
        f"slurm.json: mode {how.mode}, {'dry run: nothing is changed' if how.dry_run else 'changes are made'}"
    )
