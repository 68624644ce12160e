"""The report of a replay: one self-contained HTML file that sets policies side by side."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.app import replay_grid
from tidegrid.app.board import COLOURS
from tidegrid.app.report import figure_html, table_html, write_page
from tidegrid.pipeline.replay import Result, Trace
from tidegrid.pipeline.replay.measures import by_size, by_user, eta_errors, regret, timeline, users
from tidegrid.pipeline.worlds.trace import HOUR

PALETTE = (
    "#c9571a", "#1f4e8c", "#1f8b7b", "#7a55b0", "#b8860b", "#5c6670", "#5a92d0", "#a83256", "#4fae9f", "#9d7dcb",
)  # fmt: skip
"""One colour a policy, in the order of the results."""

WAITS = (
    ("under 1 min", 1 / 60), ("1–10 min", 1 / 6), ("10–60 min", 1.0), ("1–4 h", 4.0), ("4–24 h", 24.0),
    ("over 24 h", np.inf),
)  # fmt: skip
WAIT_SHADES = ("#dbe9dc", "#b5d6c6", "#86cdc1", "#5a92d0", "#2f6db5", "#1f3a6e")
NEVER_SHADE = "#1c2126"

MARGIN = {"l": 60, "r": 16, "t": 34, "b": 48}
MOST_USERS = 20
GRIDS = ("rolling", "fifo")
"""The policies whose grids are drawn, where they were played; else the first and the last."""


def write_replay_report(
    trace: Trace,
    results: Sequence[Result],
    path: str | Path,
    *,
    title: str = "Replay",
    notes: Sequence[str] = (),
    day: int | None = None,
) -> None:
    """Write the report as one HTML file that needs nothing beside it.

    Parameters
    ----------
    trace
        What really happened.
    results
        The policies' results on it, in the order in which they are shown.
    path
        The file.
    title
        Its heading.
    notes
        Lines under the heading: where the traces came from, what was changed in them.
    day
        The day, from 0, of which the grids show every GPU; the one in the middle where absent.
    """
    parts = [f"<h1>{html.escape(title)}</h1>", *_sections(trace, results, notes, day)]
    write_page(path, title, parts)


def write_replays_report(
    replays: Mapping[str, tuple[Trace, Sequence[Result]]],
    path: str | Path,
    *,
    title: str,
    notes: Sequence[str] = (),
) -> None:
    """Write the reports of several replays as one HTML file, one after another under their names."""
    parts = [f"<h1>{html.escape(title)}</h1>", *map(_note, notes)]
    for k, (name, (trace, results)) in enumerate(replays.items()):
        parts += [f"<h1>{html.escape(name)}</h1>", *_sections(trace, results, (), None, f"{k}-")]
    write_page(path, title, parts)


def _sections(
    trace: Trace, results: Sequence[Result], notes: Sequence[str], day: int | None, page: str = ""
) -> list[str]:
    """Return the report of one replay; ``page`` sets its figures apart from those of others on the same page."""
    drawn = [r for name in GRIDS for r in results if r.policy == name]
    drawn = drawn or [*results[:1], *results[1:][-1:]]
    parts = [*_head(trace, notes), "<h2>Policies</h2>", _policies(results), _value_and_wait(results, page)]
    regrets = regret({r.policy: r.figures["value"] for r in results})
    if regrets:
        parts += ["<h2>What forecasts are worth</h2>", _regrets(regrets, page)]
    waits = (_waits(trace, results, page), _sizes(trace, results, page), _users(trace, results, page))
    parts += ["<h2>Waits</h2>", *waits, "<h2>Expected ends</h2>", _etas(trace, results, page)]
    parts += ["<h2>Hour by hour</h2>", _timelines(trace, results, page)]
    if trace.apps:
        parts += ["<h2>Realtime</h2>", _apps(results)]
    return [*parts, "<h2>Who had which GPU when</h2>", *_grids(trace, drawn, day, page)]


def _days(trace: Trace) -> str:
    days = f"{trace.end_s / HOUR / 24:.3g}"
    return f"{days} day" if days == "1" else f"{days} days"


def _head(trace: Trace, notes: Sequence[str]) -> list[str]:
    nodes = f" in nodes of {trace.node_size}" if trace.node_size else ""
    line = (
        f"{len(trace.jobs):,} jobs of {len(set(users(trace))):,} users on {trace.gpus:,} GPUs{nodes}, "
        f"{_days(trace)} from {trace.start:%Y-%m-%d %H:%M} UTC; "
        f"{len(trace.apps)} realtime app{'' if len(trace.apps) == 1 else 's'}"
    )
    caveats = (
        "A simulation: jobs take as long in it as they took in the trace, whatever runs beside them; priorities are "
        "drawn by a seeded rule, one a user; traffic is scaled to the pool and repeated where the trace is longer."
    )
    digest = f"trace {trace.digest()[:16]}"
    return [f'<p class="note">{html.escape(t)}</p>' for t in (line, *notes, caveats, digest)]


def _note(text: str) -> str:
    return f'<p class="note">{html.escape(text)}</p>'


def _policies(results: Sequence[Result]) -> str:
    values, waits = [], []
    for r in results:
        f = r.figures
        values.append(
            {
                "policy": r.policy, "value": f"{f['value']:,.0f}", "of the limit": _percent(f["value_share_of_limit"]),
                "discounted": f"{f['value_discounted']:,.0f}", "utilization": _percent(f["utilization"]),
                "unmet realtime": _percent(f["unmet_share"], 2), "swaps": f"{f['swaps']:,}",
            }
        )  # fmt: skip
        waits.append({"policy": r.policy, **_group(f)})
    limit = results[0].figures["value_limit"] if results else 0.0
    text = _note(
        f"Value is priority × GPU-hours of the jobs that ended inside the replay; discounted, halved for each day of "
        f"waiting. The limit, {limit:,.0f}, is what perfectly divisible jobs could reach that left all realtime demand "
        f"served: no policy that serves it can pass it, and none is expected to reach it."
    )
    # two tables, as one of all these columns is wider than the page
    note = "Jobs that had not ended count in waits and completion times (JCT) up to the replay's end."
    return text + table_html(pd.DataFrame(values)) + _note(note) + table_html(pd.DataFrame(waits))


def _value_and_wait(results: Sequence[Result], page: str) -> str:
    points = [
        {
            "type": "scatter", "mode": "markers", "x": [r.figures["wait_h"]["mean"]], "name": r.policy,
            "y": [100 * r.figures["value_share_of_limit"]], "cliponaxis": False, "showlegend": True,
            "marker": {"size": 10 + 80 * min(0.5, r.figures["unmet_share"]), "color": _colour(i)},
            "hovertemplate": f"{r.policy}<br>%{{y:.1f}} % of the limit, mean wait %{{x:.2f}} h, unmet realtime "
                             f"{_percent(r.figures['unmet_share'], 2)}<extra></extra>",
        }
        for i, r in enumerate(results)
    ]  # fmt: skip
    layout = {
        "title": {"text": "Value against wait: up and to the left is better; a larger dot is more unmet realtime",
                  "font": {"size": 14}, "x": 0.01}, "height": 380,
        "xaxis": {"title": {"text": "mean wait, h"}, "rangemode": "tozero", "gridcolor": "#eee"},
        "yaxis": {"title": {"text": "value, % of the limit"}, "gridcolor": "#eee"},
    }  # fmt: skip
    return figure_html(points, layout, f"{page}value-wait")


def _regrets(regrets: Sequence[dict[str, Any]], page: str) -> str:
    labels = {
        "both": "perfect knowledge of both",
        "durations": "perfect durations",
        "demand": "perfect demand",
        "medians of history": "medians of history for durations",
        "peak reservation": "peak reservation for demand",
    }
    names = [labels[row["part"]] for row in regrets]
    gains = [row["regret"] for row in regrets]
    colours = [COLOURS["training"][1] if gain >= 0 else COLOURS["realtime"][0] for gain in gains]
    bars = [
        {"type": "bar", "orientation": "h", "x": gains[::-1], "y": names[::-1], "marker": {"color": colours[::-1]},
         "text": [f"{g:+,.0f}" for g in gains[::-1]], "cliponaxis": False}
    ]  # fmt: skip
    layout = {
        "height": 110 + 40 * len(names), "margin": {"l": 240, "r": 40, "t": 20, "b": 40},
        "xaxis": {"title": {"text": "value beside that of rolling with our forecasts"}, "gridcolor": "#eee"},
    }  # fmt: skip
    frame = pd.DataFrame(
        {
            "in place of our forecasts": names,
            "value": [f"{gain:+,.0f}" for gain in gains],
            "rolling has, of it": [_percent(row["kept"]) for row in regrets],
        }
    )
    text = (
        "The same allocator on the same events, with one part of what it is told replaced. To the right: what the "
        "forecasts still lose. To the left: what they gain over doing without them. Parts need not add up."
    )
    return _note(text) + figure_html(bars, layout, f"{page}regret") + table_html(frame)


def _waits(trace: Trace, results: Sequence[Result], page: str) -> str:
    names = [r.policy for r in results][::-1]
    shares = []
    for r in reversed(results):
        started = np.isfinite(r.outcome.start)
        wait = (r.outcome.start[started] - trace.submit_s[started]) / HOUR
        # a wait of exactly a minute is what taking events of a minute together costs
        counts = np.histogram(wait, bins=[-np.inf, *(limit + 1e-9 for _, limit in WAITS)])[0]
        shares.append([*counts, (~started).sum()])
    table = 100 * np.array(shares, float) / max(1, len(trace.jobs))
    labels = [*(label for label, _ in WAITS), "not started"]
    bars = [
        {"type": "bar", "orientation": "h", "y": names, "x": table[:, k].round(2).tolist(), "name": label,
         "marker": {"color": colour}, "hovertemplate": "%{y}: %{x:.1f} % " + label + "<extra></extra>"}
        for k, (label, colour) in enumerate(zip(labels, (*WAIT_SHADES, NEVER_SHADE), strict=True))
    ]  # fmt: skip
    layout = {
        "title": {"text": "How long jobs waited, % of jobs", "font": {"size": 14}, "x": 0.01}, "barmode": "stack",
        "height": 140 + 30 * len(names), "legend": {"orientation": "h", "y": -0.15, "traceorder": "normal"},
        "margin": {"l": 170, "r": 16, "t": 34, "b": 36}, "xaxis": {"range": [0, 100]},
    }  # fmt: skip
    return figure_html(bars, layout, f"{page}waits")


def _sizes(trace: Trace, results: Sequence[Result], page: str) -> str:
    rows, bars = [], []
    for i, r in enumerate(results):
        sizes = by_size(trace, r.outcome)
        rows += [
            (row["gpus"], i, {"GPUs": str(row["gpus"]), "policy": r.policy, **_group(row)}) for row in sizes
        ]
        bars.append(
            {"type": "bar", "x": [str(row["gpus"]) for row in sizes], "name": r.policy,
             "y": [round(row["wait_h"]["mean"], 3) for row in sizes], "marker": {"color": _colour(i)}}
        )  # fmt: skip
    layout = {
        "title": {"text": "Mean wait by size, h", "font": {"size": 14}, "x": 0.01}, "height": 300,
        "xaxis": {"type": "category", "title": {"text": "GPUs"}}, "yaxis": {"gridcolor": "#eee"},
        "legend": {"orientation": "h", "y": -0.25},
    }  # fmt: skip
    frame = pd.DataFrame([row for _, _, row in sorted(rows, key=lambda entry: entry[:2])])
    return figure_html(bars, layout, f"{page}waits-by-size") + _note("By size.") + table_html(frame, left=2)


def _group(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the cells of a group of jobs."""
    cells = {"jobs": f"{row['jobs']:,}", "completed": f"{row['completed']:,}"}
    for name, key in (("wait", "wait_h"), ("JCT", "jct_h"), ("slowdown", "slowdown")):
        unit = "" if key == "slowdown" else ",\u00a0h"
        cells |= {
            f"{name} mean{unit}": f"{row[key]['mean']:.2f}",
            f"{name} median": f"{row[key]['median']:.2f}",
            f"{name} 95th": f"{row[key]['p95']:.1f}",
        }
    return cells


def _users(trace: Trace, results: Sequence[Result], page: str) -> str:
    tables = [by_user(trace, r.outcome) for r in results]
    boxes = [
        {"type": "box", "y": [round(row["wait_h"]["mean"], 3) for row in rows], "name": r.policy, "boxpoints": False,
         "marker": {"color": _colour(i)}, "showlegend": False}
        for i, (r, rows) in enumerate(zip(results, tables, strict=True))
    ]  # fmt: skip
    layout = {
        "title": {"text": "Mean wait of each user, h: how it spreads over users", "font": {"size": 14}, "x": 0.01},
        "height": 320, "yaxis": {"gridcolor": "#eee", "rangemode": "tozero"},
    }  # fmt: skip
    frame = []
    for of_user in list(zip(*tables, strict=True))[:MOST_USERS]:
        first = of_user[0]
        line = {
            "user": str(first["user"]) or "(not named)",
            "priority": str(first["priority"]),
            "jobs": f"{first['jobs']:,}",
            "GPU-hours": f"{first['gpu_hours']:,.0f}",
        }
        line |= {
            r.policy: f"{row['wait_h']['mean']:.2f} / {row['wait_h']['p95']:.1f} ({row['slowdown']['mean']:.1f})"
            for r, row in zip(results, of_user, strict=True)
        }
        frame.append(line)
    who = f"By user, the {MOST_USERS} with the most work" if len(tables[0]) > MOST_USERS else "By user"
    text = f"{who}: mean / 95th percentile of the wait in hours (mean slowdown)."
    return figure_html(boxes, layout, f"{page}waits-by-user") + _note(text) + table_html(pd.DataFrame(frame))


def _etas(trace: Trace, results: Sequence[Result], page: str) -> str:
    rows, lines = [], []
    at = np.concatenate([[0.0], np.geomspace(0.1, 60 * 24 * 10, 120)])
    for i, r in enumerate(results):
        told_at = (
            ("start", "eta", r.outcome.eta, "solid"),
            ("submission", "eta_submit", r.outcome.eta_submit, "dot"),
        )
        for when, key, eta, dash in told_at:
            f = r.figures[key]
            if not f["told"]:
                continue
            short = f["short"]
            rows.append(
                {
                    "policy": r.policy, "told at": when, "jobs": f"{f['told']:,}", "in the 80 % band":
                    _percent(f["coverage_80"]), "within 10 min": _percent(f["within_10_min"]), "within 30 min":
                    _percent(f["within_30_min"]), "under 4 h: jobs": f"{short['told']:,}", "in the band":
                    _percent(short["coverage_80"]), "10 min": _percent(short["within_10_min"]), "30 min":
                    _percent(short["within_30_min"]),
                }
            )  # fmt: skip
            off = eta_errors(trace, r.outcome, eta)
            share = 100 * np.searchsorted(off, at, side="right") / max(1, len(off))
            lines.append(
                {"type": "scatter", "mode": "lines", "x": at.round(3).tolist(), "y": share.round(2).tolist(),
                 "name": f"{r.policy}, told at {when}", "line": {"color": _colour(i), "dash": dash}}
            )  # fmt: skip
    if not rows:
        return _note("None of these policies tells when a job will end.")
    marks = [
        {"type": "line", "x0": m, "x1": m, "y0": 0, "y1": 100, "line": {"color": "#999", "width": 1, "dash": "dash"}}
        for m in (10, 30)
    ]  # fmt: skip
    layout = {
        "title": {"text": "Share of ends whose median was no more than so many minutes off, %", "font": {"size": 14},
                  "x": 0.01}, "height": 340, "shapes": marks, "legend": {"orientation": "h", "y": -0.2},
        "xaxis": {"type": "log", "title": {"text": "minutes"}, "range": [-1, 4.2], "gridcolor": "#eee"},
        "yaxis": {"range": [0, 100], "gridcolor": "#eee"},
    }  # fmt: skip
    text = (
        "A band of 80 % should hold 80 % of the ends: far less promises too much, far more says nothing. An end told "
        "at submission carries the wait as well as the duration."
    )
    return (
        _note(text) + table_html(pd.DataFrame(rows), left=2) + figure_html(lines, layout, f"{page}eta-errors")
    )


def _timelines(trace: Trace, results: Sequence[Result], page: str) -> str:
    tables = [timeline(trace, r.outcome) for r in results]
    out = [
        _note(
            "GPUs at work: jobs below, the GPUs that apps hold above them, free ones white up to the dashed line. What "
            "apps hold above the line of their demand is reserve; where they hold less, the rest is unmet."
        )
    ]
    for i, (r, table) in enumerate(zip(results, tables, strict=True)):
        out.append(figure_html(*_timeline(trace, r.policy, table), f"{page}timeline-{i}"))
    waiting = [
        {"type": "scatter", "mode": "lines", "x": _hours(table), "y": table["waiting"].round(1).tolist(),
         "name": r.policy, "line": {"color": _colour(i), "width": 1.4}}
        for i, (r, table) in enumerate(zip(results, tables, strict=True))
    ]  # fmt: skip
    layout = {
        "title": {"text": "GPUs that waiting jobs ask for", "font": {"size": 14}, "x": 0.01}, "height": 300,
        "hovermode": "x unified", "legend": {"orientation": "h", "y": -0.2}, "xaxis": {"type": "date"},
        "yaxis": {"rangemode": "tozero", "gridcolor": "#eee"}, "margin": MARGIN,
    }  # fmt: skip
    return "\n".join([*out, figure_html(waiting, layout, f"{page}waiting")])


def _timeline(trace: Trace, policy: str, table: pd.DataFrame) -> tuple[list[Any], dict[str, Any]]:
    x = _hours(table)
    y = {name: table[name].round(2).tolist() for name in table.columns if name != "hour"}
    line = {"type": "scatter", "mode": "lines", "x": x}
    area = {**line, "stackgroup": "one"}
    none = {"width": 0, "shape": "hv"}
    traces = [
        {**area, "y": y["jobs"], "name": "jobs", "line": none, "fillcolor": COLOURS["training"][2]},
        {**area, "y": y["held"], "name": "held by realtime", "line": none, "fillcolor": COLOURS["realtime"][2]},
        {**line, "y": (table["jobs"] + table["demanded"]).round(2).tolist(), "name": "realtime demand, above jobs",
         "customdata": y["demanded"], "line": {"color": COLOURS["realtime"][0], "width": 1.2, "shape": "hv"},
         "hovertemplate": "%{customdata:.0f}"},
        {**line, "y": y["unmet"], "name": "unmet realtime",
         "line": {"color": "#a8002d", "width": 1.6, "shape": "hv"}},
    ]  # fmt: skip
    roof = {
        "type": "line", "x0": x[0], "x1": x[-1], "y0": trace.gpus, "y1": trace.gpus,
        "line": {"color": "#5c6670", "width": 1, "dash": "dash"},
    }  # fmt: skip
    layout = {
        "title": {"text": f"{html.escape(policy)}: GPU-hours an hour", "font": {"size": 14}, "x": 0.01},
        "height": 270, "hovermode": "x unified", "shapes": [roof], "xaxis": {"type": "date"}, "margin": MARGIN,
        "legend": {"orientation": "h", "y": -0.22, "traceorder": "normal"},
        "yaxis": {"range": [0, 1.1 * trace.gpus], "gridcolor": "#eee"},
    }  # fmt: skip
    return traces if trace.apps else traces[:1], layout


def _hours(table: pd.DataFrame) -> list[str]:
    return [f"{t:%Y-%m-%d %H:%M}" for t in table["hour"]]


def _apps(results: Sequence[Result]) -> str:
    rows = [
        {
            "policy": r.policy, "app": app["app"], "demanded, GPU-h": f"{app['demanded']:,.0f}",
            "held": f"{app['held']:,.0f}", "unmet": f"{app['unmet']:,.1f}",
            "unmet share": _percent(app["unmet_share"], 2), "swaps of all apps": f"{r.figures['swaps']:,}",
        }
        for r in results
        for app in r.figures["by_app"]
    ]  # fmt: skip
    text = (
        "Queues hold the true peak of the whole replay all the time, which no site knows; they swap nothing."
    )
    return _note(text) + table_html(pd.DataFrame(rows), left=2)


def _grids(trace: Trace, drawn: Sequence[Result], day: int | None, page: str) -> list[str]:
    days = max(1, int(np.ceil(trace.end_s / HOUR / 24 - 1e-9)))
    day = min(days - 1, days // 2 if day is None else max(0, day))
    first, last = day * 24 * HOUR, min(trace.end_s, (day + 1) * 24 * HOUR)
    out = [_note("All of the replay, a row a node, a column an hour: blue jobs, orange realtime, grey free.")]
    with_blocks = [r for r in drawn if r.outcome.ids]
    for i, r in enumerate(with_blocks):
        out.append(replay_grid.overview(trace, r.outcome, r.policy, f"{page}overview-{i}"))
    minutes = (last - first) / replay_grid.WINDOW_COLUMNS / 60
    text = f"Day {day + 1}, a row a GPU, looked at every {minutes:.3g} minutes: shorter jobs may lie between two looks."
    out += [_note(text), replay_grid.key(trace)]
    for i, r in enumerate(with_blocks):
        out.append(replay_grid.window(trace, r.outcome, first, last, r.policy, f"{page}window-{i}"))
    return out


def _colour(i: int) -> str:
    return PALETTE[i % len(PALETTE)]


def _percent(share: float | None, digits: int = 1) -> str:
    return "–" if share is None else f"{100 * share:.{digits}f} %"
