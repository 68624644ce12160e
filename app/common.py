"""What every command shares: consoles, machine-readable output, errors as one line, progress."""

import errno
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from tidegrid.errors import InputError, TidegridError, printable
from tidegrid.zones import zone_of

if TYPE_CHECKING:
    from tidegrid.scheduler import Plan, Problem

DONE = 0
REFUSED = 1
BAD_INPUT = 2
INTERRUPTED = 130
STOPPED = "tidegrid: interrupted; nothing was left half-written\n"

MOST_TOLD = 20
"""The rows set aside that are told one by one on a terminal; the JSON has all."""

MOST_GPUS, MOST_NODE, MOST_DAYS, MOST_AT_ONCE = 100_000, 4096, 3650, 256
"""Ranges of options: the most GPUs of a cluster and of a node, days, and processes."""

DAY_SECONDS = 86_400.0
"""The longest time limit."""


JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print one JSON object for machines instead of tables.")
]


def a_zone(name: str | None) -> str | None:
    """Return the name of an IANA zone as it is, refused where there is none: files may never ask for it."""
    if name is not None:
        zone_of(name)
    return name


def a_country(code: str | None) -> str | None:
    """Return the code of a country that has a calendar of public holidays, refused where there is none."""
    if code is not None:
        from tidegrid.calendars import holiday_days

        holiday_days(code)
    return code


TimezoneOption = Annotated[
    str | None,
    typer.Option("--timezone", callback=a_zone, help="IANA zone of times in the files that carry none."),
]
TraceZoneOption = Annotated[
    str, typer.Option("--timezone", callback=a_zone, help="Zone of times that carry none.")
]
TraceFile = Annotated[Path, typer.Argument(help="A job trace: CSV, CSV.GZ, Parquet, sacct or SWF.")]
GpusOption = Annotated[int, typer.Option("--gpus", min=1, max=MOST_GPUS, help="GPUs of the cluster.")]
NodeSizeOption = Annotated[int, typer.Option("--node-size", min=1, max=MOST_NODE, help="GPUs of a node.")]
ShareOption = Annotated[
    float,
    typer.Option(
        "--realtime-share", min=0.01, max=1.0, help="The apps' joint peak demand, as a share of all GPUs."
    ),
]
OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", help="Only this estimator; may be given several times.")
]
CountryOption = Annotated[
    str | None,
    typer.Option(
        "--country", callback=a_country, help="ISO 3166 code of the public holidays; default: none."
    ),
]
JobsOption = Annotated[
    int, typer.Option("--jobs", "-j", min=1, max=MOST_AT_ONCE, help="Processes that work at once.")
]
ModeOption = Annotated[str, typer.Option("--mode", "-m", help="Planner: fast, full, or a baseline.")]
TimeLimitOption = Annotated[
    float | None,
    typer.Option("--time-limit", min=0.0, max=DAY_SECONDS, help="Seconds; only for mode full."),
]
PolicyOption = Annotated[Path | None, typer.Option("--policy", help="JSON file of the planner's parameters.")]
WorkersOption = Annotated[
    int, typer.Option("--workers", min=1, max=64, help="Threads of mode full's solver.")
]
SeedOption = Annotated[
    int,
    typer.Option(
        "--seed", min=0, max=2**31 - 1, help="The seed: the same input and seed give the same bytes."
    ),
]


visible = partial(printable, keep="\n\t")
"""A text whose control codes do not reach the reader's terminal."""


def say(text: str = "", *, lead: str = "", style: str = "") -> None:
    """Print a line to standard output as it stands, brackets included: ``lead`` in bold, the rest in ``style``."""
    from rich.text import Text

    console().print(Text.assemble((visible(lead), "bold"), (visible(text), style)))


def say_synthetic() -> None:
    """Say that what follows rests on synthetic data."""
    say(": this cluster and its history are made up.", lead="Synthetic data")


def console(stderr: bool = False) -> Any:
    """Return a rich console; numbers and paths are not coloured by guess, lines are not wrapped when piped."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 160
    return Console(stderr=stderr, highlight=False, width=width, soft_wrap=not stream.isatty())


def table(title: str, columns: list[str], rows: list[list[str]], *, left: int = 1) -> None:
    """Print a table of cells as they stand; the first ``left`` columns are text, the others aligned to the right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = Table(
        title=Text(visible(title)) if title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for i, column in enumerate(columns):
        out.add_column(Text(column), justify="left" if i < left else "right")
    for row in rows:
        out.add_row(*(Text(visible(cell)) for cell in row))
    console().print(out)


JSON_VERSION = 1
"""The version of what ``--json`` prints: it rises where a key changes its meaning or goes."""


def print_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object with its version; nothing else goes to standard output with ``--json``."""
    told = {"json_version": JSON_VERSION, **value}
    sys.stdout.write(json.dumps(told, ensure_ascii=False, allow_nan=False, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, tuple | set | frozenset):
        return list(value)
    return str(value)


@contextmanager
def progress(description: str, quiet: bool = False, lines: bool = False) -> Iterator[Callable[[str], None]]:
    """Show on standard error what is being done while the block runs; the yielded function changes the text.

    Parameters
    ----------
    description
        The first text.
    quiet
        Show nothing.
    lines
        Where standard error is no terminal, on which one line changes, write a line each time; else nothing.
    """
    from rich.markup import escape

    err = console(stderr=True)
    if quiet or not (lines or err.is_terminal):
        yield lambda text: None
        return
    if not err.is_terminal:
        yield lambda text: print(visible(text), file=sys.stderr, flush=True)
        return
    with err.status(escape(visible(description))) as status:
        yield lambda text: status.update(escape(visible(text)))


def work_share(problem: "Problem", plan: "Plan") -> str:
    """Return the work done by the GPU-steps that jobs occupy inside the horizon; a dash where that is not known."""
    work = plan.metrics.get("work")
    occupied = sum(p.gpus * max(0, min(p.end, problem.steps) - p.start) for p in plan.placements)
    return "–" if work is None or not occupied else f"{work / occupied:.2f}"


def count(number: int, one: str, many: str | None = None) -> str:
    """Return "1 job", "2 jobs": a number with its noun."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def set_aside_json(aside: Sequence[InputError]) -> dict[str, Any]:
    """Return the rows that were set aside as every command's JSON has them: how many, and each."""
    return {"set_aside": len(aside), "set_aside_rows": [problem.to_dict() for problem in aside]}


def tell_set_aside(aside: Sequence[InputError]) -> None:
    """Tell on standard error of the rows that were set aside."""
    for problem in aside[:MOST_TOLD]:
        sys.stderr.write(f"set aside: {problem}\n")
    if len(aside) > MOST_TOLD:
        sys.stderr.write(f"set aside: {count(len(aside) - MOST_TOLD, 'more row')}\n")


def tell(notes: Iterable[str]) -> None:
    """Print notes, a line each: what was worked out, left out, or answered in another way."""
    for note in notes:
        say(note, style="dim")


def fetch_traffic(site: Path, now: str | None = None) -> None:
    """Fetch the hours of traffic that have ended, where a site names a server; tell on standard error what was odd."""
    if not (site / "cluster.json").is_file():
        return
    from tidegrid.data import as_instant
    from tidegrid.pipeline.fetched import refresh_site

    for note in refresh_site(site, None if now is None else as_instant(now, field="now")):
        print(f"tidegrid: {note}", file=sys.stderr)


def check_mode(mode: str, time_limit: float | None) -> None:
    """Refuse a mode that there is not, and a time limit for one that does not search until a limit.

    Raises
    ------
    InputError
        The mode is unknown, or would ignore the limit.
    """
    from tidegrid.scheduler import BASELINES, modes

    if mode not in modes():
        raise InputError(f"{mode!r} is not a mode", field="--mode", fix=f"write one of {', '.join(modes())}")
    if time_limit is not None and mode in ("fast", *BASELINES):
        raise InputError(
            f"mode {mode} does not search until a limit",
            field="--time-limit",
            fix="leave it out, or choose --mode full",
        )


def check_store(store: Path | None) -> None:
    """Refuse a model store that was named and is not there.

    Raises
    ------
    InputError
        There is no such folder.
    """
    if store is not None and not store.is_dir():
        raise InputError(
            "there is no such folder",
            file=store,
            fix="name a model store, or leave --store out to use SITE/models",
        )


def fail(error: Exception) -> NoReturn:
    """Print an error as one line on standard error, as JSON too where JSON was asked for, and exit with code 2."""
    if "--json" in sys.argv[1:]:
        parts = {name: getattr(error, name, None) for name in ("problem", "file", "row", "field", "fix")}
        print_json({"error": {**parts, "text": str(error)}})
    sys.stderr.write(f"error: {printable(' '.join(str(error).split(chr(10))))}\n")
    raise SystemExit(BAD_INPUT)


def run(app: typer.Typer, argv: list[str] | None = None) -> NoReturn:
    """Run a typer application and exit; no traceback reaches the user, and an error is one line.

    Set ``TIDEGRID_DEBUG=1`` to see the traceback of an error that is a fault of tidegrid's own.
    """
    if sys.stdout is None:  # closed by the caller (``>&-``)
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115
        _unwritable("it is closed")
    try:
        code = _called(app, argv)
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _to_nowhere()
        except OSError as error:
            _to_nowhere()
            _unwritable(error.strerror)
    raise SystemExit(code)


def _to_nowhere() -> None:
    # Python flushes standard output once more when it ends
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unwritable(why: str | None) -> NoReturn:
    sys.stderr.write(f"error: standard output cannot be written ({why}); name a place with room\n")
    raise SystemExit(REFUSED)


def _called(app: typer.Typer, argv: list[str] | None) -> int:
    try:
        code = app(argv, standalone_mode=False)
    except TidegridError as error:
        fail(error)
    except BrokenPipeError:
        # the reader of a pipe went away (… | head): quiet, as other tools are
        _to_nowhere()
        return DONE
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except MemoryError:
        fail(InputError("not enough memory for this input"))
    except Exception as error:
        if hasattr(error, "format_message"):
            _fail_usage(error)
        if os.environ.get("TIDEGRID_DEBUG"):
            raise
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EBADF) and not error.filename:
            _to_nowhere()
            _unwritable(error.strerror)
        if isinstance(error, OSError) and error.filename:
            fail(
                InputError(
                    f"cannot be used ({error.strerror})", file=error.filename, fix="name another place"
                )
            )
        fail(
            InputError(
                f"a fault of tidegrid's own: {type(error).__name__}: {error}",
                fix="run again with TIDEGRID_DEBUG=1 and report what it prints",
            )
        )
    if code == INTERRUPTED:
        sys.stderr.write(STOPPED)
    return code if isinstance(code, int) else DONE


_WORDS = {
    ": Input should": ": it should",
    ". Did you mean": "; did you mean",
    "(Possible": "(possible",
    "requires an argument": "needs a value",
}
"""The parser's words, and ours: one clause without a full stop in it."""


def _fail_usage(error: Any) -> NoReturn:
    """Print what typer's parser found wrong as one line, with what would be right, and exit with code 2.

    Typer's versions have their parser's errors in different packages; all of them have ``format_message``.
    """
    message = " ".join(error.format_message().split())
    if type(error).__name__ == "NoArgsIsHelpError":
        # nothing was asked for: the help is printed already, or is the message
        if message:
            typer.echo(error.format_message())
        raise SystemExit(BAD_INPUT)
    problem = (message[:1].lower() + message[1:]).rstrip(".")
    for said, better in _WORDS.items():
        problem = problem.replace(said, better)
    context, fix = getattr(error, "ctx", None), None
    if context is not None:
        fix = f"see {context.command_path} --help"
        if "; did you mean" in problem:
            fix = None
        elif problem.startswith("no such command"):
            fix = f"use one of {', '.join(context.command.commands)}"
        elif "argument" in problem:
            fix = "write " + " ".join(context.get_usage().split()).removeprefix("Usage: ")
    fail(InputError(problem, fix=fix))
