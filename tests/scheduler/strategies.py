"""Hypothesis strategies of problems and of broken plans; the choices shrink as hypothesis' own do."""

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from tidegrid.scheduler import Problem
from tidegrid.scheduler.generate import problem_dict, random_problem

__all__ = ["break_plan", "broken_plans", "problem_dicts", "problems", "random_problem"]

T = TypeVar("T")


class _Drawn:
    """Choices drawn by hypothesis."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def pick(self, options: Sequence[T]) -> T:
        return options[self._draw(st.integers(0, len(options) - 1))]

    def chance(self, probability: float) -> bool:
        return self._draw(st.integers(0, 99)) >= 100 * (1 - probability)


@st.composite
def problem_dicts(draw: st.DrawFn, **ranges: Any) -> dict[str, Any]:
    """JSON objects of valid problems of every kind; ``ranges`` as for `random_problem`."""
    return problem_dict(_Drawn(draw), **ranges)


def problems(**ranges: Any) -> st.SearchStrategy[Problem]:
    """Valid problems of every kind; ``ranges`` as for `random_problem`."""
    return problem_dicts(**ranges).map(Problem.from_dict)


BREAKS = (
    "move", "shift", "widen", "lengthen", "drop", "twice", "rename", "repool", "swap_shape", "negative",
    "app_add", "app_remove", "app_repeat", "app_far", "app_short", "app_drop", "app_twice", "app_rename",
    "grid", "metric",
)  # fmt: skip


def break_plan(plan: dict[str, Any], choose: Any) -> dict[str, Any]:
    """Return the plan's JSON object with one thing changed, which may or may not make it illegal."""
    plan = copy.deepcopy(plan)
    how = choose.pick(BREAKS)
    placements, apps = plan["placements"], plan["apps"]
    if how == "grid":
        rows = choose.pick(list(plan["grid"].values()))
        row = choose.pick(rows)
        row[choose.integer(0, len(row) - 1)] = choose.pick((None, "job-0", "app-0", "nobody"))
        return plan
    if how == "metric":
        name = choose.pick(sorted(plan["metrics"]))
        plan["metrics"][name] += choose.pick((1, -1, 0.01, 1e-9))
        return plan
    # Any other change makes the stated picture and figures wrong too: leave them out to see the rule alone.
    if choose.chance(0.8):
        plan.pop("grid", None)
        plan["metrics"] = {}
    if how.startswith("app_") and apps:
        app = choose.pick(apps)
        cells = app["cells"]
        held = choose.pick(cells) if cells else []
        if how == "app_add":
            held.append(choose.integer(0, 15))
        elif how == "app_remove" and held:
            held.pop()
        elif how == "app_repeat" and held:
            held.append(held[0])
        elif how == "app_far":
            held.append(choose.pick((-1, 16, 99)))
        elif how == "app_short" and cells:
            cells.pop()
        elif how == "app_drop":
            apps.remove(app)
        elif how == "app_twice":
            apps.append(copy.deepcopy(app))
        elif how == "app_rename":
            app["app"] = choose.pick(("app-0", "app-1", "job-0", "nobody"))
    elif placements:
        item = choose.pick(placements)
        if how == "move":
            item["first_gpu"] += choose.integer(-3, 3)
        elif how == "shift":
            item["start"] += choose.integer(-3, 3)
        elif how == "widen":
            item["gpus"] = choose.integer(-1, 9)
        elif how == "lengthen":
            item["steps"] += choose.integer(-3, 5)
        elif how == "drop":
            placements.remove(item)
        elif how == "twice":
            placements.append(dict(item, first_gpu=choose.integer(0, 8), start=choose.integer(0, 8)))
        elif how == "rename":
            item["job"] = choose.pick(("job-0", "job-1", "app-0", "nobody"))
        elif how == "repool":
            item["pool"] = choose.pick(("pool-0", "pool-1", "nowhere"))
        elif how == "swap_shape":
            other = choose.pick(placements)
            item.update(gpus=other["gpus"], steps=other["steps"])
        elif how == "negative":
            item[choose.pick(("first_gpu", "start", "steps"))] = -choose.integer(1, 3)
    return plan


@st.composite
def broken_plans(draw: st.DrawFn, plan: dict[str, Any]) -> dict[str, Any]:
    """The plan's JSON object with one to three changes."""
    choose = _Drawn(draw)
    for _ in range(choose.integer(1, 3)):
        if "grid" not in plan or not plan["metrics"]:
            choose_more = [b for b in BREAKS if b not in ("grid", "metric")]
            plan = break_plan(plan, _Restricted(choose, choose_more))
        else:
            plan = break_plan(plan, choose)
    return plan


class _Restricted(_Drawn):
    """The same choices, where the kind of break comes from a shorter list."""

    def __init__(self, choose: _Drawn, breaks: Sequence[str]) -> None:
        super().__init__(choose._draw)
        self._breaks = breaks

    def pick(self, options: Sequence[T]) -> T:
        return super().pick(self._breaks if options is BREAKS else options)  # type: ignore[return-value]
