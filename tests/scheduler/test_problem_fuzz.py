"""Whatever a file holds, it is a valid problem that can be planned, or it is refused in one line."""

import copy
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from strategies import problem_dicts

from tidegrid.errors import InputError
from tidegrid.scheduler import Plan, Problem, check, solve

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 20)
    | st.sampled_from([10**6 + 1, 10**12, 10**30, 0.5, 1.0, float("nan"), float("inf"), -0.0, 1e308])
    | st.sampled_from(["", "pool-0", "job-0", "app-0", "training", "2026-03-02", "é\u2028"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "gpus", "x"]), inner, max_size=2)
    ),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path inside a JSON value."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


def changed(draw: Callable[..., Any], data: dict[str, Any]) -> dict[str, Any]:
    data = copy.deepcopy(data)
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(places(data)))
        at: Any = data
        for key in path[:-1]:
            at = at[key]
        if draw(st.booleans()) and isinstance(at, dict):
            del at[path[-1]]
        else:
            at[path[-1]] = draw(JSON)
        if not data:
            break
    return data


@given(st.data(), problem_dicts(jobs=(1, 4), gpus=(1, 8), steps=(1, 6), pools=(1, 2), apps=(0, 2)))
def test_a_changed_problem_is_planned_or_refused_in_one_line(
    contract_check: Any, data: st.DataObject, good: dict[str, Any]
) -> None:
    bad = changed(data.draw, good)
    try:
        problem = Problem.from_dict(bad)
    except InputError as error:
        assert "\n" not in str(error)
        assert str(error).strip()
        return
    assert problem.to_dict() == bad
    plan = solve(problem, "fifo_backfill")
    if problem.lookahead < 10**4 and all(s.steps < 10**4 for job in problem.jobs for s in job.shapes):
        assert contract_check(bad, plan.to_dict())[0] == []


@given(st.data(), problem_dicts(jobs=(1, 4), gpus=(1, 8), steps=(1, 6), pools=(1, 2), apps=(0, 2)))
def test_a_changed_plan_is_judged_or_refused_in_one_line(data: st.DataObject, good: dict[str, Any]) -> None:
    problem = Problem.from_dict(good)
    bad = changed(data.draw, solve(problem, "easy").to_dict())
    try:
        plan = Plan.from_dict(bad)
    except InputError as error:
        assert "\n" not in str(error)
        return
    violations, figures = check(problem, plan)
    assert all("\n" not in line for line in violations)
    assert figures["jobs"] == len(problem.jobs)
