"""Whether a problem's parts fit each other: every id known, every GPU held once, so that a legal plan exists."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tidegrid.errors import InputError
from tidegrid.scheduler.schema import FIXES
from tidegrid.validation import shown

if TYPE_CHECKING:
    from tidegrid.scheduler.problem import App, Pool, Problem, Running

MAX_CELLS = 50_000_000  # GPUs × steps, lookahead included: beyond it a board no longer fits in memory

_SECOND = {
    "pools": ("placement", "closed"),
    "jobs": ("tenant", "group", "after", "work"),
    "shapes": ("nodes", "within", "success"),
    "apps": ("replica", "floor"),
}
"""Fields of version 2."""


def check_consistent(problem: "Problem") -> None:
    """Refuse a problem whose parts contradict each other.

    Raises
    ------
    InputError
        The JSON path of the first contradiction, and what would be right.
    """
    _check_start(problem.start)
    if problem.version == 1:
        _check_version_1(problem)
    pools = _unique(problem.pools, "pools", "the id of two pools")
    _unique_tasks(problem)
    for name in ("tenants", "groups"):
        _unique(getattr(problem, name) or (), name, f"the id of two {name}")
    for i, tenant in enumerate(problem.tenants or ()):
        for name in tenant.limit if isinstance(tenant.limit, dict) else ():
            if name not in pools:
                raise _unknown_pool(name, f"tenants[{i}].limit", pools)
    for i, pool in enumerate(problem.pools):
        _check_pool(pool, f"pools[{i}]")
    for i, job in enumerate(problem.jobs):
        for k, shape in enumerate(job.shapes):
            if shape.pool not in pools:
                raise _unknown_pool(shape.pool, f"jobs[{i}].shapes[{k}].pool", pools)
            if shape.gpus & (shape.gpus - 1) and not pools[shape.pool].by_node:
                raise _no_power_of_two(shape.gpus, f"jobs[{i}].shapes[{k}].gpus")
    for i, app in enumerate(problem.apps):
        if app.pool not in pools:
            raise _unknown_pool(app.pool, f"apps[{i}].pool", pools)
        if len(app.demand) < problem.steps:
            raise InputError(
                f"has {len(app.demand)} values for {problem.steps} steps",
                field=f"apps[{i}].demand",
                fix=f"write at least {problem.steps} values",
            )
        _check_replicas(app, pools[app.pool], f"apps[{i}]")
    longest = max([problem.steps, *(len(app.demand) for app in problem.apps)])
    if (cells := sum(pool.gpus for pool in problem.pools) * longest) > MAX_CELLS:
        raise InputError(
            f"{cells:,} cells of GPU and step are more than {MAX_CELLS:,}",
            field="steps",
            fix="plan fewer or longer steps",
        )
    _check_holders(problem, pools)


def _check_version_1(problem: "Problem") -> None:
    def refuse(items: Iterable[Any], names: tuple[str, ...], path: str) -> None:
        for i, item in enumerate(items):
            for name in names:
                if name in item.model_fields_set:
                    raise InputError(
                        "belongs to version 2", field=f"{path}[{i}].{name}", fix='write "version": 2'
                    )

    refuse(problem.pools, _SECOND["pools"], "pools")
    refuse(problem.jobs, _SECOND["jobs"], "jobs")
    refuse(problem.apps, _SECOND["apps"], "apps")
    for i, job in enumerate(problem.jobs):
        refuse(job.shapes, _SECOND["shapes"], f"jobs[{i}].shapes")
        if job.running is not None and job.running.gpu_ids is not None:
            raise InputError(
                "belongs to version 2", field=f"jobs[{i}].running.gpu_ids", fix='write "version": 2'
            )
    for name in ("tenants", "groups", "floor_weight", "gpu_cost", "swap_cost"):
        if name in problem.model_fields_set:
            raise InputError("belongs to version 2", field=name, fix='write "version": 2')


def _no_power_of_two(value: int, field: str) -> InputError:
    return InputError(f"{value} is not a power of two", field=field, fix="write 1, 2, 4, …")


def _check_start(start: str | None) -> None:
    if start is None:
        return
    try:
        instant = datetime.fromisoformat(start)
    except ValueError:
        raise InputError(f"{shown(start)} is not an instant", field="start", fix=FIXES["start"]) from None
    if instant.utcoffset() is None:
        raise InputError(f"{shown(start)} has no zone", field="start", fix=FIXES["start"])


def _unique(items: Iterable[Any], path: str, said: str) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for i, item in enumerate(items):
        name = item.id
        if name in seen:
            raise InputError(f"{shown(name)} is {said}", field=f"{path}[{i}].id", fix="use each once")
        seen[name] = item
    return seen


def _unique_tasks(problem: "Problem") -> None:
    seen: dict[str, str] = {}
    named = [(f"jobs[{i}]", job.id) for i, job in enumerate(problem.jobs)]
    named += [(f"apps[{i}]", app.id) for i, app in enumerate(problem.apps)]
    for place, name in named:
        if name in seen:
            raise InputError(
                f"{shown(name)} is also the id of {seen[name]}",
                field=f"{place}.id",
                fix="give every job and app its own id",
            )
        seen[name] = place


def _unknown_pool(name: str, field: str, pools: Mapping[str, "Pool"]) -> InputError:
    known = ", ".join(list(pools)[:8])
    return InputError(f"{shown(name)} is not a pool", field=field, fix=f"write one of {known}")


def _check_pool(pool: "Pool", path: str) -> None:
    if pool.by_node and pool.node_size is None:
        raise InputError(
            "is missing", field=f"{path}.node_size", fix="write the GPUs of a node: placement is by node"
        )
    for k, closed in enumerate(pool.closed or ()):
        field = f"{path}.closed[{k}]"
        if not closed.gpus[0] < closed.gpus[1] <= pool.gpus:
            raise InputError(
                f"{list(closed.gpus)} is not a range of the {pool.gpus} GPUs",
                field=f"{field}.gpus",
                fix="write [first, last + 1]",
            )
        if closed.start >= closed.end:
            raise InputError(
                f"{closed.end} is not after {closed.start}", field=f"{field}.to", fix="write a later step"
            )


def _check_replicas(app: "App", pool: "Pool", path: str) -> None:
    node, size = pool.node_size, app.replica
    if node and size > node and size % node:
        raise InputError(
            f"{size} GPUs neither fit a node of {node} nor fill whole ones",
            field=f"{path}.replica",
            fix=f"write at most {node}, or a multiple of it",
        )
    for one in app.held_replicas:
        if len(set(one)) != len(one) or len(one) != size:
            raise InputError(
                f"{list(one)} is not a replica of {size} GPUs",
                field=f"{path}.held",
                fix="list GPUs, or for replicas of several GPUs one list each",
            )
        if node and len({gpu // node for gpu in one}) != max(1, size // node):
            raise InputError(
                f"the replica {list(one)} is spread over nodes of {node}",
                field=f"{path}.held",
                fix="a replica lies on one node, or on whole nodes",
            )


def _check_holders(problem: "Problem", pools: Mapping[str, "Pool"]) -> None:
    owners: dict[str, dict[int, str]] = {name: {} for name in pools}

    def take(pool: str, gpus: Sequence[int], task: str, field: str) -> None:
        owner = owners[pool]
        if owner.keys().isdisjoint(gpus):
            owner.update(dict.fromkeys(gpus, task))
            return
        gpu = next(gpu for gpu in gpus if gpu in owner)
        raise InputError(
            f"GPU {gpu} of {pool} serves both {owner[gpu]} and {task}",
            field=field,
            fix="let each GPU be in one running block or one held list",
        )

    for i, job in enumerate(problem.jobs):
        if job.running is None:
            continue
        field = f"jobs[{i}].running"
        if job.running.pool not in pools:
            raise _unknown_pool(job.running.pool, f"{field}.pool", pools)
        _check_running(job.running, pools[job.running.pool], field)
        take(job.running.pool, job.running.ids, job.id, field)
    for i, app in enumerate(problem.apps):
        held = app.held_gpus
        if len(set(held)) != len(held):
            raise InputError("lists a GPU twice", field=f"apps[{i}].held", fix=FIXES["held"])
        for gpu in held:
            if gpu >= pools[app.pool].gpus:
                raise InputError(
                    f"GPU {gpu} lies outside {app.pool}, which has {pools[app.pool].gpus}",
                    field=f"apps[{i}].held",
                    fix="write GPUs of the app's pool",
                )
        take(app.pool, held, app.id, f"apps[{i}].held")


def _check_running(running: "Running", pool: "Pool", field: str) -> None:
    ids = running.ids
    last = ids[-1]
    if last >= pool.gpus:
        raise InputError(
            f"GPUs {ids[0]}–{last} lie outside {pool.id}, which has {pool.gpus}",
            field=f"{field}.first_gpu",
            fix="write GPUs inside the pool",
        )
    if pool.by_node:
        return
    if last - ids[0] + 1 != len(ids):
        raise InputError(
            "is not a block of neighbours", field=f"{field}.gpu_ids", fix="or place the pool by node"
        )
    if len(ids) & (len(ids) - 1):
        raise _no_power_of_two(len(ids), f"{field}.gpus")
    if not pool.allows(ids[0], len(ids)):
        raise InputError(
            f"GPUs {ids[0]}–{last} straddle nodes of {pool.node_size}",
            field=f"{field}.first_gpu",
            fix="keep a block inside one node; a larger one starts at a node's first GPU",
        )
