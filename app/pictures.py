"""Pictures as PNG: the grid of a plan, and a demand forecast."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.app.board import CLOSED, COLOURS, IDLE, KIND_NAMES, Block, blocks, node_names
from tidegrid.files import writing
from tidegrid.scheduler import Plan, Pool, Problem

MAX_ROWS = 512
"""A picture shows at most this many GPUs of a pool: below one pixel a row nothing can be read."""

MAX_NAMES = 32
"""Names of nodes beside a pool."""

LINE = "#5c6670"


def grid_png(problem: Problem, plans: Sequence[tuple[str, Plan]], path: str | Path) -> None:
    """Draw the grids of one or more plans below each other, one row a GPU, and write them as a PNG file.

    Parameters
    ----------
    plans
        Pairs of a title and a plan, in the order from top to bottom.
    """
    plt = _pyplot()
    panels = [(title, plan, pool) for title, plan in plans for pool in problem.pools]
    heights = [max(1.2, min(pool.gpus, MAX_ROWS) * 0.16) for _, _, pool in panels]
    heights = [min(h, 9.0) for h in heights]
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(12, sum(heights) + 0.9 * len(panels)), squeeze=False,
        gridspec_kw={"height_ratios": heights}, layout="constrained",
    )  # fmt: skip
    for axis, (title, plan, pool) in zip(axes[:, 0], panels, strict=True):
        shown = min(pool.gpus, MAX_ROWS)
        axis.set_facecolor(IDLE)
        for block in blocks(problem, plan):
            if block.pool == pool.id and block.first_gpu < shown:
                _draw(axis, block, shown)
        axis.set_xlim(0, problem.steps)
        axis.set_ylim(shown, 0)
        suffix = f" (first {shown} of {pool.gpus} GPUs)" if shown < pool.gpus else ""
        axis.set_title(f"{title} · {pool.id}{suffix}", loc="left", fontsize=10)
        axis.set_ylabel("GPU")
        _nodes(axis, pool, shown)
        ticks = np.arange(0, problem.steps + 1, max(1, problem.steps // 12))
        axis.set_xticks(ticks, [f"+{t * problem.step_minutes / 60:g} h" for t in ticks], fontsize=8)
        for spine in axis.spines.values():
            spine.set_visible(False)
    names = [*(KIND_NAMES[kind] for kind in COLOURS), "closed", "idle"]
    colours = [*(COLOURS[kind][1] for kind in COLOURS), CLOSED, IDLE]
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in colours]
    figure.legend(
        handles, names, loc="outside lower center", ncols=len(names), frameon=False, fontsize=9,
    )  # fmt: skip
    with writing(path) as aside:
        figure.savefig(aside, format="png", dpi=110, metadata={"Software": "tidegrid"})
    plt.close(figure)


def _nodes(axis: Any, pool: Pool, shown: int) -> None:
    """Draw a line between nodes, and their names beside it, where placement is by node."""
    if not pool.by_node or pool.node_size is None:
        return
    size, names = pool.node_size, node_names(pool)
    edges = range(0, shown, size)
    for first in edges[1:]:
        axis.axhline(first, color=LINE, linewidth=0.6, zorder=3)
    every = max(1, len(edges) // MAX_NAMES)
    labelled = [(first + min(size, shown - first) / 2, names[first // size]) for first in edges[::every]]
    axis.set_yticks([at for at, _ in labelled], [name for _, name in labelled], fontsize=8)
    axis.set_ylabel("node")


def _draw(axis: Any, block: Block, shown: int) -> None:
    from matplotlib.patches import Rectangle

    rows = min(block.gpus, shown - block.first_gpu)
    axis.add_patch(
        Rectangle(
            (block.start, block.first_gpu),
            block.steps,
            rows,
            facecolor=block.colour,
            edgecolor="white",
            linewidth=0.8,
            hatch="///" if block.running else "xx" if block.kind == "closed" else None,
        )
    )
    if block.kind != "closed" and rows * block.steps >= max(6, shown // 8) and block.steps >= 3:
        axis.text(
            block.start + block.steps / 2, block.first_gpu + rows / 2, _fit(block.task, block.steps),
            ha="center", va="center", fontsize=7, color="white", clip_on=True,
        )  # fmt: skip


def _fit(name: str, steps: int) -> str:
    room = max(3, int(steps * 2.4))
    return name if len(name) <= room else name[: room - 1] + "…"


def demand_png(
    history: pd.Series,
    forecast: pd.DataFrame,
    path: str | Path,
    title: str,
    gpus: pd.Series | None = None,
    ramped: pd.Series | None = None,
    parts: pd.DataFrame | None = None,
) -> None:
    """Draw history, curve, band, GPUs and decomposition of one app and write them as a PNG file.

    Parameters
    ----------
    history
        Demand an hour, indexed by instant.
    forecast
        Quantiles with float columns, indexed by instant.
    gpus, ramped
        GPUs needed, and the same under the swap cap, indexed by instant.
    parts
        What the history is made of, columns that add up to it, indexed by instant: drawn one below the other.
    """
    plt = _pyplot()
    shown = pd.DataFrame() if parts is None else parts
    names = list(shown.columns)
    heights = [3.4] * (2 if gpus is not None else 1) + [1.5] * len(names)
    figure, axes = plt.subplots(
        len(heights), 1, figsize=(12, sum(heights)), squeeze=False, sharex=True, layout="constrained",
        gridspec_kw={"height_ratios": heights},
    )  # fmt: skip
    for axis, name in zip(axes[len(heights) - len(names) :, 0], names, strict=True):
        axis.plot(shown.index, shown[name], color="#444", linewidth=1)
        axis.set_ylabel(name)
    top = axes[0, 0]
    top.plot(history.index, history, color="#444", linewidth=1, label="history")
    levels = sorted(float(level) for level in forecast.columns)
    middle = min(levels, key=lambda level: abs(level - 0.5))
    outer = [level for level in levels if level < 0.5]
    for low in outer:
        high = min(levels, key=lambda level: abs(level - (1 - low)))
        top.fill_between(
            forecast.index, forecast[low], forecast[high], color=COLOURS["realtime"][1], alpha=0.18
        )
    top.plot(
        forecast.index,
        forecast[middle],
        color=COLOURS["realtime"][0],
        linewidth=1.6,
        label="forecast, median",
    )
    top.set_title(title, loc="left", fontsize=10)
    top.set_ylabel("demand an hour")
    top.legend(frameon=False, fontsize=8)
    if gpus is not None:
        low_axis = axes[1, 0]
        low_axis.step(gpus.index, gpus, where="post", color="#444", linewidth=1.2, label="GPUs needed")
        if ramped is not None:
            low_axis.step(
                ramped.index, ramped, where="post", color=COLOURS["realtime"][0], linewidth=1.6,
                label="GPUs planned, under the swap cap",
            )  # fmt: skip
        low_axis.set_ylabel("GPUs")
        low_axis.legend(frameon=False, fontsize=8)
    with writing(path) as aside:
        figure.savefig(aside, format="png", dpi=110, metadata={"Software": "tidegrid"})
    plt.close(figure)


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    # names of jobs and apps are drawn as they are, dollar signs included
    mpl.rcParams["text.parse_math"] = False
    import matplotlib.pyplot as plt

    return plt
