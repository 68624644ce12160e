"""The command line: one application, made of the topics in ``tidegrid.app.commands``."""

import os
from importlib import import_module
from typing import Annotated

# LightGBM's and numpy's threads spin while they wait; passive waiting keeps a busy machine usable
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# the order in which threads add up moves the last bits: with one thread the same input gives the same bytes
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import typer

from tidegrid import __version__
from tidegrid.app.common import run

TOPICS = (
    "demo",
    "history",
    "traceday",
    "traffic",
    "train",
    "plan",
    "plans",
    "models",
    "estimators",
    "forecast",
    "rolling",
    "serve",
    "replay",
    "slurm",
    "eta",
)

app = typer.Typer(
    name="tidegrid",
    help="Forecasts what a GPU cluster will need, and fills the cluster with it.",
    epilog="Start with: tidegrid demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"tidegrid {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Forecasts what a GPU cluster will need, and fills the cluster with it."""


for _topic in TOPICS:
    import_module(f"tidegrid.app.commands.{_topic}").register(app)


def main() -> None:
    """Run the command line; exit codes: 0 done, 1 done but something was refused or is illegal, 2 bad input."""
    run(app)
