"""Queues as clusters run them, played as events: blocks, order, reservations."""

from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegrid.pipeline.replay.queues import CONSERVATIVE, EASY, STRICT, Board, simulate
from tidegrid.pipeline.worlds.trace import pool_of

MODES = {"strict": STRICT, "easy": EASY, "conservative": CONSERVATIVE}


def play(
    jobs: list[tuple[int, int, int]],
    gpus: int,
    mode: int,
    node: int = 8,
    placement: Literal["line", "node"] = "line",
) -> list[float]:
    """Play (submit, GPUs, seconds) in arrival order with exact estimates; return the starts."""
    submit, size, length = (np.array(column, float) for column in zip(*jobs, strict=True))
    order = np.arange(len(jobs), dtype=float)
    board = Board(pool_of(gpus, node, placement))
    starts, _ = simulate(submit, length, length, size.astype(np.int64), order, board, mode, np.inf)
    return [float(s) for s in starts]


def test_fifo_lets_nobody_pass_the_head() -> None:
    assert play([(0, 4, 10), (0, 8, 5), (0, 1, 1)], 8, STRICT) == [0, 10, 15]


def test_easy_lets_a_short_job_pass_where_the_head_is_not_delayed() -> None:
    assert play([(0, 4, 10), (0, 8, 5), (0, 1, 1)], 8, EASY) == [0, 10, 0]


def test_easy_holds_back_a_job_that_would_delay_the_head() -> None:
    """A job of 12 s cannot end before the head's start at 10, and no GPU is outside the head's block."""
    assert play([(0, 4, 10), (0, 8, 5), (0, 1, 12)], 8, EASY) == [0, 10, 15]


def test_conservative_backfill_delays_nobody_before_it() -> None:
    starts = play([(0, 4, 10), (0, 8, 5), (0, 4, 30), (0, 4, 9)], 8, CONSERVATIVE)
    assert starts[:3] == [0, 10, 15]
    assert starts[3] == 0


def test_a_job_wider_than_the_pool_never_starts_and_stops_nobody() -> None:
    starts = play([(0, 16, 10), (0, 1, 1)], 8, STRICT)
    assert starts == [np.inf, 0]


def test_a_block_is_taken_from_the_fullest_node_that_holds_it() -> None:
    board = Board(pool_of(24, 8, "line"))

    def first(size: int, kept: np.ndarray | None = None) -> int:
        found = board.find(size, kept)
        return -1 if found is None else int(found[0])

    board.set(np.arange(8, 12), True)
    assert first(2) == 12
    assert first(8) == 0
    assert first(16) == -1
    assert first(8, np.arange(4)) == 16
    board.set(np.arange(8, 12), False)
    assert first(16) == 0


def test_by_node_a_job_gets_any_free_gpus_of_the_fullest_nodes_that_hold_it() -> None:
    board = Board(pool_of(32, 8, "node"))
    board.set(np.array([0, 3, 4, 9, 16, 17, 18, 19, 20]), True)

    def found(size: int, kept: np.ndarray | None = None) -> list[int] | None:
        gpus = board.find(size, kept)
        return None if gpus is None else gpus.tolist()

    assert found(3) == [21, 22, 23]
    assert found(5) == [1, 2, 5, 6, 7]
    # 12 GPUs lie on two nodes, six on each: the whole node and the one with seven free
    assert found(12) == [8, 10, 11, 12, 13, 14, 24, 25, 26, 27, 28, 29]
    assert found(16) is None
    assert found(3, np.array([23])) == [1, 2, 5]


def test_by_node_whole_nodes_need_not_be_neighbours() -> None:
    """Two jobs hold nodes 0 and 2; a job of two nodes starts at once on 1 and 3, in a line it waits."""
    jobs = [(0, 8, 10), (0, 8, 1), (0, 8, 10), (0, 8, 1), (2, 16, 5)]
    assert play(jobs, 32, STRICT, placement="node")[-1] == 2
    assert play(jobs, 32, STRICT)[-1] == 10


def test_by_node_easy_reserves_the_nodes_that_are_free_first() -> None:
    """The head of 12 GPUs gets six of each node when both jobs of 5 have ended, at 10: a job of 20 s waits."""
    jobs = [(0, 5, 10), (0, 5, 8), (0, 12, 5), (0, 3, 9), (0, 3, 20)]
    assert play(jobs, 16, EASY, placement="node") == [0, 0, 10, 0, 15]


@st.composite
def traces(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    count = draw(st.integers(1, 25))
    submit = sorted(draw(st.lists(st.integers(0, 50), min_size=count, max_size=count)))
    return [(s, 2 ** draw(st.integers(0, 4)), draw(st.integers(1, 30))) for s in submit]


@pytest.mark.parametrize("mode", list(MODES))
@given(jobs=traces())
def test_no_more_gpus_run_than_there_are_and_nothing_starts_before_its_submit(
    mode: str, jobs: list[tuple[int, int, int]]
) -> None:
    starts = np.array(play(jobs, 16, MODES[mode]))
    submit, size, length = (np.array(column) for column in zip(*jobs, strict=True))
    assert np.isfinite(starts).all()
    assert (starts >= submit).all()
    for at in starts:
        running = (starts <= at) & (at < starts + length)
        assert size[running].sum() <= 16


@given(jobs=traces())
def test_fifo_starts_in_arrival_order(jobs: list[tuple[int, int, int]]) -> None:
    starts = play(jobs, 16, STRICT)
    assert starts == sorted(starts)
