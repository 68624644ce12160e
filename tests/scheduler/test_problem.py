"""The problem file: what it keeps, what it refuses, and how it says so."""

import copy
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from strategies import problem_dicts, random_problem

from tidegrid.errors import InputError
from tidegrid.scheduler import Pool, Problem, Shape

GOOD: dict[str, Any] = {
    "version": 1,
    "start": "2026-03-02T00:00:00+00:00",
    "step_minutes": 60,
    "steps": 4,
    "decay": 1,
    "shortfall_weight": 8.0,
    "pools": [{"id": "h100", "gpus": 8, "node_size": None}],
    "jobs": [
        {
            "id": "sft-1",
            "kind": "training",
            "priority": 7,
            "order": 0,
            "shapes": [{"pool": "h100", "gpus": 2, "steps": 10}, {"pool": "h100", "gpus": 4, "steps": 6}],
            "earliest": 0,
            "deadline": None,
            "finish_inside": True,
            "running": None,
        },
        {
            "id": "awq-2",
            "kind": "quantization",
            "priority": 3.0,
            "order": 1,
            "shapes": [{"pool": "h100", "gpus": 1, "steps": 4}],
            "running": {"pool": "h100", "first_gpu": 5, "gpus": 1, "remaining": 2},
        },
    ],
    "apps": [
        {"id": "chat", "pool": "h100", "priority": 8, "demand": [1, 1, 2, 4], "swap_cap": 2, "held": [7]}
    ],
    "note": {"kept": [1, 2.5, None]},
}

DELETE = object()


def changed(path: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    data = copy.deepcopy(GOOD)
    at: Any = data
    for part in path[:-1]:
        at = at[part]
    if value is DELETE:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return data


@given(problem_dicts())
def test_to_dict_gives_back_what_was_read(data: dict[str, Any]) -> None:
    """Values, types and keys come back as they were; whole numbers stay whole."""
    before = copy.deepcopy(data)
    problem = Problem.from_dict(data)
    assert json.dumps(problem.to_dict(), sort_keys=True) == json.dumps(data, sort_keys=True)
    assert data == before
    again = Problem.from_dict(problem.to_dict())
    assert again == problem
    assert hash(again) == hash(problem)


def test_unknown_keys_are_kept_and_counted_in_the_hash() -> None:
    problem = Problem.from_dict(GOOD)
    assert problem.to_dict() == GOOD
    text = json.dumps(GOOD, sort_keys=True, separators=(",", ":"))
    assert problem.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert Problem.from_dict({**GOOD, "note": 1}).sha256 != problem.sha256


def test_reading_a_hash_or_an_index_changes_nothing() -> None:
    """What is cached with the problem is no part of it."""
    problem, fresh = Problem.from_dict(GOOD), Problem.from_dict(GOOD)
    assert (problem.sha256, problem.pool_by_id["h100"].gpus, problem.lookahead) == (fresh.sha256, 8, 4)
    assert problem == Problem.from_dict(GOOD)
    assert problem.to_dict() == GOOD


def test_a_problem_survives_its_file(tmp_path: Path) -> None:
    problem = random_problem(5)
    problem.write(tmp_path / "problem.json")
    assert Problem.read(tmp_path / "problem.json") == problem


def test_a_problem_is_immutable() -> None:
    with pytest.raises(Exception, match="frozen"):
        Problem.from_dict(GOOD).steps = 5  # type: ignore[misc]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (
            ("jobs", 0, "shapes", 0, "gpus"),
            3,
            "jobs[0].shapes[0].gpus: 3 is not a power of two; write 1, 2, 4, …",
        ),
        (("jobs", 0, "shapes", 0, "gpus"), True, "jobs[0].shapes[0].gpus: true is not a whole number"),
        (("jobs", 0, "shapes", 0, "gpus"), 2.0, "jobs[0].shapes[0].gpus: 2.0 is not a whole number"),
        (("jobs", 0, "shapes", 0, "steps"), 0, "jobs[0].shapes[0].steps: 0 is out of range"),
        (
            ("jobs", 0, "shapes", 1, "pool"),
            "b200",
            'jobs[0].shapes[1].pool: "b200" is not a pool; write one of h100',
        ),
        (("jobs", 0, "shapes"), DELETE, "jobs[0].shapes: is missing"),
        (("jobs", 0, "order"), DELETE, "jobs[0].order: is missing"),
        (
            ("jobs", 0, "kind"),
            "game",
            'jobs[0].kind: "game" is not known; write training, batch_inference or',
        ),
        (("jobs", 0, "priority"), float("inf"), "jobs[0].priority: Infinity is not a finite number"),
        (("jobs", 0, "priority"), -1, "jobs[0].priority: -1 is out of range"),
        (("jobs", 0, "requested"), 2, "jobs[0].requested: 2 is past the 2 shapes; write an index below 2"),
        (("jobs", 0, "finish_inside"), 1, "jobs[0].finish_inside: 1 is not"),
        (("jobs", 0, "earliest"), -1, "jobs[0].earliest: -1 is out of range"),
        (("jobs", 1, "id"), "sft-1", 'jobs[1].id: "sft-1" is also the id of jobs[0]'),
        (("jobs", 1, "running", "gpus"), 3, "jobs[1].running.gpus: 3 is not a power of two"),
        (("jobs", 1, "running", "first_gpu"), 8, "jobs[1].running.first_gpu: GPUs 8–8 lie outside h100"),
        (("jobs", 1, "running", "first_gpu"), 7, "GPU 7 of h100 serves both awq-2 and chat"),
        (("jobs", 1, "running", "remaining"), 0, "jobs[1].running.remaining: 0 is out of range"),
        (("jobs", 1, "running", "pool"), "x", 'jobs[1].running.pool: "x" is not a pool'),
        (("jobs", 1), 5, "jobs[1]: 5 is not a JSON object"),
        (("jobs",), DELETE, "jobs: is missing"),
        (("apps", 0, "id"), "awq-2", 'apps[0].id: "awq-2" is also the id of jobs[1]'),
        (("apps", 0, "demand"), [1, 2], "apps[0].demand: has 2 values for 4 steps"),
        (("apps", 0, "demand"), [1, 2, 3, -1], "apps[0].demand[3]: -1 is out of range"),
        (("apps", 0, "demand"), [1, 2, 3, 0.5], "apps[0].demand[3]: 0.5 is not a whole number"),
        (("apps", 0, "held"), [6, 6], "apps[0].held: lists a GPU twice"),
        (("apps", 0, "held"), [8], "apps[0].held: GPU 8 lies outside h100, which has 8"),
        (("apps", 0, "swap_cap"), -1, "apps[0].swap_cap: -1 is out of range"),
        (("apps", 0, "pool"), "x", 'apps[0].pool: "x" is not a pool'),
        (("pools",), [], "pools: is empty"),
        (("pools", 0, "gpus"), 0, "pools[0].gpus: 0 is out of range"),
        (("pools", 0, "node_size"), 0, "pools[0].node_size: 0 is out of range"),
        (("decay",), 0, "decay: 0 is out of range; write a number above 0 and at most 1"),
        (("decay",), float("nan"), "decay: NaN is not a finite number"),
        (("decay",), "1", 'decay: "1" is not a number'),
        (("shortfall_weight",), -0.5, "shortfall_weight: -0.5 is out of range"),
        (("steps",), 0, "steps: 0 is out of range"),
        (("start",), "2026-03-02T00:00:00", 'start: "2026-03-02T00:00:00" has no zone'),
        (("start",), "Monday", 'start: "Monday" is not an instant'),
        (("version",), 3, "version: 3 is not known; write 1 or 2"),
        (("note",), float("nan"), "note: holds something that JSON cannot"),
    ],
)
def test_a_bad_problem_names_the_field_and_the_fix(
    path: tuple[str | int, ...], value: Any, message: str
) -> None:
    with pytest.raises(InputError) as caught:
        Problem.from_dict(changed(path, value))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.fix


def test_two_running_jobs_on_one_gpu_are_refused() -> None:
    data = changed(("jobs", 0, "running"), {"pool": "h100", "first_gpu": 4, "gpus": 2, "remaining": 1})
    with pytest.raises(InputError, match="GPU 5 of h100 serves both sft-1 and awq-2"):
        Problem.from_dict(data)


def test_a_running_block_across_nodes_is_refused() -> None:
    data = changed(("jobs", 1, "running"), {"pool": "h100", "first_gpu": 3, "gpus": 2, "remaining": 1})
    data["pools"][0]["node_size"] = 4
    with pytest.raises(InputError, match="straddle nodes of 4"):
        Problem.from_dict(data)


def test_two_apps_that_hold_one_gpu_are_refused() -> None:
    data = copy.deepcopy(GOOD)
    data["apps"].append({**data["apps"][0], "id": "search"})
    with pytest.raises(InputError, match="GPU 7 of h100 serves both chat and search"):
        Problem.from_dict(data)


def test_a_pool_listed_twice_is_refused() -> None:
    data = changed(("pools",), [GOOD["pools"][0]] * 2)
    with pytest.raises(InputError, match=r"pools\[1\].id"):
        Problem.from_dict(data)


def test_records_made_by_hand_are_checked_as_well() -> None:
    with pytest.raises(InputError, match="gpus: -1 is out of range"):
        Shape(pool="h100", gpus=-1, steps=1)
    with pytest.raises(InputError, match="gpus: 0 is out of range"):
        Pool(id="h100", gpus=0)
    with pytest.raises(InputError, match="decay: is missing"):
        Problem(steps=4)  # type: ignore[call-arg]


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"', "null", "\ufeff"])
def test_a_file_that_is_no_problem_is_one_clear_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "problem.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"problem\.json") as caught:
        Problem.read(path)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.json: cannot be read"):
        Problem.read(tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("gpus", "node", "first", "size", "allowed"),
    [
        (8, None, 2, 4, True),
        (8, None, 5, 4, False),
        (8, 4, 2, 4, False),
        (8, 4, 4, 4, True),
        (8, 4, 0, 8, True),
        (16, 4, 2, 8, False),
        (12, 3, 3, 4, True),
        (12, 3, 4, 4, False),
        (8, None, -1, 2, False),
    ],
)
def test_a_block_keeps_to_its_nodes(
    gpus: int, node: int | None, first: int, size: int, allowed: bool
) -> None:
    """Contiguous, not aligned, unless a node forbids it."""
    assert Pool(id="p", gpus=gpus, node_size=node).allows(first, size) is allowed


@pytest.mark.parametrize("name", ["a\nb", "a\u2028b", "\ud800", "\x1b[31m"])
def test_an_id_of_more_than_one_line_is_refused(name: str) -> None:
    """Ids stand in messages of one line and in UTF-8 files."""
    with pytest.raises(InputError, match=r"holds a control character|cannot be used") as caught:
        Problem.from_dict(changed(("jobs", 0, "id"), name))
    assert str(caught.value).isprintable()


def test_a_board_that_no_memory_holds_is_refused() -> None:
    """The lookahead counts: a demand of a million steps on a million GPUs is no plan."""
    data = changed(("pools", 0, "gpus"), 1_000_000)
    data["apps"][0]["demand"] = [1] * 51
    with pytest.raises(InputError, match="51,000,000 cells of GPU and step are more than 50,000,000"):
        Problem.from_dict(data)


def test_keys_named_like_our_own_attributes_are_kept() -> None:
    data = {**GOOD, "sha256": "x", "lookahead": 3, "pool_by_id": {}}
    problem = Problem.from_dict(data)
    assert problem.to_dict() == data
    assert (len(problem.sha256), problem.lookahead) == (64, 4)


def test_a_problem_can_be_made_of_records() -> None:
    pool = Pool(id="p", gpus=2)
    problem = Problem(steps=1, decay=1, shortfall_weight=0, pools=(pool,), jobs=(), apps=())
    assert Problem.from_dict(problem.to_dict()) == problem
