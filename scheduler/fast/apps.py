"""Which GPUs the apps hold: counts are named so that as few as possible change hands, within every cap."""

from typing import Any

import numpy as np

from tidegrid.scheduler.fast.bits import ONE, TOP, ZERO, above, kernel, lowest, ones
from tidegrid.scheduler.fast.state import NO_LIMIT, count_apps, pool_penalty, short_cost

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
def pick(source: Any, at: int, words: int, many: int, from_top: bool, into: Any, into_at: int, add: bool) -> int:
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


@kernel
def size_of(sets: Any, at: int, words: int) -> int:
    """How many GPUs a set has."""
    total = 0
    for k in range(at, at + words):
        total += np.int64(ones(sets[k]))
    return total


@kernel
def due(B: Any, S: Any, p: int, a: int, t: int, since: int) -> int:
    """How many more of an app's GPUs jobs take, by any one step from ``since`` on, than it could leave after t."""
    words, row, hold = B.pool[p].words, B.pool[p].row, a * S.words[0]
    cap = B.app[a].cap
    now = S.hand[0, a]
    for k in range(words):
        S.run[k] = S.hold[hold + k]
    worst = -NO_LIMIT
    for k in range(t, B.steps):
        stay = 0
        for i in range(words):
            S.run[i] &= S.free[row + k * words + i]
            stay += np.int64(ones(S.run[i]))
        if k >= since:
            worst = max(worst, now - stay - cap * (k - t))
            if cap * (k - t) >= now:
                break
    return worst


@kernel
def leave(B: Any, S: Any, p: int, a: int, t: int) -> bool:
    """Let an app leave the GPUs that jobs take soonest: those it must, and those it no longer needs."""
    words, row, hold = B.pool[p].words, B.pool[p].row, a * S.words[0]
    now = size_of(S.hold, hold, words)
    S.hand[0, a] = now
    S.hand[1, a] = 0
    if now == 0:
        return True
    must = due(B, S, p, a, t, t)
    if must > B.app[a].cap:
        return False
    go = max(must, min(now - S.count[a, t], B.app[a].cap))
    if go <= 0:
        return True
    S.hand[0, a] = now - go
    S.hand[1, a] = go
    for k in range(words):
        S.run[k] = S.hold[hold + k]
    left = go
    # What stays is kept at the end of the line that is far from the jobs.
    down = B.pool[p].high != 0
    for k in range(t, B.steps):
        for i in range(words):
            S.gone[i] = S.run[i] & ~S.free[row + k * words + i]
            S.run[i] &= ~S.gone[i]
        left = pick(S.gone, 0, words, left, down, S.hold, hold, False)
        if left == 0:
            return True
    pick(S.run, 0, words, left, down, S.hold, hold, False)
    return True


@kernel
def enter(B: Any, S: Any, p: int, a: int, t: int) -> None:
    """Let an app enter the GPUs that stay free longest, up to its count and within its cap."""
    words, row, hold = B.pool[p].words, B.pool[p].row, a * S.words[0]
    cap = B.app[a].cap
    wish = min(S.count[a, t] - S.hand[0, a], cap - S.hand[1, a])
    if wish <= 0:
        return
    T = B.steps
    for i in range(words):
        open_now = S.free[row + t * words + i]
        for b in range(B.pool[p].app_first, B.pool[p].app_last):
            open_now &= ~S.hold[b * S.words[0] + i]
        S.window[i] = open_now
    # S.window holds the GPUs that stay free through step t, t + 1, …
    last = t
    for k in range(t + 1, T):
        many = 0
        for i in range(words):
            kept = S.window[(k - 1 - t) * words + i] & S.free[row + k * words + i]
            S.window[(k - t) * words + i] = kept
            many += np.int64(ones(kept))
        if many == 0:
            break
        last = k
    down = B.pool[p].high == 0
    for k in range(last, t - 1, -1):
        # Free through step k, not through k + 1: taken by a job at k + 1 unless the horizon ends there.
        at = (k - t) * words
        for i in range(words):
            longer = S.window[at + words + i] if k < last else ZERO
            S.gone[i] = S.window[at + i] & ~longer
        allowed = wish
        if k + 1 < T and cap < NO_LIMIT >> 30:
            allowed = min(wish, -due(B, S, p, a, t, k + 1))
        if allowed <= 0:
            continue
        left = pick(S.gone, 0, words, allowed, down, S.hold, hold, True)
        S.hand[0, a] += allowed - left
        wish -= allowed - left
        if wish == 0:
            return


@kernel
def name(B: Any, S: Any, p: int, keep: bool, out: Any, out_at: int) -> Any:
    """Name the GPUs behind ``S.count``, step by step; returns what the shortfall within the horizon costs.

    An app leaves first the GPUs that jobs take soonest, early enough that its cap lets it leave them all
    in time, and enters those that stay free longest. ``S.cells`` gets the apps' GPUs if ``keep`` is true, ``out`` the app
    on each GPU and step where ``out_at`` is not negative. Infinite where a cap cannot be kept.
    """
    words, most = B.pool[p].words, S.words[0]
    first_app, last_app = B.pool[p].app_first, B.pool[p].app_last
    for a in range(first_app, last_app):
        for k in range(words):
            S.hold[a * most + k] = B.held[a, k]
    total = 0.0
    for t in range(B.steps):
        for a in range(first_app, last_app):
            if B.app[a].cap == 0:
                S.hand[0, a] = B.app[a].held_count
            elif not leave(B, S, p, a, t):
                return np.inf
        for i in range(first_app, last_app):
            a = S.turn[i]
            if B.app[a].cap > 0:
                enter(B, S, p, a, t)
            if S.hand[0, a] < B.demand[a, t]:
                total += B.app[a].price * B.weight[t] * (B.demand[a, t] - S.hand[0, a])
        if keep:
            for k in range(words):
                held = ZERO
                for a in range(first_app, last_app):
                    held |= S.hold[a * most + k]
                S.cells[B.pool[p].row + t * words + k] = held
        if out_at >= 0:
            for a in range(first_app, last_app):
                for k in range(words):
                    rest = S.hold[a * most + k]
                    while rest != ZERO:
                        g = 64 * k + np.int64(lowest(rest))
                        rest &= rest - ONE
                        out[out_at + g * B.steps + t] = a
    return total


@kernel
def full_penalty(B: Any, S: Any, p: int) -> Any:
    """Penalty of a pool with the GPUs named: what the contract charges."""
    counted = pool_penalty(B, S, p, 0, 0, 0)
    if not B.pool[p].capped:
        return counted
    total = name(B, S, p, False, S.none, -1)
    for t in range(B.steps, B.width):
        if B.step[p, t].wanted > 0:
            total += short_cost(B, p, t, S.used[p, t])
    return total


@kernel
def swap_turn(S: Any, i: int) -> None:
    """Let two apps that are served one after the other change places."""
    first = S.turn[i]
    S.turn[i] = S.turn[i + 1]
    S.turn[i + 1] = first


@kernel
def set_apart(B: Any, S: Any, apart: bool) -> None:
    """Whether jobs keep off the cells that apps hold in the plan at hand; works them out where it is needed."""
    S.apart[0] = apart
    if apart and S.apart[1] != 0:
        S.apart[1] = 0
        for p in range(len(B.pool)):
            if B.pool[p].capped:
                count_apps(B, S, p, 0, 0, 0)
                name(B, S, p, True, S.none, -1)
