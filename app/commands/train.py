"""``train`` and ``predict``: fit estimators on a site's history, and estimate jobs with them."""

from pathlib import Path
from typing import Annotated

import typer

from tidegrid.app.common import (
    DONE,
    REFUSED,
    JobsOption,
    JsonFlag,
    OnlyOption,
    TimezoneOption,
    check_store,
    fetch_traffic,
    print_json,
    progress,
    say,
    set_aside_json,
    table,
    tell,
    tell_set_aside,
)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command(
        "train", epilog="Example: `tidegrid train my-site`, then `tidegrid models list my-site/models`"
    )(train)
    app.command("predict", epilog="Example: `tidegrid predict my-site --explain sft-llama-8b`")(predict)


def train(
    site: Annotated[Path, typer.Argument(help="The site's folder, with cluster.json and jobs or traffic.")],
    store: Annotated[Path | None, typer.Option("--store", help="Model store; default: SITE/models.")] = None,
    only: OnlyOption = None,
    jobs: JobsOption = 1,
    refit: Annotated[
        bool,
        typer.Option(
            "--refit", help="Fit again even what the store holds already, as after a change of code."
        ),
    ] = False,
    now: Annotated[str | None, typer.Option("--now", help="Train on what was known at this instant.")] = None,
    timezone: TimezoneOption = None,
    json_: JsonFlag = False,
) -> None:
    """Fit the estimators on a site's history; one that is better than the champion replaces it.

    Where one does not load or cannot be fitted the others are trained, and the exit code is 1.
    """
    from tidegrid.app.flow import train_site
    from tidegrid.pipeline.champions import lacks
    from tidegrid.pipeline.site import Site

    fetch_traffic(site, now)
    with progress("reading the history", quiet=json_) as step:
        read = Site.read(site, now=now, timezone=timezone)
        step(f"training on {len(read.history.jobs)} jobs and {len(read.history.traffic)} hours of traffic")
        trained = train_site(read, store or site / "models", only=only, jobs=jobs, refit=refit)
    short = bool(read.set_aside) or any(one["decision"] == "failed" for one in trained)
    if json_:
        print_json({"trained": trained, "notes": list(read.notes)} | set_aside_json(read.set_aside))
        raise typer.Exit(REFUSED if short else DONE)
    rows = [
        [r["estimator"], r["version"] or "–", str(r["rows"]), r["decision"], r["reason"]]
        for r in trained
        if r["decision"] != "nothing"
    ]
    if rows:
        table("", ["estimator", "version", "rows", "decision", "reason"], rows, left=5)
    tell([*read.notes, *lacks({r["estimator"]: r["reason"] for r in trained if r["decision"] == "nothing"})])
    tell_set_aside(read.set_aside)
    raise typer.Exit(REFUSED if short else DONE)


def predict(
    site: Annotated[
        Path, typer.Argument(help="The site's folder: cluster.json, requests, and history or a store.")
    ],
    requests: Annotated[
        Path | None, typer.Option("--requests", help="A file of requests, instead of the folder's.")
    ] = None,
    store: Annotated[Path | None, typer.Option("--store", help="Model store; default: SITE/models.")] = None,
    explain: Annotated[
        str | None, typer.Option("--explain", help="Explain this job's estimate in words.")
    ] = None,
    now: Annotated[
        str | None, typer.Option("--now", help="Predict with what was known at this instant.")
    ] = None,
    timezone: TimezoneOption = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the estimates as CSV.")] = None,
    json_: JsonFlag = False,
) -> None:
    """Estimate hours and GPU-hours of every request at every GPU count that it allows, with bands."""
    from dataclasses import replace

    from tidegrid.app.flow import estimators_for, explain_job, nothing_waits
    from tidegrid.data import read_requests
    from tidegrid.files import check_outputs, write_text
    from tidegrid.pipeline.estimates import estimate_jobs
    from tidegrid.pipeline.site import Site

    check_store(store)
    check_outputs(out)
    with progress("estimating", quiet=json_) as step:
        read = Site.read(site, now=now, timezone=timezone)
        if requests is not None:
            aside = list(read.set_aside)
            queue = read_requests(requests, timezone=timezone, set_aside=aside)
            read = replace(read, requests=queue, set_aside=tuple(aside))
        fitted, notes = estimators_for(read, store or site / "models", step)
        if explain is not None:
            text = explain_job(read, fitted, explain)
        notes = [*read.notes, *nothing_waits(read), *notes]
        estimates = estimate_jobs(read.requests, read.cluster, fitted)
        frame = estimates.table()
        if out is not None:
            write_text(out, frame.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    if explain is not None:
        print_json({"job": explain, "explanation": text}) if json_ else say(text)
        return
    refused = estimates.refused.to_dict("records")
    if json_:
        print_json(
            {"estimates": frame.to_dict("records"), "refused": refused, "notes": notes}
            | set_aside_json(read.set_aside)
        )
    else:
        rows = [
            [
                str(r["job_id"]), str(r["pool"]), str(r["gpus"]),
                f"{r['hours_q0.5']:.3g}", f"{r['hours_q0.1']:.3g} – {r['hours_q0.9']:.3g}",
                f"{r['gpu_hours_mean']:.3g}", str(r["basis"]), str(r["note"]),
            ]
            for r in frame.to_dict("records")
        ]  # fmt: skip
        columns = ["job", "pool", "GPUs", "hours (median)", "80 % band", "GPU-hours (mean)", "basis", "note"]
        table("", columns, rows)
        for r in refused:
            say(f"refused: {r['job_id']}: {r['reason']}")
        tell(notes)
        tell_set_aside(read.set_aside)
    raise typer.Exit(REFUSED if refused or read.set_aside else DONE)
