"""Queues as clusters run them, played as events: blocks, order, reservations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegrid.pipeline.replay.queues import CONSERVATIVE, EASY, STRICT, Board, simulate

MODES = {"strict": STRICT, "easy": EASY, "conservative": CONSERVATIVE}


def play(jobs: list[tuple[int, int, int]], gpus: int, mode: int, node: int = 8) -> list[float]:
    """Play (submit, GPUs, seconds) in arrival order with exact estimates; return the starts."""
    submit, size, length = (np.array(column, float) for column in zip(*jobs, strict=True))
    order = np.arange(len(jobs), dtype=float)
    starts, _ = simulate(submit, length, length, size.astype(np.int64), order, gpus, node, mode, np.inf)
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
    board = Board(24, 8)
    board.set(8, 4, True)
    assert board.find(2) == 12
    assert board.find(8) == 0
    assert board.find(16) == -1
    assert board.find(8, 0, 4) == 16
    board.set(8, 4, False)
    assert board.find(16) == 0


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
