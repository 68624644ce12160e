"""What a round takes off the board: jobs near each other, any jobs, or those in a waiting job's place."""

from typing import Any

import numpy as np

from tidegrid.scheduler.fast.bits import NIL, NONE, ZERO, inlined, kernel, span
from tidegrid.scheduler.fast.insert import keeps_caps
from tidegrid.scheduler.fast.state import MOST_RUINED, below, lift, put, uniform, worth


@inlined
def meets(B: Any, S: Any, j: int, p: int, start: int, end: int, first: int, last: int) -> bool:
    """Whether a placed job meets a rectangle of steps and GPUs, ends exclusive."""
    shape = S.spot[j, 0]
    if shape < 0 or B.shape[shape].pool != p:
        return False
    return (
        S.spot[j, 1] < end
        and start < S.spot[j, 1] + B.shape[shape].steps
        and S.spot[j, 2] < last
        and first < S.spot[j, 2] + B.shape[shape].gpus
    )


@kernel
def base_allows(B: Any, p: int, start: int, end: int, first: int, size: int) -> bool:
    """Whether nothing that cannot move lies in a rectangle."""
    for k in range(first >> 6, ((first + size - 1) >> 6) + 1):
        bits = span(k, first, size)
        for t in range(start, min(end, B.steps)):
            if B.base[B.pool[p].row + t * B.pool[p].words + k] & bits != bits:
                return False
    return True


@inlined
def take_off(B: Any, S: Any, j: int, log: Any, logged: int) -> int:
    """Lift a placed job and note where it was."""
    log[logged, 0] = j
    for k in range(3):
        log[logged, 1 + k] = S.spot[j, k]
    lift(B, S, j)
    return logged + 1


@inlined
def ruin_near(B: Any, S: Any, log: Any, most: int, reach: int) -> int:
    """Take off a random placed job and those that meet a rectangle around it."""
    n = len(B.job)
    seed = below(S.rng, n)
    for _ in range(n):
        if S.spot[seed, 0] >= 0:
            break
        seed = seed + 1 if seed + 1 < n else 0
    if S.spot[seed, 0] < 0:
        return 0
    shape = S.spot[seed, 0]
    p, size, length = B.shape[shape].pool, B.shape[shape].gpus, B.shape[shape].steps
    wide = below(S.rng, size + reach)
    long = below(S.rng, 2 + reach + length // 2)
    start, end = S.spot[seed, 1] - long, S.spot[seed, 1] + length + long
    first, last = S.spot[seed, 2] - wide, S.spot[seed, 2] + size + wide
    logged = take_off(B, S, seed, log, NIL)
    at = below(S.rng, n)
    for _ in range(n):
        if logged >= most:
            break
        at = at + 1 if at + 1 < n else 0
        if meets(B, S, at, p, start, end, first, last):
            logged = take_off(B, S, at, log, logged)
    return logged


@inlined
def ruin_any(B: Any, S: Any, log: Any, most: int) -> int:
    """Take off random placed jobs."""
    n = len(B.job)
    logged = 0
    for _ in range(2 * most):
        j = below(S.rng, n)
        if S.spot[j, 0] >= 0:
            logged = take_off(B, S, j, log, logged)
            if logged >= most:
                break
    return logged


@inlined
def eject(B: Any, S: Any, j: int, log: Any, tries: int, share: float, chain: float) -> int:
    """Put a waiting job where it earns most over what it displaces; returns how many jobs the log holds.

    With probability ``chain`` what comes later on the same GPUs is taken off too, so that a whole line can move up.
    """
    best = -np.inf
    shape_at, start_at, first_at = NONE, NONE, NONE
    n = len(B.job)
    shapes = B.job[j].shape_last - B.job[j].shape_first
    for _ in range(tries if shapes > 0 else 0):
        shape = B.job[j].shape_first + below(S.rng, shapes)
        p, size, length = B.shape[shape].pool, B.shape[shape].gpus, B.shape[shape].steps
        start = B.job[j].earliest + below(S.rng, B.shape[shape].latest - B.job[j].earliest + 1)
        first = below(S.rng, B.pool[p].gpus - size + 1)
        k = below(S.rng, n)
        if S.spot[k, 0] >= 0 and B.shape[S.spot[k, 0]].pool == p:  # an edge is a better guess than any place
            first = S.spot[k, 2]
            if uniform(S.rng) < 0.5:
                first += B.shape[S.spot[k, 0]].gpus - size
            first = max(0, min(first, B.pool[p].gpus - size))
            start = S.spot[k, 1]
            if uniform(S.rng) < 0.5:
                start += B.shape[S.spot[k, 0]].steps
            start = max(B.job[j].earliest, min(start, B.shape[shape].latest))
        legal = B.legal[B.pool[p].legal + B.shape[shape].log * B.pool[p].words + (first >> 6)]
        if (legal >> np.uint64(first & 63)) & np.uint64(1) == ZERO:
            continue
        if not base_allows(B, p, start, start + length, first, size):
            continue
        gain = worth(B, j, shape, start)
        met = 0
        for m in range(n):
            if meets(B, S, m, p, start, start + length, first, first + size):
                gain -= share * worth(B, m, S.spot[m, 0], S.spot[m, 1])
                met += 1
        if gain > best and met < MOST_RUINED:
            best = gain
            shape_at, start_at, first_at = shape, start, first
    if shape_at < 0:
        return 0
    p, size, length = B.shape[shape_at].pool, B.shape[shape_at].gpus, B.shape[shape_at].steps
    logged = 0
    for m in range(n):
        if meets(B, S, m, p, start_at, start_at + length, first_at, first_at + size):
            logged = take_off(B, S, m, log, logged)
    if uniform(S.rng) < chain:
        for m in range(n):
            if logged < MOST_RUINED - 1 and meets(B, S, m, p, start_at, B.steps, first_at, first_at + size):
                logged = take_off(B, S, m, log, logged)
    if B.pool[p].capped and not keeps_caps(B, S, p, start_at, first_at, size):
        return logged
    put(B, S, j, shape_at, start_at, first_at)
    log[logged, 0] = j
    log[logged, 1] = -1
    return logged + 1


@inlined
def undo(B: Any, S: Any, log: Any, logged: int) -> None:
    """Bring every logged job back to where it was."""
    for i in range(logged):
        if S.spot[log[i, 0], 0] >= 0:
            lift(B, S, log[i, 0])
    for i in range(logged):
        if log[i, 1] >= 0:
            put(B, S, log[i, 0], log[i, 1], log[i, 2], log[i, 3])
