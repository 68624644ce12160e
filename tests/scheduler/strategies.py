"""Hypothesis strategies of problems and of broken plans; the choices shrink as hypothesis' own do."""

import copy
from collections.abc import Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st
from naive_planner import naive_plan

from tidegrid.scheduler import Plan, Problem
from tidegrid.scheduler.generate import problem_dict, random_problem
from tidegrid.scheduler.generate_clusters import FAMILIES, cluster_dict

__all__ = [
    "break_plan", "broken_plans", "cluster_dicts", "clusters", "naive_plans", "problem_dicts", "problems",
    "random_problem",
]  # fmt: skip

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


@st.composite
def cluster_dicts(draw: st.DrawFn, family: str | None = None, **ranges: Any) -> dict[str, Any]:
    """JSON objects of valid problems of version 2; ``ranges`` as for `random_cluster`."""
    chosen = family or draw(st.sampled_from(FAMILIES))
    return cluster_dict(_Drawn(draw), chosen, **ranges)


def clusters(family: str | None = None, **ranges: Any) -> st.SearchStrategy[Problem]:
    """Valid problems of version 2; ``ranges`` as for `random_cluster`."""
    return cluster_dicts(family, **ranges).map(Problem.from_dict)


@st.composite
def naive_plans(draw: st.DrawFn, problem: Problem) -> Plan:
    """Legal plans of a problem, made at random."""
    return naive_plan(problem, _Drawn(draw))


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
            gpu = choose.integer(0, 15)
            held.append([gpu, gpu + 1] if held and isinstance(held[0], list) else gpu)
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
        if "gpu_ids" in item and how in ("move", "widen", "negative"):
            _break_ids(item["gpu_ids"], how, choose)
        elif how == "move":
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
            where = {} if "gpu_ids" in item else {"first_gpu": choose.integer(0, 8)}
            placements.append(dict(item, **where, start=choose.integer(0, 8)))
        elif how == "rename":
            item["job"] = choose.pick(("job-0", "job-1", "app-0", "nobody"))
        elif how == "repool":
            item["pool"] = choose.pick(("pool-0", "pool-1", "nowhere"))
        elif how == "swap_shape":
            other = choose.pick(placements)
            item.update(
                {key: other[key] for key in ("gpus", "gpu_ids", "steps") if key in other and key in item}
            )
        elif how == "negative":
            item[choose.pick(("first_gpu", "start", "steps"))] = -choose.integer(1, 3)
    return plan


def _break_ids(ids: list[int], how: str, choose: Any) -> None:
    at = choose.integer(0, len(ids) - 1)
    if how == "move":
        ids[at] += choose.integer(-9, 9)
    elif how == "negative":
        ids[at] = -1
    elif choose.chance(0.5) and len(ids) > 1:
        ids.pop(at)
    else:
        ids.append(choose.integer(0, 31))


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
