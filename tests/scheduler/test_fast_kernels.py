"""The compiled parts of mode fast against plain Python."""

import numpy as np
import pytest
from strategies import random_problem

from tidegrid import native
from tidegrid.scheduler import solve
from tidegrid.scheduler.generate_clusters import random_cluster

WORDS, WORDS_OUT = native.Array(np.uint64), native.Array(np.uint64, writes=True)
overlap = native.function("tg_fast_overlap", WORDS, WORDS_OUT, *[native.INT] * 4)
runs = native.function("tg_fast_runs", WORDS_OUT, native.INT, WORDS)


def members(row: np.ndarray) -> set[int]:
    return {64 * k + i for k, word in enumerate(row.tolist()) for i in range(64) if word >> i & 1}


def test_windows_that_stay_free_equal_a_plain_and() -> None:
    """The sliding AND of every window, cut short at the last row, for one word and several."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        words, rows, length = (int(rng.integers(1, n)) for n in (4, 20, 25))
        low = int(rng.integers(0, rows))
        high = int(rng.integers(low, rows))
        free = rng.integers(0, 2**63, size=(rows, words), dtype=np.uint64)
        out = np.zeros((rows, words), np.uint64)
        overlap(free, out, words, length, low, high)
        for start in range(low, high + 1):
            plain = np.bitwise_and.reduce(free[start : min(start + length, rows)], axis=0)
            assert (plain == out[start]).all()


def test_legal_blocks_equal_a_plain_search() -> None:
    """Runs of 1 … 128 GPUs within and across words."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        words = int(rng.integers(1, 4))
        log_size = int(rng.integers(0, 7 if words == 1 else 8))
        row = ~(
            rng.integers(0, 2**63, size=words, dtype=np.uint64) & rng.integers(0, 2**63, words, np.uint64)
        )
        for _ in range(int(rng.integers(0, 5))):
            row |= rng.integers(0, 2**63, size=words, dtype=np.uint64)
        legal = np.full(words, 2**64 - 1, np.uint64)
        free, size = members(row), 1 << log_size
        firsts = {g for g in range(64 * words - size + 1) if free.issuperset(range(g, g + size))}
        runs(row, log_size, legal)
        assert members(row) == firsts


def test_sizes_that_do_not_fit_are_rejected() -> None:
    out = np.zeros(4, np.uint64)
    with pytest.raises(ValueError, match="tg_fast_overlap"):
        overlap(np.zeros(3, np.uint64), out, 2, 1, 0, 0)
    with pytest.raises(ValueError, match="tg_fast_runs"):
        runs(out, 1, np.zeros(3, np.uint64))


def test_whole_searches_keep_to_their_arrays() -> None:
    """Boards of one word and of several, nodes, replicas, closed GPUs, limits: what `make sanitize` watches."""
    for seed in range(20):
        solve(random_problem(seed), rounds=30)
    for seed in range(2):
        solve(random_problem(seed, gpus=(65, 300), jobs=(10, 20), steps=(8, 16), pools=(1, 2)), rounds=20)
    for seed in range(40):
        solve(random_cluster(seed), rounds=30, threads=2)
