"""The cluster: pools of GPUs and their nodes, the realtime apps that live on them, and the zone of its week."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field, StrictBool, ValidationError, model_validator
from pydantic.functional_validators import AfterValidator

from tidegrid.calendars import holiday_days
from tidegrid.data.inventory import MAX_NODE, App, Maintenance, Name, Pool, Record, Tenant
from tidegrid.data.nodelist import indices_of, nodes_of
from tidegrid.data.prometheus import TrafficSource
from tidegrid.data.tables import MAX_GPUS
from tidegrid.errors import InputError, printable
from tidegrid.files import read_json, write_json
from tidegrid.validation import first_error, input_errors
from tidegrid.zones import zone_of

FIXES = {
    "country": "write an ISO 3166 code such as DE, or leave it out",
    "subdivision": "write an ISO 3166 code such as BY, or leave it out",
}
"""What would be right, by field, where the type does not say it."""


class Cluster(Record):
    """A cluster description; see ``docs/data-formats.md``.

    Parameters
    ----------
    timezone
        IANA zone of its week: demand follows the local clock.
    country, subdivision
        ISO 3166 codes of the public holidays that demand follows, such as ``DE`` and ``BY``; None for none.
    pools
        At least one pool.
    apps
        Its realtime apps.
    maintenance
        GPUs that are closed for a time.
    tenants
        Limits of tenants; one that is not listed has none.
    traffic
        Where traffic comes from beside the site's tables; None for those alone.
    currency
        In which prices are, such as ``EUR``; shown beside them.
    synthetic
        Whether it was made up; shown wherever its figures are.
    """

    timezone: Name = "UTC"
    country: Annotated[str, Field(pattern=r"^[A-Z]{2,3}$", strict=True)] | None = None
    subdivision: Annotated[str, Field(pattern=r"^[A-Za-z0-9 \-]{1,40}$", strict=True)] | None = None
    pools: Annotated[tuple[Pool, ...], Field(min_length=1, max_length=1000)]
    apps: Annotated[tuple[App, ...], Field(max_length=10_000)] = ()
    maintenance: Annotated[tuple[Maintenance, ...], Field(max_length=100_000)] = ()
    tenants: Annotated[tuple[Tenant, ...], Field(max_length=100_000)] = ()
    traffic: TrafficSource | None = None
    currency: Annotated[str, Field(max_length=20), AfterValidator(printable)] = ""
    synthetic: StrictBool = False

    @property
    def gpus(self) -> int:
        """GPUs of all pools."""
        return sum(pool.gpus for pool in self.pools)

    def pool(self, name: str) -> Pool:
        """Return a pool by name.

        Raises
        ------
        InputError
            There is none.
        """
        for pool in self.pools:
            if pool.id == name:
                return pool
        raise InputError(f"there is no pool {name!r}", field="pool", fix=f"use one of {_ids(self.pools)}")

    def pool_of_node(self, node: str) -> Pool:
        """Return the pool that has a node.

        Raises
        ------
        InputError
            There is none.
        """
        for pool in self.pools:
            if node in pool.node_index:
                return pool
        raise InputError(
            f"there is no node {node!r}", field="nodes", fix="name the nodes of its pool in cluster.json"
        )

    def closed_gpus(self, window: Maintenance) -> dict[str, list[int]]:
        """Return the GPUs that a window closes: for each pool, their indices, sorted."""
        if window.nodes:
            out: dict[str, list[int]] = {}
            for node in window.nodes:
                pool = self.pool(window.pool) if window.pool else self.pool_of_node(node)
                out.setdefault(pool.id, []).extend(pool.gpus_of(node))
            return {name: sorted(set(gpus)) for name, gpus in out.items()}
        pools = [self.pool(window.pool)] if window.pool else list(self.pools)
        return {pool.id: sorted(set(window.gpus)) or list(range(pool.gpus)) for pool in pools}

    def closed_steps(
        self, start: pd.Timestamp, step_minutes: int, steps: int
    ) -> dict[str, list[dict[str, Any]]]:
        """Return the windows as steps: for each pool ``{"gpus": [first, last + 1], "from", "to", "kind"}``.

        A step is closed where the window touches it. ``down`` of a pool is a window over all steps.

        Parameters
        ----------
        start
            The instant of step 0.
        step_minutes, steps
            The length of a step, and how many there are, the lookahead included.
        """
        length = pd.Timedelta(minutes=step_minutes)
        out: dict[str, list[dict[str, Any]]] = {}
        for pool in self.pools:
            out[pool.id] = [_closed(run, 0, steps, "down") for run in _runs(pool.down)]
        for window in self.maintenance:
            first = 0 if window.start is None else max(0, (window.start - start) // length)
            last = steps if window.end is None else min(steps, -((start - window.end) // length))
            if last <= first:
                continue
            for name, gpus in self.closed_gpus(window).items():
                out[name] += [_closed(run, int(first), int(last), window.kind) for run in _runs(gpus)]
        return {name: windows for name, windows in out.items() if windows}

    def with_down(self, gpus: Mapping[str, Iterable[int]]) -> "Cluster":
        """Return the cluster with more GPUs that do not work."""
        pools = tuple(
            pool.model_copy(update={"down": tuple(sorted({*pool.down, *gpus.get(pool.id, ())}))})
            for pool in self.pools
        )
        return self.model_copy(update={"pools": pools})

    @model_validator(mode="before")
    @classmethod
    def _names_to_gpus(cls, value: Any) -> Any:
        """Translate nodes in Slurm's notation, and GPUs that are named by their node (``"a1"``, ``"a1:0-3"``)."""
        if not isinstance(value, dict) or not isinstance(value.get("pools"), list | tuple):
            return value
        pools = [_with_names(pool, i) for i, pool in enumerate(value["pools"])]
        by_id = {
            pool["id"]: pool for pool in pools if isinstance(pool, dict) and isinstance(pool.get("id"), str)
        }
        apps = value.get("apps")
        if isinstance(apps, list | tuple):
            apps = [
                _by_node(app, "held", by_id.get(app["pool"]), f"apps[{i}]")
                if isinstance(app, dict) and isinstance(app.get("pool"), str)
                else app
                for i, app in enumerate(apps)
            ]
            value = value | {"apps": apps}
        windows = value.get("maintenance")
        if isinstance(windows, list | tuple):
            windows = [
                one | {"nodes": _node_names(one["nodes"], f"maintenance[{i}].nodes")}
                if isinstance(one, dict) and isinstance(one.get("nodes"), str)
                else one
                for i, one in enumerate(windows)
            ]
            value = value | {"maintenance": windows}
        return value | {"pools": pools}

    @model_validator(mode="after")
    def _consistent(self) -> "Cluster":
        zone_of(self.timezone)
        if self.country is not None or self.subdivision is not None:
            self._check_holidays()
        named = {
            "pools": [pool.id for pool in self.pools],
            "apps": [app.id for app in self.apps],
            "tenants": [tenant.id for tenant in self.tenants],
        }
        for field, names in named.items():
            first = {name: i for i, name in reversed(list(enumerate(names)))}
            for i, name in enumerate(names):
                if first[name] != i:
                    raise InputError(
                        f"{name!r} is there twice", field=f"{field}[{i}].id", fix="give each its own name"
                    )
        if self.gpus > MAX_GPUS:
            raise InputError(f"they have {self.gpus:,} GPUs", field="pools", fix=f"give at most {MAX_GPUS:,}")
        self._check_pools()
        self._check_apps()
        self._check_series()
        self._check_traffic()
        self._check_windows()
        size = {pool.id: pool.gpus for pool in self.pools}
        for i, tenant in enumerate(self.tenants):
            for name in tenant.limit if isinstance(tenant.limit, dict) else ():
                if name not in size:
                    raise InputError(
                        f"there is no pool {name!r}",
                        field=f"tenants[{i}].limit",
                        fix=f"use one of {_ids(self.pools)}",
                    )
        return self

    def _check_traffic(self) -> None:
        if self.traffic is None:
            return
        known = sorted({app.series for app in self.apps})
        for name in self.traffic.prometheus.apps:
            if name not in known:
                raise InputError(
                    f"no app has the traffic series {name!r}",
                    field=f"traffic.prometheus.apps.{name}",
                    fix=f"use one of {', '.join(known)}" if known else "describe the apps first",
                )

    def _check_holidays(self) -> None:
        if self.country is None:
            raise InputError(
                "it has no country", field="subdivision", fix="give country too, or leave it out"
            )
        holiday_days(self.country, self.subdivision)

    def _check_pools(self) -> None:
        owner: dict[str, str] = {}
        for i, pool in enumerate(self.pools):
            at = f"pools[{i}]"
            _check_inside(pool.down, pool, f"{at}.down")
            if pool.placement == "node" and pool.node_size is None:
                raise InputError(
                    "nodes have no size", field=f"{at}.placement", fix="give node_size, the GPUs of a node"
                )
            if pool.placement == "node" and pool.gpus % (pool.node_size or 1):
                raise InputError(
                    f"{pool.gpus} GPUs are no whole nodes of {pool.node_size}",
                    field=f"{at}.gpus",
                    fix="give whole nodes",
                )
            if pool.nodes and len(pool.nodes) * (pool.node_size or 0) != pool.gpus:
                raise InputError(
                    f"{len(pool.nodes)} nodes of {pool.node_size} GPUs are not {pool.gpus} GPUs",
                    field=f"{at}.nodes",
                    fix="name each node once, and give node_size",
                )
            for k, name in enumerate(pool.nodes):
                if owner.setdefault(name, at) != at or pool.node_index[name] != k:
                    raise InputError(
                        f"node {name!r} is there twice", field=f"{at}.nodes", fix="name each node once"
                    )

    def _check_apps(self) -> None:
        pools = {pool.id: pool for pool in self.pools}
        owner: dict[tuple[str, int], str] = {}
        floors: dict[str, int] = {}
        for i, app in enumerate(self.apps):
            at = f"apps[{i}]"
            if app.pool not in pools:
                raise InputError(
                    f"there is no pool {app.pool!r}", field=f"{at}.pool", fix=f"use one of {_ids(self.pools)}"
                )
            pool, replica = pools[app.pool], app.capacity.gpus_per_replica
            _check_inside(app.held, pool, f"{at}.held")
            for gpu in app.held:
                other = owner.setdefault((app.pool, gpu), app.id)
                if other != app.id:
                    raise InputError(
                        f"GPU {gpu} is already held by {other!r}",
                        field=f"{at}.held",
                        fix="give each GPU to one app",
                    )
            node = pool.node_size or pool.gpus
            if replica > pool.gpus or (replica > node and replica % node):
                raise InputError(
                    f"a replica of {replica} GPUs does not fit nodes of {node}",
                    field=f"{at}.capacity.gpus_per_replica",
                    fix=f"give at most {node}, or a multiple of it that the pool has",
                )
            if app.swap_cap is not None and 0 < app.swap_cap < replica:
                raise InputError(
                    f"{app.swap_cap} GPUs a step are less than a replica of {replica}: none could ever start",
                    field=f"{at}.swap_cap",
                    fix=f"give at least {replica}, or leave it out for no cap",
                )
            floors[app.pool] = floors.get(app.pool, 0) + app.capacity.floor
            if floors[app.pool] > pool.gpus:
                raise InputError(
                    f"replicas that are always up take {floors[app.pool]} GPUs, and pool {pool.id!r} has {pool.gpus}",
                    field=f"{at}.capacity.min_replicas",
                    fix="give fewer replicas, or more GPUs",
                )

    def _check_series(self) -> None:
        by_series: dict[str, list[int]] = {}
        for i, app in enumerate(self.apps):
            by_series.setdefault(app.series, []).append(i)
        for series, members in by_series.items():
            shares = [self.apps[i].series_share for i in members]
            if len(members) == 1 and shares[0] is None:
                continue
            total = sum(share for share in shares if share is not None)
            if None in shares or abs(total - 1) > 1e-6:
                names = ", ".join(self.apps[i].id for i in members)
                raise InputError(
                    f"the shares of series {series!r} ({names}) sum to {total:g}",
                    field=f"apps[{members[-1]}].series_share",
                    fix="give each app that serves the series its share, so that they sum to 1",
                )

    def _check_windows(self) -> None:
        for i, window in enumerate(self.maintenance):
            at = f"maintenance[{i}]"
            try:
                closed = self.closed_gpus(window)
            except InputError as error:
                field = f"{at}.{'pool' if error.field == 'pool' else 'nodes'}"
                raise InputError(error.problem, field=field, fix=error.fix) from None
            if window.gpus and (window.pool is None or window.nodes):
                raise InputError(
                    "indices need one pool", field=f"{at}.gpus", fix="give pool and gpus, or nodes alone"
                )
            for name, gpus in closed.items():
                _check_inside(tuple(gpus), self.pool(name), f"{at}.gpus")
            if window.start is not None and window.end is not None and window.end <= window.start:
                raise InputError(
                    "it ends before it begins", field=f"{at}.to", fix="give an instant after from"
                )

    @classmethod
    def from_dict(cls, value: Any) -> "Cluster":
        """Make a cluster from JSON values.

        Raises
        ------
        InputError
            The path of the field, what is wrong with it, and what would be right.
        """
        if not isinstance(value, dict):
            raise InputError("is not a JSON object", fix='write {"timezone": …, "pools": […], "apps": […]}')
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            raise first_error(error, FIXES) from None

    def to_dict(self) -> dict[str, Any]:
        """Return the cluster as JSON values; what stands at its default and is new is left out."""
        out: dict[str, Any] = self.model_dump(mode="json", by_alias=True)
        for window in out["maintenance"]:
            for end in ("from", "to"):
                window[end] = None if window[end] is None else pd.Timestamp(window[end]).isoformat()
        for name in ("country", "subdivision", "maintenance", "tenants", "traffic", "currency"):
            if not out[name]:
                del out[name]
        for pool in out["pools"]:
            if not pool["nodes"]:
                del pool["nodes"]
            if pool["placement"] == "line":
                del pool["placement"]
            if pool["price_per_gpu_hour"] is None:
                del pool["price_per_gpu_hour"]
        for app in out["apps"]:
            if app["series_share"] is None:
                del app["series_share"]
        return out


def read_cluster(path: str | Path) -> Cluster:
    """Read a cluster description from a JSON file.

    Raises
    ------
    InputError
        The file, the path of the field, what is wrong with it, and what would be right.
    """
    try:
        return Cluster.from_dict(read_json(path))
    except InputError as error:
        raise error if error.file else error.in_file(path) from None


def cluster_problems(path: str | Path) -> list[InputError]:
    """Return all that is wrong with a cluster description, as far as it shows at once."""
    try:
        value = read_json(path)
        if isinstance(value, dict):
            Cluster.model_validate(value)
        else:
            Cluster.from_dict(value)
    except InputError as error:
        return [error if error.file else error.in_file(path)]
    except ValidationError as error:
        return [found.in_file(path) for found in input_errors(error, FIXES)]
    return []


def write_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write a cluster description as JSON, whole or not at all."""
    write_json(path, cluster.to_dict())


def block_size(gpus: int | np.ndarray | pd.Series) -> Any:
    """Return GPU counts rounded up to powers of two, the sizes of legal blocks of a pool in a line.

    Raises
    ------
    InputError
        A count is below 1.

    Examples
    --------
    >>> [block_size(n) for n in (1, 3, 8, 40)]
    [1, 4, 8, 64]
    """
    if isinstance(gpus, int) and gpus >= 1:
        return 1 << (gpus - 1).bit_length()
    counts = np.asarray(gpus, dtype="int64")
    if (counts < 1).any():
        raise InputError(f"{int(counts.min())} GPUs are no block", field="gpus", fix="give at least 1")
    sizes = np.ones_like(counts)
    while (sizes < counts).any():
        sizes = np.where(sizes < counts, sizes * 2, sizes)
    if isinstance(gpus, pd.Series):
        return pd.Series(sizes, index=gpus.index, name=gpus.name)
    return sizes if isinstance(gpus, np.ndarray) else int(sizes)


def laid(pool: Pool, gpus: int) -> tuple[int, int]:
    """Return the GPUs that a request of so many holds in a pool, and on how many nodes.

    In a line the next power of two. By node, that many evenly on as few nodes as hold them or one less than twice as
    many; where they do not lie evenly on so many, the next larger number that does.

    Examples
    --------
    >>> node = Pool(id="a", gpus=64, gpu_type="A100-SXM-80GB", node_size=8, placement="node")
    >>> [laid(node, gpus) for gpus in (3, 9, 11, 24)]
    [(3, 1), (9, 3), (12, 2), (24, 3)]
    """
    if pool.placement != "node" or pool.node_size is None:
        return block_size(gpus), 1
    fewest = -(-gpus // pool.node_size)
    for nodes in range(fewest, 2 * fewest):
        if gpus % nodes == 0:
            return gpus, nodes
    return -(-gpus // fewest) * fewest, fewest


def rounded_sizes(cluster: Cluster, requests: pd.DataFrame) -> list[str]:
    """Return a note of the requests whose sizes are rounded up in a pool that they may use, for each placement."""
    if requests.empty:
        return []
    cells = [
        requests[name].fillna("").astype(str).tolist() if name in requests else [""] * len(requests)
        for name in ("gpu_type", "allowed_pools")
    ]
    told: dict[str, list[str]] = {"line": [], "node": []}
    known: dict[tuple[int, str, str], list[tuple[str, int]]] = {}
    for job, key in zip(requests["job_id"], zip(requests["gpus"].tolist(), *cells, strict=True), strict=True):
        if key not in known:
            gpus, of_type, only = key
            held: dict[str, int] = {}
            for pool in cluster.pools:
                size = laid(pool, gpus)[0]
                may = of_type in ("", pool.gpu_type) and (not only or pool.id in only.split())
                if may and size > gpus:
                    held[pool.placement] = max(size, held.get(pool.placement, 0))
            known[key] = sorted(held.items())
        for placement, size in known[key]:
            told[placement].append(f"{job} ({key[0]} → {size})")
    why = {
        "line": ("a pool in a line gives powers of two", '; "placement": "node" gives whole sizes'),
        "node": ("a job gets as many GPUs on each of its nodes", ""),
    }
    notes = []
    for placement, rows in told.items():
        if not rows:
            continue
        shown, more = ", ".join(rows[:5]), f" and {len(rows) - 5:,} more" if len(rows) > 5 else ""
        gets = "requests get" if len(rows) > 1 else "request gets"
        reason, fix = why[placement]
        notes.append(f"{len(rows):,} {gets} more GPUs than asked for, since {reason}: {shown}{more}{fix}")
    return notes


def _ids(records: tuple[Pool, ...]) -> str:
    return ", ".join(record.id for record in records)


def _check_inside(gpus: tuple[int, ...], pool: Pool, field: str) -> None:
    for gpu in gpus:
        if gpu >= pool.gpus:
            raise InputError(
                f"GPU {gpu} is outside pool {pool.id!r}", field=field, fix=f"use 0 to {pool.gpus - 1}"
            )
    if len(set(gpus)) < len(gpus):
        raise InputError("a GPU is there twice", field=field, fix="name each GPU once")


def _runs(gpus: Iterable[int]) -> list[list[int]]:
    """Return sorted indices as ranges ``[first, last + 1]``."""
    out: list[list[int]] = []
    for gpu in sorted(gpus):
        if out and out[-1][1] == gpu:
            out[-1][1] = gpu + 1
        else:
            out.append([gpu, gpu + 1])
    return out


def _closed(run: list[int], first: int, last: int, kind: str) -> dict[str, Any]:
    return {"gpus": run, "from": first, "to": last, "kind": kind}


def _node_names(text: str, field: str) -> list[str]:
    try:
        return nodes_of(text)
    except InputError as error:
        raise InputError(error.problem, field=field, fix=error.fix) from None


def _with_names(pool: Any, i: int) -> Any:
    if not isinstance(pool, dict):
        return pool
    if isinstance(pool.get("nodes"), str):
        pool = pool | {"nodes": _node_names(pool["nodes"], f"pools[{i}].nodes")}
    return _by_node(pool, "down", pool, f"pools[{i}]")


def _by_node(record: dict[str, Any], field: str, pool: dict[str, Any] | None, at: str) -> dict[str, Any]:
    """Replace the texts in a list of GPUs, ``"a1"`` or ``"a1:0-3"``, by the indices that they stand for."""
    value = record.get(field)
    if not isinstance(value, list | tuple) or not any(isinstance(one, str) for one in value):
        return record
    names, size = (pool or {}).get("nodes"), (pool or {}).get("node_size")
    if not isinstance(names, list | tuple) or not isinstance(size, int) or not 1 <= size <= MAX_NODE:
        raise InputError(
            "its pool has no names of nodes",
            field=f"{at}.{field}",
            fix="give nodes and node_size, or indices",
        )
    out: list[Any] = []
    for one in value:
        if not isinstance(one, str):
            out.append(one)
            continue
        name, _, which = one.partition(":")
        if name not in names:
            raise InputError(
                f"there is no node {name!r}", field=f"{at}.{field}", fix="name a node of its pool"
            )
        first = list(names).index(name) * size
        try:
            chosen = indices_of(which, size) if which else range(size)
        except InputError as error:
            raise InputError(error.problem, field=f"{at}.{field}", fix=error.fix) from None
        if max(chosen) >= size:
            raise InputError(
                f"node {name!r} has {size} GPUs", field=f"{at}.{field}", fix=f"use 0 to {size - 1}"
            )
        out += [first + gpu for gpu in chosen]
    return record | {field: out}
