"""``replay``: a trace played against planning policies that do not see its durations or its demand."""

from pathlib import Path
from typing import Annotated

import typer

from tidegrid.app.common import JsonFlag, SeedOption, print_json, progress, table

EXAMPLE = (
    "Example: `tidegrid replay trace.csv.gz --traffic traffic.csv.gz --gpus 640 --days 3 "
    "--policy fifo --policy easy_priority --policy rolling`"
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay", epilog=EXAMPLE)(replay)


def replay(
    trace: Annotated[Path, typer.Argument(help="A job trace: CSV, CSV.GZ, Parquet, sacct or SWF.")],
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="GPUs of the cluster.")],
    traffic: Annotated[
        Path | None, typer.Option("--traffic", help="Hourly traffic, repeated as needed.")
    ] = None,
    policies: Annotated[
        list[str] | None, typer.Option("--policy", help="A policy; may be given several times.")
    ] = None,
    days: Annotated[
        float | None, typer.Option("--days", min=0.1, help="Only the trace's first days.")
    ] = None,
    node_size: Annotated[int, typer.Option("--node-size", min=1, help="GPUs of a node.")] = 8,
    share: Annotated[
        float, typer.Option("--realtime-share", min=0.01, max=1.0, help="The apps' joint peak, of all GPUs.")
    ] = 0.25,
    equal: Annotated[bool, typer.Option("--equal-priorities", help="Give every job one priority.")] = False,
    knobs: Annotated[Path | None, typer.Option("--knobs", help="JSON file of the planner's knobs.")] = None,
    timezone: Annotated[str, typer.Option("--timezone", help="Zone of times that carry none.")] = "UTC",
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Policies to play at once.")] = 1,
    seed: SeedOption = 0,
    json_: JsonFlag = False,
) -> None:
    """Play a trace against policies side by side; true durations and demand are hidden from them."""
    from tidegrid.pipeline.policy import Policy
    from tidegrid.pipeline.replay import replay as play
    from tidegrid.pipeline.replay import world_from_traces

    names = policies or ["fifo", "fifo_backfill", "easy_priority", "rolling"]
    with progress(f"reading {trace}", quiet=json_) as step:
        world = world_from_traces(
            trace,
            traffic,
            gpus=gpus,
            node_size=node_size,
            realtime_share=share,
            days=days,
            timezone=timezone,
            seed=seed,
        )
        if equal:
            world = world.equal_priorities()
        step(f"playing {len(world.jobs):,} jobs against {', '.join(names)}")
        results = play(world, names, Policy.read(knobs) if knobs else None, jobs=jobs)
    if json_:
        print_json({"world": world.digest(), "policies": {r.policy: dict(r.figures) for r in results}})
        return
    rows = []
    for r in results:
        f = r.figures
        rows.append(
            [
                r.policy, f"{f['value']:,.0f}", f"{100 * f['utilization']:.1f} %", f"{100 * f['unmet_share']:.2f} %",
                str(f["swaps"]), f"{f['completed']:,} of {f['jobs']:,}", f"{f['jct_h']['mean']:.2f}",
                f"{f['jct_h']['median']:.2f}", f"{f['wait_h']['p95']:.2f}",
            ]
        )  # fmt: skip
    columns = [
        "policy", "value", "utilization", "unmet realtime", "swaps", "completed", "mean JCT, h", "median JCT, h",
        "95th wait, h",
    ]  # fmt: skip
    table("", columns, rows)
