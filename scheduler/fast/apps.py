"""Which GPUs the apps hold: counts are named so that as few as possible change hands, within every cap."""

from typing import Any

import numpy as np

from tidegrid.scheduler.fast.bits import (
    NIL,
    NO,
    NONE,
    ONE,
    TOP,
    YES,
    ZERO,
    above,
    inlined,
    kernel,
    lowest,
    ones,
)
from tidegrid.scheduler.fast.state import NO_LIMIT, pool_penalty, short_cost

# A dip of demand this many steps long or shorter is bridged: its GPUs are kept where no job needs them.
BRIDGE = 4


@kernel
def settle(B: Any, S: Any, p: int) -> None:
    """Bridge short dips of the counts in ``S.count`` where there is room, so that no app goes down and up."""
    T = B.steps
    for t in range(T):
        S.line[0, t] = B.pool[p].gpus - S.used[p, t]
    for a in range(B.pool[p].app_first, B.pool[p].app_last):
        for t in range(T):
            S.line[0, t] -= S.count[a, t]
    for a in range(B.pool[p].app_first, B.pool[p].app_last):
        # Morphological closing: the least, over windows of BRIDGE + 1 steps around t, of their greatest count.
        for t in range(T):
            bridged = NO_LIMIT
            for k in range(t - BRIDGE, t + 1):
                greatest = B.app[a].held_count if k < 0 else 0
                for m in range(max(k, 0), min(k + BRIDGE + 1, T)):
                    greatest = max(greatest, S.count[a, m])
                bridged = min(bridged, greatest)
            S.line[1, t] = min(bridged, S.count[a, t] + max(0, S.line[0, t]))
        before = B.app[a].held_count
        for t in range(T):
            S.line[1, t] = min(S.line[1, t], before + B.app[a].cap)
            before = S.line[1, t]
        for t in range(T - 2, -1, -1):
            S.line[1, t] = min(S.line[1, t], S.line[1, t + 1] + B.app[a].cap)
        for t in range(T):
            S.line[0, t] -= S.line[1, t] - S.count[a, t]
            S.count[a, t] = S.line[1, t]


@kernel
def pick(
    source: Any, at: int, words: int, many: int, from_top: bool, into: Any, into_at: int, add: bool
) -> int:
    """Add to a set, or take from it, at most ``many`` of the GPUs of another; returns how many are left over."""
    for i in range(words):
        k = words - 1 - i if from_top else i
        rest = source[at + k]
        while rest != ZERO and many > 0:
            bit = ONE << (TOP - above(rest) if from_top else lowest(rest))
            rest &= ~bit
            if add:
                into[into_at + k] |= bit
            else:
                into[into_at + k] &= ~bit
            many -= 1
        if many == 0:
            break
    return many


@inlined
def size_of(sets: Any, at: int, words: int) -> int:
    """How many GPUs a set has."""
    total = 0
    for k in range(at, at + words):
        total += np.int64(ones(sets[k]))
    return total


@inlined
def due(
    free: Any, row: int, words: int, steps: int, hold: Any, at: int, run: Any, cap: int, t: int, since: int
) -> int:
    """How many more of the GPUs held jobs take, by any one step from ``since`` on, than can be left after t."""
    now = 0
    for i in range(words):
        run[i] = hold[at + i]
        now += np.int64(ones(run[i]))
    worst = -NO_LIMIT
    for k in range(t, steps):
        stay = 0
        for i in range(words):
            run[i] &= free[row + k * words + i]
            stay += np.int64(ones(run[i]))
        if k >= since:
            worst = max(worst, now - stay - cap * (k - t))
            if cap * (k - t) >= now:
                break
    return worst


@inlined
def leave(
    free: Any,
    row: int,
    words: int,
    steps: int,
    hold: Any,
    at: int,
    run: Any,
    gone: Any,
    cap: int,
    count: int,
    t: int,
    down: bool,
) -> int:
    """Leave the GPUs that jobs take soonest: what must go, and what is over the count; how many, or -1."""
    now = size_of(hold, at, words)
    if now == 0:
        return 0
    must = due(free, row, words, steps, hold, at, run, cap, t, t)
    if must > cap:
        return -1
    go = max(must, min(now - count, cap))
    if go <= 0:
        return 0
    for i in range(words):
        run[i] = hold[at + i]
    left = go
    for k in range(t, steps):
        for i in range(words):
            gone[i] = run[i] & ~free[row + k * words + i]
            run[i] &= ~gone[i]
        left = pick(gone, NIL, words, left, down, hold, at, NO)
        if left == 0:
            return go
    pick(run, NIL, words, left, down, hold, at, NO)
    return go


@inlined
def enter(
    free: Any,
    row: int,
    words: int,
    steps: int,
    hold: Any,
    at: int,
    run: Any,
    gone: Any,
    window: Any,
    cap: int,
    wish: int,
    t: int,
    down: bool,
) -> int:
    """Enter at most ``wish`` of the GPUs in ``window``, those that stay free longest; returns how many."""
    # From here on ``window`` holds the GPUs that stay free through step t, t + 1, …
    last = t
    for k in range(t + 1, steps):
        many = 0
        for i in range(words):
            kept = window[(k - 1 - t) * words + i] & free[row + k * words + i]
            window[(k - t) * words + i] = kept
            many += np.int64(ones(kept))
        if many == 0:
            break
        last = k
    entered = 0
    for k in range(last, t - 1, -1):
        # Free through step k, not through k + 1: taken by a job at k + 1 unless the horizon ends there.
        place = (k - t) * words
        for i in range(words):
            longer = window[place + words + i] if k < last else ZERO
            gone[i] = window[place + i] & ~longer
        allowed = wish - entered
        if k + 1 < steps and cap < NO_LIMIT >> 30:
            allowed = min(allowed, -due(free, row, words, steps, hold, at, run, cap, t, k + 1))
        if allowed > 0:
            entered += allowed - pick(gone, NIL, words, allowed, down, hold, at, YES)
        if entered == wish:
            break
    return entered


@kernel
def name(B: Any, S: Any, p: int, keep: bool, out: Any, out_at: int) -> Any:
    """Name the GPUs behind ``S.count``, step by step; returns what the shortfall within the horizon costs.

    An app leaves first the GPUs that jobs take soonest, early enough that its cap lets it leave them all
    in time, and enters those that stay free longest. ``S.trial`` gets the apps' GPUs if ``keep`` is true,
    ``out`` the app on each GPU and step where ``out_at`` is not negative. Infinite where a cap cannot be kept.
    """
    words, most, row, T = B.pool[p].words, S.words[0], B.pool[p].row, B.steps
    first_app, last_app = B.pool[p].app_first, B.pool[p].app_last
    # Jobs are packed from one end of the line, apps from the other.
    high = B.pool[p].high != 0
    for a in range(first_app, last_app):
        for k in range(words):
            S.hold[a * most + k] = B.held[a, k]
        S.hand[0, a] = B.app[a].held_count
    total = 0.0
    for t in range(T):
        for a in range(first_app, last_app):
            cap = B.app[a].cap
            S.hand[1, a] = cap
            if cap > 0:
                went = leave(
                    S.free, row, words, T, S.hold, a * most, S.run, S.gone, cap, S.count[a, t], t, high
                )
                if went < 0:
                    return np.inf
                S.hand[0, a] -= went
                S.hand[1, a] -= went
        for i in range(first_app, last_app):
            # The counts fit whoever is first; what stays free longest goes to those that can move least.
            a = S.tight[i]
            wish = min(S.count[a, t] - S.hand[0, a], S.hand[1, a])
            if wish > 0:
                for k in range(words):
                    S.window[k] = S.free[row + t * words + k]
                    for b in range(first_app, last_app):
                        S.window[k] &= ~S.hold[b * most + k]
                S.hand[0, a] += enter(
                    S.free,
                    row,
                    words,
                    T,
                    S.hold,
                    a * most,
                    S.run,
                    S.gone,
                    S.window,
                    B.app[a].cap,
                    wish,
                    t,
                    not high,
                )
            if S.hand[0, a] < B.demand[a, t]:
                total += B.app[a].price * B.weight[t] * (B.demand[a, t] - S.hand[0, a])
        if keep:
            for k in range(words):
                held = ZERO
                for a in range(first_app, last_app):
                    held |= S.hold[a * most + k]
                S.trial[row + t * words + k] = held
        if out_at >= 0:
            for a in range(first_app, last_app):
                for k in range(words):
                    rest = S.hold[a * most + k]
                    while rest != ZERO:
                        g = 64 * k + np.int64(lowest(rest))
                        rest &= rest - ONE
                        out[out_at + g * T + t] = a
    return total


@inlined
def tail_penalty(B: Any, S: Any, p: int) -> Any:
    """Penalty of a pool past the horizon."""
    total = 0.0
    for t in range(B.steps, B.width):
        if B.step[p, t].wanted > 0:
            total += short_cost(B, p, t, S.used[p, t])
    return total


@kernel
def full_penalty(B: Any, S: Any, p: int) -> Any:
    """Penalty of a pool with the GPUs named: what the contract charges. Leaves the names in ``S.trial``."""
    counted = pool_penalty(B, S, p, NIL, NIL, NIL)
    if not B.pool[p].capped:
        return counted
    S.named[1, p] = name(B, S, p, YES, S.none, NONE)
    return S.named[1, p] + tail_penalty(B, S, p)


@kernel
def adopt(B: Any, S: Any, p: int) -> None:
    """Make the names that were tried those of the plan at hand."""
    if B.pool[p].capped and S.named[1, p] >= 0.0:
        S.named[0, p] = S.named[1, p]
        words = B.pool[p].words
        for t in range(B.steps):
            row = B.pool[p].row + t * words
            for i in range(row, row + words):
                S.cells[i] = S.trial[i]
            S.kept[p, t] = size_of(S.cells, row, words)
