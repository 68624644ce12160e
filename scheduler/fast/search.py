"""Greedy starts, then ruin and recreate for a number of rounds; deterministic for a seed."""

from typing import Any

import numpy as np

from tidegrid.scheduler.fast.apps import adopt, full_penalty, name, settle, tail_penalty
from tidegrid.scheduler.fast.bits import NIL, NO, NONE, YES, entry, inlined, kernel
from tidegrid.scheduler.fast.insert import insert
from tidegrid.scheduler.fast.ruin import eject, ruin_any, ruin_near, undo
from tidegrid.scheduler.fast.share import bend, swap_turns
from tidegrid.scheduler.fast.state import (
    APART,
    EXACT,
    GUESS,
    MOST_RUINED,
    below,
    clear,
    count_apps,
    pool_penalty,
    put,
    record,
    uniform,
)

START_FIT = 0.02  # what full contact is worth against the marginal objective in a greedy start
STRICTLY = 1e-13  # gains below this share are rounding
MOST_PASSES = 4  # over the order in which apps choose
TURN_EVERY = 8  # rounds between two looks at how apps share
FIRST_BENDS, BENDS = 40, 6  # ceilings that are tried in the start, and in each look


@kernel
def weigh(B: Any, S: Any, least: float, anew: bool) -> Any:
    """Tilted reward less penalty of the board, or something below ``least`` as soon as it cannot be more.

    Where no job has taken a cell of the apps and these are short of nothing, the names at hand still serve,
    unless ``anew``. What counts alone cannot reach is not worth naming.
    """
    total = S.tally[0]
    open_pools = 0
    for p in range(len(B.pool)):
        if B.pool[p].app_last == B.pool[p].app_first:
            continue
        if B.pool[p].capped and S.apart[1] == 0 and S.named[0, p] == 0.0 and not anew:
            total -= tail_penalty(B, S, p)
            S.named[1, p] = -1.0
        else:
            S.named[1, p] = pool_penalty(B, S, p, NIL, NIL, NIL)
            total -= S.named[1, p]
            open_pools += B.pool[p].capped
    if open_pools == 0 or total < least:
        return total
    for p in range(len(B.pool)):
        if B.pool[p].capped and S.named[1, p] >= 0.0:
            total += S.named[1, p]
            total -= full_penalty(B, S, p)
    return total


@kernel
def restore(B: Any, S: Any, spot: Any) -> None:
    """Set the board up as recorded."""
    clear(B, S)
    for i in range(len(S.turn)):
        S.turn[i] = S.best_turn[i]
        for t in range(B.steps):
            S.ceil[i, t] = S.best_ceil[i, t]
    for j in range(len(spot)):
        if spot[j, 0] >= 0:
            put(B, S, j, spot[j, 0], spot[j, 1], spot[j, 2])


@inlined
def sort_todo(B: Any, S: Any, todo: Any, many: int, key: Any, area: Any, size: Any, noise: float) -> None:
    """Order the jobs to insert by one of four measures, with noise."""
    how = below(S.rng, np.int64(4))
    for i in range(many):
        j = todo[i]
        measure = 1.0
        if how == 0:
            measure = B.job[j].value
        elif how == 1:
            measure = B.job[j].value * area[j]
        elif how == 2:
            measure = area[j] * size[j]
        key[i] = -measure * (1.0 + (4.0 if how == 3 else noise) * uniform(S.rng))
    for i in range(1, many):
        k, j = key[i], todo[i]
        m = i - 1
        while m >= 0 and key[m] > k:
            key[m + 1] = key[m]
            todo[m + 1] = todo[m]
            m -= 1
        key[m + 1] = k
        todo[m + 1] = j


@entry
def begin(B: Any, S: Any, orders: Any, starts: Any, charged: Any) -> Any:
    """Find the best of a number of starts, which ``S.best`` gets.

    ``orders`` holds orders in which jobs are inserted greedily, each with the jobs off the cells that capped apps
    want and without that; ``starts`` legal placements, ``charged`` what the shortfall of the horizon costs
    in them with their own apps. Returns the index of the start that is worth most with its own apps, or -1,
    and what it is worth.
    """
    best = -np.inf
    any_capped = 0
    for p in range(len(B.pool)):
        any_capped = max(any_capped, B.pool[p].capped)
    own, own_best = NONE, -np.inf
    greedy = len(orders) * (1 + any_capped)
    for i in range(len(starts) + greedy):
        if i < len(starts):
            restore(B, S, starts[i])
            found = S.tally[0] - charged[i]
            for p in range(len(B.pool)):
                found -= tail_penalty(B, S, p)
            if found > own_best:
                own, own_best = np.int64(i), found
        else:
            clear(B, S)
            S.apart[0] = APART if i >= len(starts) + len(orders) else EXACT
            for p in range(len(B.pool)):
                S.tally[p + 1] = (
                    full_penalty(B, S, p) if S.apart[0] == APART else pool_penalty(B, S, p, NIL, NIL, NIL)
                )
                if S.apart[0] == APART:
                    adopt(B, S, p)
            order = orders[(i - len(starts)) % len(orders)]
            for k in range(len(order)):
                insert(B, S, order[k], START_FIT, 0.0, NIL, B.steps)
        found = weigh(B, S, -np.inf, YES)
        if found > best + STRICTLY * abs(best) or i == 0:
            best = found
            record(S, S.best)
    restore(B, S, S.best)
    for p in range(len(B.pool)):
        saved = 1.0 if B.pool[p].capped else 0.0
        for _ in range(MOST_PASSES):
            if saved > 0.0:
                saved = swap_turns(B, S, p, B.pool[p].app_first, B.pool[p].app_last - 1)
                saved += bend(B, S, p, FIRST_BENDS)
    record(S, S.best)
    return own, own_best


@entry
def improve(B: Any, S: Any, rounds: int, K: Any) -> Any:
    """Ruin and recreate (Schrimpf et al. 2000) from the board as it stands, cooling; returns the best objective.

    ``S.best`` gets the best placements seen.
    """
    n = len(B.job)
    log, todo, key = S.log, S.todo, S.key
    area, size = S.area[0], S.area[1]
    for j in range(n):
        for shape in range(B.job[j].shape_first, B.job[j].shape_last):
            area[j] = max(area[j], B.shape[shape].gpus * B.shape[shape].steps)
            size[j] = max(size[j], B.shape[shape].gpus)
    here = weigh(B, S, -np.inf, YES)
    best = here
    record(S, S.best)
    placed = 0
    for j in range(n):
        placed += S.spot[j, 0] >= 0
    any_capped = False
    for p in range(len(B.pool)):
        any_capped |= B.pool[p].capped != 0
    for p in range(len(B.pool)):
        adopt(B, S, p)
    unit = S.tally[0] / max(1, placed)
    for r in range(rounds):
        if r % TURN_EVERY == 0:
            p = below(S.rng, len(B.pool))
            apps = B.pool[p].app_last - B.pool[p].app_first
            if B.pool[p].capped and apps > 1:
                i = B.pool[p].app_first + below(S.rng, apps - 1)
                swap_turns(B, S, p, i, i + 1)
                bend(B, S, p, BENDS)
                here = weigh(B, S, -np.inf, YES)
        mood = uniform(S.rng) if any_capped else 1.0
        S.apart[0] = APART if mood < K.apart else (GUESS if mood < K.guess else EXACT)
        S.apart[1] = 0
        temperature = K.heat * unit * (1.0 - r / rounds) ** K.cooling
        for p in range(len(B.pool)):
            S.tally[p + 1] = 0.0
        most = K.ruin_least + below(
            S.rng, min(MOST_RUINED - 4, K.ruin_more + np.int64(K.ruin_share * placed))
        )
        how = uniform(S.rng)
        logged = 0
        waiting = -1
        if how < K.eject:
            at = below(S.rng, n)
            for _ in range(n):
                if S.spot[at, 0] < 0 and B.job[at].shape_last > B.job[at].shape_first:
                    waiting = at
                    break
                at = at + 1 if at + 1 < n else 0
        if waiting >= 0:
            logged = eject(B, S, waiting, log, K.places, K.share, K.chain)
        elif how < K.near:
            logged = ruin_near(B, S, log, min(most, K.most_near), K.reach)
        else:
            logged = ruin_any(B, S, log, min(most, K.most_any))
        many = 0
        since, until = B.steps, 0
        for i in range(logged):
            if log[i, 1] >= 0:
                todo[many] = log[i, 0]
                many += 1
                since = min(since, log[i, 2])
                until = max(until, log[i, 2] + B.shape[log[i, 1]].steps)
        ruined = many
        at = below(S.rng, n)
        for _ in range(n):
            at = at + 1 if at + 1 < n else 0
            if S.spot[at, 0] >= 0 or B.job[at].shape_last == B.job[at].shape_first:
                continue
            seen = False
            for i in range(logged):
                seen |= log[i, 0] == at
            if seen:
                continue
            todo[many] = at
            many += 1
            if many - ruined >= K.tries:
                break
        for p in range(len(B.pool)):
            if B.pool[p].capped and S.apart[0] == EXACT:
                S.tally[p + 1] = pool_penalty(B, S, p, NIL, NIL, NIL)
        sort_todo(B, S, todo, many, key, area, size, K.noise)
        draw = uniform(S.rng)
        fit = 0.001 if draw < 0.4 else (0.03 if draw < 0.8 else 0.2)
        if uniform(S.rng) < K.wide:
            since, until = 0, B.steps
        for i in range(many):
            j = todo[i]
            fresh = True
            for m in range(logged):
                fresh &= log[m, 0] != j
            # What waits can only gain where the round has made room.
            if insert(B, S, j, fit, K.blink, since if fresh else 0, until if fresh else B.steps) and fresh:
                log[logged, 0] = j
                log[logged, 1] = -1
                logged += 1
        least = here + temperature * np.log(1.0 - uniform(S.rng))
        there = weigh(B, S, least, NO)
        if there >= least:
            here = there
            for p in range(len(B.pool)):
                adopt(B, S, p)
            if here > best + STRICTLY * abs(best):
                # Names made anew may serve less than those that were kept: only what they reach counts.
                there = weigh(B, S, -np.inf, YES) if any_capped else here
                if there > best + STRICTLY * abs(best):
                    best = there
                    record(S, S.best)
        else:
            undo(B, S, log, logged)
    return best


@entry
def finish(B: Any, S: Any, owners: Any, owner_at: Any) -> Any:
    """Set ``S.spot`` to the best placements and ``owners`` to the app on each GPU and step; the objective."""
    restore(B, S, S.best)
    total = S.tally[0]
    for p in range(len(B.pool)):
        if B.pool[p].app_last == B.pool[p].app_first:
            continue
        count_apps(B, S, p, NIL, NIL, NIL)
        plain = name(B, S, p, NO, S.none, NONE)
        settle(B, S, p)
        # What is kept over a dip may cost moves that a cap has not; then no dip is bridged.
        if name(B, S, p, NO, S.none, NONE) > plain:
            count_apps(B, S, p, NIL, NIL, NIL)
        total -= name(B, S, p, NO, owners, owner_at[p]) + tail_penalty(B, S, p)
    return total
