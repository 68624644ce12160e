"""A plan as a picture is made of it: rectangles of GPUs × steps with a name, a kind and a colour."""

from dataclasses import dataclass
from itertools import pairwise

from tidegrid.scheduler import Plan, Problem

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
}
IDLE = "#eef0f2"


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
    """Return the rectangles of a plan, clipped to the horizon: one a job, and an app's cells merged along steps."""
    jobs = {job.id: job for job in problem.jobs}
    apps = {app.id: app for app in problem.apps}
    out = []
    # by position in the problem, so that a job has one colour in every plan
    shades = {job.id: shade for shade, job in enumerate(problem.jobs)}
    for p in sorted(plan.placements, key=lambda p: (p.start, p.pool, p.first_gpu)):
        job = jobs[p.job]
        shade = shades[p.job]
        palette = COLOURS.get(job.kind, COLOURS["training"])
        steps = min(p.end, problem.steps) - p.start
        out.append(
            Block(
                p.job,
                job.kind,
                p.pool,
                p.first_gpu,
                p.gpus,
                p.start,
                steps,
                job.priority,
                job.running is not None,
                palette[shade % len(palette)],
            )
        )
    for k, entry in enumerate(plan.apps):
        app = apps[entry.app]
        colour = COLOURS["realtime"][(k + 1) % len(COLOURS["realtime"])]
        for first, count, start, steps in _runs([sorted(cells) for cells in entry.cells]):
            out.append(
                Block(
                    entry.app, "realtime", app.pool, first, count, start, steps, app.priority, False, colour
                )
            )
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
