"""What the commands ``plan``, ``predict``, ``train`` and ``demo`` share: run the main job, write and print it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tidegrid.app.common import say, say_synthetic, table
from tidegrid.errors import InputError
from tidegrid.estimators import Estimator
from tidegrid.pipeline.champions import preferred
from tidegrid.pipeline.etas import deadline_risks
from tidegrid.pipeline.plan import Planned, make_forecast, make_plan
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.site import Site
from tidegrid.scheduler import Plan, solve

BASELINES = ("fifo", "fifo_backfill")
"""What a plan is compared with when it is made; ``tidegrid compare`` shows all modes."""

Step = Callable[[str], None]


@dataclass(frozen=True)
class SitePlan:
    """A site's plan, what it rests on, and the baselines on the same problem."""

    site: Site
    planned: Planned
    baselines: Mapping[str, Plan]
    notes: Sequence[str]
    refused: Sequence[tuple[str, str]]
    waiting: Sequence[tuple[str, str]]
    deadlines: Sequence[str] = ()

    @property
    def plans(self) -> dict[str, Plan]:
        """All plans by mode, the site's own first."""
        return {self.planned.plan.mode: self.planned.plan, **self.baselines}

    def summary(self) -> dict[str, Any]:
        """Return the result as one JSON object."""
        return {
            "now": self.site.now.isoformat(),
            "synthetic": self.site.cluster.synthetic,
            "metrics": {mode: dict(plan.metrics) for mode, plan in self.plans.items()},
            "refused": [{"job": job, "reason": reason} for job, reason in self.refused],
            "waiting": [{"job": job, "reason": reason} for job, reason in self.waiting],
            "deadlines": list(self.deadlines),
            "notes": list(self.notes),
            "etas": self.planned.etas.to_dict("records"),
        }


def train_site(
    site: Site, store: Path, only: Sequence[str] | None = None, jobs: int = 1
) -> list[dict[str, Any]]:
    """Train a site's estimators into a store; one record an estimator, with what was decided and why."""
    from tidegrid.files import make_folder
    from tidegrid.models import ModelStore
    from tidegrid.pipeline.train import train

    make_folder(store)
    return [
        trained.record()
        for trained in train(
            site.history,
            ModelStore(store),
            names=only,
            jobs=jobs,
            now=site.now,
            timezone=site.cluster.timezone,
        )
    ]


def estimators_for(site: Site, store: Path, step: Step) -> tuple[dict[str, Estimator], list[str]]:
    """Return the champions of a store, or estimators fitted on the folder's history where there is no store."""
    from tidegrid.models import ModelStore
    from tidegrid.pipeline.train import fit_all, load_estimators

    if store.is_dir():
        step("loading the estimators")
        return load_estimators(ModelStore(store), timezone=site.cluster.timezone, history=site.history)
    step("fitting estimators on the folder's history")
    fitted = fit_all(site.history, timezone=site.cluster.timezone)
    return fitted, [f"no model store at {store}: estimators fitted afresh (tidegrid train keeps them)"]


def plan_site(
    site: Site, store: Path, policy: Policy, mode: str, time_limit: float | None, seed: int, step: Step
) -> SitePlan:
    """Run the main job on a site."""
    estimators, notes = estimators_for(site, store, step)
    notes = [*notes, *gaps(site)]
    estimators = preferred(estimators, policy.estimators)
    step("forecasting durations and demand")
    forecast = make_forecast(site.requests, site.running, site.cluster, estimators, site.now, policy)
    step(f"planning {len(forecast.problem.jobs)} jobs on {sum(p.gpus for p in forecast.problem.pools)} GPUs")
    planned = make_plan(forecast, site.running, mode, time_limit, seed, site.cluster.timezone)
    baselines = {name: solve(forecast.problem, mode=name) for name in BASELINES if name != mode}
    refused = [(str(r.job_id), str(r.reason)) for r in forecast.estimates.refused.itertuples(index=False)]
    waiting = []
    for told in planned.plan.extra["explanations"]:
        if told["state"] == "refused":
            refused.append((told["job"], told["reason"].removeprefix("refused: ")))
        elif told["state"] == "not in this horizon":
            waiting.append((told["job"], told["reason"]))
    shapes = forecast.estimates.shapes
    for reason in sorted(set(shapes["note"]) - {""}):
        jobs = sorted(set(shapes.loc[shapes["note"] == reason, "job_id"]))
        notes = [*notes, f"{_some(jobs)}: {reason}"]
    deadlines = deadline_risks(site.requests, forecast.problem, planned.etas, site.cluster.timezone)
    return SitePlan(site, planned, baselines, notes, refused, waiting, deadlines)


def gaps(site: Site) -> list[str]:
    """Say what a site's files lack that a plan would want."""
    known = set(site.history.traffic["series_id"])
    out = [
        f"traffic has no series {app.series} for app {app.id}: its demand is a guess from other apps"
        for app in site.cluster.apps
        if app.series not in known
    ]
    if site.requests.empty:
        out.append(f"{site.folder} has no requests: nothing waits to be planned")
    return out


def _some(jobs: Sequence[str]) -> str:
    return ", ".join(jobs[:3]) + (f" and {len(jobs) - 3} more" if len(jobs) > 3 else "")


def explain_job(site: Site, estimators: Mapping[str, Estimator], job: str) -> str:
    """Say in words how a job's estimate arises, at the GPU count that it asks for.

    Raises
    ------
    InputError
        The folder's requests hold no such job.
    """
    from tidegrid.pipeline.estimates import estimate_jobs, explain_request

    row = site.requests[site.requests["job_id"] == job]
    if row.empty:
        known = ", ".join(map(str, site.requests["job_id"].head(5)))
        raise InputError(f"there is no request {job!r}", field="--explain", fix=f"name one of {known}, …")
    estimates = estimate_jobs(row, site.cluster, estimators)
    if len(estimates.refused):
        return str(estimates.refused["reason"].iloc[0])
    return explain_request(row, site.cluster, estimators)


def figures(plans: Mapping[str, Plan]) -> list[list[str]]:
    """Return the comparison as rows of text: mode, utilization, value, gain, shortfall, swaps, placed."""
    fifo = plans.get("fifo")
    base = fifo.metrics["value"] if fifo is not None else 0.0
    rows = []
    for mode, plan in plans.items():
        m = plan.metrics
        gain = f"{100 * (m['value'] / base - 1):+.1f} %" if base > 0 else "–"
        rows.append(
            [
                mode, f"{100 * m['utilization']:.1f} %", f"{m['value']:.1f}", gain, f"{m['objective']:.1f}",
                f"{m['shortfall']:g}", f"{m['swaps']:g}", f"{m['placed']:g} of {m['jobs']:g}",
            ]
        )  # fmt: skip
    return rows


COLUMNS = ["mode", "utilization", "value", "against fifo", "objective", "unmet realtime", "swaps", "placed"]


def write_planned(result: SitePlan, out: Path, report: bool = True) -> dict[str, Path]:
    """Write problem, plan, estimates, expected times and, where asked, report and picture into a folder."""
    from tidegrid.files import write_text

    forecast, plan = result.planned.forecast, result.planned.plan
    files = {
        "problem": out / "problem.json",
        "plan": out / "plan.json",
        "estimates": out / "estimates.csv",
        "etas": out / "etas.csv",
    }
    forecast.problem.write(files["problem"])
    plan.write(files["plan"])
    for name, frame in (("estimates", forecast.estimates.table()), ("etas", result.planned.etas)):
        write_text(files[name], frame.to_csv(index=False, float_format="%.6g", lineterminator="\n"))
    if report:
        from tidegrid.app.pictures import grid_png
        from tidegrid.app.report import PEOPLE, Report, write_report

        shown = [(mode, result.plans[mode]) for mode in dict.fromkeys((plan.mode, "fifo"))]
        files["report"] = out / "report.html"
        files["picture"] = out / "grid.png"
        demand = forecast.demand
        series = {app.id: app.series_id for app in result.site.cluster.apps}
        write_report(
            Report(
                title=f"tidegrid: plan of {result.site.now:%Y-%m-%d}",
                problem=forecast.problem,
                plans=shown,
                figures=pd.DataFrame(figures(result.plans), columns=COLUMNS),
                etas=result.planned.etas,
                unplaced=result.refused,
                traffic={
                    app: demand.traffic[demand.traffic["unique_id"] == key].reset_index(drop=True)
                    for app, key in series.items()
                },
                people=pd.concat(
                    [f.reindex(columns=PEOPLE) for f in (result.site.requests, result.site.running)]
                ).fillna(""),
                deadlines=result.deadlines,
                notes=result.notes,
                synthetic=result.site.cluster.synthetic,
                zone=result.site.cluster.timezone,
            ),
            files["report"],
        )
        grid_png(forecast.problem, shown, files["picture"])
    return files


def print_planned(result: SitePlan, files: Mapping[str, Path]) -> None:
    """Print the comparison, what is short or idle, and where the files are."""
    problem = result.planned.forecast.problem
    if result.site.cluster.synthetic:
        say_synthetic()
    gpus = sum(pool.gpus for pool in problem.pools)
    waiting, running = len(result.site.requests), len(result.site.running)
    say(
        f"{gpus} GPUs, {waiting + running} jobs ({running} running), "
        f"{len(problem.apps)} realtime apps, {problem.steps} steps of {problem.step_minutes} min from "
        f"{result.site.now.tz_convert(result.site.cluster.timezone):%Y-%m-%d %H:%M %Z}"
    )
    table("", COLUMNS, figures(result.plans))
    for note in result.notes:
        say(note, style="dim")
    for job, reason in result.refused:
        say(f"refused: {job}: {reason}")
    for risk in result.planned.plan.extra["risks"][:5]:
        say(f"coverage risk: {risk['text']}")
    for line in result.deadlines:
        say(f"deadline at risk: {line}")
    if result.waiting:
        waits = "1 job waits" if len(result.waiting) == 1 else f"{len(result.waiting)} jobs wait"
        say(f"{waits} past this horizon; the report says why")
    for name, path in files.items():
        if name in ("report", "picture", "plan"):
            say(f"{name}: {path}")
