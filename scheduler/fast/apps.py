"""Which GPUs the apps hold: counts are named so that as few as possible change hands, within every cap."""

from typing import Any

import numpy as np

from tidegrid.scheduler.fast.bits import kernel
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
def name(B: Any, S: Any, p: int, out: Any, out_at: int) -> Any:
    """Name the GPUs behind ``S.count``, step by step; returns what the shortfall within the horizon costs.

    An app leaves first the GPUs that jobs take soonest, early enough that its cap lets it leave them all
    in time, and enters those that stay free longest. ``out`` gets the app on each GPU and step, or -1,
    where ``out_at`` is not negative. Infinite where a cap cannot be kept.
    """
    T, G, words = B.steps, B.pool[p].gpus, B.pool[p].words
    first_app, last_app = B.pool[p].app_first, B.pool[p].app_last
    for g in range(G):
        S.gpu[T, g] = T
        S.gpu[T + 1, g] = -1
    for t in range(T - 1, -1, -1):
        for g in range(G):
            word = S.free[B.pool[p].row + t * words + (g >> 6)]
            S.gpu[t, g] = S.gpu[t + 1, g] if (word >> np.uint64(g & 63)) & np.uint64(1) else t
    for a in range(first_app, last_app):
        for g in range(G):
            if (B.held[a, g >> 6] >> np.uint64(g & 63)) & np.uint64(1):
                S.gpu[T + 1, g] = a
    total = 0.0
    for t in range(T):
        until = S.gpu[t]
        for a in range(first_app, last_app):
            if B.app[a].cap == 0:
                S.hand[0, a] = B.app[a].held_count
                continue
            S.hand[1, a] = leave(B, S, a, t, G, until, B.pool[p].high)
            if S.hand[1, a] < 0:
                return np.inf
        for a in range(first_app, last_app):
            if B.app[a].cap > 0:
                enter(B, S, a, t, G, until, B.pool[p].high)
            if S.hand[0, a] < B.demand[a, t]:
                total += B.app[a].price * B.weight[t] * (B.demand[a, t] - S.hand[0, a])
        if out_at >= 0:
            for g in range(G):
                out[out_at + g * T + t] = S.gpu[T + 1, g]
    return total


@kernel
def leave(B: Any, S: Any, a: int, t: int, G: int, until: Any, high: bool) -> int:
    """Let an app leave what it must and what it no longer needs; returns how many GPUs it left, or -1."""
    T, cap, bins = B.steps, B.app[a].cap, S.line[2]
    now = 0
    for k in range(t, T + 1):
        bins[k] = 0
    for g in range(G):
        if S.gpu[T + 1, g] == a:
            bins[until[g]] += 1
            now += 1
    # Of the GPUs that jobs take by step k, all but cap · (k - t) must go now.
    must, sum_by = 0, 0
    for k in range(t, T):
        sum_by += bins[k]
        must = max(must, sum_by - cap * (k - t))
    if must > cap:
        return -1
    go = max(must, min(now - S.count[a, t], cap))
    S.hand[0, a] = now - max(0, go)
    if go <= 0:
        return 0
    left = go
    for k in range(t, T + 1):
        if left == 0:
            break
        if bins[k] == 0:
            continue
        for i in range(G):
            # What stays is kept at the end of the line that is far from the jobs.
            g = G - 1 - i if high else i
            if left > 0 and S.gpu[T + 1, g] == a and until[g] == k:
                S.gpu[T + 1, g] = -1
                bins[k] -= 1
                left -= 1
    return go


@kernel
def enter(B: Any, S: Any, a: int, t: int, G: int, until: Any, high: bool) -> None:
    """Let an app enter the GPUs that stay free longest, up to its count and within its cap."""
    T, cap, bins = B.steps, B.app[a].cap, S.line[2]
    wish = min(S.count[a, t] - S.hand[0, a], cap - S.hand[1, a])
    if wish <= 0:
        return
    for k in range(t, T + 1):
        bins[k] = 0
    for g in range(G):
        if S.gpu[T + 1, g] == a:
            bins[until[g]] += 1
    for k in range(T, t, -1):
        # How many GPUs that jobs take at step k can still be left in time after this step.
        spare = wish
        if k < T:
            sum_by = 0
            for m in range(t, T):
                sum_by += bins[m]
                if m >= k:
                    spare = min(spare, cap * (m - t) - sum_by)
        if spare <= 0:
            continue
        for i in range(G):
            g = i if high else G - 1 - i
            if spare > 0 and S.gpu[T + 1, g] == -1 and until[g] == k:
                S.gpu[T + 1, g] = a
                bins[k] += 1
                S.hand[0, a] += 1
                spare -= 1
                wish -= 1
        if wish == 0:
            return


@kernel
def full_penalty(B: Any, S: Any, p: int) -> Any:
    """Penalty of a pool with the GPUs named: what the contract charges."""
    counted = pool_penalty(B, S, p, 0, 0, 0)
    if not B.pool[p].capped:
        return counted
    total = name(B, S, p, S.gpu[0], -1)
    for t in range(B.steps, B.width):
        if B.step[p, t].wanted > 0:
            total += short_cost(B, p, t, S.used[p, t])
    return total
