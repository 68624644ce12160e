"""``plan``: queue, running work and traffic in; a legal 24 h plan, its comparison and its report out."""

from pathlib import Path
from typing import Annotated

import typer

from tidegrid.app.common import (
    DONE,
    REFUSED,
    JsonFlag,
    ModeOption,
    PolicyOption,
    SeedOption,
    TimeLimitOption,
    TimezoneOption,
    WorkersOption,
    check_mode,
    check_store,
    fetch_traffic,
    print_json,
    progress,
    set_aside_json,
    tell_set_aside,
)

EXAMPLES = """
Example: `tidegrid plan my-site --out plan` reads my-site/cluster.json, jobs.csv, traffic.csv, requests.csv and
running.csv, and writes plan/problem.json, plan.json, etas.csv, estimates.csv, report.html and grid.png.
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("plan", epilog=EXAMPLES)(plan)


def plan(
    site: Annotated[
        Path, typer.Argument(help="The site's folder: cluster.json, jobs, traffic, requests, running.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to; created if absent.")] = Path(
        "tidegrid-plan"
    ),
    store: Annotated[
        Path | None,
        typer.Option(
            "--store", help="Model store; default: SITE/models, and estimators fitted afresh without one."
        ),
    ] = None,
    mode: ModeOption = "fast",
    time_limit: TimeLimitOption = None,
    policy: PolicyOption = None,
    now: Annotated[
        str | None,
        typer.Option("--now", help="Instant to plan from, with its zone; default: the files' last."),
    ] = None,
    timezone: TimezoneOption = None,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write report.html and grid.png.")
    ] = True,
    workers: WorkersOption = 1,
    seed: SeedOption = 0,
    json_: JsonFlag = False,
) -> None:
    """Plan the next 24 h of a site: forecast durations and demand, assign GPUs, compare with FIFO."""
    from tidegrid.app.flow import plan_site, print_planned, write_planned
    from tidegrid.files import check_folder
    from tidegrid.pipeline.policy import Policy
    from tidegrid.pipeline.site import Site

    check_mode(mode, time_limit)
    check_store(store)
    check_folder(out)
    fetch_traffic(site, now)
    with progress("reading the site", quiet=json_, lines=mode == "full") as step:
        read = Site.read(site, now=now, timezone=timezone)
        parameters = Policy.read(policy) if policy else Policy()
        result = plan_site(read, store or site / "models", parameters, mode, time_limit, seed, step, workers)
        step("writing the plan")
        files = write_planned(result, out, report=report)
    if json_:
        told = {"files": {name: str(path) for name, path in files.items()}}
        print_json(result.summary() | told | set_aside_json(read.set_aside))
    else:
        print_planned(result, files)
        tell_set_aside(read.set_aside)
    raise typer.Exit(REFUSED if result.refused or read.set_aside else DONE)
