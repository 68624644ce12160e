"""Sets of GPUs as words of 64 bits: what the compiled loops of the allocator are made of."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

ONE = np.uint64(1)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
ZERO = np.uint64(0)
TOP = np.uint64(63)
# As values of numpy: Python's own would compile a kernel once more for each of them.
NONE = np.int64(-1)
NIL = np.int64(0)
NO, YES = np.bool_(False), np.bool_(True)


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    # Without reference counts: no kernel makes or keeps an array, and counting two dozen of them in and out
    # of every call takes most of the time. Left out where a release of numba does not know the option.
    for more in ({"_nrt": False}, {}):
        for cache in (True, False):
            try:
                return njit(cache=cache, error_model="numpy", **options, **more)(function)
            except RuntimeError:  # no folder that numba could write to: compile in every process instead
                continue
            except (KeyError, TypeError):
                break
    raise AssertionError("numba takes no options")


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function when it is first called, and keep the machine code on disk."""
    return _compiled(function)


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that only compiled code calls; without the code to call it from Python."""
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function into its callers: handing over all arrays of the board would take longer than it runs."""
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, forceinline=True)


@intrinsic
def ones(typing_context: Any, word: Any) -> Any:
    """Count the bits that are set."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.uint64(types.uint64), generate


@intrinsic
def lowest(typing_context: Any, word: Any) -> Any:
    """Index of the lowest bit that is set; 64 where none is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], context.get_constant(types.boolean, False))

    return types.uint64(types.uint64), generate


@intrinsic
def above(typing_context: Any, word: Any) -> Any:
    """Count the zero bits above the highest bit that is set; 64 where none is."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctlz(arguments[0], context.get_constant(types.boolean, False))

    return types.uint64(types.uint64), generate


@kernel
def span(word: int, first: int, size: int) -> Any:
    """Bits of the GPUs ``first`` … ``first + size - 1`` that lie in a word."""
    low = max(first - 64 * word, 0)
    high = min(first + size - 64 * word, 64)
    if high <= low:
        return ZERO
    return (ALL >> np.uint64(64 - (high - low))) << np.uint64(low)


@kernel
def runs(sets: Any, at: int, words: int, log_size: int, legal: Any, legal_at: int) -> bool:
    """Turn a set into the first GPUs of its legal blocks of 2**log_size GPUs; returns whether there is one."""
    if words == 1:
        row = sets[at]
        for i in range(log_size):
            row &= row >> np.uint64(1 << i)
        row &= legal[legal_at]
        sets[at] = row
        return row != ZERO
    for i in range(log_size):
        step = 1 << i
        if step < 64:
            left = np.uint64(step)
            right = np.uint64(64 - step)
            for k in range(at, at + words - 1):
                sets[k] &= (sets[k] >> left) | (sets[k + 1] << right)
            sets[at + words - 1] &= sets[at + words - 1] >> left
        else:
            jump = step // 64
            for k in range(words):
                sets[at + k] &= sets[at + k + jump] if k + jump < words else ZERO
    found = ZERO
    for k in range(words):
        sets[at + k] &= legal[legal_at + k]
        found |= sets[at + k]
    return found != ZERO


@kernel
def overlap(
    free: Any,
    shut: Any,
    apart: bool,
    at: int,
    stride: int,
    words: int,
    rows: int,
    length: int,
    low: int,
    high: int,
    out: Any,
) -> None:
    """Sets that stay free for ``length`` rows, for every first row ``low`` … ``high``.

    ``free`` holds ``rows`` sets, ``stride`` words apart, of which ``words`` words from ``at`` on are looked at and
    packed into ``out``; what lies past the last row is free. What is
    in ``shut`` does not count as free if ``apart`` is true.
    The sliding AND costs three operations a row whatever the length (van Herk's blocks).
    """
    last = min(rows, high + length) - 1
    # Place of the last row in its block, so that no row needs a division.
    place_of_last = (last - low) % length
    for k in range(words):
        # Backward inside each block of ``length`` rows: AND from a row to its block's end.
        run = ALL
        place = place_of_last
        for t in range(last, low - 1, -1):
            run &= free[at + t * stride + k]
            if apart:
                run &= ~shut[at + t * stride + k]
            if t <= high:
                out[t * words + k] = run
            place -= 1
            if place < 0:
                place = length - 1
                run = ALL
        # Forward: AND from a block's start to the window's last row.
        place = 0
        for t in range(low, last + 1):
            if place == 0:
                run = ALL
            run &= free[at + t * stride + k]
            if apart:
                run &= ~shut[at + t * stride + k]
            start = t - length + 1
            if start >= low:
                out[start * words + k] &= run
            place += 1
            if place == length:
                place = 0
        # Windows that the last row cuts short and that began before its block: the rest of them.
        if last == rows - 1:
            first = last - place_of_last
            for start in range(max(low, rows - length + 1), min(high, first - 1) + 1):
                out[start * words + k] &= run
