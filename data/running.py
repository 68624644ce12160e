"""Which GPUs running jobs hold: what the table says in its own way, as indices in a pool."""

from pathlib import Path

import numpy as np
import pandas as pd

from tidegrid.data.cells import as_text
from tidegrid.data.cluster import Cluster
from tidegrid.data.inventory import Pool
from tidegrid.data.nodelist import as_indices, indices_of
from tidegrid.data.schema import validated
from tidegrid.data.source import Log, Source
from tidegrid.data.tables import MAX_GPUS, RUNNING
from tidegrid.errors import InputError

_WAYS = ("pool", "first_gpu", "gpus", "gpu_ids", "held")
"""The columns that say which GPUs a job holds."""


def place_running(
    cluster: Cluster, running: pd.DataFrame, source: Source | None = None
) -> tuple[pd.DataFrame, Source]:
    """Return running jobs with the GPUs that each holds, in one way: pool, first GPU, GPUs, and ``gpu_ids``.

    Numbers of GPUs on a node (``held`` of ``a1=4``) take the node's lowest GPUs that nothing else holds.

    Parameters
    ----------
    cluster
        Its pools, nodes and apps.
    running
        Validated rows of :data:`tidegrid.data.tables.RUNNING`.
    source
        Where the rows came from; with a log, rows that do not fit the cluster are noted and left out.

    Returns
    -------
    (DataFrame, Source)
        ``gpu_ids`` is a list of indices as text, such as ``0-3,6``, and ``held`` is gone.

    Raises
    ------
    InputError
        GPUs lie in no pool, outside their pool, or are held twice, or a block of a pool in a line is none.
    """
    source = (source or Source()).about(running, RUNNING.item, RUNNING.key[0])
    if running.empty:
        return running, source
    board = _Board(cluster)
    rows = running.reset_index(drop=True)
    wrong: dict[int, InputError] = {}
    placed: dict[int, tuple[str, list[int]]] = {}
    cells = {name: rows[name].tolist() if name in rows.columns else [""] * len(rows) for name in _WAYS}
    records = [dict(zip(cells, values, strict=True)) for values in zip(*cells.values(), strict=True)]
    # jobs that name their GPUs take them before those that only count them
    for i in sorted(range(len(rows)), key=lambda i: "=" in str(records[i]["held"])):
        try:
            placed[i] = board.take(records[i])
        except InputError as error:
            wrong[i] = error
    kinds: dict[tuple[str, str], list[int]] = {}
    for i, found in wrong.items():
        kinds.setdefault((found.field or "gpu_ids", found.fix or ""), []).append(i)
    for (field, fix), members in sorted(kinds.items()):
        source.refuse(np.isin(np.arange(len(rows)), members), field, lambda at: wrong[at].problem, fix)
    good = sorted(placed)
    out = rows.iloc[good].reset_index(drop=True).drop(columns="held", errors="ignore")
    out["pool"] = pd.Series([placed[i][0] for i in good], dtype=rows["pool"].dtype)
    out["first_gpu"] = np.array([placed[i][1][0] for i in good], dtype="int64")
    out["gpus"] = np.array([len(placed[i][1]) for i in good], dtype="int64")
    out["gpu_ids"] = pd.Series([as_indices(placed[i][1]) for i in good], dtype=rows["pool"].dtype)
    return out, source.take(np.array(good, dtype="int64"))


class _Board:
    """Who holds each GPU."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.owner: dict[str, dict[int, str]] = {pool.id: {} for pool in cluster.pools}
        for app in cluster.apps:
            self.owner[app.pool] |= dict.fromkeys(app.held, f"app {app.id!r}")

    def take(self, record: dict[str, object]) -> tuple[str, list[int]]:
        pool, gpus, field = self._named(record)
        if pool.placement == "line":
            _check_block(pool, gpus, field)
        owner = self.owner[pool.id]
        for gpu in gpus:
            if gpu in owner:
                other = owner[gpu]
                said = (
                    f"the block holds a GPU of {other}"
                    if other.startswith("app")
                    else "the block overlaps another running job's"
                )
                raise InputError(said, field=field, fix="give each GPU to one of them")
        owner.update(dict.fromkeys(gpus, "a job"))
        return pool.id, gpus

    def _named(self, record: dict[str, object]) -> tuple[Pool, list[int], str]:
        held, listed = str(record["held"] or ""), str(record["gpu_ids"] or "")
        if held:
            return self._by_node(held)
        pool = self.cluster.pool(str(record["pool"]))
        if listed:
            gpus, field = indices_of(listed, MAX_GPUS), "gpu_ids"
        else:
            first, count = int(float(str(record["first_gpu"]))), int(float(str(record["gpus"])))
            if first + count > pool.gpus:
                raise InputError(
                    "the block lies outside its pool", field="first_gpu", fix="use GPUs that the pool has"
                )
            gpus, field = list(range(first, first + count)), "first_gpu"
        if gpus[-1] >= pool.gpus:
            raise InputError(
                f"GPU {gpus[-1]} lies outside its pool", field=field, fix="use GPUs that the pool has"
            )
        return pool, gpus, field

    def _by_node(self, held: str) -> tuple[Pool, list[int], str]:
        pools: dict[str, Pool] = {}
        gpus: list[int] = []
        for part in held.split():
            name, mark, which = part.replace("=", ":", 1).partition(":")
            pool = self.cluster.pool_of_node(name)
            pools[pool.id] = pool
            on_node = pool.gpus_of(name)
            if not mark or not which:
                raise _not_held(part)
            if "=" not in part:
                chosen = [on_node[0] + index for index in indices_of(which, len(on_node))]
                if chosen[-1] not in on_node:
                    raise InputError(
                        f"node {name!r} has {len(on_node)} GPUs", field="held", fix="use indices on the node"
                    )
            elif not which.isascii() or not which.isdigit() or len(which) > 6 or int(which) < 1:
                raise _not_held(part)
            else:
                free = [gpu for gpu in on_node if gpu not in self.owner[pool.id] and gpu not in gpus]
                if len(free) < int(which):
                    raise InputError(
                        f"node {name!r} has {len(free)} GPUs that nothing else holds",
                        field="held",
                        fix="check what runs there",
                    )
                chosen = free[: int(which)]
            gpus += chosen
        if len(pools) != 1:
            said = "it names no node" if not pools else f"its nodes lie in {len(pools)} pools"
            raise InputError(said, field="held", fix="give one row for the GPUs of each pool")
        if len(set(gpus)) < len(gpus):
            raise InputError("a GPU is there twice", field="held", fix="name each GPU once")
        return next(iter(pools.values())), sorted(gpus), "held"


def _not_held(part: str) -> InputError:
    return InputError(
        f"{part[:60]!r} does not say which GPUs", field="held", fix="write a1:0-3,6 or a1=4 for each node"
    )


def _check_block(pool: Pool, gpus: list[int], field: str) -> None:
    count, first, node = len(gpus), gpus[0], pool.node_size or 0
    if count & (count - 1):
        raise InputError(
            "a running block is not a power of two",
            field="gpus" if field == "first_gpu" else field,
            fix='give the block that the job holds: 1, 2, 4, 8 … GPUs, or the pool "placement": "node"',
        )
    if gpus[-1] - first + 1 != count:
        raise InputError(
            "its GPUs are no neighbours",
            field=field,
            fix='a pool in a line gives neighbours; give the pool "placement": "node"',
        )
    if node and (first // node != gpus[-1] // node if count <= node else first % node != 0):
        raise InputError("the block crosses a node", field=field, fix="start it so that it stays in its node")


def check_running(
    cluster: Cluster,
    running: pd.DataFrame,
    *,
    file: str | Path | None = None,
    source: Source | None = None,
) -> None:
    """Raise where a running job's GPUs do not fit the cluster; see :func:`place_running`.

    Raises
    ------
    InputError
        The row is named as in ``source``, or counted from its position in ``file``.
    """
    place_running(cluster, running, source or Source(file))


def gpu_ids(running: pd.DataFrame) -> list[list[int]]:
    """Return the GPUs of each running job as indices in its pool."""
    if "gpu_ids" in running.columns:
        texts = as_text(running["gpu_ids"])
        if (texts != "").all():
            return [indices_of(text, MAX_GPUS) for text in texts]
    return [
        list(range(int(first), int(first) + int(count)))
        for first, count in zip(running["first_gpu"], running["gpus"], strict=True)
    ]


def on_down_gpus(cluster: Cluster, running: pd.DataFrame) -> np.ndarray:
    """Return which running jobs hold a GPU that is down: they are lost. Shape (running jobs,), bool."""
    broken = {pool.id: frozenset(pool.down) for pool in cluster.pools}
    return np.array(
        [
            not broken.get(str(pool), frozenset()).isdisjoint(gpus)
            for pool, gpus in zip(running["pool"], gpu_ids(running), strict=True)
        ],
        dtype=bool,
    )


def unknown_holders(cluster: Cluster, raw: pd.DataFrame, known: pd.DataFrame) -> dict[str, list[int]]:
    """Return the GPUs of running jobs whose rows were set aside, as far as these still say which.

    Something holds them, whatever else is wrong with the row: nothing may be planned there.

    Parameters
    ----------
    cluster
        Its pools, nodes and apps.
    raw
        The rows that were set aside, as text.
    known
        The running jobs that were placed.
    """
    stated = raw[[name for name in _WAYS if name in raw.columns]].copy()
    stated = stated.assign(
        job_id=[f"row {i}" for i in range(len(raw))], kind="training", start_time="2000-01-01T00:00:00Z"
    )
    try:
        rows, _ = validated(stated, RUNNING, Source(log=Log()))
    except InputError:  # none of them says where it is
        return {}
    taken = {(str(pool), gpu) for pool, ids in zip(known["pool"], gpu_ids(known), strict=True) for gpu in ids}
    taken |= {(app.pool, gpu) for app in cluster.apps for gpu in app.held}
    out: dict[str, list[int]] = {}
    # each alone, and under no rule of a line: what matters is where it is
    pools = tuple(pool.model_copy(update={"placement": "node"}) for pool in cluster.pools)
    anywhere = cluster.model_copy(update={"apps": (), "pools": pools})
    for i in range(len(rows)):
        one, _ = place_running(anywhere, rows.iloc[[i]], Source(log=Log()))
        for pool, ids in zip(one["pool"], gpu_ids(one), strict=True):
            out.setdefault(str(pool), []).extend(gpu for gpu in ids if (str(pool), gpu) not in taken)
    return {pool: sorted(set(ids)) for pool, ids in out.items()}
