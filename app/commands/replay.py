"""``replay``: a trace played against planning policies that do not see its durations or its demand."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tidegrid.app.common import (
    DONE,
    MOST_DAYS,
    REFUSED,
    CountryOption,
    GpusOption,
    JobsOption,
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
    table,
    tell,
    tell_set_aside,
)
from tidegrid.errors import InputError

if TYPE_CHECKING:
    from tidegrid.pipeline.policy import Policy
    from tidegrid.pipeline.replay import Result, Trace

EXAMPLE = (
    "Example: `tidegrid replay trace.csv.gz --traffic traffic.csv.gz --gpus 640 --days 3 "
    "--policy fifo --policy easy_priority --policy rolling --report replay.html`"
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("replay", epilog=EXAMPLE)(replay)


def replay(
    trace: TraceFile,
    gpus: GpusOption,
    traffic: Annotated[
        Path | None, typer.Option("--traffic", help="Hourly traffic, repeated as needed.")
    ] = None,
    series: Annotated[
        list[str] | None,
        typer.Option("--series", help="A series of the traffic; may be given several times."),
    ] = None,
    policies: Annotated[
        list[str] | None, typer.Option("--policy", help="A policy; may be given several times.")
    ] = None,
    days: Annotated[
        float | None,
        typer.Option("--days", min=0.1, max=MOST_DAYS, help="Replay only this many days of the trace."),
    ] = None,
    skip_days: Annotated[
        int, typer.Option("--skip-days", min=0, max=MOST_DAYS, help="Skip the trace's first days.")
    ] = 0,
    node_size: NodeSizeOption = 8,
    placement: Annotated[
        Literal["line", "node"],
        typer.Option(
            "--placement",
            help="line: neighbouring GPUs, a power of two. node: any GPUs of as few nodes as hold them.",
        ),
    ] = "line",
    elastic: Annotated[
        float,
        typer.Option(
            "--elastic",
            min=1.0,
            max=64.0,
            help="Jobs may be given so many times fewer or more GPUs than they ask for.",
        ),
    ] = 1.0,
    share: ShareOption = 0.25,
    equal: Annotated[bool, typer.Option("--equal-priorities", help="Give every job one priority.")] = False,
    parameters: Annotated[
        Path | None, typer.Option("--parameters", help="JSON file of parameters, such as --tune writes.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="One parameter, such as shortness=0.3; may be given several times."),
    ] = None,
    timezone: TraceZoneOption = "UTC",
    country: CountryOption = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write a report as one HTML file, with pictures.")
    ] = None,
    day: Annotated[
        int | None,
        typer.Option(
            "--grid-day", min=1, max=MOST_DAYS, help="The day whose GPUs the report shows one by one."
        ),
    ] = None,
    tune: Annotated[
        bool, typer.Option("--tune", help="Search the planner's parameters, instead of comparing policies.")
    ] = False,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            help="With --tune, values of a parameter: demand_quantile=0.8,0.9; may be given several times.",
        ),
    ] = None,
    unmet: Annotated[
        float,
        typer.Option(
            "--unmet", min=0.0, max=1.0, help="With --tune, the share of realtime demand that may stay unmet."
        ),
    ] = 0.02,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="With --tune, write the best parameters here, for --parameters."),
    ] = None,
    jobs: JobsOption = 1,
    backend: Annotated[
        str | None,
        typer.Option("--backend", help="A joblib backend, such as dask, instead of processes here."),
    ] = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", help="Address of a Dask scheduler, such as tcp://host:8786.")
    ] = None,
    seed: SeedOption = 0,
    json_: JsonFlag = False,
) -> None:
    """Replay a trace under several policies, which do not see its true durations and demand."""
    from tidegrid.files import check_outputs
    from tidegrid.pipeline.replay import sweep, trace_from_files
    from tidegrid.pipeline.replay.sweep import check_policies
    from tidegrid.pipeline.replay.tuning import check_grid, read_parameters, with_parameters

    if (tries or out) and not tune:
        raise InputError("only a search has it", field="--try, --out", fix="add --tune")
    if tune and (report or len(policies or []) > 1):
        raise InputError("a search has one policy and no report", field="--tune", fix="leave them out")
    if series and traffic is None:
        raise InputError("series are of the traffic", field="--series", fix="add --traffic")
    if day is not None and report is None:
        raise InputError("only the report shows a day", field="--grid-day", fix="add --report")
    check_policies(policies or [])
    plans = [name for name in policies or ["rolling"] if name.startswith("rolling")]
    if not plans and (sets or parameters or tune):
        raise InputError(
            "a queue has no parameters",
            field="--set, --parameters, --tune",
            fix="add a policy that plans, such as rolling",
        )
    given = {parameter: values[0] for parameter, values in (_values(s, "--set") for s in sets or [])}
    policy, options = with_parameters(given, *(read_parameters(parameters) if parameters else ()))
    grid = dict(_values(text, "--try") for text in tries or []) or None
    check_grid(grid or {})
    check_outputs(report, out)
    notes: list[str] = []
    aside: list[InputError] = []
    with engine(backend, scheduler) as backend, progress(f"reading {trace}", quiet=json_) as step:
        made = trace_from_files(
            trace,
            traffic,
            gpus=gpus,
            series=series or (),
            node_size=node_size,
            placement=placement,
            elastic=elastic,
            realtime_share=share,
            days=days,
            skip_days=skip_days,
            timezone=timezone,
            country=country,
            seed=seed,
            notes=notes,
            set_aside=aside,
        )
        left_out = _left_out(made)
        if day is not None and (day - 1) * 86400.0 >= made.end_s:
            last = math.ceil(made.end_s / 86400.0)
            raise InputError(f"the replay has no day {day}", field="--grid-day", fix=f"give 1 to {last}")
        if equal:
            made = made.equal_priorities()
        if tune:
            name = policies[0] if policies else "rolling"
            what = f"searching the parameters of {name} on {len(made.jobs):,} jobs"
            step(what)

            tried = []

            def told(row: dict[str, Any]) -> None:
                tried.append(row)
                step(f"{what}: {len(tried)} settings tried")

            _tune(
                made,
                name,
                policy,
                options,
                grid,
                unmet,
                out,
                jobs,
                backend,
                json_,
                told,
                [*notes, *left_out],
                aside,
            )
            raise typer.Exit(REFUSED if aside else DONE)
        names = policies or ["fifo", "fifo_backfill", "easy_priority", "rolling"]
        what = f"playing {len(made.jobs):,} jobs against {', '.join(names)}"
        step(what)
        found = sweep(
            {"": made}, names, policy, jobs=jobs, backend=backend,
            each=lambda done: step(f"{what}: {done} of {len(names)} played"), **options,
        )  # fmt: skip
        results = list(found.values())
        if report:
            step(f"drawing {report}")
            _report(made, results, report, trace, traffic, equal, day)
    if json_:
        print_json(
            {
                "trace": made.digest(),
                "left_out": dict(made.left_out),
                "policies": {r.policy: _details(made, r) for r in results},
                "notes": notes,
            }
            | set_aside_json(aside)
        )
    else:
        _table(results)
        tell([*left_out, *notes])
        if report:
            say(f"report: {report}")
        tell_set_aside(aside)
    raise typer.Exit(REFUSED if aside else DONE)


def _left_out(made: "Trace") -> list[str]:
    return [f"{count:,} jobs of the trace were left out: {why}" for why, count in made.left_out.items()]


@contextmanager
def engine(backend: str | None, scheduler: str | None) -> Iterator[str | None]:
    """Connect to a Dask scheduler, if one is named, and yield the joblib backend to use."""
    if scheduler is None:
        if backend == "dask":
            raise InputError("which scheduler?", field="--backend", fix="give its address with --scheduler")
        yield backend
        return
    if backend not in (None, "dask"):
        raise InputError("only dask has a scheduler", field="--backend", fix="use dask, or leave it out")
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "the package distributed is not installed", field="--scheduler", fix="install tidegrid[dask]"
        ) from None
    try:
        client = Client(scheduler, timeout=20)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(
            f"no scheduler answers at {scheduler}: {str(error).partition(chr(10))[0]}",
            field="--scheduler",
            fix="give the address that `dask scheduler` printed, such as tcp://host:8786",
        ) from None
    with client:
        yield "dask"


_HEADS = {
    "value": "value", "value_share": "of the limit", "utilization": "utilization", "unmet_share": "unmet realtime",
    "jct_mean_h": "mean JCT, h", "jct_median_h": "median JCT, h", "wait_p95_h": "95th wait, h",
}  # fmt: skip
"""What the tables call the figures of a replay."""


def _table(results: "Sequence[Result]") -> None:
    rows = []
    for r in results:
        f = r.figures
        rows.append(
            [
                r.policy, f"{f['value']:,.0f}", f"{100 * f['value_share_of_limit']:.1f} %",
                f"{100 * f['utilization']:.1f} %", f"{100 * f['unmet_share']:.2f} %", str(f["swaps"]),
                f"{f['completed']:,} of {f['jobs']:,}", f"{f['jct_h']['mean']:.2f}", f"{f['jct_h']['median']:.2f}",
                f"{f['wait_h']['p95']:.2f}",
            ]
        )  # fmt: skip
    first = [_HEADS[name] for name in ("value", "value_share", "utilization", "unmet_share")]
    last = [_HEADS[name] for name in ("jct_mean_h", "jct_median_h", "wait_p95_h")]
    columns = ["policy", *first, "swaps", "completed", *last]
    table("", columns, rows)


def _details(made: "Trace", result: "Result") -> dict[str, Any]:
    from tidegrid.pipeline.replay.measures import by_size, by_user, digest

    return {
        **result.figures,
        "digest": digest(result.outcome),
        "by_size": by_size(made, result.outcome),
        "by_user": by_user(made, result.outcome),
    }


def _report(
    made: "Trace",
    results: "Sequence[Result]",
    path: Path,
    trace: Path,
    traffic: Path | None,
    equal: bool,
    day: int | None,
) -> None:
    from tidegrid.app.replay_report import write_replay_report

    notes = [f"Jobs: {trace.name}, GPU counts rounded up to powers of two."]
    if traffic is not None:
        notes.append(f"Traffic: {traffic.name}: {', '.join(app.id for app in made.apps)}.")
    if equal:
        notes.append("All jobs have one priority.")
    write_replay_report(
        made,
        results,
        path,
        title=f"Replay of {trace.name}",
        notes=notes,
        day=None if day is None else day - 1,
    )


def _tune(
    made: "Trace",
    name: str,
    policy: "Policy",
    options: dict[str, Any],
    grid: dict[str, list[float]] | None,
    unmet: float,
    out: Path | None,
    jobs: int,
    backend: str | None,
    json_: bool,
    each: Callable[[dict[str, Any]], None],
    notes: Sequence[str],
    aside: Sequence[InputError],
) -> None:
    from tidegrid.files import write_json
    from tidegrid.pipeline.replay.tuning import tune

    found = tune(
        made, grid, unmet_share=unmet, base=policy, options=options, name=name, jobs=jobs, backend=backend,
        each=each,
    )  # fmt: skip
    if out is not None:
        write_json(out, found.policy.model_dump() | found.options)
    if json_:
        rows = found.table.to_dict(orient="records")
        best = {"trace": made.digest(), "best": found.best, "within": found.within, "settings": rows}
        print_json(best | {"notes": list(notes)} | set_aside_json(aside))
        return
    shares, counts = ("value_share", "unmet_share", "utilization"), ("value", "plans")
    columns = [c for c in found.table.columns if c != "best"]
    lines = []
    for row in found.table.to_dict(orient="records"):
        line = ["*" if row["best"] else ""]
        for column in columns:
            value = row[column]
            if column in shares:
                line.append(f"{100 * value:.2f} %")
            else:
                line.append(f"{value:,.0f}" if column in counts else f"{value:.4g}")
        lines.append(line)
    table("", ["best", *(_HEADS.get(column, column) for column in columns)], lines)
    say("best: " + " ".join(f"--set {parameter}={value:g}" for parameter, value in found.best.items()))
    if not found.within:
        say(f"No setting keeps unmet realtime within {100 * unmet:g} %: the best is the one with the least.")
    tell(notes)
    tell_set_aside(aside)


def _values(text: str, option: str) -> tuple[str, list[float]]:
    parameter, _, values = text.partition("=")
    try:
        return parameter, [int(v) if v.strip().lstrip("-").isdigit() else float(v) for v in values.split(",")]
    except ValueError:
        example = "demand_quantile=0.8,0.9" if option == "--try" else "demand_quantile=0.8"
        raise InputError(
            f"{text!r} is not a parameter and its value", field=option, fix=f"write {example}"
        ) from None
