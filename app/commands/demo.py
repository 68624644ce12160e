"""``demo``: the main job from end to end on a synthetic sample cluster."""

from pathlib import Path
from typing import Annotated

import typer

from tidegrid.app.common import JsonFlag, SeedOption, print_json, progress, say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo", epilog="Example: `tidegrid demo --out tidegrid-demo`")(demo)


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write to; created if absent.")] = Path(
        "tidegrid-demo"
    ),
    days: Annotated[int, typer.Option("--days", min=14, max=400, help="Days of synthetic history.")] = 56,
    seed: SeedOption = 0,
    json_: JsonFlag = False,
) -> None:
    """Generate a synthetic cluster, train on its history, plan its next 24 h, and show the plan beside FIFO's."""
    from tidegrid.app.flow import plan_site, print_planned, train_site, write_planned
    from tidegrid.data.synth import synthesise
    from tidegrid.data.synth.sample import check_replaceable
    from tidegrid.files import check_folder
    from tidegrid.pipeline.champions import answering
    from tidegrid.pipeline.policy import Policy
    from tidegrid.pipeline.site import Site

    check_folder(out)
    check_replaceable(out / "site")
    with progress("making a sample cluster", quiet=json_) as step:
        synthesise(seed, days=days).write(out / "site")
        step("reading its files")
        site = Site.read(out / "site")
        step(f"training on {len(site.history.jobs)} jobs and {len(site.history.traffic)} hours of traffic")
        # the references that no decision asks are left to tidegrid train
        train_site(site, out / "site" / "models", only=answering({}))
        step("planning 24 h")
        result = plan_site(site, out / "site" / "models", Policy(), "fast", None, seed, step)
        step("writing the report")
        files = write_planned(result, out)
    if json_:
        print_json(result.summary() | {"files": {name: str(path) for name, path in files.items()}})
    else:
        print_planned(result, files)
        say(f"\nThe sample cluster's files, to copy for your own: {out / 'site'}")
