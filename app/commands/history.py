"""``history``: make up a sample, read foreign files, and check a site's files."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegrid.app.common import (
    BAD_INPUT,
    MOST_DAYS,
    REFUSED,
    JsonFlag,
    SeedOption,
    TimezoneOption,
    a_zone,
    count,
    print_json,
    progress,
    say,
    set_aside_json,
    table,
    tell,
    tell_set_aside,
)
from tidegrid.errors import InputError, printable

if TYPE_CHECKING:
    import pandas as pd

ENDINGS = (".csv", ".csv.gz", ".parquet")
TABLES = ("jobs", "requests", "running", "traffic")

history = typer.Typer(
    name="history",
    help="Generate a synthetic site, import job history and traffic, check a site's files.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(history, epilog="Example: `tidegrid history check my-site`")


@history.command("synth", epilog="Example: `tidegrid history synth my-sample --seed 3 --gpus 32`")
def synth(
    folder: Annotated[
        Path | None, typer.Argument(help="Folder to write to; created if absent.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The same folder, as an option.")] = None,
    days: Annotated[int, typer.Option("--days", min=7, max=MOST_DAYS, help="Days of history.")] = 56,
    gpus: Annotated[int, typer.Option("--gpus", min=8, max=10_000, help="GPUs of the cluster.")] = 64,
    users: Annotated[int, typer.Option("--users", min=4, max=10_000, help="Users of the cluster.")] = 20,
    queue: Annotated[int, typer.Option("--queue", min=0, max=100_000, help="Requests in the queue.")] = 26,
    now: Annotated[str | None, typer.Option("--now", help="When the history ends, with its zone.")] = None,
    timezone: Annotated[
        str, typer.Option("--timezone", callback=a_zone, help="IANA zone of the working hours.")
    ] = "Europe/Berlin",
    force: Annotated[
        bool, typer.Option("--force", help="Write to a folder that holds other files; they are replaced.")
    ] = False,
    seed: SeedOption = 0,
    json_: JsonFlag = False,
) -> None:
    """Generate a synthetic site: job history, queue, running jobs and traffic."""
    from tidegrid.data.synth import synthesise
    from tidegrid.data.synth.sample import NOW, check_replaceable

    target = folder or out
    if target is None or (folder is not None and out is not None and folder != out):
        both = "two folders are named" if target is not None else "no folder is named"
        raise InputError(both, field="--out", fix="name one: tidegrid history synth my-sample")
    if not force:
        check_replaceable(target, "name another folder, or replace them with --force")
    with progress("making a sample cluster", quiet=json_):
        sample = synthesise(
            seed, days=days, gpus=gpus, users=users, queue=queue, now=now or NOW, timezone=timezone
        )
        paths = sample.write(target)
    files = {name: str(path) for name, path in paths.items()}
    if json_:
        print_json({"synthetic": True, "now": sample.now, "jobs": len(sample.history), "files": files})
        return
    say(
        f"synthetic: {len(sample.history):,} jobs over {days} days, {len(sample.requests)} requests, "
        f"{len(sample.running)} running jobs on {sample.cluster.gpus} GPUs, as of {sample.now.isoformat()}"
    )
    for path in files.values():
        say(path)


@history.command(
    "import",
    epilog="Example: `tidegrid history import sacct.json --append --out my-site/jobs.csv`",
)
def import_(
    file: Annotated[Path, typer.Argument(help="A CSV, CSV.GZ, Parquet, sacct (text, JSON) or SWF file.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Table to write: .csv, .csv.gz or .parquet.")],
    what: Annotated[str, typer.Option("--table", help="jobs, requests, running or traffic.")] = "jobs",
    format: Annotated[
        str | None,
        typer.Option("--format", help="tidegrid, trace, sacct or swf; default: detected from the file."),
    ] = None,
    timezone: TimezoneOption = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind", help="Workload kind of jobs whose format does not tell it; default: training."
        ),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--start", help="The instant of hour 0 (traffic) or of second 0 (SWF).")
    ] = None,
    value: Annotated[str | None, typer.Option("--value", help="Column to read as traffic.")] = None,
    duplicates: Annotated[
        str, typer.Option("--duplicates", help="Duplicate hours: error, first, last, mean, sum or max.")
    ] = "error",
    fill: Annotated[
        str, typer.Option("--fill", help="Missing hours: none, zero, previous, linear or week.")
    ] = "none",
    nodes: Annotated[
        Path | None,
        typer.Option(
            "--nodes",
            help="Output of `scontrol show node -o`: the GPU types of nodes, for accounting without them.",
        ),
    ] = None,
    append: Annotated[
        bool,
        typer.Option(
            "--append",
            help="Merge with the jobs in --out, by job and submit time: a later row replaces an earlier one.",
        ),
    ] = False,
    json_: JsonFlag = False,
) -> None:
    """Read a file in another format, check it, and write it as a table of a site.

    Rows that cannot be used are reported and left out; the others are written, and the exit code is 1.
    """
    from tidegrid.data import read_jobs, read_requests, read_running, read_traffic, write_table
    from tidegrid.data.merge import merge_jobs
    from tidegrid.data.slurm import node_types, zone_warning
    from tidegrid.files import check_outputs

    notes: list[str] = []
    aside: list[InputError] = []
    _known_table(what)
    given = {"--format": format, "--kind": kind, "--start": start}
    given |= {"--value": value, "--duplicates": None if duplicates == "error" else duplicates}
    given |= {"--fill": None if fill == "none" else fill, "--nodes": None if nodes is None else str(nodes)}
    given |= {"--append": "yes" if append else None}
    check_outputs(out)
    _only_its_own(what, [name for name, told in given.items() if told is not None])
    with progress(f"reading {file}", quiet=json_) as step:
        if what == "jobs":
            frame = read_jobs(
                file,
                format=format,
                timezone=timezone,
                start=start,
                kind=kind,
                nodes=None if nodes is None else node_types(nodes),
                notes=notes,
                set_aside=aside,
            )
            if timezone is not None:
                warning = zone_warning(frame, _now())
                notes += [] if warning is None else [warning]
        elif what == "traffic":
            frame = read_traffic(
                file,
                start=start,
                timezone=timezone,
                value=value,
                duplicates=duplicates,  # type: ignore[arg-type]
                fill=fill,  # type: ignore[arg-type]
                notes=notes,
                set_aside=aside,
            )
        else:
            read = read_requests if what == "requests" else read_running
            frame = read(file, timezone=timezone, set_aside=aside)
        read_rows = len(frame)
        if append and out.exists():
            step(f"reading {out}")
            frame = merge_jobs(read_jobs(out, format="tidegrid"), frame)
        step(f"writing {out}")
        write_table(frame, out)
    told = _summary(what, frame)
    if json_:
        print_json(
            {
                "file": str(out),
                "table": what,
                "rows": len(frame),
                "read": read_rows,
                "summary": told,
                "notes": notes,
            }
            | set_aside_json(aside)
        )
    else:
        tell(notes)
        say(f"{out}: {told}")
        tell_set_aside(aside)
    if aside:
        raise typer.Exit(REFUSED)


def _now() -> "pd.Timestamp":
    import pandas as pd

    return pd.Timestamp.now(tz="UTC")


@history.command("check", epilog="Example: `tidegrid history check my-site`")
def check(
    path: Annotated[Path, typer.Argument(help="A site's folder, or one of its files.")],
    what: Annotated[
        str | None, typer.Option("--table", help="What a single file holds; default: by its name.")
    ] = None,
    timezone: TimezoneOption = None,
    json_: JsonFlag = False,
) -> None:
    """Check a site's files: one line per problem, with file, row, column and the fix.

    Rows that cannot be used give exit code 1: every command goes on without them. A file that cannot be read gives 2.
    """

    if not path.exists():
        raise InputError(
            "cannot be read (no such file or folder)", file=path, fix="name a site's folder or a file"
        )
    if path.is_dir():
        checked, problems, notes, unreadable = _check_folder(path, timezone, json_)
    else:
        name = "cluster" if path.name.endswith(".json") else what or path.name.split(".")[0]
        if name != "cluster" and name not in TABLES:
            raise InputError(
                f"it cannot be told what {path.name!r} holds",
                field="--table",
                fix=f"use one of {', '.join(TABLES)}",
            )
        checked, notes = [], []
        with progress(f"reading {path}", quiet=json_):
            _, problems, unreadable = _check_file(name, path, timezone, checked, notes)
    if json_:
        print_json({"files": checked, "notes": notes, "problems": problems})
    else:
        if checked:
            table("", ["file", "holds"], [[c["file"], c["summary"]] for c in checked], left=2)
        tell(notes)
        if not problems:
            say("no problem found")
    for problem in () if json_ else problems:
        sys.stderr.write(f"error: {printable(problem)}\n")
    if problems:
        raise typer.Exit(BAD_INPUT if unreadable else REFUSED)


def _check_folder(
    folder: Path, timezone: str | None, quiet: bool
) -> tuple[list[dict[str, Any]], list[str], list[str], bool]:
    from tidegrid.data.checks import check_together

    checked: list[dict[str, Any]] = []
    problems: list[str] = []
    notes: list[str] = []
    unreadable = False
    read: dict[str, Any] = {}
    with progress(f"checking {folder}", quiet=quiet) as step:
        for name in ("cluster", *TABLES):
            endings = (".json",) if name == "cluster" else ENDINGS
            names = [f"{name}{ending}" for ending in endings]
            found = sorted(entry for entry in folder.iterdir() if entry.name.lower() in names)
            strange = [entry for entry in found if entry.name not in names]
            if strange:
                unreadable = True
                said = "is not read: the names of a site's files are in lower case"
                fix = f"call it {strange[0].name.lower()}"
                problems.append(str(InputError(said, file=strange[0], fix=fix)))
            elif not found:
                absent = f"{folder}: there is no {names[0]}"
                unreadable |= name == "cluster"
                (problems if name == "cluster" else notes).append(absent)
            elif len(found) > 1:
                unreadable = True
                problems.append(f"{folder}: there is {found[0].name} and {found[1].name}; keep one of them")
            else:
                step(f"reading {found[0]}")
                read[name], wrong, bad = _check_file(name, found[0], timezone, checked, notes)
                problems += wrong
                unreadable |= bad
        cluster = read.pop("cluster", None)
        if cluster is not None:
            wrong_together, wanted = check_together(cluster, read)
            problems += map(str, wrong_together)
            notes += wanted
            requests = read["requests"].frame if "requests" in read else None
            if requests is not None and len(requests):
                most = max(pool.gpus for pool in cluster.pools)
                wide = requests.loc[requests["min_gpus"] > most, "job_id"]
                if len(wide):
                    needs = count(len(wide), "request needs", "requests need")
                    more = ", …" if len(wide) > 1 else ""
                    notes.append(
                        f"{needs} more than the {most} GPUs of the largest pool: {wide.iloc[0]}{more}"
                    )
    return checked, problems, notes, unreadable


def _check_file(
    name: str, path: Path, timezone: str | None, checked: list[dict[str, Any]], notes: list[str]
) -> tuple[Any, list[str], bool]:
    """Return what a file holds, its problems, and whether it cannot be read; list it where it is right."""
    from tidegrid.data import read_cluster
    from tidegrid.data.checks import check_table
    from tidegrid.data.cluster import cluster_problems

    if name == "cluster":
        problems = cluster_problems(path)
        if problems:
            return None, [str(problem) for problem in problems], True
        value = read_cluster(path)
        apps = ", ".join(app.id for app in value.apps) or "none"
        made_up = "; synthetic" if value.synthetic else ""
        pools = ", ".join(f"{pool.id}: {pool.gpus} × {pool.gpu_type}" for pool in value.pools)
        told = f"pools {pools}; apps {apps}; {value.timezone}{made_up}"
        checked.append({"file": str(path), "table": name, "rows": len(value.pools), "summary": told})
        return value, [], False
    table = check_table(name, path, timezone=timezone, notes=notes)
    if table.frame is not None and not table.problems:
        summary = _summary(name, table.frame)
        checked.append({"file": str(path), "table": name, "rows": len(table.frame), "summary": summary})
    return table, [str(problem) for problem in table.problems], table.unreadable


def _known_table(what: str) -> None:

    if what not in TABLES:
        raise InputError(f"{what!r} is unknown", field="--table", fix=f"use one of {', '.join(TABLES)}")


def _only_its_own(what: str, given: list[str]) -> None:
    """Refuse options that reading another table takes."""

    own = {
        "jobs": ("--format", "--kind", "--start", "--nodes", "--append"),
        "traffic": ("--start", "--value", "--duplicates", "--fill"),
    }
    for name in given:
        if name not in own.get(what, ()):
            takes = " or ".join(f"--table {other}" for other, names in own.items() if name in names)
            raise InputError(
                f"the table {what} has no use for it", field=name, fix=f"leave it out, or choose {takes}"
            )


def _summary(what: str, frame: "pd.DataFrame") -> str:
    if frame.empty:
        return "nothing"
    if what == "traffic":
        missing = int(frame["value"].isna().sum())
        hours = f"{len(frame):,} hours of {frame['series_id'].nunique():,} series, {missing:,} missing"
        return f"{hours}; {_span(frame['timestamp'])}"
    if what == "jobs":
        counts = frame["status"].value_counts(sort=True)
        told = ", ".join(f"{count:,} {status}" for status, count in counts.items())
        return f"{len(frame):,} attempts: {told}; submitted {_span(frame['submit_time'])}"
    column = "submit_time" if what == "requests" else "start_time"
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in frame["kind"].value_counts(sort=True).items())
    gpus, since = int(frame["gpus"].sum()), frame[column].min()
    return f"{len(frame):,} jobs: {kinds}, {gpus:,} GPUs; since {since:%Y-%m-%d %H:%M} UTC"


def _span(times: "pd.Series") -> str:
    return f"{times.min():%Y-%m-%d %H:%M} to {times.max():%Y-%m-%d %H:%M} UTC"
