"""The search's C interface: a problem's arrays as one structure of addresses, and a plan's rows back."""

import ctypes
from typing import Any, NamedTuple

import numpy as np

from tidegrid import native
from tidegrid.scheduler.arrays import Arrays, arrays_of
from tidegrid.scheduler.problem import Problem

_INTS = ("steps", "width", "jobs", "shapes", "pools", "apps", "closed", "limits")
_FLOATS = ("shortfall_weight", "step_minutes", "floor_weight", "gpu_cost", "swap_cost")
_ARRAYS = (
    "weight",
    "pool_gpus", "pool_node", "pool_rank", "pool_by_node",
    "priority", "rank", "id_rank", "earliest", "latest_end", "requested",
    "run_pool", "run_steps", "run_start", "run_gpu",
    "after_start", "after", "limit_start", "limit",
    "shape_start", "shape_pool", "shape_gpus", "shape_steps", "shape_nodes",
    "shape_rate", "within_start", "within",
    "limit_most", "limit_pool", "limit_gpus", "closed_at",
    "app_pool", "app_cap", "app_rank", "app_floor", "app_replica", "demand", "held_start", "held",
    "app_priority",
)  # fmt: skip
_IS_FLOAT = {"weight", "priority", "shape_rate", "app_priority"}


class Input(ctypes.Structure):
    """`tg_problem` of problem.hpp; keeps its arrays alive."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _INTS),
        *((name, ctypes.c_double) for name in _FLOATS),
        *((name, ctypes.c_void_p) for name in _ARRAYS),
    ]


class Settings(NamedTuple):
    """Settings of the search, found on random problems of 8–16 GPUs and 10–24 jobs and on zero-waste boards.

    What each means is said in state.hpp.
    """

    heat: float = 0.1
    cooling: float = 2.0
    blink: float = 0.07
    noise: float = 0.2
    eject: float = 0.15
    near: float = 0.7
    ruin_share: float = 0.5
    share: float = 0.25
    chain: float = 0.5
    wide: float = 0.15
    apart: float = 0.1
    guess: float = 0.8
    tries: int = 6
    most_near: int = 8
    most_any: int = 6
    ruin_least: int = 3
    ruin_more: int = 2
    reach: int = 6
    places: int = 6


class _Options(ctypes.Structure):
    _fields_ = [
        ("seed", ctypes.c_int64),
        ("rounds", ctypes.c_int64),
        ("threads", ctypes.c_int64),
        ("warms", ctypes.c_int64),
        ("budget_ms", ctypes.c_double),
        ("told", ctypes.c_void_p),
        ("promise", ctypes.c_double),
        *(
            (name, ctypes.c_double if isinstance(value, float) else ctypes.c_int64)
            for name, value in Settings._field_defaults.items()
        ),
    ]


class _Plan(ctypes.Structure):
    _fields_ = [
        ("placements", ctypes.c_void_p),
        ("gpus", ctypes.c_void_p),
        ("cells_start", ctypes.c_void_p),
        ("cells", ctypes.c_void_p),
        ("gpus_room", ctypes.c_int64),
        ("cells_room", ctypes.c_int64),
        ("placed", ctypes.c_int64),
    ]


class Found(NamedTuple):
    """What a search has found, in indices of the problem."""

    placements: list[list[int]]  # job, pool, first GPU, GPUs, start, steps
    gpus: list[int]  # of each placement in a pool that is placed by node
    cells_start: list[int]  # (A · T + 1)
    cells: list[int]  # replica after replica


class Warm(NamedTuple):
    """Placements of K plans to start from."""

    plans: int
    rows: np.ndarray  # (K · J, 5) pool, GPUs, steps, start, first GPU; pool −1 for none
    start: np.ndarray  # (K · J + 1) where the GPUs of each begin
    gpus: np.ndarray


_plan = native.function("tg_fast_plan", *[native.POINTER] * 6)
_rounds = native.function("tg_fast_rounds", native.POINTER, native.FLOAT, returns=native.INT)


def input_of(problem: Problem) -> Input:
    """Return the problem's arrays as the search reads them; made at the first call and kept with the problem."""
    cached = problem.__dict__.get("_fast_input")
    if cached is None:
        cached = problem.__dict__["_fast_input"] = _build(problem, arrays_of(problem))
    return cached


def rounds_for(problem: Problem, budget_ms: float | None = None) -> int:
    """Rounds that a budget buys, from the problem's size alone; None for the default budget."""
    found: int = _rounds(ctypes.byref(input_of(problem)), -1.0 if budget_ms is None else budget_ms)
    return found


def search(
    given: Input,
    *,
    seed: int,
    rounds: int | None,
    budget_ms: float | None,
    settings: Settings,
    warm: Warm | None,
    told: np.ndarray | None = None,
    promise: float = 0.0,
    threads: int = 1,
) -> Found:
    """Run the whole search: greedy starts, those of ``warm`` and of the baselines, then ruin and recreate.

    ``told`` holds the start that was promised to each job, −1 for none, and ``promise`` what each step later costs.
    """
    options = _Options(
        seed,
        -1 if rounds is None else rounds,
        threads,
        0 if warm is None else warm.plans,
        -1.0 if budget_ms is None else budget_ms,
        None if told is None else told.ctypes.data,
        promise,
        *settings,
    )
    placements = np.empty((given.jobs, 6), np.int64)
    gpus = np.empty(given.gpus_room, np.int64)
    cells_start = np.empty(given.apps * given.steps + 1, np.int64)
    cells = np.empty(given.cells_room, np.int64)
    plan = _Plan(
        *(array.ctypes.data for array in (placements, gpus, cells_start, cells)),
        given.gpus_room,
        given.cells_room,
        0,
    )
    rows, start, ids = (None, None, None) if warm is None else (array.ctypes.data for array in warm[1:])
    _plan(ctypes.byref(given), ctypes.byref(options), rows, start, ids, ctypes.byref(plan))
    starts = cells_start.tolist()
    return Found(placements[: plan.placed].tolist(), gpus.tolist(), starts, cells[: starts[-1]].tolist())


def _build(problem: Problem, a: Arrays) -> Input:
    counts = (
        a.steps, a.width, len(a.priority), len(a.shape_gpus), len(a.pool_gpus), len(a.app_pool),
        len(a.closed_at), len(a.limit_most),
    )  # fmt: skip
    prices = (problem.shortfall_weight, problem.step_minutes, a.floor_weight, a.gpu_cost, a.swap_cost)
    ranks = {
        "pool_rank": _rank([pool.id for pool in problem.pools]),
        "app_rank": _rank([app.id for app in problem.apps]),
    }
    return make_input(counts, prices, {**vars(a), **ranks, "held": a.held_gpu})


def make_input(counts: tuple[int, ...], numbers: tuple[float, ...], arrays: dict[str, Any]) -> Input:
    """Put a problem's arrays into one structure, which keeps them alive, and say how much its plan can need."""
    kept = {
        name: np.ascontiguousarray(arrays[name], np.float64 if name in _IS_FLOAT else np.int64)
        for name in _ARRAYS
    }
    result = Input(*counts, *numbers, *(kept[name].ctypes.data for name in _ARRAYS))
    result.kept = kept
    most = np.diff(kept["run_start"])
    owner = np.repeat(np.arange(result.jobs), np.diff(kept["shape_start"]))
    np.maximum.at(most, owner, kept["shape_gpus"])
    result.gpus_room = int(most.sum())
    result.cells_room = result.steps * int(kept["pool_gpus"][np.unique(kept["app_pool"])].sum())
    return result


def _rank(ids: list[str]) -> np.ndarray:
    rank = np.empty(len(ids), np.int64)
    rank[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
    return rank
