"""A plan as a picture is made of it: rectangles of GPUs × steps with a name, a kind and a colour."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tidegrid.data.nodelist import as_indices
from tidegrid.scheduler import Placement, Plan, Pool, Problem
from tidegrid.scheduler.problem import flat

# one hue a workload kind, told apart by lightness as well, so that the grid reads in grey and by colour-blind eyes
COLOURS = {
    "training": ("#1f4e8c", "#2f6db5", "#5a92d0", "#8ab4e2"),
    "batch_inference": ("#11665a", "#1f8b7b", "#4fae9f", "#86cdc1"),
    "quantization": ("#5b3a8c", "#7a55b0", "#9d7dcb", "#c0a8e0"),
    "realtime": ("#c9571a", "#e07b39", "#eea06a", "#f6c39e"),
}
KIND_NAMES = {
    "training": "training",
    "batch_inference": "batch inference",
    "quantization": "quantization",
    "realtime": "realtime",
    "closed": "closed",
}
IDLE = "#eef0f2"
CLOSED = "#9aa3ab"


@dataclass(frozen=True)
class Block:
    """A rectangle of the picture: ``gpus`` rows from ``first_gpu``, ``steps`` columns from ``start``."""

    task: str
    kind: str
    pool: str
    first_gpu: int
    gpus: int
    start: int
    steps: int
    priority: float
    running: bool
    colour: str


def blocks(problem: Problem, plan: Plan) -> list[Block]:
    """Return the rectangles of a plan, clipped to the horizon: neighbouring GPUs of a job, and of an app step by step.

    GPUs that are closed and serve nobody are rectangles of kind ``closed``.
    """
    jobs = {job.id: job for job in problem.jobs}
    apps = {app.id: app for app in problem.apps}
    out = []
    # by position in the problem, so that a job has one colour in every plan
    shades = {job.id: shade for shade, job in enumerate(problem.jobs)}
    for p in sorted(plan.placements, key=lambda p: (p.start, p.pool, p.first_gpu)):
        job = jobs[p.job]
        palette = COLOURS.get(job.kind, COLOURS["training"])
        colour, runs = palette[shades[p.job] % len(palette)], job.running is not None
        steps = min(p.end, problem.steps) - p.start
        # GPUs of any nodes are several rectangles
        for first, count in _intervals(list(p.ids)):
            out.append(
                Block(p.job, job.kind, p.pool, first, count, p.start, steps, job.priority, runs, colour)
            )
    for k, entry in enumerate(plan.apps):
        app = apps[entry.app]
        colour = COLOURS["realtime"][(k + 1) % len(COLOURS["realtime"])]
        for first, count, start, steps in _runs([sorted(flat(cells)) for cells in entry.cells]):
            out.append(
                Block(
                    entry.app, "realtime", app.pool, first, count, start, steps, app.priority, False, colour
                )
            )
    return [*out, *_closed(problem, out)]


def gpus_text(pool: Pool, p: Placement) -> str:
    """Return a placement's GPUs in words: by the names or numbers of its nodes where placement is by node."""
    if not pool.by_node:
        return f"{'GPU' if p.gpus == 1 else 'GPUs'} {as_indices(p.ids).replace('-', '–')}"
    on: dict[int, list[int]] = {}
    node = pool.node_size or pool.gpus
    for gpu in p.ids:
        on.setdefault(gpu // node, []).append(gpu % node)
    names = node_names(pool)
    return ", ".join(f"{names[k]} GPU {as_indices(ids).replace('-', '–')}" for k, ids in on.items())


def node_names(pool: Pool) -> list[str]:
    """Return the names of a pool's nodes, or "node 0", "node 1", …"""
    names = (pool.model_extra or {}).get("nodes")
    count = -(-pool.gpus // (pool.node_size or pool.gpus))
    if isinstance(names, list) and len(names) == count:
        return [str(name) for name in names]
    return [f"node {k}" for k in range(count)]


def _closed(problem: Problem, taken: list[Block]) -> list[Block]:
    """Return the closed GPUs that serve nobody, as rectangles."""
    out = []
    for pool in problem.pools:
        if not pool.closed:
            continue
        used = np.zeros((pool.gpus, problem.steps), dtype=bool)
        for b in taken:
            if b.pool == pool.id:
                used[b.first_gpu : b.first_gpu + b.gpus, b.start : b.start + b.steps] = True
        shut = np.zeros_like(used)
        for c in pool.closed:
            shut[slice(*c.gpus), c.start : c.end] = True
        cells = [np.flatnonzero(column).tolist() for column in (shut & ~used).T]
        out += [
            Block("closed", "closed", pool.id, first, count, start, steps, 0, False, CLOSED)
            for first, count, start, steps in _runs(cells)
        ]
    return out


def _runs(cells: list[list[int]]) -> list[tuple[int, int, int, int]]:
    """Merge an app's cells into rectangles ``(first_gpu, gpus, start, steps)``."""
    open_runs: dict[tuple[int, int], int] = {}
    out = []
    for t, held in enumerate([*cells, []]):
        now = set(_intervals(held))
        for run in [run for run in open_runs if run not in now]:
            start = open_runs.pop(run)
            out.append((run[0], run[1], start, t - start))
        for run in now:
            open_runs.setdefault(run, t)
    return sorted(out, key=lambda r: (r[2], r[0]))


def _intervals(held: list[int]) -> list[tuple[int, int]]:
    if not held:
        return []
    cuts = [i + 1 for i, (a, b) in enumerate(pairwise(held)) if b != a + 1]
    edges = [0, *cuts, len(held)]
    return [(held[a], b - a) for a, b in pairwise(edges)]
