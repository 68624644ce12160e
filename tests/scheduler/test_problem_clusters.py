"""Version 2 of the problem: what live clusters have, refused by name where it contradicts itself."""

import copy
from typing import Any

import pytest

from tidegrid.errors import InputError
from tidegrid.scheduler import Problem
from tidegrid.scheduler.arrays import arrays_of

GOOD: dict[str, Any] = {
    "version": 2, "steps": 8, "decay": 0.98, "shortfall_weight": 8,
    "pools": [
        {"id": "a100", "gpus": 24, "node_size": 8, "placement": "node",
         "closed": [{"gpus": [8, 16], "from": 6, "to": 10, "kind": "down"}]},
        {"id": "line", "gpus": 8, "node_size": 4},
    ],
    "tenants": [{"id": "nlp", "limit": 16}, {"id": "vision", "limit": {"a100": 8}}],
    "groups": [{"id": "array-7", "most": 2}],
    "jobs": [
        {"id": "wide", "priority": 5, "order": 0, "tenant": "nlp", "group": "array-7", "after": ["odd", "gone"],
         "shapes": [{"pool": "a100", "gpus": 16, "nodes": 2, "steps": 4, "within": [[0, 8], [16, 8]], "success": 0.5},
                    {"pool": "line", "gpus": 4, "steps": 20}]},
        {"id": "odd", "priority": 5, "order": 1, "shapes": [{"pool": "a100", "gpus": 3, "steps": 5}],
         "running": {"pool": "a100", "gpu_ids": [0, 1, 6], "remaining": 3}},
    ],
    "apps": [{"id": "chat", "pool": "a100", "priority": 8, "replica": 4, "floor": 4, "demand": [4] * 8, "swap_cap": 8,
              "held": [[16, 17, 18, 19]]}],
    "gpu_cost": 0.1, "swap_cost": 0.2, "floor_weight": 5,
}  # fmt: skip


def changed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    data = copy.deepcopy(GOOD)
    place: Any = data
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return data


def test_a_problem_comes_back_as_it_was_written() -> None:
    problem = Problem.from_dict(GOOD)
    assert problem.to_dict() == GOOD
    assert problem.jobs[1].running is not None and list(problem.jobs[1].running.ids) == [0, 1, 6]
    assert problem.apps[0].held_gpus == (16, 17, 18, 19)


def test_the_arrays_say_what_planners_need() -> None:
    arrays = arrays_of(Problem.from_dict(GOOD))
    assert arrays.pool_by_node.tolist() == [1, 0]
    assert arrays.shape_nodes.tolist() == [2, 1]
    # the work is that of the most efficient shape, 64 GPU-steps; half of it is likely done on 16 GPUs
    assert arrays.shape_rate.tolist() == [64 / 4 * 0.5, 64 / 20]
    assert arrays.within_start.tolist() == [0, 2, 2] and arrays.within.tolist() == [[0, 8], [16, 8]]
    assert arrays.after.tolist() == [1] and arrays.limit.tolist() == [0, 2]
    assert arrays.closed_at.tolist() == [[0, 8, 16, 6, 10, 1]]
    assert arrays.run_gpu.tolist() == [0, 1, 6] and arrays.held_gpu.tolist() == [16, 17, 18, 19]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("version",), 1, "pools[0].placement: belongs to version 2; write \"version\": 2"),
        (("pools", 0, "node_size"), None, "pools[0].node_size: is missing"),
        (("pools", 0, "placement"), "torus", "pools[0].placement: \"torus\" is not known; write line or node"),
        (("pools", 0, "closed", 0, "gpus"), [8, 99], "pools[0].closed[0].gpus: [8, 99] is not a range of the 24 GPUs"),
        (("pools", 0, "closed", 0, "to"), 6, "pools[0].closed[0].to: 6 is not after 6"),
        (("pools", 0, "closed", 0, "kind"), "off", "pools[0].closed[0].kind: \"off\" is not known"),
        (("tenants", 1, "limit"), {"b": 1}, "tenants[1].limit: \"b\" is not a pool"),
        (("tenants", 1, "id"), "nlp", "tenants[1].id: \"nlp\" is the id of two tenants"),
        (("groups", 0, "most"), -1, "groups[0].most: -1 is out of range"),
        (("jobs", 0, "shapes", 1, "gpus"), 3, "jobs[0].shapes[1].gpus: 3 is not a power of two"),
        (("jobs", 0, "shapes", 0, "success"), 1.5, "jobs[0].shapes[0].success: 1.5 is out of range"),
        (("jobs", 0, "work"), 0, "jobs[0].work: 0 is out of range"),
        (("jobs", 1, "running", "gpu_ids"), [0, 0], "jobs[1].running.gpu_ids: lists a GPU twice"),
        (("jobs", 1, "running", "gpu_ids"), [], "jobs[1].running.gpu_ids: is empty"),
        (("jobs", 1, "running"), {"pool": "a100", "remaining": 1}, "jobs[1].running.first_gpu: is missing"),
        (("jobs", 1, "running", "gpu_ids"), [0, 16], "serves both odd and chat"),
        (("jobs", 1, "running"), {"pool": "line", "gpu_ids": [0, 2], "remaining": 1},
         "jobs[1].running.gpu_ids: is not a block of neighbours"),
        (("apps", 0, "replica"), 12, "apps[0].replica: 12 GPUs neither fit a node of 8 nor fill whole ones"),
        (("apps", 0, "held"), [[16, 17]], "apps[0].held: [16, 17] is not a replica of 4 GPUs"),
        (("apps", 0, "held"), [16], "apps[0].held: [16] is not a replica of 4 GPUs"),
        (("apps", 0, "held"), [[14, 15, 16, 17]], "apps[0].held: the replica [14, 15, 16, 17] is spread over nodes"),
        (("gpu_cost",), -1, "gpu_cost: -1 is out of range"),
    ],
)  # fmt: skip
def test_a_contradiction_names_the_field_and_the_fix(
    path: tuple[str | int, ...], value: Any, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        Problem.from_dict(changed(path, value))
    assert message in str(caught.value)
