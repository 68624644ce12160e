"""``history day``: a site made of public traces, to run the main job on real input."""

from pathlib import Path
from typing import Annotated

import typer

from tidegrid.app.commands.history import history
from tidegrid.app.common import (
    DONE,
    MOST_GPUS,
    REFUSED,
    GpusOption,
    JsonFlag,
    NodeSizeOption,
    SeedOption,
    ShareOption,
    TraceFile,
    TraceZoneOption,
    print_json,
    progress,
    say,
    set_aside_json,
    tell,
    tell_set_aside,
)

EXAMPLE = (
    "Example: `tidegrid history day trace.csv.gz 2020-06-10 --traffic traffic.csv.gz --gpus 64 --out my-day`, "
    "then `tidegrid plan my-day`"
)


def register(app: typer.Typer) -> None:
    """Add the command to ``history``."""
    history.command("day", epilog=EXAMPLE)(day)


def day(
    trace: TraceFile,
    date: Annotated[str, typer.Argument(help="The local date whose submissions are the queue: 2020-06-10.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The site's folder to write.")],
    traffic: Annotated[
        Path | None, typer.Option("--traffic", help="Hourly traffic; its last 24 h are kept back.")
    ] = None,
    series: Annotated[
        list[str] | None,
        typer.Option("--series", help="A traffic series to use, one app each; default: the longest."),
    ] = None,
    gpus: GpusOption = 64,
    node_size: NodeSizeOption = 8,
    share: ShareOption = 0.25,
    swap_cap: Annotated[
        int, typer.Option("--swap-cap", min=0, max=MOST_GPUS, help="GPUs an app may swap in a step.")
    ] = 4,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, max=1_000_000, help="The most requests to take.")
    ] = None,
    timezone: TraceZoneOption = "UTC",
    force: Annotated[
        bool, typer.Option("--force", help="Write to a folder that holds a site; its files are replaced.")
    ] = False,
    seed: SeedOption = 0,
    json_: JsonFlag = False,
) -> None:
    """Make a site from traces: a day's submissions are the queue, the days before are history."""
    from tidegrid.data import as_instant
    from tidegrid.errors import InputError
    from tidegrid.files import check_folder
    from tidegrid.pipeline.site import Site
    from tidegrid.pipeline.tracesite import site_from_traces

    as_instant(f"{date}T00:00:00Z", field="DATE")
    check_folder(out)
    if not force:
        Site.check_free(out, "name another folder, or replace the site with --force")
    notes: list[str] = []
    aside: list[InputError] = []
    with progress(f"reading {trace}", quiet=json_):
        site = site_from_traces(
            trace,
            traffic,
            date,
            gpus=gpus,
            node_size=node_size,
            series=series or (),
            realtime_share=share,
            swap_cap=swap_cap,
            limit=limit,
            timezone=timezone,
            seed=seed,
            notes=notes,
            set_aside=aside,
        )
        site.write(out)
    told = {
        "site": str(out),
        "now": site.now.isoformat(),
        "requests": len(site.requests),
        "history": len(site.history),
        "apps": len(site.cluster.apps),
    }
    if json_:
        print_json(told | {"notes": notes} | set_aside_json(aside))
    else:
        say(
            f"{out}: {told['requests']} requests, {told['history']:,} past jobs, {told['apps']} apps, "
            f"as of {told['now']}; priorities are drawn by user, no trace carries them"
        )
        tell(notes)
        tell_set_aside(aside)
    raise typer.Exit(REFUSED if aside else DONE)
