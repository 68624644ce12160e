"""The fast allocator."""

from pathlib import Path
from typing import Any

import numpy as np

from tidegrid.scheduler.fast.board import Board, board
from tidegrid.scheduler.fast.cache import drop_stale
from tidegrid.scheduler.fast.search import allocate
from tidegrid.scheduler.fast.state import new_state
from tidegrid.scheduler.plan import AppCells, Placement, Plan
from tidegrid.scheduler.problem import Problem

drop_stale(allocate.stats.cache_path, Path(__file__).parent)


def _orders(b: Board) -> np.ndarray:
    n = len(b.job)
    value = b.job["value"]
    area = np.zeros(n)
    size = np.zeros(n)
    owner = np.repeat(np.arange(n), b.job["shape_last"] - b.job["shape_first"])
    np.maximum.at(area, owner, b.shape["gpus"] * b.shape["steps"])
    np.maximum.at(size, owner, b.shape["gpus"])
    return np.stack(
        [
            np.lexsort((-area, -value)),
            np.argsort(-value * area, kind="stable"),
            np.argsort(-area * size, kind="stable"),
            np.lexsort((area, -value)),
        ]
    )


KNOBS = dict(heat=0.3, blink=0.1, tries=6, eject=0.5, near=0.9, mn=8, ma=4, et=6, share=0.5, cool=2.0, noise=0.4, apart=0.5)


def plan(problem: Problem, *, time_limit: float | None = None, seed: int = 0, rounds: int | None = None, knobs: Any = None, **options: Any) -> Plan:
    b, names = board(problem)
    state = new_state(b, seed)
    owner_at = np.concatenate([[0], np.cumsum(b.pool['gpus'] * b.steps)]).astype(np.int64)
    owners = np.full(owner_at[-1], -1, np.int32)
    allocate(b, state, _orders(b), 200 if rounds is None else rounds, np.array(list({**KNOBS, **(knobs or {})}.values())), owners, owner_at)
    placements = []
    for job in names.running:
        r = job.running
        placements.append(Placement(job.id, r.pool, r.first_gpu, r.gpus, 0, r.remaining))
    for job, (shape, start, first) in zip(names.jobs, state.spot.tolist(), strict=True):
        if shape >= 0:
            placements.append(Placement(job.id, names.pools[b.shape[shape]['pool']].id, first, int(b.shape[shape]['gpus']), start, int(b.shape[shape]['steps'])))
    apps = []
    for i, app in enumerate(names.apps):
        p = next(k for k, pool in enumerate(names.pools) if pool.id == app.pool)
        mine = owners[owner_at[p]:owner_at[p + 1]].reshape(-1, b.steps)
        apps.append(AppCells(app.id, [np.flatnonzero(mine[:, t] == i).tolist() for t in range(b.steps)]))
    return Plan.of(problem, "fast", placements, apps)
