"""A cluster whose truth is known: it writes the site's files, acts on commits, and ends jobs when they end."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.data import (
    App,
    Capacity,
    Cluster,
    Pool,
    write_cluster,
)
from tidegrid.estimators import Estimator, Feature
from tidegrid.estimators.base import as_levels, quantile_frame
from tidegrid.models import Bundle

START = pd.Timestamp("2026-03-02T00:00:00+00:00")
HOUR = pd.Timedelta(hours=1)


class Told(Estimator):
    """Durations that stand in the job's name, ``x-3h`` for three hours, spread by a factor to each side."""

    name = "recurring"
    kind = "any"
    predicts_unfitted = True
    features = (Feature("name", "text"),)

    def __init__(self, spread: float = 1.0) -> None:
        self.spread = spread

    def fit(self, X: Any, y: Any, *, observed: Any = None, known_at: Any = None) -> "Told":
        return self

    def predict_quantiles(self, X: pd.DataFrame, levels: Any = (0.1, 0.5, 0.9)) -> pd.DataFrame:
        at = np.array(as_levels(levels))
        hours = X["name"].astype(str).str.extract(r"-([\d.]+)h")[0].astype(float).to_numpy()
        factor = self.spread ** (2.5 * (at - 0.5))
        return quantile_frame(hours[:, None] * factor[None, :], as_levels(levels), X.index)

    def basis(self, X: pd.DataFrame) -> pd.Series:
        return pd.Series("prior: told", index=X.index, dtype=object)

    def to_bundle(self) -> Bundle:
        return Bundle(self.name, self.get_params())

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> "Told":
        return cls(**bundle.params)


class Curve(Estimator):
    """Demand that is known: units of each hour since START, the last one for ever; the band is ±10 %."""

    name = "realtime"
    kind = "realtime"
    target = "demand"
    features = (Feature("unique_id", "text", required=True), Feature("ds", "instant", required=True))

    def __init__(self, curves: dict[str, list[float]] | None = None) -> None:
        self.curves = curves

    def fit(self, X: Any, y: Any, *, observed: Any = None, known_at: Any = None) -> "Curve":
        return self

    def predict_quantiles(self, X: pd.DataFrame, levels: Any = (0.1, 0.5, 0.9)) -> pd.DataFrame:
        hours = ((pd.to_datetime(X["ds"], utc=True) - START) // HOUR).to_numpy()
        at = [
            self.curves[s][min(int(h), len(self.curves[s]) - 1)]
            for s, h in zip(X["unique_id"], hours, strict=True)
        ]
        levels = as_levels(levels)
        band = 1.0 + 0.25 * (np.array(levels) - 0.5)
        return quantile_frame(np.array(at, dtype=float)[:, None] * band[None, :], levels, X.index)

    def basis(self, X: pd.DataFrame) -> pd.Series:
        return pd.Series("site history: told", index=X.index, dtype=object)

    def to_bundle(self) -> Bundle:
        return Bundle(self.name, self.get_params())

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> "Curve":
        return cls(**bundle.params)


@dataclass
class World:
    """The truth.

    Attributes
    ----------
    gpus, node_size
        The one pool, ``a``.
    apps
        App id to (priority, swap cap, true units of each hour since START); a GPU serves one unit an hour.
    now
        The instant.
    waiting
        Job id to its request.
    running
        Job id to its row; ``ends`` has when it truly ends.
    """

    folder: Path
    gpus: int = 8
    node_size: int | None = None
    apps: dict[str, tuple[int, int | None, list[float]]] = field(default_factory=dict)
    timezone: str = "UTC"
    now: pd.Timestamp = START
    waiting: dict[str, dict[str, Any]] = field(default_factory=dict)
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    ends: dict[str, pd.Timestamp] = field(default_factory=dict)
    truth: dict[str, float] = field(default_factory=dict)
    fates: dict[str, str] = field(default_factory=dict)
    held: dict[str, list[int]] = field(default_factory=dict)
    down: tuple[int, ...] = ()
    done: list[dict[str, Any]] = field(default_factory=list)
    starts: dict[str, pd.Timestamp] = field(default_factory=dict)

    def submit(
        self, job: str, gpus: int, hours: float, priority: int, *, told: float | None = None, **more: Any
    ) -> None:
        """A job arrives that truly takes ``hours``; it is told to take ``told``."""
        row = {"job_id": job, "kind": "training", "priority": priority, "submit_time": self.now.isoformat(),
               "gpus": gpus, "name": f"{job}-{hours if told is None else told}h", "user": "ann"}  # fmt: skip
        self.waiting[job] = row | more
        self.truth[job] = hours

    def run(
        self, job: str, first: int, gpus: int, hours: float, priority: int = 5, *, told: float | None = None
    ) -> None:
        """A job is already running, from now on."""
        self.submit(job, gpus, hours, priority, told=told)
        self.start(job, first, gpus)

    def start(self, job: str, first: int, gpus: int) -> None:
        row = self.waiting.pop(job)
        self.running[job] = {
            **row,
            "pool": "a",
            "first_gpu": first,
            "gpus": gpus,
            "start_time": self.now.isoformat(),
        }
        self.ends[job] = self.now + self.truth[job] * HOUR
        self.starts[job] = self.now

    def obey(self, commit: dict[str, Any]) -> None:
        """Do what a commit says."""
        for start in commit["start"]:
            self.start(start["job"], start["first_gpu"], start["gpus"])
        for move in commit["apps"]:
            self.held[move["app"]] = move["gpus"]

    def end(self, job: str, status: str = "completed", at: pd.Timestamp | None = None) -> None:
        at = at or self.now
        row = self.running.pop(job)
        start = pd.Timestamp(row["start_time"])
        self.done.append({
            "job_id": job, "kind": "training", "status": status, "submit_time": row["submit_time"],
            "start_time": row["start_time"], "end_time": at.isoformat(), "gpus": row["gpus"],
            "duration_s": max(1.0, (at - start).total_seconds()), "name": row["name"], "user": "ann",
        })  # fmt: skip

    def advance(self, minutes: float = 60) -> None:
        self.now += pd.Timedelta(minutes=minutes)
        for job in [j for j in self.running if self.ends[j] <= self.now]:
            self.end(job, self.fates.get(job, "completed"), self.ends[job])

    def units(self, app: str, hour: int) -> float:
        curve = self.apps[app][2]
        return curve[min(hour, len(curve) - 1)]

    def write(self, *, jobs: bool = True, traffic_until: pd.Timestamp | None = None) -> Path:
        """Write the site's files as an exporter would."""
        self.folder.mkdir(exist_ok=True)
        apps = tuple(
            App(
                id=a,
                pool="a",
                priority=p,
                swap_cap=cap,
                held=tuple(self.held.get(a, [])),
                capacity=Capacity(units_per_gpu_hour=1.0),
            )
            for a, (p, cap, _) in self.apps.items()
        )
        pool = Pool(
            id="a", gpus=self.gpus, gpu_type="H100-SXM-80GB", node_size=self.node_size, down=self.down
        )
        write_cluster(Cluster(timezone=self.timezone, pools=(pool,), apps=apps), self.folder / "cluster.json")
        pd.DataFrame(list(self.waiting.values()) or None, columns=None if self.waiting else _WAITING).to_csv(
            self.folder / "requests.csv", index=False
        )
        pd.DataFrame(list(self.running.values()) or None, columns=None if self.running else _RUNNING).to_csv(
            self.folder / "running.csv", index=False
        )
        (self.folder / "jobs.csv").unlink(missing_ok=True)
        if self.done and jobs:
            pd.DataFrame(self.done).to_csv(self.folder / "jobs.csv", index=False)
        until = min(self.now, traffic_until or self.now)
        hours = int((until - START) // HOUR)
        rows = [(a, START + h * HOUR, self.units(a, h)) for a in self.apps for h in range(hours)]
        (self.folder / "traffic.csv").unlink(missing_ok=True)
        if rows:
            pd.DataFrame(rows, columns=["series_id", "timestamp", "value"]).to_csv(
                self.folder / "traffic.csv", index=False
            )
        return self.folder


_WAITING = ["job_id", "kind", "priority", "submit_time", "gpus", "name", "user"]
_RUNNING = [*_WAITING, "pool", "first_gpu", "start_time"]
