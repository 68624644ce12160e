"""``eta``: when a job starts and ends, why it waits, and what would start sooner; answered from the store."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegrid.app.common import DONE, MOST_DAYS, MOST_GPUS, REFUSED, JsonFlag, print_json, say

if TYPE_CHECKING:
    from tidegrid.pipeline.outlook import Band, Outlook, Told

MOST_TASKS = 8
"""The tasks of an array that are shown."""

EXAMPLE = "Example: `tidegrid eta 4711`, or `tidegrid eta --gpus 4 --time 4:00:00` before submitting"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("eta", epilog=EXAMPLE)(eta)


def eta(
    job: Annotated[str | None, typer.Argument(help="The job's id; an array's for all of its tasks.")] = None,
    state: Annotated[
        str,
        typer.Option(
            "--state", "-s", envvar="TIDEGRID_STATE", help="The state that turns leave: a file or a URL."
        ),
    ] = "state.db",
    gpus: Annotated[
        int | None, typer.Option("--gpus", min=1, max=MOST_GPUS, help="GPUs of a job not yet submitted.")
    ] = None,
    limit: Annotated[
        str, typer.Option("--time", help="Its time limit, as sbatch takes it: 4:00:00, 1-12, 90.")
    ] = "1:00:00",
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, max=MOST_GPUS, help="On how many nodes, evenly.")
    ] = None,
    pool: Annotated[str | None, typer.Option("--pool", help="Its pool or GPU type; default any.")] = None,
    json_: JsonFlag = False,
) -> None:
    """Tell when a job starts and ends, with bands, why it waits, and what would start sooner."""
    from tidegrid.errors import InputError
    from tidegrid.pipeline.outlook import Outlook, kept_in

    if (job is None) == (gpus is None):
        raise InputError("one of both is asked for", field="JOB, --gpus", fix="give a job, or GPUs")
    hours = hours_of(limit)
    outlook = Outlook(kept_in(state))
    known = [str(one["id"]) for one in outlook.problem.get("pools", ())]
    if pool is not None and pool not in known:
        raise InputError(f"there is no pool {pool!r}", field="--pool", fix=f"use one of {', '.join(known)}")
    found = outlook.told(job) if job is not None else [outlook.offered(gpus or 1, hours, nodes, pool)]
    if json_:
        print_json({"jobs": [_values(one) for one in found]})
    else:
        for one in found[:MOST_TASKS]:
            _print(one, outlook)
        if len(found) > MOST_TASKS:
            say(f"and {len(found) - MOST_TASKS} more tasks; --json lists all")
    raise typer.Exit(REFUSED if any(one.state == "unknown" for one in found) else DONE)


def hours_of(limit: str) -> float:
    """Return a time limit as Slurm writes it, in hours: minutes, ``h:mm:ss``, ``d-hh``, ``d-hh:mm:ss``."""
    from tidegrid.errors import InputError

    days, dash, rest = limit.strip().rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        scale = {(False, 1): (60,), (False, 2): (60, 1), (False, 3): (3600, 60, 1), (True, 1): (3600,)}
        scale |= {(True, 2): (3600, 60), (True, 3): (3600, 60, 1)}
        seconds = sum(n * unit for n, unit in zip(parts, scale[bool(dash), len(parts)], strict=True))
        seconds += 86400 * int(days or 0)
    except (ValueError, KeyError):
        seconds = 0
    if not 0 < seconds <= MOST_DAYS * 86400:
        raise InputError(f"{limit!r} is no time limit", field="--time", fix="write it as 4:00:00 or 1-12")
    return seconds / 3600


def _print(one: "Told", outlook: "Outlook") -> None:
    at = outlook.local
    head = "" if one.state == "not submitted" else f": {one.state}"
    say(f"{head}, as of {at(one.as_of)} {one.zone}", lead=one.job)
    words = {"running": ("started", "ends"), "ended": ("started", "ended")}
    first, last = words.get(one.state, ("starts", "ends"))
    if one.start is not None:
        say(f"  {first} {_band(one.start, outlook)}")
    if one.end is not None:
        say(f"  {last} {_band(one.end, outlook)}")
    if one.by is not None:
        say(f"  ends by {at(one.by)} at the latest, at its time limit")
    if one.reason:
        say(f"  {one.reason}")
    for note in one.notes:
        say(f"  {note}", style="dim")
    if one.sooner:
        say("  would start sooner:")
        wide = max(len(way.what) for way in one.sooner)
        for way in one.sooner:
            say(f"    {way.what:{wide}}  {at(way.start)}")


def _band(band: "Band", outlook: "Outlook") -> str:
    low, mid, high = map(outlook.local, band)
    return mid if low == high else f"about {mid}; eight in ten: {low} to {high}"


def _values(one: "Told") -> dict[str, Any]:
    from tidegrid.pipeline.outlook import LEVELS

    def band(values: "Band | None") -> dict[str, str] | None:
        return None if values is None else {q: at.isoformat() for q, at in zip(LEVELS, values, strict=True)}

    sooner = [{"what": way.what, "start": way.start.isoformat()} for way in one.sooner]
    return {
        "job": one.job, "state": one.state, "as_of": one.as_of.isoformat(), "start": band(one.start),
        "end": band(one.end), "reason": one.reason, "sooner": sooner, "notes": list(one.notes),
        "by": None if one.by is None else one.by.isoformat(),
    }  # fmt: skip
