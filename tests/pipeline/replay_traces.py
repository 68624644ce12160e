"""Made-up traces for the tests of the replay."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pandas as pd

from tidegrid.data import History
from tidegrid.pipeline.replay import Trace
from tidegrid.pipeline.worlds.trace import HOUR, WARM_UP_HOURS, RealtimeApp

START = pd.Timestamp("2026-03-02T00:00:00Z")


def of_jobs(
    jobs: list[tuple[float, int, float]],
    *,
    gpus: int = 8,
    hours: float = 10,
    priority: list[int] | None = None,
    user: list[str] | None = None,
    demand: list[list[int]] | None = None,
    placement: Literal["line", "node"] = "line",
) -> Trace:
    """A trace of (submit hour, GPUs, hours) and, for each app, the GPUs that it needs in each hour."""
    submit, block, length = (np.array(column, float) for column in zip(*jobs, strict=True))
    table = pd.DataFrame(
        {
            "job_id": [f"j{i}" for i in range(len(jobs))],
            "kind": "training",
            "status": "completed",
            "submit_time": START + pd.to_timedelta(submit * HOUR, unit="s"),
            "duration_s": length * HOUR,
            "gpus": block.astype(int),
            "user": user or ["u"] * len(jobs),
        }
    )
    apps = tuple(
        RealtimeApp(f"app{k}", 8, 2, np.concatenate([np.ones(WARM_UP_HOURS), need]).astype(float), 1.0)
        for k, need in enumerate(demand or [])
    )
    return Trace(
        start=START,
        gpus=gpus,
        node_size=8,
        jobs=History(table).jobs,
        submit_s=submit * HOUR,
        duration_s=length * HOUR,
        size=block.astype(np.int64),
        priority=np.array(priority or [5] * len(jobs), np.int64),
        limit_s=np.full(len(jobs), np.nan),
        apps=apps,
        end_s=hours * HOUR,
        placement=placement,
    )


def elastic(trace: Trace, factor: int = 4, seed: int = 0) -> Trace:
    """The same jobs on so many times fewer or more GPUs, each with a scaling of its own."""
    asked = trace.jobs["gpus"].to_numpy()
    sizes = np.stack([np.maximum(1, asked // factor), np.minimum(trace.gpus, asked * factor)], axis=1)
    return replace(trace, sizes=sizes, exponent=np.random.default_rng(seed).uniform(0.5, 1.0, len(asked)))


def busy(
    seed: int = 0,
    jobs: int = 60,
    gpus: int = 16,
    hours: int = 20,
    apps: int = 1,
    placement: Literal["line", "node"] = "line",
) -> Trace:
    """A contended pool, users with habits, and apps with a daily rhythm."""
    rng = np.random.default_rng(seed)
    submit = np.sort(rng.uniform(0, hours - 4, jobs)).round(3)
    user = rng.integers(0, 5, jobs)
    length = np.exp(rng.normal(np.log((1 + user) / 6), 0.8)) + 1 / 60
    block = 2 ** rng.integers(0, 4, jobs) if placement == "line" else rng.integers(1, 9, jobs)
    at = np.arange(hours)
    need = np.ceil(2.4 + 2 * np.sin(2 * np.pi * at / 24)).astype(int).tolist()
    return of_jobs(
        list(zip(submit.tolist(), block.tolist(), length.tolist(), strict=True)),
        gpus=gpus,
        hours=hours,
        priority=(1 + user).tolist(),
        user=[f"u{u}" for u in user],
        demand=[need] * apps,
        placement=placement,
    )
