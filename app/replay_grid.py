"""What ran on which GPU in a replay, as pictures: GPU × time of a window, and node × hour of the whole."""

import base64
import html
from io import BytesIO
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.app.board import COLOURS, IDLE
from tidegrid.app.report import figure_html
from tidegrid.pipeline.worlds.simulated import Played
from tidegrid.pipeline.worlds.trace import HOUR, Trace

MOST_GPUS = 1024
"""A window shows at most this many GPUs: below one pixel a row nothing can be read."""

WINDOW_COLUMNS = 240
SAMPLES_AN_HOUR = 4
"""How often the overview looks at each GPU."""

FREE = -1

PRIORITY_SHADES = (
    "#c6dbef", "#b0d2e8", "#94c4df", "#75b3d8", "#5aa2cf", "#4290c4", "#2e7ebc", "#1f6ab0", "#1158a0", "#08458b",
)  # fmt: skip
"""Priorities 1 to 10, the highest darkest."""


def owners(trace: Trace, outcome: Played, first_s: float, last_s: float, columns: int) -> np.ndarray:
    """Return who has each GPU at the middle of each of ``columns`` equal slots.

    Returns
    -------
    ndarray of shape (gpus, columns)
        A job's row, ``len(jobs) + k`` for app k, ``FREE`` for nobody.
    """
    middle = first_s + (np.arange(columns) + 0.5) * (last_s - first_s) / columns
    out = np.full((trace.gpus, columns), FREE, np.int64)
    end = outcome.start + outcome.seconds(trace)
    for j, gpus in outcome.ids.items():
        a, b = np.searchsorted(middle, (outcome.start[j], end[j]))
        if a < b:
            out[list(gpus), a:b] = j
    for k in range(len(trace.apps)):
        changes = [(at, gpus) for at, app, gpus in outcome.cells if app == k]
        for n, (at, gpus) in enumerate(changes):
            until = changes[n + 1][0] if n + 1 < len(changes) else trace.end_s
            a, b = np.searchsorted(middle, (at, until))
            if a < b and gpus:
                out[list(gpus), a:b] = len(trace.jobs) + k
    return out


def window(trace: Trace, outcome: Played, first_s: float, last_s: float, title: str, name: str) -> str:
    """Draw one row a GPU and one column a slot; jobs by priority, hover tells the job."""
    shown = min(trace.gpus, MOST_GPUS)
    grid = owners(trace, outcome, first_s, last_s, WINDOW_COLUMNS)[:shown]
    n = len(trace.jobs)
    apps = COLOURS["realtime"]
    palette = [IDLE, *PRIORITY_SHADES, *(apps[k % len(apps)] for k in range(len(trace.apps)))]
    code = np.zeros_like(grid)
    is_job = (grid >= 0) & (grid < n)
    code[is_job] = np.clip(trace.priority[grid[is_job]], 1, 10)
    code[grid >= n] = grid[grid >= n] - n + 1 + len(PRIORITY_SHADES)
    ids = np.array(
        [*(f"job {i}" for i in trace.jobs["job_id"]), *(a.id for a in trace.apps), "free"], dtype=object
    )
    who = [[html.escape(str(v)) for v in row] for row in ids[grid]]
    slot = pd.Timedelta(seconds=(last_s - first_s) / WINDOW_COLUMNS)
    start = trace.start + pd.Timedelta(seconds=first_s)
    times = [f"{start + c * slot:%d %b %H:%M}" for c in range(WINDOW_COLUMNS)]
    top = len(palette) - 1
    edges = [(i + e) / (top + 1) for i in range(top + 1) for e in (0, 1)]
    every = WINDOW_COLUMNS // 12
    suffix = f" (first {shown} of {trace.gpus} GPUs)" if shown < trace.gpus else ""
    heat = {
        "type": "heatmap", "z": code.tolist(), "text": who, "zmin": -0.5, "zmax": top + 0.5, "showscale": False,
        "colorscale": [[e, palette[i // 2]] for i, e in enumerate(edges)], "x": times,
        "hovertemplate": "GPU %{y}, %{x}<br>%{text}<extra></extra>",
    }  # fmt: skip
    layout = {
        "title": {"text": f"{html.escape(title)}{suffix}", "font": {"size": 14}, "x": 0.01},
        "height": int(min(900, 140 + max(96, shown * 1.1))),
        "xaxis": {"type": "category", "tickvals": times[::every], "showgrid": False, "zeroline": False},
        "yaxis": {"range": [shown, 0], "title": {"text": "GPU"}, "showgrid": False, "zeroline": False},
    }  # fmt: skip
    return figure_html([heat], layout, name)


def overview(trace: Trace, outcome: Played, title: str, name: str) -> str:
    """Draw one row a node and one column an hour: blue for jobs, orange for realtime, mixed by their shares."""
    node = trace.node_size or min(trace.gpus, 8)
    hours = trace.hours
    grid = owners(trace, outcome, 0.0, hours * HOUR, hours * SAMPLES_AN_HOUR)
    rows = np.arange(0, trace.gpus, node)
    size = np.diff([*rows, trace.gpus])[:, None] * SAMPLES_AN_HOUR
    n = len(trace.jobs)

    def share(mask: np.ndarray) -> np.ndarray:
        by_hour = mask.reshape(trace.gpus, hours, SAMPLES_AN_HOUR).sum(axis=2)
        return np.add.reduceat(by_hour, rows, axis=0) / size

    jobs, realtime = share((grid >= 0) & (grid < n)), share(grid >= n)
    parts = zip((jobs, realtime), (PRIORITY_SHADES[6], COLOURS["realtime"][0]), strict=True)
    pixels = (1 - jobs - realtime)[..., None] * _rgb(IDLE) + sum(p[..., None] * _rgb(c) for p, c in parts)
    midnights = range(-trace.start.hour % 24, hours, 24)
    days = [f"{trace.start + pd.Timedelta(hours=h):%d %b}" for h in midnights]
    every = max(1, len(days) // 12)
    picture = {
        "source": _png(pixels), "xref": "x", "yref": "y", "x": 0, "y": 0, "sizex": hours, "sizey": len(rows),
        "sizing": "stretch", "layer": "below",
    }  # fmt: skip
    layout = {
        "title": {"text": html.escape(title), "font": {"size": 14}, "x": 0.01}, "images": [picture],
        "height": int(min(420, 130 + max(60, 3 * len(rows)))),
        "xaxis": {"range": [0, hours], "tickvals": list(midnights)[::every], "ticktext": days[::every],
                  "showgrid": False, "zeroline": False},
        "yaxis": {"range": [len(rows), 0], "title": {"text": "node"}, "showgrid": False, "zeroline": False},
    }  # fmt: skip
    return figure_html([{"type": "scatter", "x": [], "y": []}], layout, name)


def key(trace: Trace) -> str:
    """Return what the colours of a window mean."""
    apps = COLOURS["realtime"]
    entries = [
        ("job of priority 1", PRIORITY_SHADES[0]), ("5", PRIORITY_SHADES[4]), ("10", PRIORITY_SHADES[9]),
        *((a.id, apps[k % len(apps)]) for k, a in enumerate(trace.apps)), ("free", IDLE),
    ]  # fmt: skip
    items = "".join(f'<span><i style="background:{c}"></i>{html.escape(t)}</span>' for t, c in entries)
    return f'<p class="key">{items}</p>'


def _rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255


def _png(pixels: np.ndarray) -> str:
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib.pyplot import imsave

    # each cell as a square of pixels, so that stretching does not blur its edges
    large: Any = np.repeat(np.repeat(np.clip(pixels, 0.0, 1.0), 4, axis=0), 3, axis=1)
    out = BytesIO()
    imsave(out, large, format="png", metadata={"Software": "tidegrid"})
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
