"""``estimators`` and ``evaluate``: which estimators there are, whether they keep their promises, how good they are."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tidegrid.app.common import (
    BAD_INPUT,
    DONE,
    REFUSED,
    JobsOption,
    JsonFlag,
    OnlyOption,
    TimezoneOption,
    print_json,
    progress,
    say,
    say_synthetic,
    set_aside_json,
    table,
    tell,
    tell_set_aside,
)

estimators = typer.Typer(
    name="estimators",
    help="Show the estimators that are installed, and check that they keep the contract.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(estimators, epilog="Example: `tidegrid estimators check recurring`")
    app.command("evaluate", epilog="Example: `tidegrid evaluate my-site --by user --out evaluation`")(
        evaluate
    )


@estimators.command("list", epilog="Example: `tidegrid estimators list`")
def list_(json_: JsonFlag = False) -> None:
    """List the registered estimators, built-in and plugins; exit code 1 where one does not load."""
    from tidegrid.estimators.registry import discover

    registry = discover()
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "kind": kind.kind,
            "target": kind.target,
            "features": len(kind.features),
            "required": [f.name for f in kind.features if f.required],
            "predicts_unfitted": kind.predicts_unfitted,
            "distribution": registry.sources[name],
        }
        for name, kind in sorted(registry.classes.items())
    ]
    if json_:
        failed = [{**vars(f), "text": str(f)} for f in registry.failures]
        print_json({"estimators": found, "failures": failed})
    else:
        rows = [
            [
                e["name"], e["kind"], e["target"], str(e["features"]), ", ".join(e["required"]) or "none",
                "yes" if e["predicts_unfitted"] else "no", e["distribution"],
            ]
            for e in found
        ]  # fmt: skip
        columns = ["name", "kind", "target", "features", "required", "has a prior", "from"]
        table("", columns, rows, left=7)
        for failure in registry.failures:
            say(f"does not load: {failure}")
    raise typer.Exit(REFUSED if registry.failures else DONE)


@estimators.command("check", epilog="Example: `tidegrid estimators check recurring`")
def check(
    name: Annotated[str, typer.Argument(help="The estimator's name, as `estimators list` shows it.")],
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the synthetic data.")] = 0,
    json_: JsonFlag = False,
) -> None:
    """Check an estimator against the contract on synthetic data; exit code 1 where it breaks it."""
    from tidegrid.estimators.registry import load
    from tidegrid.estimators.testing import run_checks

    kind = load(name)
    with progress(f"checking {name}", quiet=json_):
        outcomes = run_checks(kind, seed=seed)
    broken = [outcome for outcome in outcomes if not outcome.kept]
    if json_:
        said = [{"promise": o.promise, "kept": o.kept, "detail": o.detail} for o in outcomes]
        print_json({"estimator": name, "kept": not broken, "promises": said})
    else:
        for outcome in outcomes:
            say(
                f"{'kept    ' if outcome.kept else '  '}{outcome.promise}",
                lead="" if outcome.kept else "BROKEN",
            )
            if not outcome.kept:
                say(f"          {outcome.detail}")
        say(f"{name}: {len(outcomes) - len(broken)} of {len(outcomes)} promises kept")
    raise typer.Exit(REFUSED if broken else DONE)


def evaluate(
    site: Annotated[Path, typer.Argument(help="The site's folder, with cluster.json and jobs or traffic.")],
    only: OnlyOption = None,
    by: Annotated[str | None, typer.Option("--by", help="Show figures by user, size or basis.")] = None,
    folds: Annotated[int, typer.Option(min=1, max=1000, help="Number of refits.")] = 8,
    share: Annotated[
        float,
        typer.Option(
            min=0.001,
            max=0.999,
            help="The last part of the history, as a share of it, that is scored.",
        ),
    ] = 0.5,
    jobs: JobsOption = 1,
    now: Annotated[str | None, typer.Option("--now", help="Use only what was known at this instant.")] = None,
    timezone: TimezoneOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Also write tables, predictions and the calibration plot to this folder."
        ),
    ] = None,
    json_: JsonFlag = False,
) -> None:
    """Backtest the estimators on a site's history; each prediction uses only what was known at the time."""
    from tidegrid.errors import InputError
    from tidegrid.files import check_folder
    from tidegrid.pipeline.champions import calendar_of
    from tidegrid.pipeline.evaluate import SHOWN, Evaluation, evaluate
    from tidegrid.pipeline.site import Site

    if by not in (None, "user", "size", "basis"):
        raise InputError(f"{by!r} is unknown", field="--by", fix="use user, size or basis")
    if out is not None:
        check_folder(out)
    with progress("reading the history", quiet=json_) as step:
        read = Site.read(site, now=now, timezone=timezone)
        step(f"backtesting on {len(read.history.jobs)} jobs and {len(read.history.traffic)} hours of traffic")
        found: Evaluation = evaluate(
            read.history, only, folds=folds, share=share, jobs=jobs, **calendar_of(read.cluster)
        )
        files = _written(found, out) if out is not None else {}
    frame = found.table(by, None)  # type: ignore[arg-type]
    if json_:
        records = frame.astype(object).where(frame.notna(), None).to_dict("records")
        told = {name: str(path) for name, path in files.items()}
        print_json(
            {"table": records, "problems": list(found.problems), "notes": list(read.notes), "files": told}
            | set_aside_json(read.set_aside)
        )
    else:
        place = frame.groupby("estimator").cumcount()
        _print(frame[place < SHOWN], read.cluster.synthetic)
        if (place >= SHOWN).any():
            say(
                f"only the {SHOWN} largest of each estimator are shown; --out and --json have all",
                style="dim",
            )
        tell([*read.notes, *found.problems])
        for name, path in files.items():
            say(f"{name}: {path}")
        tell_set_aside(read.set_aside)
    if frame.empty:
        raise typer.Exit(BAD_INPUT)
    short = bool(read.set_aside) or any("does not load" in problem for problem in found.problems)
    raise typer.Exit(REFUSED if short else DONE)


def _print(frame: Any, synthetic: bool) -> None:
    if synthetic:
        say_synthetic()
    names = [name for name in frame.columns if name in ("estimator", "user", "size", "basis")]
    heads = {
        "rows": "rows", "median_error_log10": "median error, log10", "median_error_by_user": "by user",
        "median_error_relative": "relative", "r2_log10": "R², log10", "spearman": "Spearman", "pinball": "pinball",
        "naive_pinball": "naive", "skill": "skill", "coverage_80": "80 % covers",
    }  # fmt: skip
    rows = []
    for record in frame.to_dict("records"):
        row = [str(record[name]) for name in names]
        for name in heads:
            value = record[name]
            if value != value:
                row.append("–")
            elif name == "rows":
                row.append(f"{value:,}")
            elif name in ("skill", "coverage_80", "median_error_relative"):
                row.append(f"{100 * value:.1f} %")
            else:
                row.append(f"{value:.3f}")
        rows.append(row)
    table("", [*names, *heads.values()], rows, left=len(names))


def _written(found: Any, out: Path) -> dict[str, Path]:
    from tidegrid.files import make_folder, write_text

    make_folder(out)
    files = {"answers": out / "answers.csv"}
    for name in (None, "user", "size", "basis"):
        files["table" if name is None else f"by {name}"] = (
            out / f"{'table' if name is None else 'by_' + name}.csv"
        )
    frames = {"answers": found.answers, "table": found.table()}
    frames |= {f"by {name}": found.table(name, None) for name in ("user", "size", "basis")}
    for name, frame in frames.items():
        write_text(files[name], frame.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    if len(found.answers):
        files["calibration"] = out / "calibration.png"
        found.plot(files["calibration"])
    return files
