"""The figures of a replay, from what really happened and what a policy did."""

from typing import Any

import numpy as np

from tidegrid.pipeline.replay.closedloop import Outcome
from tidegrid.pipeline.replay.world import HOUR, World

HALF_LIFE_H = 24.0
"""Waiting that halves a job's value in ``value_discounted``."""

FLOOR_S = 600.0
"""The shortest duration that a slowdown is measured against (bounded slowdown, Feitelson et al. 1997, 10 minutes)."""


def measure(world: World, outcome: Outcome) -> dict[str, Any]:
    """Return the figures of a policy.

    Returns
    -------
    dict
        ``value``: priority · GPU-hours of the jobs that ended inside the replay; ``value_discounted``: the same,
        halved for each ``HALF_LIFE_H`` of waiting; ``utilization``: GPU-hours of jobs inside the replay and of
        realtime demand served, of all there are; ``unmet``: GPU-hours of realtime demand not served, and
        ``unmet_share`` of all demanded; ``swaps``; ``completed`` and ``jobs``; ``wait_h``, ``jct_h`` and ``slowdown``
        with mean, median and 95th percentile (a job that has not started or ended counts up to the replay's end);
        ``eta``: how many ends were foretold when the job started, the share inside the 80 % band, and the share
        whose median was within 10 and 30 minutes, of the jobs that ended.
    """
    hours = world.duration_s / HOUR
    end = outcome.start + world.duration_s
    done = end <= world.end_s
    gpu_hours = world.block * hours
    worth = world.priority * gpu_hours
    wait = (np.minimum(outcome.start, world.end_s) - world.submit_s) / HOUR
    ran = np.clip(np.minimum(end, world.end_s) - np.minimum(outcome.start, world.end_s), 0.0, None)
    demand = world.demand().astype(float)
    share = np.minimum(HOUR, world.end_s - np.arange(world.hours) * HOUR) / HOUR
    demanded = float((demand * share).sum())
    unmet = float(outcome.unmet.sum())
    room = world.gpus * world.end_s / HOUR
    jct = (np.minimum(end, world.end_s) - world.submit_s) / HOUR
    slowdown = np.maximum(jct * HOUR / np.maximum(world.duration_s, FLOOR_S), 1.0)
    return {
        "value": float(worth[done].sum()),
        "value_discounted": float((worth * 0.5 ** (wait / HALF_LIFE_H))[done].sum()),
        "utilization": (float((world.block * ran).sum()) / HOUR + demanded - unmet) / room,
        "unmet": unmet,
        "unmet_share": unmet / demanded if demanded else 0.0,
        "swaps": outcome.swaps,
        "completed": int(done.sum()),
        "jobs": len(done),
        "wait_h": _spread(wait),
        "jct_h": _spread(jct),
        "slowdown": _spread(slowdown),
        "eta": _eta(world, outcome, end, done),
        "plans": outcome.plans,
    }


def by_size(world: World, outcome: Outcome) -> list[dict[str, Any]]:
    """Return waits and completions for each block size."""
    wait = (np.minimum(outcome.start, world.end_s) - world.submit_s) / HOUR
    done = outcome.start + world.duration_s <= world.end_s
    return [
        {
            "gpus": int(size),
            "jobs": int(at.sum()),
            "completed": int(done[at].sum()),
            "wait_h": _spread(wait[at]),
        }
        for size in np.unique(world.block)
        for at in [world.block == size]
    ]


def _spread(values: np.ndarray) -> dict[str, float]:
    if not len(values):
        return {"mean": 0.0, "median": 0.0, "p95": 0.0}
    return {
        "mean": float(values.mean()),
        "median": float(np.median(values)),
        "p95": float(np.quantile(values, 0.95)),
    }


def _eta(world: World, outcome: Outcome, end: np.ndarray, done: np.ndarray) -> dict[str, float]:
    told = done & np.isfinite(outcome.eta[:, 1]) if len(outcome.eta) else np.zeros(len(done), dtype=bool)
    if not told.any():
        return {
            "told": 0,
            "coverage_80": 0.0,
            "within_10_min": 0.0,
            "within_30_min": 0.0,
            "short_within_30_min": 0.0,
        }
    low, middle, high = outcome.eta[told].T
    off = np.abs(end[told] - middle)
    short = world.duration_s[told] < 4 * HOUR
    return {
        "told": int(told.sum()),
        "coverage_80": float(((low <= end[told]) & (end[told] <= high)).mean()),
        "within_10_min": float((off <= 600).mean()),
        "within_30_min": float((off <= 1800).mean()),
        "short_within_30_min": float((off[short] <= 1800).mean()) if short.any() else 0.0,
    }
