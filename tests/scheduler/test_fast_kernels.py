"""The compiled parts of mode fast against plain Python, and the machine code on disk."""

from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest

from tidegrid.scheduler.fast import bits
from tidegrid.scheduler.fast.cache import drop_stale


@numba.njit
def overlap(free: Any, words: int, rows: int, length: int, low: int, high: int, out: Any) -> None:
    bits.overlap(free, free, False, 0, words, words, rows, length, low, high, out)


@numba.njit
def runs(sets: Any, words: int, log_size: int, legal: Any) -> bool:
    return bits.runs(sets, 0, words, log_size, legal, 0)


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
        overlap(free.ravel(), words, rows, length, low, high, out.ravel())
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
        assert runs(row, words, log_size, legal) == bool(firsts)
        assert members(row) == firsts


def test_machine_code_of_other_sources_is_dropped(tmp_path: Path) -> None:
    """A changed module drops what was compiled; unchanged ones keep it."""
    sources, cache = tmp_path / "src", tmp_path / "cache"
    sources.mkdir()
    cache.mkdir()
    (sources / "kernel.py").write_text("one")
    drop_stale(str(cache), sources)
    compiled = cache / "kernel.nbi"
    compiled.write_text("code")
    drop_stale(str(cache), sources)
    assert compiled.exists()
    (sources / "kernel.py").write_text("two")
    drop_stale(str(cache), sources)
    assert not compiled.exists()
    drop_stale(None, sources)
    drop_stale(str(tmp_path / "absent" / "cache"), sources)


def test_kernels_compile_where_nothing_can_be_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only installation compiles in each process, without a word."""
    real = bits.njit

    def no_place(*args: Any, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(*args, **options)

    monkeypatch.setattr(bits, "njit", no_place)
    double = bits.entry(lambda x: 2 * x)
    assert double(3) == 6
