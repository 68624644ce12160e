"""``tick`` and ``rolling``: plan again and again, commit step 0 each time, and show how accurate they were."""

import json
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegrid.app.common import (
    DONE,
    MOST_DAYS,
    REFUSED,
    JsonFlag,
    ModeOption,
    PolicyOption,
    SeedOption,
    TimeLimitOption,
    TimezoneOption,
    check_mode,
    count,
    fetch_traffic,
    print_json,
    progress,
    say,
    say_synthetic,
    table,
    tell,
)
from tidegrid.zones import zone_of

if TYPE_CHECKING:
    from tidegrid.pipeline.rolling import StateStore

State = Annotated[
    str,
    typer.Option("--state", "-s", help="The state: a SQLite file, created if absent, or a database URL."),
]
Kept = Annotated[
    str,
    typer.Option("--state", "-s", help="The state that ticks have written: a SQLite file or a database URL."),
]

EXAMPLE = """
Example: `tidegrid tick my-site --state my-site/state.db --now 2026-03-02T08:00:00Z` commits what starts at eight,
prints it, and writes my-site/commit.json.
"""

rolling = typer.Typer(
    name="rolling",
    help="Show what the rolling horizon has committed, and how accurate its expected times were.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("tick", epilog=EXAMPLE)(tick)
    app.add_typer(rolling, epilog="Example: `tidegrid rolling show --state my-site/state.db`")


def tick(
    site: Annotated[
        Path, typer.Argument(help="The site's folder: cluster.json, jobs, traffic, requests, running.")
    ],
    state: State,
    now: Annotated[str, typer.Option("--now", help="The instant from which to plan, with its zone.")],
    store: Annotated[
        Path | None, typer.Option("--store", help="Model store; default: SITE/models, trained where absent.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The commit's file; default: SITE/commit.json.")
    ] = None,
    mode: ModeOption = "fast",
    time_limit: TimeLimitOption = None,
    policy: PolicyOption = None,
    refit_hours: Annotated[
        float,
        typer.Option(
            "--refit-hours",
            min=0,
            max=24.0 * MOST_DAYS,
            help="Hours between refits that challenge the champions; 0 for never.",
        ),
    ] = 168.0,
    timezone: TimezoneOption = None,
    seed: SeedOption = 0,
    json_: JsonFlag = False,
) -> None:
    """Learn what happened at a site, plan again, and commit what starts now; the same tick twice commits once."""
    from tidegrid.data import as_instant
    from tidegrid.files import check_folder, check_outputs
    from tidegrid.models import ModelStore
    from tidegrid.pipeline.control import Settings
    from tidegrid.pipeline.control import tick as run_tick
    from tidegrid.pipeline.policy import Policy
    from tidegrid.pipeline.rolling import StateStore
    from tidegrid.pipeline.site import Site
    from tidegrid.pipeline.worlds.files import Files

    check_mode(mode, time_limit)
    as_instant(now, field="now")
    if not site.is_dir():
        Site.read(site)  # it is refused by name before a state is made
    check_outputs(out)
    fetch_traffic(site, now)
    settings = Settings(
        policy=Policy.read(policy) if policy else Policy(),
        mode=mode,
        time_limit=time_limit,
        seed=seed,
        refit_hours=refit_hours or None,
    )
    opened = StateStore(state)
    before = opened.last()
    with progress("ticking", quiet=json_) as step:
        models = check_folder(store or site / "models")
        commit = run_tick(
            opened,
            Files(site, timezone, out or site / "commit.json"),
            now,
            settings,
            models=ModelStore(models),
            step=step,
        )
    document = commit.document
    if before is not None and commit.tick <= before.tick:
        # on standard error: the same tick twice prints the same
        said = f"tick {commit.tick} was already committed for these files and this instant"
        print(f"tidegrid: {said}; nothing was planned anew", file=sys.stderr)
    if json_:
        print_json(document)
    else:
        print_commit(document)
    raise typer.Exit(REFUSED if document["refused"] or document.get("set_aside") else DONE)


@rolling.command("show", epilog="Example: `tidegrid rolling show --state my-site/state.db`")
def show(state: Kept, json_: JsonFlag = False) -> None:
    """Show the last commit, the accuracy of expected times so far, and the realtime demand left unmet."""
    from dataclasses import asdict

    from tidegrid.pipeline.rolling import accuracy

    opened = _open(state)
    last, found = opened.last(), accuracy(opened)
    if json_:
        print_json({"last": None if last is None else last.document, "accuracy": asdict(found)})
        return
    if last is None:
        say("nothing is committed yet: tidegrid tick SITE --state FILE --now INSTANT")
        return
    print_commit(last.document)
    rows = [
        ["jobs that ended", str(found.ended)],
        ["of them", ", ".join(f"{n} {status}" for status, n in found.statuses.items()) or "–"],
        ["completed jobs with an expected end", str(found.scored)],
        ["ended inside the 80 % band", _percent(found.covered)],
        ["ended within 10 minutes of the median", _percent(found.within_10)],
        ["ended within 30 minutes of the median", _percent(found.within_30)],
        ["the same, jobs under 4 h", _percent(found.short_within_30)],
        ["started inside the 80 % band", _percent(found.start_covered)],
        [
            "traffic inside its 80 % band, an hour ahead",
            f"{_percent(found.hours_covered)} of {found.hours} h",
        ],
        ["realtime unmet", f"{found.unmet:,.1f} of {found.needed:,.1f} GPU-hours"],
    ]
    table("So far", ["measure", "figure"], rows)


@rolling.command("history", epilog="Example: `tidegrid rolling history --state my-site/state.db --last 24`")
def history(
    state: Kept,
    last: Annotated[
        int, typer.Option("--last", "-n", min=1, max=1_000_000, help="How many ticks to show.")
    ] = 24,
    events: Annotated[bool, typer.Option("--events", help="Show unexpected events instead.")] = False,
    json_: JsonFlag = False,
) -> None:
    """List past ticks, or unexpected events."""
    opened = _open(state)
    documents = [commit.document for commit in opened.commits(last)]
    if events:
        since = documents[0]["now"] if documents else ""
        found = [(now, one) for now, one in opened.events() if now >= since]
        if json_:
            print_json(
                {
                    "events": [
                        {"now": n, "kind": e.kind, "subject": e.subject, "text": e.text} for n, e in found
                    ]
                }
            )
            return
        zone = documents[-1].get("timezone", "UTC") if documents else "UTC"
        rows = [[_local(n, zone), e.kind, _local(e.text, zone)] for n, e in found]
        table(f"times in {zone}", ["tick at", "kind", "what"], rows, left=3)
        return
    if json_:
        print_json({"ticks": documents})
        return
    zone = documents[-1].get("timezone", "UTC") if documents else "UTC"
    rows = [
        [
            str(d["tick"]), _local(d["now"], zone), str(len(d["start"])), str(d["running"]), str(len(d["waiting"])),
            ", ".join(f"{a['app']} {len(a['gpus'])}" for a in d["apps"]), str(len(d["events"])),
            d["plan_sha256"][:12],
        ]
        for d in documents
    ]  # fmt: skip
    table(
        f"times in {zone}",
        ["tick", "now", "started", "ran", "waiting", "GPUs of apps", "events", "plan"],
        rows,
        left=2,
    )


def _open(state: str) -> "StateStore":
    from tidegrid.pipeline.rolling import StateStore

    return StateStore.existing(state)


def print_commit(document: dict[str, Any]) -> None:
    """Print a commit for people."""
    if document["synthetic"]:
        say_synthetic()
    zone = document.get("timezone", "UTC")
    say(
        f"tick {document['tick']} at {_local(document['now'], zone)} (times in {zone}): "
        f"{count(len(document['start']), 'job starts', 'jobs start')}, "
        f"{document['running']} run, {len(document['waiting'])} wait"
    )
    rows = [
        [
            s["job"],
            f"{s['pool']} {_block(s)}",
            *(_local(s["end"][level], zone) for level in ("q0.5", "q0.9")),
        ]
        for s in document["start"]
    ]
    if rows:
        table("", ["start now", "GPUs", "ends about", "nine in ten by"], rows, left=2)
    for move in document["apps"]:
        change = "".join(f", {word} {_indices(move[word])}" for word in ("enter", "leave") if move[word])
        say(f"{move['app']}: {count(len(move['gpus']), 'GPU')} of {move['pool']}{change}")
    for event in document["events"]:
        say(f"{event['kind']}: {_local(event['text'], zone)}")
    for one in document["refused"]:
        say(f"refused: {one['job']}: {one['reason']}")
    risks = document["risks"]
    for risk in risks[:5]:
        say(f"coverage risk: {risk}")
    if len(risks) > 5:
        say(f"coverage risk: and {len(risks) - 5} more; --json lists all")
    for risk in document.get("deadlines", []):
        say(f"deadline at risk: {risk}")
    tell(_local(note, zone) for note in document["notes"])


_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?\+00:00")


def _local(text: str, zone: str) -> str:
    """Return a text with its UTC instants as the zone's wall clock shows them, to the minute."""

    def shown(found: re.Match[str]) -> str:
        return f"{datetime.fromisoformat(found[0]).astimezone(zone_of(zone)):%a %Y-%m-%d %H:%M}"

    return _INSTANT.sub(shown, text)


def _block(start: dict[str, Any]) -> str:
    if "held" in start:
        return str(start["held"])
    if "gpu_ids" in start:
        from tidegrid.data.nodelist import as_indices

        return as_indices(start["gpu_ids"])
    first, gpus = start["first_gpu"], start["gpus"]
    return str(first) if gpus == 1 else f"{first}–{first + gpus - 1}"


def _indices(gpus: list[int]) -> str:
    return json.dumps(gpus)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f} %"
