"""Greedy starts, then ruin and recreate for a number of rounds; deterministic for a seed."""

from typing import Any

import numpy as np

from tidegrid.scheduler.fast.apps import adopt, full_penalty, name, settle, swap_turn, tail_penalty
from tidegrid.scheduler.fast.bits import NIL, NO, NONE, entry, kernel
from tidegrid.scheduler.fast.insert import best_spot
from tidegrid.scheduler.fast.ruin import eject, ruin_any, ruin_near, undo
from tidegrid.scheduler.fast.state import (
    MOST_RUINED,
    below,
    clear,
    count_apps,
    pool_penalty,
    put,
    record,
    short_cost,
    uniform,
)

START_FIT = 0.02  # what full contact is worth against the marginal objective in a greedy start
STRICTLY = 1e-13  # gains below this share are rounding
EXACT, APART, GUESS = 0, 1, 2  # jobs know what capped apps lose, keep off their cells, or know no caps
MOST_PASSES = 4  # over the order in which apps choose
TURN_EVERY = 8  # rounds between two looks at the order in which apps choose


@kernel
def insert(B: Any, S: Any, j: int, fit: float, blink: float, since: int, until: int) -> bool:
    """Place a job at its best spot, where it has one."""
    shape, start, first = best_spot(B, S, j, fit, blink, since, until)
    if shape < 0:
        return False
    put(B, S, j, shape, start, first)
    p = B.shape[shape].pool
    if B.pool[p].capped and S.apart[0] == EXACT:
        S.tally[p + 1] = pool_penalty(B, S, p, NIL, NIL, NIL)
    return True


@kernel
def construct(B: Any, S: Any, order: Any, fit: float, apart: bool) -> Any:
    """Fill an empty board greedily, with jobs off the cells that apps then want or not; returns the objective."""
    clear(B, S)
    S.apart[0] = APART if apart else EXACT
    for p in range(len(B.pool)):
        S.tally[p + 1] = pool_penalty(B, S, p, NIL, NIL, NIL)
        if apart and B.pool[p].capped:
            full_penalty(B, S, p)
            adopt(B, S, p)
    for i in range(len(order)):
        insert(B, S, order[i], fit, 0.0, NIL, B.steps)
    return objective(B, S)


@kernel
def objective(B: Any, S: Any) -> Any:
    """Tilted reward minus the penalty with the GPUs named."""
    total = S.tally[0]
    for p in range(len(B.pool)):
        if B.pool[p].app_last > B.pool[p].app_first:
            total -= full_penalty(B, S, p)
    return total


@kernel
def weigh(B: Any, S: Any, least: float) -> Any:
    """Objective of the board as it stands, or something below ``least`` as soon as it cannot be more.

    Where no job has taken a cell of the apps and these are short of nothing, the names at hand still serve.
    What counts alone cannot reach is not worth naming.
    """
    total = S.tally[0]
    open_pools = 0
    for p in range(len(B.pool)):
        if B.pool[p].app_last == B.pool[p].app_first:
            continue
        if not B.pool[p].capped:
            total -= pool_penalty(B, S, p, NIL, NIL, NIL)
        elif S.apart[1] == 0 and S.named[0, p] == 0.0:
            total -= tail_penalty(B, S, p)
            S.named[1, p] = -1.0
        else:
            S.named[1, p] = pool_penalty(B, S, p, NIL, NIL, NIL)
            total -= S.named[1, p]
            open_pools += 1
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
    for j in range(len(spot)):
        if spot[j, 0] >= 0:
            put(B, S, j, spot[j, 0], spot[j, 1], spot[j, 2])


@kernel
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


@kernel
def try_turn(B: Any, S: Any, p: int, i: int) -> Any:
    """Let two apps of a pool choose in the other order where that costs less; returns what it saves."""
    before = full_penalty(B, S, p)
    swap_turn(S, i)
    after = full_penalty(B, S, p)
    if after < before:
        return before - after
    swap_turn(S, i)
    return 0.0


@kernel
def best_turns(B: Any, S: Any) -> Any:
    """Swap neighbours in the order in which apps choose as long as that pays; returns the objective."""
    for p in range(len(B.pool)):
        first, last = B.pool[p].app_first, B.pool[p].app_last
        saved = 1.0 if B.pool[p].capped else 0.0
        passes = 0
        while saved > 0.0 and passes < MOST_PASSES:
            saved = 0.0
            passes += 1
            for i in range(first, last - 1):
                saved += try_turn(B, S, p, i)
    return objective(B, S)


@kernel
def improve(B: Any, S: Any, rounds: int, best_spots: Any, K: Any) -> Any:
    """Ruin and recreate (Schrimpf et al. 2000) from the board as it stands, cooling; returns the best objective.

    ``best_spots`` gets the best placements seen.
    """
    n = len(B.job)
    log, todo, key = S.log, S.todo, S.key
    area, size = S.area[0], S.area[1]
    for j in range(n):
        for shape in range(B.job[j].shape_first, B.job[j].shape_last):
            area[j] = max(area[j], B.shape[shape].gpus * B.shape[shape].steps)
            size[j] = max(size[j], B.shape[shape].gpus)
    here = objective(B, S)
    best = here
    record(S, best_spots)
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
                saved = try_turn(B, S, p, B.pool[p].app_first + below(S.rng, apps - 1))
                if saved > 0.0:
                    adopt(B, S, p)
                    here += saved
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
            logged = eject(B, S, waiting, log, K.places, K.share)
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
        there = weigh(B, S, least)
        if there >= least:
            here = there
            for p in range(len(B.pool)):
                adopt(B, S, p)
            if here > best + STRICTLY * abs(best):
                # Names made anew may serve less than those that were kept: only what they reach counts.
                there = objective(B, S) if any_capped else here
                if there > best + STRICTLY * abs(best):
                    best = there
                    record(S, best_spots)
        else:
            undo(B, S, log, logged)
    return best


@entry
def allocate(
    B: Any,
    S: Any,
    orders: Any,
    starts: Any,
    charged: Any,
    rounds: int,
    K: Any,
    owners: Any,
    owner_at: Any,
) -> int:
    """Find the best plan from a number of starts and rounds.

    ``starts`` holds legal placements to start from, ``charged`` what the shortfall of the horizon costs in
    them with their own apps. ``S.spot`` gets the placements, ``owners`` the app on each GPU and step. Returns
    the index of a start that is worth more with its own apps than all that was found, or -1.
    """
    best = -np.inf
    any_capped = 0
    for p in range(len(B.pool)):
        any_capped = max(any_capped, B.pool[p].capped)
    own, own_best = -1, -np.inf
    for i in range(len(starts)):
        restore(B, S, starts[i])
        found = S.tally[0] - charged[i]
        for p in range(len(B.pool)):
            for t in range(B.steps, B.width):
                if B.step[p, t].wanted > 0:
                    found -= short_cost(B, p, t, S.used[p, t])
        if found > own_best:
            own, own_best = i, found
        found = objective(B, S)
        if found > best + STRICTLY * abs(best) or i == 0:
            best = found
            record(S, S.best)
    for i in range(len(orders)):
        for apart in range(1 + any_capped):
            found = construct(B, S, orders[i], START_FIT, apart == 1)
            if found > best + STRICTLY * abs(best):
                best = found
                record(S, S.best)
    restore(B, S, S.best)
    best = best_turns(B, S)
    record(S, S.best)
    if rounds > 0 and len(B.job) > 0:
        best = improve(B, S, rounds, S.best, K)
        restore(B, S, S.best)
    for p in range(len(B.pool)):
        if B.pool[p].app_last > B.pool[p].app_first:
            count_apps(B, S, p, NIL, NIL, NIL)
            plain = name(B, S, p, NO, S.none, NONE)
            settle(B, S, p)
            # What is kept over a dip may cost moves that a cap has not; then no dip is bridged.
            if name(B, S, p, NO, S.none, NONE) > plain:
                count_apps(B, S, p, NIL, NIL, NIL)
            name(B, S, p, NO, owners, owner_at[p])
    return own if own_best > best + 1e-9 * abs(best) else -1
