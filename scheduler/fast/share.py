"""How capped apps of a pool share it: who chooses first, and ceilings for those that choose before others."""

from typing import Any

from tidegrid.scheduler.fast.apps import adopt, full_penalty
from tidegrid.scheduler.fast.bits import NIL, kernel
from tidegrid.scheduler.fast.state import NO_LIMIT, below, pool_penalty, uniform

LIFT = 0.3  # chance that a trial takes an app's ceilings away
MOST_LONG = 3  # steps of a ceiling


@kernel
def swap_turns(B: Any, S: Any, p: int, first: int, last: int) -> Any:
    """Let neighbours from ``first`` to ``last`` choose in the other order where it costs less; what that saves."""
    saved = 0.0
    before = full_penalty(B, S, p)
    adopt(B, S, p)
    for i in range(first, last):
        one = S.turn[i]
        S.turn[i] = S.turn[i + 1]
        S.turn[i + 1] = one
        after = full_penalty(B, S, p)
        if after < before:
            saved += before - after
            before = after
            adopt(B, S, p)
        else:
            S.turn[i + 1] = S.turn[i]
            S.turn[i] = one
    return saved


@kernel
def bend(B: Any, S: Any, p: int, tries: int) -> Any:
    """Try ceilings on what an app holds where another is short; what the pool's shortfall then costs less.

    In whatever order apps choose, the first takes all it wants in every step. With a cap the cheapest way may be that
    it holds less before a peak of another's, and so gives way in time.
    """
    steps, first = B.steps, B.pool[p].app_first
    apps = B.pool[p].app_last - first
    if apps < 2:
        return 0.0
    cost = pool_penalty(B, S, p, NIL, NIL, NIL)
    if cost <= 0.0:
        return 0.0
    began, named = cost, full_penalty(B, S, p)
    adopt(B, S, p)
    for a in range(first, first + apps):
        for t in range(steps):
            S.old_ceil[a, t] = S.ceil[a, t]
    for _ in range(tries):
        a = first + below(S.rng, apps)
        low, high = NIL, steps
        level = NO_LIMIT
        if uniform(S.rng) >= LIFT:
            low = below(S.rng, steps)
            high = min(steps, low + 1 + below(S.rng, MOST_LONG))
            short = 0
            for b in range(first, first + apps):
                if b != a:
                    short = max(short, B.demand[b, low] - S.count[b, low])
            if short == 0 or S.count[a, low] == 0:
                continue
            level = max(0, S.count[a, low] - 1 - below(S.rng, short))
        for t in range(low, high):
            S.line[2, t] = S.ceil[a, t]
            S.ceil[a, t] = level if level == NO_LIMIT else min(level, S.ceil[a, t])
        after = pool_penalty(B, S, p, NIL, NIL, NIL)
        if after < cost or (level == NO_LIMIT and after <= cost):
            cost = after
            continue
        for t in range(low, high):
            S.ceil[a, t] = S.line[2, t]
        pool_penalty(B, S, p, NIL, NIL, NIL)
    if cost == began:
        return 0.0
    saved = named - full_penalty(B, S, p)
    if saved > 0.0:
        adopt(B, S, p)
        return saved
    for a in range(first, first + apps):
        for t in range(steps):
            S.ceil[a, t] = S.old_ceil[a, t]
    return 0.0
