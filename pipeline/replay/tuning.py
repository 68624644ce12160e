"""The planner's parameters, chosen by replays: most value at a wanted share of unmet realtime."""

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.errors import InputError
from tidegrid.files import read_json
from tidegrid.pipeline.policy import Policy
from tidegrid.pipeline.replay.run import Result, run_one
from tidegrid.pipeline.replay.sweep import Task, run_tasks
from tidegrid.pipeline.worlds.trace import Trace

GRID: Mapping[str, Sequence[float]] = {
    "demand_quantile": (0.7, 0.8, 0.9, 0.95),
    "shortfall_weight": (4.0, 8.0, 16.0),
    "job_quantile": (0.4, 0.5, 0.7),
    "shortness": (0.0, 0.2, 0.5),
    "decay": (0.95, 0.98, 1.0),
    "rounds": (0, 2, 5),
}
"""Values that are tried for each parameter, in the order in which a search by coordinates takes the parameters."""

UNMET_SHARE = 0.02
PASSES = 2
"""How often a search by coordinates goes through all parameters; it ends earlier where a pass changes nothing."""


@dataclass(frozen=True)
class Tuning:
    """What a search found.

    Attributes
    ----------
    table
        One row a setting, in the order in which they were tried: the parameters searched, ``value_share`` (value by
        its limit, mean over traces), ``value`` (sum), ``unmet_share`` (of all traces' demand), ``utilization``,
        ``jct_mean_h``, ``jct_median_h``, ``wait_p95_h`` (means over traces), ``plans``, and ``best``.
    best
        The best setting's parameters by name.
    within
        Whether it keeps the wanted share of unmet realtime; where no setting does, the best is the one with the
        least unmet.
    policy
        The parameters of :class:`~tidegrid.pipeline.policy.Policy` with the best values.
    options
        The other best values: arguments of :func:`~tidegrid.pipeline.replay.run.run_one`.
    """

    table: pd.DataFrame
    best: dict[str, float]
    within: bool
    policy: Policy
    options: dict[str, Any]


def tune(
    traces: Trace | Mapping[str, Trace],
    grid: Mapping[str, Sequence[float]] | None = None,
    *,
    unmet_share: float = UNMET_SHARE,
    base: Policy | None = None,
    options: Mapping[str, Any] | None = None,
    name: str = "rolling",
    search: str = "coordinates",
    passes: int = PASSES,
    jobs: int = 1,
    backend: str | None = None,
    each: Callable[[dict[str, Any]], None] | None = None,
) -> Tuning:
    """Search the planner's parameters over replays.

    Settings are compared by the mean over traces of value by its limit, among those whose unmet realtime is at most
    ``unmet_share`` of demand; ties go to the one that was tried first. Tune on one part of a trace and report on
    another: parameters that are scored on what they were chosen on look better than they are.

    Parameters
    ----------
    worlds
        What the replays play: a trace, or several by name.
    grid
        Values to try for each parameter: fields of :class:`~tidegrid.pipeline.policy.Policy` and arguments of
        :func:`~tidegrid.pipeline.replay.run.run_one`; :data:`GRID` where absent.
    unmet_share
        The wanted share of demanded realtime GPU-hours that may go unserved.
    base, options
        Where the search starts: the planner's parameters, and the other arguments.
    name
        The policy whose parameters are searched.
    search
        ``"coordinates"``: parameter by parameter, each at the best of the others so far, ``passes`` times over.
        ``"grid"``: every combination.
    jobs, backend
        As for :func:`~tidegrid.pipeline.replay.sweep.sweep`.
    each
        Called with each setting's row of the table and its CPU seconds, ``cpu_s``, as soon as they are known.

    Raises
    ------
    InputError
        A parameter is unknown, a value is out of its range, or the search is.
    """
    by_name = {"": traces} if isinstance(traces, Trace) else dict(traces)
    tried = dict(GRID if grid is None else grid)
    start, further = base or Policy(), dict(options or {})
    check_grid(tried)
    begin = {parameter: _default(parameter, start, further) for parameter in tried}
    found: dict[tuple[float, ...], dict[str, Any]] = {}

    def play(settings: Sequence[dict[str, float]]) -> None:
        new = [s for s in settings if tuple(s.values()) not in found]
        new = list({tuple(s.values()): s for s in new}.values())
        tasks = []
        for setting in new:
            parameters, rest = with_parameters(setting, start, further)
            tasks += [Task(trace, name, parameters, rest) for trace in by_name]
        results = run_tasks(by_name, tasks, jobs=jobs, backend=backend)
        for i, setting in enumerate(new):
            mine = results[i * len(by_name) : (i + 1) * len(by_name)]
            row = {**setting, **_summary(mine)}
            found[tuple(setting.values())] = row
            if each is not None:
                each({**row, "cpu_s": sum(result.cpu_s for result in mine)})

    if search == "grid":
        play([dict(zip(tried, values, strict=True)) for values in itertools.product(*tried.values())])
    elif search == "coordinates":
        best = begin
        play([best])
        for _ in range(passes):
            before = best
            for parameter, values in tried.items():
                play([{**best, parameter: value} for value in values])
                best = _best(found, unmet_share, tried)
            if best == before:
                break
    else:
        raise InputError(f"{search!r} is not a search", field="search", fix="use coordinates or grid")
    best = _best(found, unmet_share, tried)
    table = pd.DataFrame(found.values())
    table["best"] = [key == tuple(best.values()) for key in found]
    policy, rest = with_parameters(best, start, further)
    within = bool(found[tuple(best.values())]["unmet_share"] <= unmet_share)
    return Tuning(table, best, within, policy, rest)


def with_parameters(
    setting: Mapping[str, float], base: Policy | None = None, options: Mapping[str, Any] | None = None
) -> tuple[Policy, dict[str, Any]]:
    """Return the planner's parameters, and the other arguments of a replay, with a setting's values.

    Raises
    ------
    InputError
        A parameter is unknown or out of its range.
    """
    parameters, rest = {}, dict(options or {})
    for parameter, value in setting.items():
        if parameter in Policy.model_fields:
            parameters[parameter] = value
        elif parameter in _arguments():
            rest[parameter] = _checked(parameter, value)
        else:
            known = ", ".join((*Policy.model_fields, *_arguments()))
            raise InputError(f"{parameter!r} is not a parameter", fix=f"use some of {known}")
    return Policy.of({**(base or Policy()).model_dump(), **parameters}), rest


def read_parameters(path: str | Path) -> tuple[Policy, dict[str, Any]]:
    """Read a setting from a JSON object, as :func:`with_parameters` takes it; what it leaves out keeps its default.

    Raises
    ------
    InputError
        The file cannot be read, or a parameter is unknown or out of its range; it is named.
    """
    setting = read_json(path)
    if not isinstance(setting, dict):
        raise InputError("is not a JSON object", file=path, fix='write parameters: {"demand_quantile": 0.8}')
    try:
        return with_parameters(setting)
    except InputError as error:
        raise error.in_file(path) from None


def check_grid(grid: Mapping[str, Sequence[float]]) -> None:
    """Refuse parameters that do not exist, and values that they do not allow.

    Raises
    ------
    InputError
        The parameter is named.
    """
    for parameter, values in grid.items():
        if not len(values):
            raise InputError("has no values to try", field=parameter, fix="give one or more")
        for value in values:
            with_parameters({parameter: value})


def _best(
    found: Mapping[tuple[float, ...], dict[str, Any]], unmet_share: float, parameters: Mapping[str, Any]
) -> dict[str, float]:
    rows = list(found.values())
    within = [row for row in rows if row["unmet_share"] <= unmet_share]
    most = max(within, key=lambda row: row["value_share"]) if within else None
    row = most or min(rows, key=lambda row: row["unmet_share"])
    return {parameter: row[parameter] for parameter in parameters}


def _summary(results: Sequence[Result]) -> dict[str, Any]:
    figures = [r.figures for r in results]
    demanded = sum(app["demanded"] for f in figures for app in f["by_app"])
    unmet = sum(f["unmet"] for f in figures)
    return {
        "value_share": float(np.mean([f["value_share_of_limit"] for f in figures])),
        "value": float(sum(f["value"] for f in figures)),
        "unmet_share": unmet / demanded if demanded else 0.0,
        "utilization": float(np.mean([f["utilization"] for f in figures])),
        "jct_mean_h": float(np.mean([f["jct_h"]["mean"] for f in figures])),
        "jct_median_h": float(np.mean([f["jct_h"]["median"] for f in figures])),
        "wait_p95_h": float(np.mean([f["wait_h"]["p95"] for f in figures])),
        "plans": int(sum(f["plans"] for f in figures)),
    }


def _arguments() -> Mapping[str, Any]:
    """Return the further arguments of a replay and their defaults."""
    parameters = list(inspect.signature(run_one).parameters.values())
    return {p.name: p.default for p in parameters if p.name not in ("trace", "name", "policy")}


def _checked(parameter: str, value: Any) -> Any:
    """Return the value of an argument of a replay; all of them are counts."""
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < 0:
        raise InputError(
            f"{value!r} is not what it takes", field=parameter, fix="write a whole number, 0 or more"
        )
    return value


def _default(parameter: str, base: Policy, options: Mapping[str, Any]) -> Any:
    if parameter in Policy.model_fields:
        return getattr(base, parameter)
    return options.get(parameter, _arguments()[parameter])
