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
        S.room[t] = B.gpus[p] - S.used[p, t]
    for a in range(B.app_first[p], B.app_first[p + 1]):
        for t in range(T):
            S.room[t] -= S.count[a, t]
    for a in range(B.app_first[p], B.app_first[p + 1]):
        # Morphological closing: the least, over windows of BRIDGE + 1 steps around t, of their greatest count.
        for t in range(T):
            bridged = NO_LIMIT
            for k in range(t - BRIDGE, t + 1):
                greatest = B.held_count[a] if k < 0 else 0
                for m in range(max(k, 0), min(k + BRIDGE + 1, T)):
                    greatest = max(greatest, S.count[a, m])
                bridged = min(bridged, greatest)
            S.most[t] = min(bridged, S.count[a, t] + max(0, S.room[t]))
        before = B.held_count[a]
        for t in range(T):
            S.most[t] = min(S.most[t], before + B.cap[a])
            before = S.most[t]
        for t in range(T - 2, -1, -1):
            S.most[t] = min(S.most[t], S.most[t + 1] + B.cap[a])
        for t in range(T):
            S.room[t] -= S.most[t] - S.count[a, t]
            S.count[a, t] = S.most[t]


@kernel
def name(B: Any, S: Any, p: int, out: Any, out_at: int) -> Any:
    """Name the GPUs behind ``S.count``, step by step; returns what the shortfall within the horizon costs.

    An app leaves first the GPUs that jobs take soonest, early enough that its cap lets it leave them all
    in time, and enters those that stay free longest. ``out`` gets the app on each GPU and step, or -1,
    where ``out_at`` is not negative. Infinite where a cap cannot be kept.
    """
    T, G, words = B.steps, B.gpus[p], B.words[p]
    first_app, last_app = B.app_first[p], B.app_first[p + 1]
    for g in range(G):
        S.until[T * G + g] = T
        S.owner[g] = -1
    for t in range(T - 1, -1, -1):
        for g in range(G):
            word = S.free[B.row[p] + t * words + (g >> 6)]
            S.until[t * G + g] = S.until[(t + 1) * G + g] if (word >> np.uint64(g & 63)) & np.uint64(1) else t
    for a in range(first_app, last_app):
        for g in range(G):
            if (B.held[a, g >> 6] >> np.uint64(g & 63)) & np.uint64(1):
                S.owner[g] = a
    total = 0.0
    for t in range(T):
        until = S.until[t * G : (t + 1) * G]
        for a in range(first_app, last_app):
            if B.cap[a] == 0:
                S.now[a] = B.held_count[a]
                continue
            S.moved[a] = leave(B, S, a, t, G, until, B.high[p])
            if S.moved[a] < 0:
                return np.inf
        for a in range(first_app, last_app):
            if B.cap[a] > 0:
                enter(B, S, a, t, G, until, B.high[p])
            if S.now[a] < B.demand[a, t]:
                total += B.price[a] * B.weight[t] * (B.demand[a, t] - S.now[a])
        if out_at >= 0:
            for g in range(G):
                out[out_at + g * T + t] = S.owner[g]
    return total


@kernel
def leave(B: Any, S: Any, a: int, t: int, G: int, until: Any, high: bool) -> int:
    """Let an app leave what it must and what it no longer needs; returns how many GPUs it left, or -1."""
    T, cap, bins = B.steps, B.cap[a], S.bins
    now = 0
    for k in range(t, T + 1):
        bins[k] = 0
    for g in range(G):
        if S.owner[g] == a:
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
    S.now[a] = now - max(0, go)
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
            if left > 0 and S.owner[g] == a and until[g] == k:
                S.owner[g] = -1
                bins[k] -= 1
                left -= 1
    return go


@kernel
def enter(B: Any, S: Any, a: int, t: int, G: int, until: Any, high: bool) -> None:
    """Let an app enter the GPUs that stay free longest, up to its count and within its cap."""
    T, cap, bins = B.steps, B.cap[a], S.bins
    wish = min(S.count[a, t] - S.now[a], cap - S.moved[a])
    if wish <= 0:
        return
    for k in range(t, T + 1):
        bins[k] = 0
    for g in range(G):
        if S.owner[g] == a:
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
            if spare > 0 and S.owner[g] == -1 and until[g] == k:
                S.owner[g] = a
                bins[k] += 1
                S.now[a] += 1
                spare -= 1
                wish -= 1
        if wish == 0:
            return


@kernel
def full_penalty(B: Any, S: Any, p: int) -> Any:
    """Penalty of a pool with the GPUs named: what the contract charges."""
    counted = pool_penalty(B, S, p, 0, 0, 0)
    if not B.capped[p]:
        return counted
    total = name(B, S, p, S.owner, -1)
    for t in range(B.steps, B.width):
        if B.wanted[p, t] > 0:
            total += short_cost(B, p, t, S.used[p, t])
    return total
