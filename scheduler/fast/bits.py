"""Sets of GPUs as words of 64 bits: what the compiled loops of the allocator are made of."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

ONE = np.uint64(1)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
ZERO = np.uint64(0)


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    try:
        return njit(cache=True, error_model="numpy", **options)(function)
    except RuntimeError:  # no folder that numba could write to: compile in every process instead
        return njit(error_model="numpy", **options)(function)


def entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function when it is first called, and keep the machine code on disk."""
    return _compiled(function)


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that only compiled code calls; without the code to call it from Python."""
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


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
def runs(rows: Any, at: int, words: int, log_size: int, legal: Any, legal_at: int, out: Any) -> bool:
    """First GPUs of every legal block of 2**log_size GPUs inside a set; returns whether there is one."""
    for k in range(words):
        out[k] = rows[at + k]
    for i in range(log_size):
        step = 1 << i
        if step < 64:
            left = np.uint64(step)
            right = np.uint64(64 - step)
            for k in range(words - 1):
                out[k] &= (out[k] >> left) | (out[k + 1] << right)
            out[words - 1] &= out[words - 1] >> left
        else:
            jump = step // 64
            for k in range(words):
                out[k] &= out[k + jump] if k + jump < words else ZERO
    found = ZERO
    for k in range(words):
        out[k] &= legal[legal_at + k]
        found |= out[k]
    return found != ZERO


@kernel
def overlap(free: Any, at: int, words: int, rows: int, length: int, low: int, high: int, out: Any) -> None:
    """Sets that stay free for ``length`` rows, for every first row ``low`` … ``high``.

    ``free`` holds ``rows`` sets of ``words`` words from ``at`` on; what lies past the last row is free.
    The sliding AND costs three operations a row whatever the length (van Herk's blocks).
    """
    for k in range(words):
        last = min(rows, high + length) - 1
        run = ALL
        # Backward inside each block of ``length`` rows: AND from a row to its block's end.
        for t in range(last, low - 1, -1):
            if (t - low) % length == length - 1:
                run = ALL
            run &= free[at + t * words + k]
            if t <= high:
                out[t * words + k] = run
        # Forward: AND from a block's start to the window's last row.
        run = ALL
        for t in range(low, last + 1):
            if (t - low) % length == 0:
                run = ALL
            run &= free[at + t * words + k]
            start = t - length + 1
            if start >= low and start <= high:
                out[start * words + k] &= run
        # Windows that the last row cuts short: the last block from its start, for those begun before it.
        if last == rows - 1:
            first = low + ((last - low) // length) * length
            for start in range(max(low, rows - length + 1), min(high, first - 1) + 1):
                out[start * words + k] &= run
