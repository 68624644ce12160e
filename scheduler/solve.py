"""One front for every planner: modes by name, and no plan leaves that the checker has not passed."""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tidegrid.errors import InputError, TidegridError
from tidegrid.scheduler.checker import check
from tidegrid.scheduler.plan import Plan
from tidegrid.scheduler.problem import Problem

#: Called as ``planner(problem, time_limit=…, seed=…, **options)``; returns a plan without metrics.
Planner = Callable[..., Plan]

#: What clusters run today, in the order of the tables.
BASELINES = ("fifo", "fifo_backfill", "easy", "priority", "easy_priority", "sjf", "fifo_elastic")

_MODES: dict[str, Planner | str] = {}
_VERSIONS: dict[str, int] = {}


class IllegalPlanError(TidegridError):
    """A planner made a plan that breaks a rule; it is never handed on."""


def register_mode(name: str, planner: Planner | str, *, version: int = 2) -> None:
    """Make a planner known under a name.

    Parameters
    ----------
    name
        The mode, as given to `solve` and on the command line.
    planner
        The function, or ``"module:function"``, which is imported when the mode is first used.
    version
        The last version of the problem's format that it can plan.
    """
    _MODES[name] = planner
    _VERSIONS[name] = version


def modes() -> tuple[str, ...]:
    """Names of the modes, in the order in which they were registered."""
    return tuple(_MODES)


def _planner(mode: str) -> Planner:
    planner = _MODES.get(mode)
    if planner is None:
        raise InputError(f"{mode!r} is not a mode", field="mode", fix=f"write one of {', '.join(_MODES)}")
    if isinstance(planner, str):
        module, _, name = planner.partition(":")
        planner = _MODES[mode] = getattr(import_module(module), name)
    return planner


def solve(
    problem: Problem, mode: str = "fast", time_limit: float | None = None, seed: int = 0, **options: Any
) -> Plan:
    """Plan a problem.

    Parameters
    ----------
    problem
        The input.
    mode
        One of `modes`.
    time_limit
        Seconds, for the modes that search until a limit; the others ignore it.
    seed
        The same input, seed and options give the same plan.
    options
        Further options of the mode.

    Returns
    -------
    Plan
        A legal plan with its metrics and the version of its input.

    Raises
    ------
    InputError
        The mode is not known or cannot plan this version of the problem, or the time limit or the seed is out of range.
    IllegalPlanError
        The planner failed; its plan breaks a rule.
    """
    if time_limit is not None and not 0 <= time_limit < math.inf:
        raise InputError(
            f"{time_limit} is not a length of time", field="time_limit", fix="write seconds, 0 or more"
        )
    if not 0 <= seed < 1 << 31:
        raise InputError(
            f"{seed} is out of range", field="seed", fix="write a whole number from 0 to 2147483647"
        )
    planner = _planner(mode)
    if problem.version > _VERSIONS[mode]:
        able = ", ".join(name for name in _MODES if _VERSIONS[name] >= problem.version)
        raise InputError(
            f"mode {mode} cannot plan a problem of version {problem.version}",
            field="mode",
            fix=f"write one of {able}",
        )
    plan = planner(problem, time_limit=time_limit, seed=seed, **options)
    violations, found = check(problem, plan)
    if violations:
        raise IllegalPlanError(
            f"mode {mode} made a plan that breaks a rule, which is a defect: {violations[0]}"
        )
    return plan.with_metrics(found)


register_mode("fast", "tidegrid.scheduler.fast:plan")
register_mode("full", "tidegrid.scheduler.formal:plan")
for _name in BASELINES:
    register_mode(_name, f"tidegrid.scheduler.baselines:{_name}")
