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

if TYPE_CHECKING:
    from tidegrid.scheduler.problem import Problem

_MOST = 1 << 40  # far above any index, and small enough to add up

Grid = Mapping[str, Sequence[Sequence[str | None]]]


class StalePlanError(TidegridError):
    """A plan answers another input than the one it is about to be committed over."""


class Placement(NamedTuple):
    """A job's block: ``gpus`` GPUs of ``pool`` from ``first_gpu`` on, for ``steps`` steps from ``start``."""

    job: str
    pool: str
    first_gpu: int
    gpus: int
    start: int
    steps: int

    @property
    def end(self) -> int:
        """First step after the job's last one."""
        return self.start + self.steps


class AppCells(NamedTuple):
    """The GPUs that an app holds: ``cells[t]`` lists them for step t, horizon only."""

    app: str
    cells: Sequence[Sequence[int]]


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
    problem_sha256
        Version of the input that this plan answers.
    extra
        Further keys of the file: explanations, risks, idle windows, timings, solver status.
    """

    mode: str
    placements: tuple[Placement, ...]
    apps: tuple[AppCells, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    problem_sha256: str | None = None
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
            problem_sha256=problem.sha256,
            extra=extra,
            problem=problem,
        )

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
            for row in grid[p.pool][p.first_gpu : p.first_gpu + p.gpus]:
                row[p.start : stop] = cells
        for app, app_cells in self.apps:
            rows = grid[self.problem.app_by_id[app].pool]
            for t, held in enumerate(app_cells):
                for gpu in held:
                    rows[gpu][t] = app
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
        result["placements"] = [placement._asdict() for placement in self.placements]
        result["apps"] = [{"app": app, "cells": [list(held) for held in cells]} for app, cells in self.apps]
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
        if version != 1:
            raise InputError(f"{version!r} is not known", field="version", fix="write 1")
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
        return cls(mode, tuple(placements), tuple(apps), dict(metrics), sha256, rest, stated_grid=grid)

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
        """Write the plan as JSON, with its explanations, whole or not at all."""
        from tidegrid.scheduler.explain import explain  # explanations are about plans: the import is circular

        plan = self
        if self.problem is not None and "explanations" not in self.extra:
            plan = explain(self.problem, self)
        write_json(path, plan.to_dict())


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


def _placement(item: Any, path: str) -> Placement:
    if not isinstance(item, Mapping):
        raise InputError("is not a JSON object", field=path, fix="write a placement object")
    kinds = {"job": str, "pool": str, "first_gpu": int, "gpus": int, "start": int, "steps": int}
    return Placement(**{name: _items(item, name, path, kind) for name, kind in kinds.items()})


def _app_cells(item: Any, path: str) -> AppCells:
    if not isinstance(item, Mapping):
        raise InputError("is not a JSON object", field=path, fix='write {"app", "cells"}')
    app = _items(item, "app", path, str)
    cells = _items(item, "cells", path, list)
    for t, held in enumerate(cells):
        if not isinstance(held, list) or not all(type(gpu) is int for gpu in held):
            raise InputError(
                "is not a list of GPU indices", field=f"{path}.cells[{t}]", fix="write [0, 1, …]"
            )
        if held and not -_MOST <= min(held) <= max(held) <= _MOST:
            raise InputError(
                "is out of range", field=f"{path}.cells[{t}]", fix="write GPUs of the app's pool"
            )
    return AppCells(app, tuple(tuple(held) for held in cells))


def _check_grid(grid: Any) -> None:
    well_formed = isinstance(grid, Mapping) and all(
        isinstance(rows, list) and all(isinstance(row, list) for row in rows) for rows in grid.values()
    )
    if not well_formed:
        raise InputError("is not lists of lists by pool", field="grid", fix='write {"pool": [[…], …]}')
