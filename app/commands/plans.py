"""``solve``, ``check``, ``compare``, ``explain``, ``bench``: problems and plans as files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidegrid.app.common import (
    DAY_SECONDS,
    DONE,
    REFUSED,
    JsonFlag,
    SeedOption,
    WorkersOption,
    a_zone,
    check_mode,
    count,
    print_json,
    progress,
    say,
    table,
    work_share,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tidegrid.pipeline.compare import Comparison
    from tidegrid.scheduler import Plan, Problem

ProblemFile = Annotated[Path, typer.Argument(metavar="PROBLEM.json", help="The problem file.")]
PlanFile = Annotated[Path, typer.Argument(metavar="PLAN.json", help="The plan file.")]
Modes = Annotated[
    list[str] | None, typer.Option("--mode", "-m", help="Only this mode; may be given several times.")
]
Report = Annotated[Path | None, typer.Option("--report", help="Also write one HTML file with pictures.")]
TimeLimit = Annotated[
    float,
    typer.Option(
        "--time-limit",
        min=0.0,
        max=DAY_SECONDS,
        help="Seconds for mode full, and again for the proven bound.",
    ),
]
Timezone = Annotated[
    str | None,
    typer.Option("--timezone", callback=a_zone, help="IANA zone of the clock times; UTC where absent."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("solve", epilog="Example: `tidegrid solve problem.json --mode fast --out plan.json`")(solve)
    app.command("check", epilog="Example: `tidegrid check problem.json plan.json`")(check)
    app.command("compare", epilog="Example: `tidegrid compare problem.json --time-limit 10`")(compare)
    app.command("explain", epilog="Example: `tidegrid explain problem.json plan.json sft-llama-8b`")(explain)
    app.command("bench", epilog="Example: `tidegrid bench training_heavy --report bench.html`")(bench)


def solve(
    problem_file: ProblemFile,
    mode: Annotated[
        str, typer.Option("--mode", "-m", help="fast, full, or a baseline such as fifo.")
    ] = "fast",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the plan to this file.")] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            min=0.0,
            max=DAY_SECONDS,
            help="Seconds; only for mode full.",
        ),
    ] = None,
    workers: WorkersOption = 1,
    timezone: Timezone = None,
    seed: SeedOption = 0,
    json_: JsonFlag = False,
) -> None:
    """Plan a problem file; exit code 1 where a job is refused because no plan could ever place it.

    Mode full also proves a bound, which no legal plan's objective exceeds, and tells the gap: how far the plan lies
    below the bound, as a share of it.
    """
    from tidegrid.files import check_outputs
    from tidegrid.scheduler import Problem
    from tidegrid.scheduler import explain as explain_plan
    from tidegrid.scheduler import solve as plan_problem

    check_mode(mode, time_limit)
    check_outputs(out)
    problem = Problem.read(problem_file)
    with progress(f"planning with mode {mode}", lines=mode == "full") as step:
        options: dict[str, Any] = {"progress": step, "workers": workers} if mode == "full" else {}
        plan = plan_problem(problem, mode=mode, time_limit=time_limit, seed=seed, **options)
        step("explaining the plan")
        plan = explain_plan(problem, plan, timezone)
        if out is not None:
            plan.write(out)
    told = plan.extra["explanations"]
    if json_:
        print_json(plan.to_dict(grid=False) | {"file": None if out is None else str(out)})
    else:
        table("", _COLUMNS[:-2], [_figures(problem, plan.mode, plan)])
        _print_solver(plan)
        risks = plan.extra["risks"]
        for risk in risks[:5]:
            say(f"coverage risk: {risk['text']}")
        if len(risks) > 5:
            say(f"coverage risk: and {len(risks) - 5} more; tidegrid explain lists all")
        waiting = [item for item in told if item["state"] == "not in this horizon"]
        if waiting:
            jobs = count(len(waiting), "job has", "jobs have")
            say(f"{jobs} no start in this horizon; tidegrid explain says why")
        for item in told:
            if item["state"] == "refused":
                say(f"{item['job']}: {item['reason']}")
        if out is not None:
            say(f"plan: {out}")
    raise typer.Exit(REFUSED if any(item["state"] == "refused" for item in told) else DONE)


#: What a status of mode full says, in words.
_STATUS = {
    "optimal": "no plan is better",
    "feasible": "the search ended before it could tell whether a better one exists",
    "interrupted": "the search was interrupted",
    "fallback": "the search failed or had no time, and this is the best plan without it",
}
#: What a status of the bound says, in words.
_BOUND = {
    "optimal": "its computation came to its end: more time gives no lower one",
    "feasible": "its computation met the time limit: more time may give a lower one",
    "prices": "it comes from prices of GPU-steps alone, as the problem is large or time was short: it may lie far up",
    "trivial": "every job at its best, all at once: it may lie far up",
}


def _print_solver(plan: "Plan") -> None:
    solver = plan.extra.get("solver")
    if not solver:
        return
    status, gap = solver["status"], f"{100 * solver['gap']:.2f} %"
    say(f"proven bound of the objective: {solver['bound']:.1f}, which no legal plan exceeds")
    if status == "optimal":
        gap = f"gap {100 * max(0.0, solver['gap']):.2g} %"
        say(f"{gap}: no plan is better than this one by more than {solver['tolerance']:.2g} (optimal)")
    else:
        say(f"gap {gap}: no plan is better than this one by more than that; {_STATUS[status]} ({status})")
    if solver.get("trouble"):
        say(f"what went wrong: {solver['trouble']}")
    if solver.get("gain"):
        say(f"{solver['gain']:+.1f} over the fast plan")


def check(problem_file: ProblemFile, plan_file: PlanFile, json_: JsonFlag = False) -> None:
    """Check whether a plan is legal, and compute its figures; exit code 1 where it is not legal."""
    from tidegrid.scheduler import Plan, Problem
    from tidegrid.scheduler import check as judge

    problem, plan = Problem.read(problem_file), Plan.read(plan_file)
    violations, figures = judge(problem, plan)
    answers = plan.problem_sha256 in (None, problem.sha256)
    if json_:
        print_json({"legal": not violations, "violations": violations, "answers_problem": answers, **figures})
    else:
        say("legal" if not violations else f"not legal: {count(len(violations), 'violation')}")
        for line in violations[:20]:
            say(f"  {line}")
        if len(violations) > 20:
            say(f"  … and {len(violations) - 20} more; --json lists all")
        table("", _COLUMNS[:-2], [_figures(problem, plan.mode, plan.with_metrics(figures))])
        if not answers:
            say("the plan states another input's version: it was made for an earlier problem")
    raise typer.Exit(REFUSED if violations else DONE)


def explain(
    problem_file: ProblemFile,
    plan_file: PlanFile,
    job: Annotated[str | None, typer.Argument(help="A job's id; all jobs without one.")] = None,
    timezone: Timezone = None,
    json_: JsonFlag = False,
) -> None:
    """Explain why a job starts when it does, and what would let it start sooner."""
    from tidegrid.errors import InputError
    from tidegrid.scheduler import Plan, Problem, explain_job
    from tidegrid.scheduler import check as judge
    from tidegrid.scheduler import explain as explain_plan
    from tidegrid.scheduler.advice import replanned
    from tidegrid.scheduler.clock import Clock
    from tidegrid.scheduler.solve import BASELINES

    problem, plan = Problem.read(problem_file), Plan.read(plan_file)
    violations, _ = judge(problem, plan)
    if violations:
        raise InputError(
            f"is not a legal plan of this problem ({violations[0]})",
            file=plan_file,
            fix="explain a legal plan",
        )
    if job is not None:
        told: list[dict[str, Any]] = [explain_job(problem, plan, job, timezone)]
        extra: dict[str, Any] = {}
    else:
        explained = explain_plan(problem, plan, timezone)
        told = list(explained.extra["explanations"])
        extra = {name: explained.extra[name] for name in ("risks", "idle_windows", "surplus")}
    told = replanned(problem, plan, told, plan.mode if plan.mode in BASELINES else "fast")
    if json_:
        print_json({"explanations": told, **extra})
        return
    clock = Clock(problem, timezone)
    for item in told:
        when = "" if item["start"] is None else f", {clock.steps(item['start'], item['end'])}"
        reason = item["reason"].removeprefix("refused: ")
        say(f" ({item['state']}{when}): {reason}", lead=item["job"])
        for blocker in item["blockers"]:
            said = "would start sooner without" if blocker["sooner"] else "in the way"
            say(f"  {said}: {blocker['text']}")
    for name, label in (("risks", "coverage risk"), ("idle_windows", "idle"), ("surplus", "idle")):
        for item in extra.get(name, []):
            say(f"{label}: {item['text']}")


_COLUMNS = [
    "mode", "utilization", "work / occupied", "value", "objective", "unmet GPU-steps", "swaps", "placed",
    "gap to bound", "median",
]  # fmt: skip


def _figures(problem: "Problem", mode: str, plan: "Plan") -> list[str]:
    m = plan.metrics
    return [
        mode, f"{100 * m['utilization']:.1f} %", work_share(problem, plan), f"{m['value']:.1f}",
        f"{m['objective']:.1f}", f"{m['shortfall']:g}", f"{m['swaps']:g}", f"{m['placed']:g} of {m['jobs']:g}",
    ]  # fmt: skip


def _rows(comparison: "Comparison") -> list[list[str]]:
    rows = []
    for row in comparison.rows():
        gap = "–" if row["gap"] is None else f"{100 * row['gap']:.2f} %"
        seconds = row["seconds"]
        median = "–" if seconds is None else f"{1000 * seconds:.2f} ms"
        fifo = row["gain"].get("fifo")
        cells = [*_figures(comparison.problem, row["mode"], comparison.plans[row["mode"]]), gap, median]
        rows.append([*cells[:4], "–" if fifo is None else f"{100 * fifo:+.1f} %", *cells[4:]])
    return rows


_COMPARED = [*_COLUMNS[:4], "against fifo", *_COLUMNS[4:]]


def compare(
    problem_file: ProblemFile,
    mode: Modes = None,
    time_limit: TimeLimit = 5.0,
    repeats: Annotated[
        int, typer.Option("--repeats", min=0, max=10_000, help="Timed runs of each mode.")
    ] = 5,
    workers: WorkersOption = 1,
    report: Report = None,
    seed: SeedOption = 0,
    json_: JsonFlag = False,
) -> None:
    """Plan a problem with every mode, side by side, with each plan's gap to the proven bound.

    No legal plan's objective exceeds the bound; the gap is how far a plan lies below it, as a share of the bound. A
    gap of 0 is the best plan there is; what is left of a larger one may be the bound's fault as well as the plan's.
    """
    from tidegrid.files import check_outputs
    from tidegrid.pipeline.compare import compare as compare_modes
    from tidegrid.scheduler import Problem, refusals

    check_outputs(report)
    problem = Problem.read(problem_file)
    with progress("comparing", lines=True) as step:
        comparison = compare_modes(
            problem, mode, name=problem_file.stem, time_limit=time_limit, bound_limit=max(time_limit, 1.0),
            workers=workers, seed=seed, repeats=repeats, step=step,
        )  # fmt: skip
        if report is not None:
            step("drawing the report")
            _write_report([comparison], f"tidegrid: {problem_file.name}", report)
    refused = refusals(problem)
    if json_:
        print_json(comparison.record() | {"refused": refused})
    else:
        table("", _COMPARED, _rows(comparison))
        say(_bound_line(comparison))
        if "full" in comparison.plans and "fast" in comparison.plans:
            say(_full_line(comparison))
        for name, reason in refused.items():
            say(f"{name}: refused: {reason}")
        if report is not None:
            say(f"report: {report}")
    raise typer.Exit(REFUSED if refused else DONE)


def _full_line(comparison: "Comparison") -> str:
    """What mode full's seconds bought over the fast plan."""
    fast, full = (comparison.plans[mode].metrics["objective"] for mode in ("fast", "full"))
    status = comparison.plans["full"].extra.get("solver", {}).get("status", "unknown")
    words = f"{_STATUS[status]} ({status})" if status in _STATUS else status
    if full <= fast:
        return f"mode full found nothing better than the fast plan: {words}"
    return f"mode full: objective {full - fast:+.1f} over the fast plan: {words}"


def _bound_line(comparison: "Comparison") -> str:
    status = comparison.bound_status
    how = "found by mode full" if status.startswith("full: ") else _BOUND.get(status, status)
    return (
        f"proven bound of the objective: {comparison.bound:.1f}, which no legal plan exceeds ({how}); "
        "the gap is how far a plan lies below it"
    )


def bench(
    scenario: Annotated[list[str] | None, typer.Argument(help="Scenarios; all seven without one.")] = None,
    mode: Modes = None,
    time_limit: TimeLimit = 5.0,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, max=10_000, help="Timed runs of each mode.")
    ] = 21,
    race: Annotated[
        bool, typer.Option("--race/--no-race", help="Time CP-SAT to the fast plan's objective.")
    ] = True,
    report: Report = None,
    seed: SeedOption = 0,
    json_: JsonFlag = False,
) -> None:
    """Run every mode on the seven scenarios rebuilt from a published account of such an allocator."""
    from tidegrid.files import check_outputs
    from tidegrid.pipeline.compare import bench as run_bench

    check_outputs(report)
    with progress("running the scenarios", lines=True) as step:
        result = run_bench(
            scenario, mode, time_limit=time_limit, bound_limit=max(time_limit, 1.0), seed=seed, repeats=repeats,
            race=race, step=step,
        )  # fmt: skip
        if report is not None:
            step("drawing the report")
            _write_report(result.comparisons, "tidegrid: the seven scenarios", report)
    mean = result.mean_gain()
    if json_:
        print_json({"scenarios": [c.record() for c in result.comparisons], "mean_gain_contended": mean})
        return
    say("The scenarios are rebuilt: the article states figures, no inputs.")
    for comparison in result.comparisons:
        table(comparison.name, _COMPARED, _rows(comparison))
        say(_bound_line(comparison))
        if comparison.solver_ratio is not None:
            sign = "" if comparison.solver_reached else "more than "
            say(
                f"CP-SAT needs {sign}{comparison.solver_ratio:,.0f} times the fast mode's time to its objective"
            )
    if mean is not None:
        say(f"fast against fifo, mean value over the contended scenarios: {100 * mean:+.1f} %")
    if report is not None:
        say(f"report: {report}")


def _write_report(comparisons: "list[Comparison]", title: str, path: Path) -> None:
    """Write one HTML file: for each problem its table and its grids, planned above FIFO's, as pictures."""
    import html

    from tidegrid.app.report import STYLE
    from tidegrid.files import write_text

    parts = [f"<h1>{html.escape(title)}</h1>"]
    for comparison in comparisons:
        source = (comparison.problem.model_extra or {}).get("source", "")
        parts += [
            f"<h2>{html.escape(comparison.name)}</h2>",
            f'<p class="note">{html.escape(str(source))}</p>',
        ]
        parts.append(_html_table(_COMPARED, _rows(comparison)))
        parts.append(f'<p class="note">{html.escape(_bound_line(comparison))}</p>')
        shown = [
            (mode, comparison.plans[mode]) for mode in ("fast", "full", "fifo") if mode in comparison.plans
        ]
        if shown:
            parts.append(
                f'<img alt="grids" style="max-width:100%" src="{_picture(comparison.problem, shown)}">'
            )
    write_text(
        path,
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f"<style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n",
    )


def _html_table(columns: list[str], rows: list[list[str]]) -> str:
    import html

    def line(cells: list[str], tag: str) -> str:
        first, *rest = (html.escape(cell) for cell in cells)
        return (
            f'<tr><{tag} class="l">{first}</{tag}>' + "".join(f"<{tag}>{c}</{tag}>" for c in rest) + "</tr>"
        )

    body = "".join(line(row, "td") for row in rows)
    return f'<div class="scroll"><table>{line(columns, "th")}{body}</table></div>'


def _picture(problem: "Problem", shown: "Sequence[tuple[str, Plan]]") -> str:
    import base64
    import tempfile

    from tidegrid.app.pictures import grid_png

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "grid.png"
        grid_png(problem, shown, file)
        return "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode()
