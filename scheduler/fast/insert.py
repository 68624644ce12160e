"""Where a job goes: the shape, start and block with the largest marginal objective and the best fit."""

from typing import Any

import numpy as np

from tidegrid.scheduler.fast.bits import (
    NIL,
    NONE,
    ONE,
    TOP,
    ZERO,
    above,
    inlined,
    kernel,
    lowest,
    ones,
    overlap,
    runs,
    span,
)
from tidegrid.scheduler.fast.state import APART, EXACT, contact, pool_penalty, put, short_cost, uniform

# Legal blocks looked at for one start: the ends of each run of free GPUs, from the side that jobs are packed on.
MOST_CORNERS = 12
PART = 16  # words of a set that are searched at once: 1,024 GPUs
MOST_STARTS = 6  # starts with room that are looked at in a large pool


@inlined
def keeps_caps(B: Any, S: Any, p: int, start: int, first: int, size: int) -> bool:
    """Whether every app can still clear its held GPUs in time (rule 4) if a job takes a block.

    An app that never enters a GPU needs only to leave those that jobs take: by step t at most
    cap · (t + 1) of them. That is enough for a legal plan, and no plan can do with less.
    """
    words = B.pool[p].words
    for a in range(B.pool[p].app_first, B.pool[p].app_last):
        cap = B.app[a].cap
        if cap == 0 or B.app[a].held_count <= cap * (start + 1):
            continue
        hit = False
        for k in range(first >> 6, ((first + size - 1) >> 6) + 1):
            if B.held[a, k] & span(k, first, size) != ZERO:
                hit = True
        if not hit:
            continue
        last = min(B.steps, (B.app[a].held_count - 1) // cap + 1)
        taken = 0
        # Held GPUs whose first job starts by step t: those not free in some step up to t.
        for k in range(words):
            S.hit[k] = ZERO
        for t in range(last):
            taken = 0
            for k in range(words):
                busy = ~S.free[B.pool[p].row + t * words + k]
                if t >= start:
                    busy |= span(k, first, size)
                S.hit[k] |= busy & B.held[a, k]
                taken += np.int64(ones(S.hit[k]))
            if taken > cap * (t + 1):
                return False
    return True


@inlined
def fit_at(
    B: Any, S: Any, p: int, shape: int, start: int, begin: int, stop: int, first_word: int, part: int
) -> Any:
    """Best legal block for a start among the corners of ``S.window``: its contact and its first GPU.

    The window holds ``part`` words of the pool's sets from ``first_word`` on.
    Blocks that could as well start one step earlier, from ``begin``, and later, to ``stop``, are passed over.
    """
    words, size, length = B.pool[p].words, B.shape[shape].gpus, B.shape[shape].steps
    best, chosen, looked = -1.0, NONE, 0
    gpus, down, capped = B.pool[p].gpus, B.pool[p].high != 0, B.pool[p].capped != 0
    at = start * part
    for i in range(part):
        k = part - 1 - i if down else i
        here = S.window[at + k]
        if here == ZERO:
            continue
        lower = here << ONE
        if k > 0:
            lower |= S.window[at + k - 1] >> TOP
        upper = here >> ONE
        if k + 1 < part:
            upper |= S.window[at + k + 1] << TOP
        corners = here & ~(lower & upper)
        if begin < start and start < stop:
            corners &= ~(S.window[at + k - part] & S.window[at + k + part])
        while corners != ZERO:
            bit = TOP - above(corners) if down else lowest(corners)
            corners &= ~(ONE << bit)
            first = 64 * (first_word + k) + np.int64(bit)
            if capped and not keeps_caps(B, S, p, start, first, size):
                continue
            away = gpus - size - first if down else first
            touch = contact(S.free, B.pool[p].row, words, gpus, B.steps, size, start, length, first)
            score = touch - 1e-3 * away / gpus
            if score > best:
                best, chosen = score, first
            looked += 1
            if looked >= MOST_CORNERS:
                return best, chosen
    return best, chosen


@inlined
def price_block(B: Any, S: Any, p: int, size: int, low: int, until: int, apart: bool) -> None:
    """Sum up in ``S.sums`` what ``size`` more GPUs for jobs would cost a pool's apps, from step ``low`` on."""
    total = 0.0
    S.sums[low] = 0.0
    for t in range(low, min(B.width, until)):
        # Jobs that keep off the apps' cells cost nothing within the horizon.
        if B.step[p, t].wanted > 0 and (not apart or t >= B.steps):
            used = S.used[p, t]
            # A step without room for the block has no cost, as no window with it is open.
            if used + size <= B.pool[p].gpus:
                total += short_cost(B, p, t, used + size) - short_cost(B, p, t, used)
        S.sums[t + 1] = total


@inlined
def open_at(
    B: Any, S: Any, p: int, shape: int, low: int, high: int, first_word: int, part: int, apart: bool
) -> Any:
    """Fill ``S.window`` with the first GPUs of legal blocks, by start; first and last start with any, or -1."""
    row = B.pool[p].row + first_word
    legal = B.pool[p].legal + B.shape[shape].log * B.pool[p].words + first_word
    length = B.shape[shape].steps
    overlap(S.free, S.cells, apart, row, B.pool[p].words, part, B.steps, length, low, high, S.window)
    begin, stop = NONE, NONE
    for start in range(low, high + 1):
        if runs(S.window, start * part, part, B.shape[shape].log, B.legal, legal):
            stop = start
            if begin < 0:
                begin = start
    return begin, stop


@inlined
def has_room(B: Any, S: Any, p: int, size: int, start: int, end: int, apart: bool) -> bool:
    """Whether enough GPUs of a pool are free in each step, wherever they are."""
    for t in range(start, min(end, B.steps)):
        if S.used[p, t] + (S.kept[p, t] if apart else 0) + size > B.pool[p].gpus:
            return False
    return True


@kernel
def part_at(B: Any, S: Any, p: int, shape: int, start: int, apart: bool) -> Any:
    """First part of a large pool, from the jobs' side, with a legal block for a start: first word, words, or 0."""
    words = B.pool[p].words
    more = B.shape[shape].gpus // 64 + 1  # for blocks that reach into the next part
    parts = (words + PART - 1) // PART
    for i in range(parts):
        first_word = PART * (parts - 1 - i if B.pool[p].high != 0 else i)
        part = min(words - first_word, PART + more)
        if open_at(B, S, p, shape, start, start, first_word, part, apart)[0] >= 0:
            return first_word, part
    return NIL, NIL


@inlined
def insert(B: Any, S: Any, j: int, fit: float, blink: float, since: int, until: int) -> bool:
    """Put a job where its marginal objective · (1 + fit · contact) is largest; whether any place gains.

    With probability ``blink`` a shape or a start is passed over, so that repairs differ. Only blocks that
    meet the steps from ``since`` to ``until`` (exclusive) are looked at.
    """
    best = 0.0
    shape_at, start_at, first_at = NONE, NONE, NONE
    many = B.job[j].shape_last - B.job[j].shape_first
    for shape in range(B.job[j].shape_first, B.job[j].shape_last):
        p, size, length = B.shape[shape].pool, B.shape[shape].gpus, B.shape[shape].steps
        low = max(B.job[j].earliest, since - length + 1)
        high = min(B.shape[shape].latest, until - 1)
        if low > high:
            continue
        rate = B.job[j].value * size
        if rate * (B.before[min(low + length, B.steps)] - B.before[low]) * (1.0 + fit) <= best:
            continue
        if blink > 0.0 and many > 1 and uniform(S.rng) < 0.15:
            continue
        words = B.pool[p].words
        capped = B.pool[p].capped != 0
        apart = capped and S.apart[0] == APART
        exact = capped and S.apart[0] == EXACT
        # Sets of few words are searched for all starts at once, longer ones start by start and in parts.
        large = words > PART
        if not large:
            low, high = open_at(B, S, p, shape, low, high, NIL, words, apart)
            if low < 0:
                continue
        wanted = B.pool[p].app_last > B.pool[p].app_first
        if wanted:
            price_block(B, S, p, size, low, high + length, apart)
        begin, stop = low, high
        last_guess = -np.inf
        looked = 0
        for start in range(low, high + 1):
            gain = rate * (B.before[min(start + length, B.steps)] - B.before[start])
            guess = gain
            if wanted:
                guess -= S.sums[min(start + length, B.width)] - S.sums[start]
            rising = guess > last_guess
            last_guess = guess
            if guess * (1.0 + fit) <= best:
                continue
            if blink > 0.0 and uniform(S.rng) < blink:
                continue
            first_word, part = NIL, words
            if large:
                if looked >= MOST_STARTS or not has_room(B, S, p, size, start, start + length, apart):
                    continue
                begin, stop = start, start
                first_word, part = part_at(B, S, p, shape, start, apart)
                if part == 0:
                    continue
                looked += 1
            touch, first = fit_at(
                B, S, p, shape, start, start if rising or exact else begin, stop, first_word, part
            )
            if first < 0 or guess * (1.0 + fit * touch) <= best:
                continue
            if not exact:
                gain = guess
            else:
                # The guess knows no caps; with them apps lose more, and seldom less.
                gain -= pool_penalty(B, S, p, start, start + length, size) - S.tally[p + 1]
                if gain * (1.0 + fit * touch) <= best:
                    continue
            best = gain * (1.0 + fit * touch)
            shape_at, start_at, first_at = shape, start, first
    if shape_at < 0:
        return False
    put(B, S, j, shape_at, start_at, first_at)
    p = B.shape[shape_at].pool
    if B.pool[p].capped and S.apart[0] == EXACT:
        S.tally[p + 1] = pool_penalty(B, S, p, NIL, NIL, NIL)
    return True
