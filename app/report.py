"""The report: one self-contained HTML file with grids, demand, figures, and each job's expected times."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.app.board import CLOSED, COLOURS, IDLE, KIND_NAMES, Block, blocks, gpus_text, node_names
from tidegrid.files import write_text
from tidegrid.pipeline.etas import start_of
from tidegrid.scheduler import Plan, Pool, Problem

PEOPLE = ["job_id", "user", "name"]
"""The columns of a report's ``people``."""

MAX_IDLE = 40
"""Idle windows listed."""

FIND = """<script>
document.getElementById("find").addEventListener("input", event => {
  const wanted = event.target.value.toLowerCase();
  for (const row of document.querySelectorAll("#jobs tbody tr"))
    row.hidden = !row.textContent.toLowerCase().includes(wanted);
});
</script>"""
"""Filters the rows of the table of jobs."""

MAX_NAMES = 32
"""Names of nodes beside a pool."""

MAX_ROWS = 512
"""The report draws at most this many GPUs of a pool, and says so."""

STYLE = """
:root { --ink: #1c2126; --soft: #5c6670; --line: #dde1e5; --ground: #ffffff; --accent: #c9571a; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 1180px;
  margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.6rem; margin: 0 0 .2rem; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
p.note { color: var(--soft); margin: .2rem 0 .8rem; }
.synthetic { background: #fdf1e8; border-left: 4px solid var(--accent); padding: .5rem .8rem; margin: .8rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; font-size: .9rem; }
th, td { text-align: right; padding: .28rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
#jobs td { white-space: normal; vertical-align: top; } #jobs td:first-child { white-space: nowrap; }
#jobs td:last-child { min-width: 15rem; } #jobs td:nth-child(7), #jobs td:nth-child(8) { min-width: 8rem; }
input { font: inherit; max-width: 100%; padding: .3rem .5rem; }
th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
td.l, th.l { text-align: left; } td.w { white-space: normal; }
.scroll { overflow-x: auto; } .plot { margin: .3rem 0 1rem; }
.key span { display: inline-block; margin-right: 1.1rem; color: var(--soft); }
.key i { display: inline-block; width: .8rem; height: .8rem; margin-right: .35rem; vertical-align: -1px; }
"""


@dataclass(frozen=True)
class Report:
    """What a report shows.

    Parameters
    ----------
    title
        Its heading.
    problem
        The problem.
    plans
        Pairs of a title and a plan, drawn from top to bottom.
    figures
        One row a mode, ready to print: text columns first.
    etas
        Expected start and end of each placed job, or an empty frame.
    unplaced
        Job and reason of each job that was refused before planning.
    people
        ``job_id``, ``user`` and ``name`` of the jobs, where they are known.
    deadlines
        A line for each deadline at risk.
    traffic
        For each app the frame ``ds``, quantile columns, or an empty mapping.
    planned
        For each app GPUs a step as planned, the horizon first.
    notes
        Lines under the heading: where the input came from, what was refused.
    synthetic
        Whether the input is synthetic; it is then labelled so.
    zone
        IANA zone in which times are shown.
    """

    title: str
    problem: Problem
    plans: Sequence[tuple[str, Plan]]
    figures: pd.DataFrame
    etas: pd.DataFrame = field(default_factory=pd.DataFrame)
    unplaced: Sequence[tuple[str, str]] = ()
    people: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=PEOPLE))
    deadlines: Sequence[str] = ()
    traffic: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    planned: Mapping[str, np.ndarray] = field(default_factory=dict)
    notes: Sequence[str] = ()
    synthetic: bool = False
    zone: str = "UTC"


def write_report(report: Report, path: str | Path) -> None:
    """Write the report as one HTML file that needs nothing beside it."""
    parts = [f"<h1>{html.escape(report.title)}</h1>"]
    start = start_of(report.problem).tz_convert(report.zone)
    hours = report.problem.steps * report.problem.step_minutes / 60
    parts.append(f'<p class="note">{hours:g} h from {start:%Y-%m-%d %H:%M} ({report.zone})</p>')
    if report.synthetic:
        parts.append('<p class="synthetic">Synthetic data: this cluster and its history are made up.</p>')
    # what to do, what is short and who waits stand on the first screen; pictures and details follow
    plan = report.plans[0][1]
    parts += ["<h2>What to do now</h2>", _to_do(report, plan)]
    parts += ["<h2>Where realtime is short</h2>"]
    parts.append(_records(plan.extra.get("risks", []), "No step is short of realtime GPUs."))
    if report.deadlines:
        parts += ["<h2>Deadlines at risk</h2>", _list(report.deadlines)]
    parts += ["<h2>Jobs</h2>", _jobs(report, plan)]
    parts += ["<h2>Figures</h2>", table_html(report.figures)]
    parts += ["<h2>Who gets which GPU when</h2>", _key()]
    for number, (title, each) in enumerate(report.plans):
        for place, pool in enumerate(report.problem.pools):
            parts.append(_grid(report, title, each, pool.id, pool.gpus, f"grid-{number}-{place}"))
    if report.problem.apps:
        parts.append("<h2>Realtime: demand against what is served</h2>")
        parts += [_demand(report, app.id, place) for place, app in enumerate(report.problem.apps)]
    idle = plan.extra.get("idle_windows", [])
    parts += ["<h2>Idle windows</h2>", _records(idle[:MAX_IDLE], "No GPU is idle.")]
    if len(idle) > MAX_IDLE:
        parts.append(f'<p class="note">… and {len(idle) - MAX_IDLE} more.</p>')
    if report.notes:
        parts += ["<h2>What this rests on</h2>", _list(report.notes)]
    write_page(path, report.title, parts)


def _to_do(report: Report, plan: Plan) -> str:
    """List what the first step changes: jobs that start, and apps that grow or shrink."""
    waiting = {job.id for job in report.problem.jobs if job.running is None}
    lines = [
        f"Start {p.job} on {p.pool}, {gpus_text(report.problem.pool_by_id[p.pool], p)}"
        for p in plan.placements
        if p.start == 0 and p.job in waiting
    ]
    held = {app.id: len(app.held_gpus) for app in report.problem.apps}
    for name, counts in _held(plan):
        if counts and counts[0] != held[name]:
            verb = "Grow" if counts[0] > held[name] else "Shrink"
            lines.append(f"{verb} {name} from {held[name]} to {counts[0]} GPUs")
    if not lines:
        return '<p class="note">Nothing starts and no app changes in the first step.</p>'
    return _list(lines)


def _list(lines: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


STATES = ("now", "later", "not in this horizon", "refused", "running")


def _jobs(report: Report, plan: Plan) -> str:
    """Return the table of all jobs with state, expected times and reason, and a field that filters its rows."""
    told = {entry["job"]: entry for entry in plan.extra.get("explanations", [])}
    reasons = {job: ("refused", reason) for job, reason in report.unplaced if job not in told}
    times = {str(row["job"]): row for row in report.etas.to_dict("records")}
    people = {str(row["job_id"]): row for row in report.people.to_dict("records")}
    priority = {job.id: f"{job.priority:g}" for job in report.problem.jobs}
    state = {job: (entry["state"], entry["reason"]) for job, entry in told.items()} | reasons
    rows = []
    for job in sorted(state, key=lambda j: (STATES.index(state[j][0]), j in times and times[j]["start"], j)):
        who, when = people.get(job, {}), times.get(job)
        rows.append(
            [
                job, who.get("user", ""), who.get("name", ""), priority.get(job, ""), state[job][0],
                "" if when is None else f"{when['gpus']} {when['pool']}",
                *(("", "") if when is None else _when(report, when)),
                state[job][1],
            ]
        )  # fmt: skip
    columns = [
        "job",
        "user",
        "name",
        "priority",
        "state",
        "GPUs",
        "start (80 % band)",
        "end (80 % band)",
        "why",
    ]
    search = (
        '<p><input type="search" id="find" placeholder="Find a job, user, name, state or reason" '
        'aria-label="Find a job" size="44"></p>'
    )
    return (
        search
        + f'<div id="jobs">{table_html(pd.DataFrame(rows, columns=columns), left=len(columns))}</div>'
        + FIND
    )


def _when(report: Report, row: Mapping[Any, Any]) -> list[str]:
    out = []
    for name in ("start", "end"):
        at, low, high = (
            clock_label(pd.Timestamp(row[key]).tz_convert(report.zone))
            for key in (name, f"{name}_q0.1", f"{name}_q0.9")
        )
        out.append(at if low == at == high else f"{at} ({low} – {high})")
    return out


def clock_label(at: pd.Timestamp) -> str:
    """Return weekday and wall-clock time; in the hour that a clock change repeats, with the zone's name."""
    near = pd.Timedelta(hours=3)
    wall = at.tz_localize(None)
    # how far the wall clock is set back within three hours of this instant
    back = 2 * near - ((at + near).tz_localize(None) - (at - near).tz_localize(None))
    twice = back > pd.Timedelta(0) and any((at + step).tz_localize(None) == wall for step in (back, -back))
    return f"{at:%a %H:%M %Z}" if twice else f"{at:%a %H:%M}"


def write_page(path: str | Path, title: str, parts: Sequence[str]) -> None:
    """Write blocks of HTML as one page that needs nothing beside it."""
    from plotly.offline import get_plotlyjs

    body = "\n".join(parts)
    write_text(
        path,
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style>\n'
        f"<script>{get_plotlyjs()}</script></head><body>\n{body}\n</body></html>\n",
    )


def _key() -> str:
    kinds = [(KIND_NAMES[kind], COLOURS[kind][1]) for kind in COLOURS]
    items = "".join(
        f'<span><i style="background:{c}"></i>{name}</span>'
        for name, c in [*kinds, ("closed", CLOSED), ("idle", IDLE)]
    )
    return f'<p class="key">{items}<span>▒ already running: dotted outline</span></p>'


QUIET = {"responsive": True, "showSendToCloud": False, "plotlyServerURL": "", "displaylogo": False}
"""No button of a chart sends what it shows anywhere."""


def figure_html(data: list[Any], layout: dict[str, Any], name: str) -> str:
    """Return plotly traces as a block of HTML, for a page that carries plotly's script."""
    import plotly.graph_objects as go

    base = {"margin": {"l": 60, "r": 16, "t": 34, "b": 36}, "plot_bgcolor": "white", "font": {"size": 12}}
    figure = go.Figure(data, base | layout)
    plot = figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=QUIET)
    return f'<div class="plot">{plot}</div>'


def _times(report: Report, steps: int) -> list[str]:
    at = start_of(report.problem)
    span = pd.Timedelta(minutes=report.problem.step_minutes)
    return [clock_label((at + k * span).tz_convert(report.zone)) for k in range(steps + 1)]


def _grid(report: Report, title: str, plan: Plan, pool: str, gpus: int, name: str) -> str:
    """Draw one pool: a heat map for hover, and an outline and a name for each block."""
    steps, shown = report.problem.steps, min(gpus, MAX_ROWS)
    mine = [b for b in blocks(report.problem, plan) if b.pool == pool and b.first_gpu < shown]
    palette = [IDLE, *dict.fromkeys(b.colour for b in mine)]
    code = {colour: i for i, colour in enumerate(palette)}
    z = np.zeros((shown, steps), dtype=int)
    text = np.full((shown, steps), "idle", dtype=object)
    for b in mine:
        rows, columns = (
            slice(b.first_gpu, min(b.first_gpu + b.gpus, shown)),
            slice(b.start, b.start + b.steps),
        )
        z[rows, columns] = code[b.colour]
        state = ", running" if b.running else ""
        text[rows, columns] = (
            "closed"
            if b.kind == "closed"
            else f"{html.escape(b.task)} ({KIND_NAMES.get(b.kind, b.kind)}, priority {b.priority:g}{state})"
        )
    top = max(1, len(palette) - 1)
    edges = [(i + e) / (top + 1) for i in range(top + 1) for e in (0, 1)]
    scale = [[e, palette[i // 2]] for i, e in enumerate(edges)]
    times = _times(report, steps)
    heat = {
        "type": "heatmap", "z": z.tolist(), "text": text.tolist(), "zmin": -0.5, "zmax": top + 0.5,
        "colorscale": scale, "showscale": False, "x0": 0.5, "dx": 1, "y0": 0.5, "dy": 1, "customdata":
        [times[:steps]] * shown, "hovertemplate": "%{text}<br>%{customdata}<extra></extra>",
    }  # fmt: skip
    every = max(1, steps // 12)
    suffix = f" (first {shown} of {gpus} GPUs)" if shown < gpus else ""
    layout = {
        "title": {"text": f"{html.escape(title)} · pool {html.escape(pool)}{suffix}", "font": {"size": 14}, "x": 0.01},
        "height": int(min(900, 110 + max(8, shown) * (24 if shown <= 16 else 10))),
        "xaxis": {"range": [0, steps], "tickvals": list(range(0, steps + 1, every)),
                  "ticktext": times[:: every], "showgrid": False, "zeroline": False},
        "yaxis": {"range": [shown, 0], "title": {"text": "GPU"}, "showgrid": False, "zeroline": False}
                 | _nodes(report.problem.pool_by_id[pool], shown),
        "shapes": [_outline(b, shown) for b in mine] if len(mine) <= 600 else [],
        "annotations": [_name(b, shown) for b in mine if b.kind != "closed" and _readable(b, shown)],
    }  # fmt: skip
    return figure_html([heat], layout, name)


def _nodes(pool: Pool, shown: int) -> dict[str, Any]:
    """Return what an axis of GPUs shows instead where placement is by node: their names."""
    if not pool.by_node or pool.node_size is None:
        return {}
    size, names = pool.node_size, node_names(pool)
    first = list(range(0, shown, size))[:: max(1, shown // size // MAX_NAMES)]
    return {
        "title": {"text": "node"}, "tickvals": [at + min(size, shown - at) / 2 for at in first],
        "ticktext": [html.escape(names[at // size]) for at in first],
    }  # fmt: skip


def _outline(b: Block, shown: int) -> dict[str, Any]:
    return {
        "type": "rect", "x0": b.start, "x1": b.start + b.steps, "y0": b.first_gpu,
        "y1": min(b.first_gpu + b.gpus, shown),
        "line": {"color": "white", "width": 1.5, "dash": "dot" if b.running else "solid"},
    }  # fmt: skip


def _readable(b: Block, shown: int) -> bool:
    return b.steps >= 2 and min(b.gpus, shown - b.first_gpu) * (24 if shown <= 16 else 10) >= 14


def _name(b: Block, shown: int) -> dict[str, Any]:
    room = max(2, int(b.steps * 5.5))
    name = b.task if len(b.task) <= room else b.task[: room - 1] + "…"
    return {
        "x": b.start + b.steps / 2, "y": (b.first_gpu + min(b.first_gpu + b.gpus, shown)) / 2,
        "text": html.escape(name), "showarrow": False, "font": {"color": "white", "size": 10},
    }  # fmt: skip


def _demand(report: Report, app: str, place: int) -> str:
    steps = report.problem.steps
    spec = next(a for a in report.problem.apps if a.id == app)
    times = _times(report, steps)
    x = list(range(steps))
    demand = list(spec.demand[:steps])
    lines: list[dict[str, Any]] = [
        {"type": "scatter", "mode": "lines", "x": x, "y": demand, "name": "demand forecast",
         "line": {"shape": "hv", "color": "#1c2126", "width": 2}},
    ]  # fmt: skip
    dashes = ("solid", "dot", "dash", "dashdot")
    for number, (title, plan) in enumerate(report.plans):
        held = next((len_cells for name, len_cells in _held(plan) if name == app), [])
        colour = COLOURS["realtime"][0] if number == 0 else COLOURS["training"][1]
        lines.append(
            {"type": "scatter", "mode": "lines", "x": x, "y": held, "name": f"held: {title}",
             "line": {"shape": "hv", "color": colour, "width": 1.6, "dash": dashes[number % 4]}}
        )  # fmt: skip
    every = max(1, steps // 12)
    layout = {
        "title": {"text": html.escape(app), "font": {"size": 14}, "x": 0.01}, "height": 260,
        "xaxis": {"tickvals": x[::every], "ticktext": times[:steps:every], "gridcolor": "#eee"},
        "yaxis": {"title": {"text": "GPUs"}, "rangemode": "tozero", "gridcolor": "#eee"},
        "legend": {"orientation": "h", "y": -0.2},
    }  # fmt: skip
    return figure_html(lines, layout, f"demand-{place}") + _traffic(report, app, place)


def _traffic(report: Report, app: str, place: int) -> str:
    frame = report.traffic.get(app)
    if frame is None or frame.empty:
        return ""
    x = [clock_label(t) for t in frame["ds"].dt.tz_convert(report.zone)]
    low, high = frame[0.1].tolist(), frame[0.9].tolist()
    lines = [
        {"type": "scatter", "mode": "lines", "x": x, "y": high, "line": {"width": 0}, "showlegend": False,
         "hoverinfo": "skip"},
        {"type": "scatter", "mode": "lines", "x": x, "y": low, "line": {"width": 0}, "fill": "tonexty",
         "fillcolor": "rgba(201,87,26,.2)", "name": "80 % band"},
        {"type": "scatter", "mode": "lines", "x": x, "y": frame[0.5].tolist(), "name": "median",
         "line": {"color": COLOURS["realtime"][0]}},
    ]  # fmt: skip
    layout = {
        "title": {"text": f"{html.escape(app)}: traffic an hour, forecast", "font": {"size": 13}, "x": 0.01},
        "height": 230, "xaxis": {"nticks": 12, "type": "category", "gridcolor": "#eee"},
        "yaxis": {"rangemode": "tozero", "gridcolor": "#eee"}, "legend": {"orientation": "h", "y": -0.25},
    }  # fmt: skip
    return figure_html(lines, layout, f"traffic-{place}")


def _held(plan: Plan) -> list[tuple[str, list[int]]]:
    return [(entry.app, entry.counts()) for entry in plan.apps]


def _records(records: Sequence[Any], otherwise: str) -> str:
    if not records:
        return f'<p class="note">{otherwise}</p>'
    frame = pd.DataFrame([dict(r) if isinstance(r, Mapping) else {"": str(r)} for r in records])
    return table_html(frame, left=len(frame.columns))


def table_html(frame: pd.DataFrame, left: int = 1) -> str:
    """Return a frame as a table of HTML; the first ``left`` columns are text."""
    head = "".join(f"<th{_left(i, left)}>{html.escape(str(c))}</th>" for i, c in enumerate(frame.columns))
    rows = "".join(
        "<tr>"
        + "".join(f"<td{_left(i, left)}>{html.escape(str(v))}</td>" for i, v in enumerate(row))
        + "</tr>"
        for row in frame.itertuples(index=False)
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _left(i: int, left: int) -> str:
    return ' class="l"' if i < left else ""
