"""What the commands ``plan``, ``predict``, ``train`` and ``demo`` share: run the main job, write and print it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from tidegrid.app.common import say, say_synthetic, table, tell, work_share
from tidegrid.errors import InputError
from tidegrid.estimators import Estimator
from tidegrid.pipeline.champions import answering, calendar_of, fit_all, load_estimators, preferred
from tidegrid.pipeline.decide import Decision, decide
from tidegrid.pipeline.forecast import Estimating
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.rolling.reconcile import lost_jobs, twice_listed
from tidegrid.pipeline.site import Site
from tidegrid.scheduler import Plan, Problem, solve

BASELINES = ("fifo", "fifo_backfill")
"""What a plan is compared with when it is made; ``tidegrid compare`` shows all modes."""

Step = Callable[[str], None]


@dataclass(frozen=True)
class SitePlan:
    """A site's plan, what it rests on, and the baselines on the same problem."""

    site: Site
    decision: Decision
    baselines: Mapping[str, Plan]
    notes: Sequence[str]
    waiting: Sequence[tuple[str, str]]

    @property
    def plans(self) -> dict[str, Plan]:
        """All plans by mode, the site's own first."""
        return {self.decision.plan.mode: self.decision.explained, **self.baselines}

    @property
    def refused(self) -> Sequence[tuple[str, str]]:
        """Jobs that cannot run as asked, with the reason."""
        return self.decision.refused

    def summary(self) -> dict[str, Any]:
        """Return the result as one JSON object."""
        return {
            "now": self.site.now.isoformat(),
            "synthetic": self.site.cluster.synthetic,
            "metrics": {mode: dict(plan.metrics) for mode, plan in self.plans.items()},
            "unmet_gpu_steps": self.decision.unmet,
            "risks": [risk["text"] for risk in self.decision.risks],
            "refused": [{"job": job, "reason": reason} for job, reason in self.refused],
            "waiting": [{"job": job, "reason": reason} for job, reason in self.waiting],
            "lost": self.decision.state.lost["job_id"].astype(str).tolist(),
            "deadlines": list(self.decision.deadlines),
            "notes": list(self.notes),
            "etas": self.decision.etas.to_dict("records"),
        }


def train_site(
    site: Site, store: Path, only: Sequence[str] | None = None, jobs: int = 1, refit: bool = False
) -> list[dict[str, Any]]:
    """Train a site's estimators into a store; one record an estimator, with what was decided and why."""
    from tidegrid.files import check_folder
    from tidegrid.models import ModelStore
    from tidegrid.pipeline.train import train

    check_folder(store)
    return [
        trained.record()
        for trained in train(
            site.history,
            ModelStore(store),
            names=only,
            jobs=jobs,
            now=site.now,
            refit=refit,
            **calendar_of(site.cluster),
        )
    ]


def estimators_for(
    site: Site, store: Path, step: Step, prefer: Mapping[str, str] | None = None
) -> tuple[dict[str, Estimator], list[str]]:
    """Return the champions of a store, or estimators fitted on the folder's history where there is no store.

    Only those that a decision asks: ``prefer`` is the policy's choice by workload kind.
    """
    from tidegrid.models import ModelStore

    calendar, names = calendar_of(site.cluster), answering(prefer or {})
    if store.is_dir():
        step("loading the estimators")
        return load_estimators(ModelStore(store), history=site.history, names=names, **calendar)
    step("fitting estimators on the folder's history")
    notes = [f"no model store at {store}: estimators fitted afresh (tidegrid train keeps them)"]
    return fit_all(site.history, names, notes=notes, **calendar), notes


def plan_site(
    site: Site,
    store: Path,
    policy: Policy,
    mode: str,
    time_limit: float | None,
    seed: int,
    step: Step,
    workers: int = 1,
) -> SitePlan:
    """Decide once on a site, and compare with the baselines."""
    estimators, notes = estimators_for(site, store, step, policy.estimators)
    forecaster = Estimating(preferred(estimators, policy.estimators), site.history)
    step("forecasting and planning")
    decision = decide(
        site.state(),
        forecaster,
        policy,
        mode,
        time_limit=time_limit,
        seed=seed,
        workers=workers,
        progress=step,
    )
    baselines = {name: solve(decision.problem, mode=name) for name in BASELINES if name != mode}
    told = [*map(twice_listed, decision.state.twice), *lost_jobs(decision.state), *decision.events]
    said = [*site.notes, *(event.text for event in told), *nothing_waits(site)]
    waiting = [
        (told["job"], told["reason"])
        for told in decision.explained.extra["explanations"]
        if told["state"] == "not in this horizon"
    ]
    shapes = decision.forecast.estimates.shapes
    for reason in sorted(set(shapes["note"]) - {"", *(event.text for event in told)}):
        jobs = sorted(set(shapes.loc[shapes["note"] == reason, "job_id"]))
        said.append(f"{_some(jobs)}: {reason}")
    # what the estimators could do better comes last
    return SitePlan(site, decision, baselines, [*said, *notes], waiting)


def nothing_waits(site: Site) -> list[str]:
    """Return a note where the site's queue is empty."""
    return [f"{site.folder} has no requests: nothing waits to be planned"] if site.requests.empty else []


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


def figures(problem: Problem, plans: Mapping[str, Plan]) -> list[list[str]]:
    """Return the comparison as rows of text, under ``COLUMNS``."""
    fifo = plans.get("fifo")
    base = fifo.metrics["value"] if fifo is not None else 0.0
    rows = []
    for mode, plan in plans.items():
        m = plan.metrics
        gain = f"{100 * (m['value'] / base - 1):+.1f} %" if base > 0 else "–"
        rows.append(
            [
                mode, f"{100 * m['utilization']:.1f} %", work_share(problem, plan), f"{m['value']:.1f}", gain,
                f"{m['objective']:.1f}", f"{m['shortfall']:g}", f"{m['swaps']:g}", f"{m['placed']:g} of {m['jobs']:g}",
            ]
        )  # fmt: skip
    return rows


COLUMNS = [
    "mode", "utilization", "work / occupied", "value", "against fifo", "objective", "unmet GPU-steps", "swaps",
    "placed",
]  # fmt: skip


def write_planned(result: SitePlan, out: Path, report: bool = True) -> dict[str, Path]:
    """Write problem, plan, estimates, expected times and, where asked, report and picture into a folder."""
    from tidegrid.files import make_folder, write_text

    make_folder(out)
    decision = result.decision
    forecast, plan = decision.forecast, decision.explained
    files = {
        "problem": out / "problem.json",
        "plan": out / "plan.json",
        "estimates": out / "estimates.csv",
        "etas": out / "etas.csv",
    }
    decision.problem.write(files["problem"])
    plan.write(files["plan"])
    for name, frame in (("estimates", forecast.estimates.table()), ("etas", decision.etas)):
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
                problem=decision.problem,
                plans=shown,
                figures=pd.DataFrame(figures(result.decision.problem, result.plans), columns=COLUMNS),
                etas=decision.etas,
                unplaced=result.refused,
                traffic={
                    app: demand.traffic[demand.traffic["unique_id"] == key].reset_index(drop=True)
                    for app, key in series.items()
                },
                people=pd.concat(
                    [f.reindex(columns=PEOPLE) for f in (result.site.requests, result.site.running)]
                ).fillna(""),
                deadlines=decision.deadlines,
                notes=result.notes,
                synthetic=result.site.cluster.synthetic,
                zone=result.site.cluster.timezone,
            ),
            files["report"],
        )
        grid_png(decision.problem, shown, files["picture"])
    return files


def print_planned(result: SitePlan, files: Mapping[str, Path]) -> None:
    """Print the comparison, what is short or idle, and where the files are."""
    problem = result.decision.problem
    if result.site.cluster.synthetic:
        say_synthetic()
    gpus = sum(pool.gpus for pool in problem.pools)
    waiting, running = len(result.site.requests), len(result.site.running)
    say(
        f"{gpus} GPUs, {waiting + running} jobs ({running} running), "
        f"{len(problem.apps)} realtime apps, {problem.steps} steps of {problem.step_minutes} min from "
        f"{result.site.now.tz_convert(result.site.cluster.timezone):%Y-%m-%d %H:%M %Z}"
    )
    table("", COLUMNS, figures(result.decision.problem, result.plans))
    for job, reason in result.refused:
        say(f"refused: {job}: {reason}")
    risks = result.decision.risks
    for risk in risks[:5]:
        say(f"coverage risk: {risk['text']}")
    if len(risks) > 5:
        say(f"coverage risk: and {len(risks) - 5} more; the report and --json list all")
    for line in result.decision.deadlines:
        say(f"deadline at risk: {line}")
    if result.waiting:
        waits = "1 job waits" if len(result.waiting) == 1 else f"{len(result.waiting)} jobs wait"
        say(f"{waits} past this horizon; the report says why")
    tell(result.notes)
    for name, path in files.items():
        if name in ("report", "picture", "plan"):
            say(f"{name}: {path}")
