"""The cluster: pools of GPUs, the realtime apps that live on them, and the zone of its week."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, ValidationError, model_validator

from tidegrid.errors import InputError
from tidegrid.files import read_json, write_json
from tidegrid.zones import zone_of

if TYPE_CHECKING:
    from tidegrid.data.schema import Source

Name = Annotated[str, Field(min_length=1, max_length=200, strict=True)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Capacity(_Record):
    """What one GPU serves.

    Parameters
    ----------
    units_per_gpu_hour
        Units of the app's traffic (requests, tokens) that one GPU serves in an hour at the service level; None
        where it is to be fitted from history.
    gpus_per_replica
        GPUs of one replica (tensor parallel).
    min_replicas
        Replicas that are always up.
    target_load
        The share of the capacity that is planned on, above 0 and at most 1.
    """

    units_per_gpu_hour: Positive | None = None
    gpus_per_replica: Annotated[StrictInt, Field(ge=1)] = 1
    min_replicas: Annotated[StrictInt, Field(ge=0)] = 0
    target_load: Annotated[float, Field(gt=0, le=1)] = 1.0


class Pool(_Record):
    """GPUs of one type in a line.

    Parameters
    ----------
    id
        The pool's name.
    gpus
        How many GPUs it has, at least 1.
    gpu_type
        Their type, such as ``H100-SXM-80GB``.
    node_size
        GPUs of a node; a block of at most that many stays inside one, a larger one starts at a node's first GPU.
        None where blocks may lie anywhere.
    gpus_per_node
        GPUs of a physical node, for estimates of communication; ``node_size`` where absent.
    down
        Indices of GPUs that do not work now: no job and no app is put on them.
    """

    id: Name
    gpus: Annotated[StrictInt, Field(ge=1)]
    gpu_type: Name
    node_size: Annotated[StrictInt, Field(ge=1)] | None = None
    gpus_per_node: Annotated[StrictInt, Field(ge=1)] | None = None
    down: tuple[Annotated[StrictInt, Field(ge=0)], ...] = ()


class App(_Record):
    """A realtime app.

    Parameters
    ----------
    id
        The app's name.
    pool
        The pool that it lives in.
    priority
        1 (lowest) to 10.
    swap_cap
        GPUs that may enter or leave between two steps; None for no cap.
    held
        Indices of the GPUs that it holds now.
    series_id
        Its traffic series; its own name where absent.
    capacity
        What one GPU serves.
    """

    id: Name
    pool: Name
    priority: Annotated[StrictInt, Field(ge=1, le=10)] = 5
    swap_cap: Annotated[StrictInt, Field(ge=0)] | None = None
    held: tuple[Annotated[StrictInt, Field(ge=0)], ...] = ()
    series_id: str | None = None
    capacity: Capacity = Capacity()

    @property
    def series(self) -> str:
        """The name of its traffic series."""
        return self.series_id or self.id


class Cluster(_Record):
    """A cluster description; see ``docs/data-formats.md``.

    Parameters
    ----------
    timezone
        IANA zone of its week: demand follows the local clock.
    pools
        At least one pool.
    apps
        Its realtime apps.
    synthetic
        Whether it was made up; shown wherever its figures are.
    """

    timezone: Name = "UTC"
    pools: Annotated[tuple[Pool, ...], Field(min_length=1)]
    apps: tuple[App, ...] = ()
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

    @model_validator(mode="after")
    def _consistent(self) -> "Cluster":
        try:
            zone_of(self.timezone)
        except InputError as error:
            raise _at("timezone", error.problem, error.fix or "") from None
        for field, names in (("pools", [p.id for p in self.pools]), ("apps", [a.id for a in self.apps])):
            for i, name in enumerate(names):
                if name in names[:i]:
                    raise _at(f"{field}[{i}].id", f"{name!r} is there twice", "give each its own name")
        for i, pool in enumerate(self.pools):
            for gpu in pool.down:
                if gpu >= pool.gpus:
                    raise _at(
                        f"pools[{i}].down",
                        f"GPU {gpu} is outside pool {pool.id!r}",
                        f"use 0 to {pool.gpus - 1}",
                    )
            if len(set(pool.down)) < len(pool.down):
                raise _at(f"pools[{i}].down", "a GPU is there twice", "name each GPU once")
        size = {pool.id: pool.gpus for pool in self.pools}
        owner: dict[tuple[str, int], str] = {}
        for i, app in enumerate(self.apps):
            if app.pool not in size:
                raise _at(
                    f"apps[{i}].pool", f"there is no pool {app.pool!r}", f"use one of {_ids(self.pools)}"
                )
            for gpu in app.held:
                field = f"apps[{i}].held"
                if gpu >= size[app.pool]:
                    raise _at(
                        field, f"GPU {gpu} is outside pool {app.pool!r}", f"use 0 to {size[app.pool] - 1}"
                    )
                other = owner.setdefault((app.pool, gpu), app.id)
                if other != app.id:
                    raise _at(field, f"GPU {gpu} is already held by {other!r}", "give each GPU to one app")
            if len(set(app.held)) < len(app.held):
                raise _at(f"apps[{i}].held", "a GPU is there twice", "name each GPU once")
        return self

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
            raise _as_input_error(error, value) from None

    def to_dict(self) -> dict[str, Any]:
        """Return the cluster as JSON values."""
        return self.model_dump(mode="json")


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
        return [_one_error(found, value).in_file(path) for found in _innermost(error)]
    return []


def write_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write a cluster description as JSON, whole or not at all."""
    write_json(path, cluster.to_dict())


def check_running(
    cluster: Cluster,
    running: pd.DataFrame,
    *,
    file: str | Path | None = None,
    source: "Source | None" = None,
) -> None:
    """Raise where a running job's block does not fit the cluster.

    The error names the row in ``source``, or the row counted from the position in ``file``.

    Raises
    ------
    InputError
        A block lies in no pool, outside its pool, across nodes, or on a GPU that an app holds.
    """
    from tidegrid.data.schema import Source

    source = source or Source(file)
    if running.empty:
        return
    names = [pool.id for pool in cluster.pools]
    pools = running["pool"]
    source.refuse(
        ~pools.isin(names).to_numpy(),
        "pool",
        lambda at: f"there is no pool {pools.iloc[at]!r}",
        f"use one of {', '.join(names)}",
    )
    first, gpus = running["first_gpu"].to_numpy(), running["gpus"].to_numpy()
    size = pools.map({pool.id: pool.gpus for pool in cluster.pools}).to_numpy()
    source.refuse(
        first + gpus > size, "first_gpu", "the block lies outside its pool", "use GPUs that the pool has"
    )
    node = pools.map({pool.id: pool.node_size or 0 for pool in cluster.pools}).to_numpy()
    width = np.where(node > 0, node, 1)
    crosses = (node > 0) & np.where(
        gpus <= node, first // width != (first + gpus - 1) // width, first % width != 0
    )
    source.refuse(crosses, "first_gpu", "the block crosses a node", "start it so that it stays in its node")
    for app in cluster.apps:
        held = np.sort(np.array(app.held, dtype="int64"))
        inside = np.searchsorted(held, first + gpus) - np.searchsorted(held, first)
        clash = (pools == app.pool).to_numpy() & (inside > 0)
        source.refuse(
            clash, "first_gpu", f"the block holds a GPU of app {app.id!r}", "give each GPU to one of them"
        )


def on_down_gpus(cluster: Cluster, running: pd.DataFrame) -> np.ndarray:
    """Return which running jobs hold a GPU that is down: they are lost. Shape (running jobs,), bool."""
    broken = {pool.id: np.sort(np.array(pool.down, dtype="int64")) for pool in cluster.pools}
    none = np.empty(0, dtype="int64")
    lost = np.zeros(len(running), dtype=bool)
    for i, (pool, first, gpus) in enumerate(
        zip(running["pool"], running["first_gpu"], running["gpus"], strict=True)
    ):
        at = np.searchsorted(broken.get(str(pool), none), [int(first), int(first) + int(gpus)])
        lost[i] = at[1] > at[0]
    return lost


def block_size(gpus: int | np.ndarray | pd.Series) -> Any:
    """Return GPU counts rounded up to powers of two, the sizes of legal blocks.

    Raises
    ------
    InputError
        A count is below 1.

    Examples
    --------
    >>> [block_size(n) for n in (1, 3, 8, 40)]
    [1, 4, 8, 64]
    """
    counts = np.asarray(gpus, dtype="int64")
    if (counts < 1).any():
        raise InputError(f"{int(counts.min())} GPUs are no block", field="gpus", fix="give at least 1")
    sizes = np.ones_like(counts)
    while (sizes < counts).any():
        sizes = np.where(sizes < counts, sizes * 2, sizes)
    if isinstance(gpus, pd.Series):
        return pd.Series(sizes, index=gpus.index, name=gpus.name)
    return sizes if isinstance(gpus, np.ndarray) else int(sizes)


def _ids(records: tuple[Pool, ...]) -> str:
    return ", ".join(record.id for record in records)


class _FieldError(ValueError):
    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(problem)
        self.field, self.problem, self.fix = field, problem, fix


def _at(field: str, problem: str, fix: str) -> _FieldError:
    return _FieldError(field, problem, fix)


def _named(value: dict[str, Any], index: int) -> str:
    pool = value["pools"][index]
    return f"pool {pool['id']!r}" if isinstance(pool, dict) and "id" in pool else f"pool {index}"


def _as_input_error(error: ValidationError, value: dict[str, Any]) -> InputError:
    found = _innermost(error)
    more = len(found) - 1
    also = f" (and {more} more problem{'s' if more > 1 else ''})" if more else ""
    return _one_error(found[0], value, also)


def _innermost(error: ValidationError) -> list[Any]:
    found = error.errors()
    # pydantic also counts the field around a bad record; that is the same problem told twice
    return [
        e for e in found if not any(o is not e and o["loc"][: len(e["loc"])] == e["loc"] for o in found)
    ] or found


def _one_error(first: Any, value: dict[str, Any], also: str = "") -> InputError:
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, _FieldError):
        return InputError(cause.problem + also, field=cause.field, fix=cause.fix)
    path = ""
    for part in first["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    if first["type"] == "missing":
        return InputError("is missing" + also, field=path, fix="add it")
    if first["type"] == "too_short":
        return InputError("is empty" + also, field=path, fix="give at least one")
    if first["type"] == "extra_forbidden":
        return InputError("is unknown" + also, field=path, fix="remove it, or check its spelling")
    if (
        first["loc"][:1] == ("pools",)
        and first["loc"][-1] == "gpus"
        and first["type"] == "greater_than_equal"
    ):
        name = _named(value, int(first["loc"][1]))
        return InputError(f"{name} has {first['input']} GPUs{also}", field=path, fix="give at least 1")
    said = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return InputError(f"{first['input']!r} cannot be used{also}", field=path, fix=f"give {said}")
