"""The state of a cluster at an instant: all that a decision may look at beside the forecast."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from tidegrid.data import App, Cluster, on_down_gpus, request_features


@dataclass(frozen=True)
class State:
    """What a decision starts from.

    Made by :meth:`of`, which settles what the sources contradict each other in; nothing later asks again.

    Attributes
    ----------
    now
        The start of step 0, in UTC.
    cluster
        Pools with the GPUs that are down, and apps with the GPUs that they hold.
    requests, running : DataFrame
        The queue and what runs, in the documented schema, each on a fresh index; a job is in one of them at most,
        and no running job holds a GPU that is down.
    first_seen
        Since when a waiting job waits, by id; its submit time where absent.
    swaps_left
        GPUs that an app may still exchange in the step that ``now`` lies in, by id; its cap where absent.
    known_until
        The latest instant that the sources tell anything of; None where that is unknown.
    known_features
        Returns what estimators read of the requests in some rows, where that is known already; see
        :meth:`features_of`.
    lost : DataFrame
        Running jobs that hold a GPU that is down.
    twice
        Jobs that the sources name both as waiting and as running; they run.
    """

    now: pd.Timestamp
    cluster: Cluster
    requests: pd.DataFrame
    running: pd.DataFrame
    first_seen: Mapping[str, pd.Timestamp] = field(default_factory=dict)
    swaps_left: Mapping[str, int] = field(default_factory=dict)
    known_until: pd.Timestamp | None = None
    known_features: Callable[[Sequence[int]], pd.DataFrame] | None = None
    lost: pd.DataFrame = field(default_factory=pd.DataFrame)
    twice: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        requests: pd.DataFrame,
        running: pd.DataFrame,
        now: pd.Timestamp,
        *,
        first_seen: Mapping[str, pd.Timestamp] | None = None,
        swaps_left: Mapping[str, int] | None = None,
        known_until: pd.Timestamp | None = None,
    ) -> "State":
        """Return the state that these sources tell of; a job on a GPU that is down is lost, one listed twice runs."""
        gone = (
            on_down_gpus(cluster, running)
            if any(pool.down for pool in cluster.pools)
            else np.zeros(len(running), dtype=bool)
        )
        named = requests["job_id"].isin(running["job_id"]).to_numpy() if len(requests) else np.zeros(0, bool)
        return cls(
            now,
            cluster,
            requests[~named].reset_index(drop=True) if named.any() else requests.reset_index(drop=True),
            running[~gone].reset_index(drop=True) if gone.any() else running.reset_index(drop=True),
            first_seen or {},
            swaps_left or {},
            known_until,
            lost=running[gone].reset_index(drop=True),
            twice=tuple(requests["job_id"][named].astype(str)),
        )

    def features_of(self, rows: Sequence[int]) -> pd.DataFrame:
        """Return what estimators read of the requests in some rows."""
        if self.known_features is not None:
            return self.known_features(rows)
        return request_features(self.requests.take(rows))

    @cached_property
    def waiting_ids(self) -> list[str]:
        """The ids of the requests, in their order."""
        return [str(job) for job in self.requests["job_id"].tolist()]

    @cached_property
    def running_ids(self) -> list[str]:
        """The ids of the running jobs, in their order."""
        return [str(job) for job in self.running["job_id"].tolist()]

    def replicas(self, app: App) -> tuple[tuple[int, ...], ...]:
        """Return the whole replicas that an app holds, each as its GPUs; GPUs that belong to none serve nothing.

        They are read in the order in which the GPUs are listed, or node by node where that order makes no replicas.
        """
        size, node = app.capacity.gpus_per_replica, self.cluster.pool(app.pool).node_size
        if size == 1:
            return tuple((gpu,) for gpu in app.held)
        listed = tuple(app.held[i : i + size] for i in range(0, len(app.held), size))
        if all(len(one) == size and _is_replica(one, node) for one in listed):
            return listed
        by_node: dict[int, list[int]] = {}
        for gpu in sorted(app.held):
            by_node.setdefault(gpu // node if node else 0, []).append(gpu)
        if node and size > node:
            whole = [gpu for gpus in by_node.values() if len(gpus) == node for gpu in gpus]
            by_node = {0: whole}
        return tuple(
            tuple(gpus[i : i + size])
            for gpus in by_node.values()
            for i in range(0, len(gpus) - size + 1, size)
        )

    def working(self, app: App) -> tuple[tuple[int, ...], ...]:
        """Return the replicas that an app holds without those that have a GPU that is down."""
        down = set(self.cluster.pool(app.pool).down)
        return tuple(one for one in self.replicas(app) if down.isdisjoint(one))

    def loose(self) -> dict[str, list[int]]:
        """Return the GPUs that apps hold and that belong to no whole replica, by app."""
        out = {}
        for app in self.cluster.apps:
            whole = {gpu for one in self.replicas(app) for gpu in one}
            if rest := sorted(set(app.held) - whole):
                out[app.id] = rest
        return out

    def may_swap(self, app: App) -> int | None:
        """Return how many GPUs an app may exchange now; None for no cap."""
        return None if app.swap_cap is None else max(0, self.swaps_left.get(app.id, app.swap_cap))

    def elapsed_h(self) -> np.ndarray:
        """Return how long each running job has run, in hours, 0 or more; shape (running,)."""
        return self._since(self.running["start_time"], "h")

    def limit_h(self) -> np.ndarray:
        """Return the time limit of each running job in hours, NaN for none; shape (running,)."""
        if "requested_walltime_s" not in self.running:
            return np.full(len(self.running), np.nan)
        return self.running["requested_walltime_s"].to_numpy(dtype=float) / 3600

    def waited_days(self) -> np.ndarray:
        """Return how long each request has waited, in days, 0 or more; shape (requests,)."""
        since = self.requests["submit_time"]
        if self.first_seen:
            seen = pd.Series(self.waiting_ids, index=since.index).map(self.first_seen)
            since = pd.to_datetime(seen, utc=True).fillna(since)
        return self._since(since, "D")

    def _since(self, instants: pd.Series, unit: Literal["h", "D"]) -> np.ndarray:
        began = instants.to_numpy(dtype="datetime64[ns]").view("int64")
        return np.maximum((self.now.as_unit("ns").value - began) / pd.Timedelta(1, unit).value, 0.0)

    def age(self) -> pd.Timedelta:
        """Return how old the latest thing is that the sources tell of."""
        return (
            pd.Timedelta(0) if self.known_until is None else max(self.now - self.known_until, pd.Timedelta(0))
        )


def _is_replica(gpus: tuple[int, ...], node: int | None) -> bool:
    """Whether GPUs lie on one node, or on as few whole ones as hold them."""
    return not node or len({gpu // node for gpu in gpus}) == max(1, len(gpus) // node)
