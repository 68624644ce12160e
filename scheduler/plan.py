"""The plan: where each job runs and which GPUs each app holds, as plain immutable records.

Plans are made in the request path, so they are dataclasses without validation: `check` is their judge.
The grid and the file's form are computed when they are first asked for.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegrid.errors import InputError, TidegridError
from tidegrid.files import read_json, write_json
from tidegrid.scheduler.problem import flat

if TYPE_CHECKING:
    from tidegrid.scheduler.problem import Problem

_MOST = 1 << 40  # far above any index, and small enough to add up

Grid = Mapping[str, Sequence[Sequence[str | None]]]


class StalePlanError(TidegridError):
    """A plan answers another input than the one it is about to be committed over."""


class Placement(NamedTuple):
    """A job's place: ``gpus`` GPUs of ``pool`` for ``steps`` steps from ``start``.

    They are a block from ``first_gpu`` on, or, where placement is by node, ``gpu_ids`` lists them.
    """

    job: str
    pool: str
    first_gpu: int
    gpus: int
    start: int
    steps: int
    gpu_ids: tuple[int, ...] | None = None

    @classmethod
    def on(cls, job: str, pool: str, ids: Iterable[int], start: int, steps: int) -> "Placement":
        """Return the placement on a set of GPUs; a list is kept only where they are not neighbours."""
        listed = tuple(sorted(ids))
        block = listed[-1] - listed[0] + 1 == len(listed)
        return cls(job, pool, listed[0], len(listed), start, steps, None if block else listed)

    @property
    def ids(self) -> Sequence[int]:
        """The GPUs."""
        return range(self.first_gpu, self.first_gpu + self.gpus) if self.gpu_ids is None else self.gpu_ids

    @property
    def end(self) -> int:
        """First step after the job's last one."""
        return self.start + self.steps


class AppCells(NamedTuple):
    """The GPUs that an app holds: ``cells[t]`` lists them for step t, horizon only.

    Where replicas have several GPUs, ``cells[t]`` lists replicas, each a list of its GPUs.
    """

    app: str
    cells: Sequence[Sequence[Any]]

    def gpus(self, t: int) -> tuple[int, ...]:
        """Return the GPUs held at step t, whatever the size of a replica."""
        return flat(self.cells[t])

    def counts(self) -> list[int]:
        """Return how many GPUs are held at each step."""
        return [len(flat(held)) for held in self.cells]


@dataclass(frozen=True)
class Plan:
    """A plan for a problem.

    Parameters
    ----------
    mode
        Name of the planner.
    placements
        Placed jobs, running ones included.
    apps
        One entry for each app of the problem.
    metrics
        Figures as `check` computes them.
    stated_sha256
        Version of the input that the file of this plan states; None where it was not read from a file.
    extra
        Further keys of the file: explanations, risks, idle windows, timings, solver status.
    """

    mode: str
    placements: tuple[Placement, ...]
    apps: tuple[AppCells, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    stated_sha256: str | None = field(default=None, compare=False)
    extra: Mapping[str, Any] = field(default_factory=dict)
    version: int = 1
    # The input, for drawing the grid; None where the plan was read from a file, which states its own grid.
    problem: "Problem | None" = field(default=None, repr=False, compare=False)
    stated_grid: Grid | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        problem: "Problem",
        mode: str,
        placements: Iterable[Placement],
        apps: Iterable[AppCells],
        **extra: Any,
    ) -> "Plan":
        """Make a plan that answers ``problem``; `solve` adds the metrics once it has checked the plan."""
        return cls(
            mode=mode,
            placements=tuple(placements),
            apps=tuple(apps),
            extra=extra,
            version=problem.version,
            problem=problem,
        )

    @property
    def problem_sha256(self) -> str | None:
        """Version of the input that this plan answers; it takes a while to work out, and most plans are never asked."""
        return self.stated_sha256 if self.problem is None else self.problem.sha256

    @cached_property
    def placement_by_job(self) -> dict[str, Placement]:
        """Placements by job id."""
        return {placement.job: placement for placement in self.placements}

    @cached_property
    def grid(self) -> Grid | None:
        """``grid[pool][gpu][t]``: a job's or app's id, or None. None where a file states no grid."""
        if self.stated_grid is not None or self.problem is None:
            return self.stated_grid
        steps = self.problem.steps
        grid: dict[str, list[list[str | None]]] = {
            pool.id: [[None] * steps for _ in range(pool.gpus)] for pool in self.problem.pools
        }
        for p in self.placements:
            stop = min(p.end, steps)
            cells: list[str | None] = [p.job] * (stop - p.start)
            rows = grid[p.pool]
            for gpu in p.ids:
                rows[gpu][p.start : stop] = cells
        for entry in self.apps:
            rows = grid[self.problem.app_by_id[entry.app].pool]
            for t, held in enumerate(entry.cells):
                for gpu in flat(held):
                    rows[gpu][t] = entry.app
        return grid

    def with_metrics(self, metrics: Mapping[str, float]) -> "Plan":
        """Return the same plan with its figures."""
        return replace(self, metrics=dict(metrics))

    def with_extra(self, **extra: Any) -> "Plan":
        """Return the same plan with further keys."""
        return replace(self, extra={**self.extra, **extra})

    def to_dict(self, *, grid: bool = True) -> dict[str, Any]:
        """Return the JSON object of the plan file; ``grid=False`` leaves the picture out."""
        result: dict[str, Any] = {"version": self.version, "mode": self.mode}
        if self.problem_sha256 is not None:
            result["problem_sha256"] = self.problem_sha256
        result["placements"] = [_stated(placement) for placement in self.placements]
        result["apps"] = [
            {
                "app": app,
                "cells": [[one if isinstance(one, int) else list(one) for one in held] for held in cells],
            }
            for app, cells in self.apps
        ]
        if grid and self.grid is not None:
            result["grid"] = {pool: [list(row) for row in rows] for pool, rows in self.grid.items()}
        result["metrics"] = dict(self.metrics)
        result.update(self.extra)
        return result

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Plan":
        """Make a plan from its JSON object.

        Only the form is checked here; whether the plan is legal is the business of `check`.

        Raises
        ------
        InputError
            The object is not a plan; the JSON path and the fix are named.
        """
        if not isinstance(data, Mapping):
            raise InputError("is not a JSON object", fix="write one plan object")
        rest = dict(data)
        version = rest.pop("version", 1)
        if version not in (1, 2) or isinstance(version, bool):
            raise InputError(f"{version!r} is not known", field="version", fix="write 1 or 2")
        placements = [
            _placement(item, f"placements[{i}]")
            for i, item in enumerate(_items(rest, "placements", "", list))
        ]
        apps = [_app_cells(item, f"apps[{i}]") for i, item in enumerate(_items(rest, "apps", "", list))]
        metrics = rest.pop("metrics", None) or {}
        if not isinstance(metrics, Mapping):
            raise InputError("is not a JSON object", field="metrics", fix='write {"value": …, …}')
        for name, figure in metrics.items():
            if not _is_figure(figure):
                raise InputError(
                    "is not a number", field=f"metrics.{name}", fix="write the figure as a number"
                )
        grid = rest.pop("grid", None)
        if grid is not None:
            _check_grid(grid)
        sha256 = rest.pop("problem_sha256", None)
        if sha256 is not None and not isinstance(sha256, str):
            raise InputError("is not text", field="problem_sha256", fix="write the SHA-256 in hexadecimal")
        mode = rest.pop("mode", "unknown")
        if not isinstance(mode, str):
            raise InputError("is not text", field="mode", fix="write the planner's name")
        return cls(
            mode, tuple(placements), tuple(apps), dict(metrics), sha256, rest, version, stated_grid=grid
        )

    @classmethod
    def read(cls, path: str | Path) -> "Plan":
        """Read a plan file.

        Raises
        ------
        InputError
            The file is unreadable, not JSON, or not a plan.
        """
        try:
            return cls.from_dict(read_json(path))
        except InputError as error:
            raise error if error.file else error.in_file(path) from None

    def write(self, path: str | Path) -> None:
        """Write the plan as JSON, whole or not at all; explanations are there where the plan has been explained."""
        write_json(path, self.to_dict())


def require_current(plan: Plan, problem: "Problem") -> None:
    """Refuse to commit a plan over an input that it does not answer.

    Raises
    ------
    StalePlanError
        The plan carries no input version, or another one than ``problem``.
    """
    if plan.problem_sha256 != problem.sha256:
        answered = plan.problem_sha256[:12] if plan.problem_sha256 else "no stated input"
        raise StalePlanError(
            f"the plan answers {answered}, the input is now {problem.sha256[:12]}; plan again on it"
        )


def _items(data: Mapping[str, Any], name: str, path: str, kind: type) -> Any:
    where = f"{path}.{name}" if path else name
    if name not in data:
        raise InputError("is missing", field=where, fix=f"write {name} as in the plan format")
    value = data[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        names = {list: "a list", int: "a whole number", str: "text"}
        raise InputError(f"{value!r:.40} is not {names[kind]}", field=where, fix=f"write {names[kind]}")
    if isinstance(value, int) and abs(value) > _MOST:
        raise InputError("is out of range", field=where, fix=f"write at most {_MOST:,}")
    if not path and isinstance(data, dict):
        del data[name]
    return value


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _stated(placement: Placement) -> dict[str, Any]:
    said = placement._asdict()
    if said.pop("gpu_ids") is None:
        return said
    del said["first_gpu"], said["gpus"]
    return {
        "job": said.pop("job"),
        "pool": said.pop("pool"),
        "gpu_ids": list(placement.gpu_ids or ()),
        **said,
    }


def _placement(item: Any, path: str) -> Placement:
    if not isinstance(item, Mapping):
        raise InputError("is not a JSON object", field=path, fix="write a placement object")
    kinds: dict[str, type] = {"job": str, "pool": str, "start": int, "steps": int}
    if "gpu_ids" not in item:
        kinds |= {"first_gpu": int, "gpus": int}
        return Placement(**{name: _items(item, name, path, kind) for name, kind in kinds.items()})
    ids = _items(item, "gpu_ids", path, list)
    if not ids or not all(type(gpu) is int and abs(gpu) <= _MOST for gpu in ids):
        raise InputError("is not a list of GPUs", field=f"{path}.gpu_ids", fix="write [0, 1, …]")
    said = {name: _items(item, name, path, kind) for name, kind in kinds.items()}
    return Placement(first_gpu=min(ids), gpus=len(ids), gpu_ids=tuple(ids), **said)


def _app_cells(item: Any, path: str) -> AppCells:
    if not isinstance(item, Mapping):
        raise InputError("is not a JSON object", field=path, fix='write {"app", "cells"}')
    app = _items(item, "app", path, str)
    cells = _items(item, "cells", path, list)
    for t, held in enumerate(cells):
        field = f"{path}.cells[{t}]"
        replicas = held if isinstance(held, list) else [None]
        for one in replicas:
            gpus = one if isinstance(one, list) and one else [one]
            if not all(type(gpu) is int for gpu in gpus):
                raise InputError("is not a list of GPU indices", field=field, fix="write [0, 1, …]")
            if not -_MOST <= min(gpus) <= max(gpus) <= _MOST:
                raise InputError("is out of range", field=field, fix="write GPUs of the app's pool")
    return AppCells(
        app, tuple(tuple(one if isinstance(one, int) else tuple(one) for one in held) for held in cells)
    )


def _check_grid(grid: Any) -> None:
    well_formed = isinstance(grid, Mapping) and all(
        isinstance(rows, list) and all(isinstance(row, list) for row in rows) for rows in grid.values()
    )
    if not well_formed:
        raise InputError("is not lists of lists by pool", field="grid", fix='write {"pool": [[…], …]}')
