"""The search's board state: jobs put on it and taken off, and what the apps' shortfall then costs."""

from typing import Any, NamedTuple

import numpy as np

from tidegrid.scheduler.fast.bits import ZERO, inlined, kernel, ones, span

NO_LIMIT = 1 << 60
EXACT, APART, GUESS = 0, 1, 2  # jobs know what capped apps lose, keep off their cells, or know no caps
MOST_RUINED = 24  # jobs that one round may take off
MOST_TRIED = 12  # waiting jobs that one round may try besides


class Knobs(NamedTuple):
    """Settings of the search, found on random problems of 8–16 GPUs and 10–24 jobs and on zero-waste boards."""

    heat: float = 0.1  # first temperature, as a share of a placed job's mean reward
    cooling: float = 2.0  # power with which the temperature falls
    blink: float = 0.07  # chance that a repair passes over a start
    noise: float = 0.2  # of the order in which jobs are put back
    tries: int = 6  # waiting jobs that a round tries to fit in
    eject: float = 0.15  # chance that a round puts a waiting job in others' place
    near: float = 0.7  # … or else takes off jobs near each other, up to this chance, or else any
    most_near: int = 8
    most_any: int = 6
    ruin_least: int = (
        3  # jobs taken off: at least, a random number besides, and of it a share of those placed
    )
    ruin_more: int = 2
    ruin_share: float = 0.5
    reach: int = 6  # GPUs and steps around a job that count as near
    places: int = 6  # places that a waiting job looks at
    share: float = 0.25  # how much of a displaced job's reward counts as lost
    chain: float = 0.5  # chance that it takes off too what comes later on the same GPUs
    wide: float = (
        0.15  # chance that a round looks at all steps for the jobs that waited, not at the ruined ones
    )
    apart: float = 0.1  # chance that a round keeps jobs off the cells of capped apps
    guess: float = 0.8  # … or else prices their shortfall without caps, up to this chance


class State(NamedTuple):
    """What changes while the search runs, and its working memory."""

    free: np.ndarray  # flat sets: GPUs free of jobs, by pool and step
    used: np.ndarray  # (P, width) GPUs that jobs use
    spot: np.ndarray  # (N, 3) shape (-1: not placed), start, first GPU
    tally: np.ndarray  # (1 + P) tilted reward; what the shortfall of each pool costs, counting GPUs
    rng: np.ndarray  # (1) state of the generator
    window: np.ndarray  # flat sets that stay free, by start
    hit: np.ndarray  # (most words) held GPUs that jobs take
    sums: np.ndarray  # (width + 1) added penalty before a step
    line: np.ndarray  # (3, steps) room, most GPUs, ceilings before a trial
    best: np.ndarray  # (N, 3) best placements so far
    log: np.ndarray  # (…, 4) jobs that a round has touched, and where they were
    todo: np.ndarray  # jobs to insert
    key: np.ndarray  # what they are sorted by
    area: np.ndarray  # (2, N) largest area and block of each job
    count: np.ndarray  # (A, steps) GPUs that each app is to hold
    hand: np.ndarray  # (2, A) GPUs that each app holds, and has left, in the step at hand
    turn: np.ndarray  # (A) apps of a pool in the order in which they choose
    best_turn: np.ndarray  # (A) the same for the best placements
    tight: np.ndarray  # (A) apps of a pool from the smallest cap up
    ceil: np.ndarray  # (A, steps) GPUs that each app may hold at most, so that others get theirs
    best_ceil: np.ndarray  # (A, steps) the same for the best placements
    old_ceil: np.ndarray  # (A, steps) the same before a change is tried
    words: np.ndarray  # (1) words of the largest set
    hold: np.ndarray  # flat sets: GPUs that each app holds in the step at hand
    run: np.ndarray  # (most words)
    gone: np.ndarray  # (most words)
    cells: np.ndarray  # flat sets like ``free``: GPUs that apps hold in the plan at hand, where caps matter
    kept: np.ndarray  # (P, steps) how many they are
    trial: np.ndarray  # the same for the plan that is being tried
    named: np.ndarray  # (2, P) what the shortfall of each pool costs with these GPUs: at hand, tried
    apart: np.ndarray  # (2) how jobs heed capped apps; whether one has taken a cell of theirs
    none: np.ndarray  # (1) where nothing is written


def new_state(board: Any, seed: int) -> State:
    """Make the state of an empty board."""
    most_words = int(board.pool["words"].max())
    steps, width, apps = board.steps, board.width, len(board.app)
    of_pool = board.pool["app_last"] - board.pool["app_first"]
    return State(
        free=board.base.copy(),
        used=board.step["base_used"].copy(),
        spot=np.full((len(board.job), 3), -1, np.int64),
        tally=np.zeros(1 + len(board.pool), np.float64),
        rng=np.array([(seed * 2654435761 + 88172645463325252) & 0xFFFFFFFFFFFFFFFF or 1], np.uint64),
        window=np.empty(steps * most_words, np.uint64),
        hit=np.empty(most_words, np.uint64),
        sums=np.zeros(width + 1, np.float64),
        line=np.zeros((3, steps), np.int64),
        best=np.full((len(board.job), 3), -1, np.int64),
        log=np.zeros((MOST_RUINED + MOST_TRIED + 2, 4), np.int64),
        todo=np.zeros(MOST_RUINED + MOST_TRIED + 2, np.int64),
        key=np.zeros(MOST_RUINED + MOST_TRIED + 2, np.float64),
        area=np.zeros((2, len(board.job)), np.float64),
        count=np.zeros((apps, steps), np.int64),
        hand=np.zeros((2, apps), np.int64),
        turn=np.arange(apps),
        best_turn=np.arange(apps),
        tight=np.lexsort((board.app["cap"], np.repeat(np.arange(len(board.pool)), of_pool))),
        ceil=np.full((apps, steps), NO_LIMIT),
        best_ceil=np.full((apps, steps), NO_LIMIT),
        old_ceil=np.full((apps, steps), NO_LIMIT),
        words=np.array([most_words], np.int64),
        hold=np.zeros(apps * most_words, np.uint64),
        run=np.empty(most_words, np.uint64),
        gone=np.empty(most_words, np.uint64),
        cells=np.zeros(len(board.base), np.uint64),
        kept=np.zeros((len(board.pool), steps), np.int64),
        trial=np.zeros(len(board.base), np.uint64),
        named=np.zeros((2, len(board.pool)), np.float64),
        apart=np.zeros(2, np.int64),
        none=np.zeros(1, np.int32),
    )


@inlined
def uniform(rng: Any) -> Any:
    """Next number in [0, 1) of a 64-bit xorshift* generator (Vigna 2016, An experimental exploration)."""
    x = rng[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    rng[0] = x
    return np.float64((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@inlined
def below(rng: Any, n: int) -> Any:
    """Next whole number from 0 to n - 1."""
    return min(np.int64(uniform(rng) * n), n - 1)


@inlined
def worth(B: Any, j: int, shape: int, start: int) -> Any:
    """Tilted reward of a job in a shape from a start."""
    end = min(start + B.shape[shape].steps, B.steps)
    return B.job[j].value * B.shape[shape].gpus * (B.before[end] - B.before[start])


@inlined
def put(B: Any, S: Any, j: int, shape: int, start: int, first: int) -> None:
    """Place a job."""
    p = B.shape[shape].pool
    size = B.shape[shape].gpus
    words = B.pool[p].words
    end = start + B.shape[shape].steps
    inside = min(end, B.steps)
    for k in range(first >> 6, ((first + size - 1) >> 6) + 1):
        bits = span(k, first, size)
        taken = ZERO
        for t in range(start, inside):
            S.free[B.pool[p].row + t * words + k] &= ~bits
            taken |= S.cells[B.pool[p].row + t * words + k]
        if taken & bits != ZERO:
            S.apart[1] = 1
    for t in range(start, min(end, B.width)):
        S.used[p, t] += size
    S.spot[j, 0] = shape
    S.spot[j, 1] = start
    S.spot[j, 2] = first
    S.tally[0] += worth(B, j, shape, start)


@inlined
def lift(B: Any, S: Any, j: int) -> None:
    """Take a placed job off the board."""
    shape, start, first = S.spot[j, 0], S.spot[j, 1], S.spot[j, 2]
    p = B.shape[shape].pool
    size = B.shape[shape].gpus
    words = B.pool[p].words
    end = start + B.shape[shape].steps
    inside = min(end, B.steps)
    for k in range(first >> 6, ((first + size - 1) >> 6) + 1):
        bits = span(k, first, size)
        for t in range(start, inside):
            S.free[B.pool[p].row + t * words + k] |= bits
    for t in range(start, min(end, B.width)):
        S.used[p, t] -= size
    S.spot[j, 0] = -1
    S.tally[0] -= worth(B, j, shape, start)


@kernel
def clear(B: Any, S: Any) -> None:
    """Take every job off."""
    for i in range(len(B.base)):
        S.free[i] = B.base[i]
    for p in range(len(B.pool)):
        for t in range(B.width):
            S.used[p, t] = B.step[p, t].base_used
    for j in range(len(S.spot)):
        S.spot[j, 0] = -1
    S.tally[0] = 0.0


@inlined
def contact(
    free: Any, at: int, words: int, gpus: int, steps: int, size: int, start: int, length: int, first: int
) -> Any:
    """Part of a block's outline that touches other blocks or the board's edge, from 0 to 1."""
    end = min(start + length, steps)
    touched = 0
    if first == 0:
        touched += end - start
    else:
        k = (first - 1) >> 6
        bit = np.uint64((first - 1) & 63)
        for t in range(start, end):
            touched += 1 - np.int64((free[at + t * words + k] >> bit) & np.uint64(1))
    if first + size == gpus:
        touched += end - start
    else:
        k = (first + size) >> 6
        bit = np.uint64((first + size) & 63)
        for t in range(start, end):
            touched += 1 - np.int64((free[at + t * words + k] >> bit) & np.uint64(1))
    for k in range(first >> 6, ((first + size - 1) >> 6) + 1):
        bits = span(k, first, size)
        if start == 0:
            touched += np.int64(ones(bits))
        else:
            touched += np.int64(ones(bits & ~free[at + (start - 1) * words + k]))
        if end == steps:
            touched += np.int64(ones(bits))
        else:
            touched += np.int64(ones(bits & ~free[at + end * words + k]))
    return touched / (2.0 * (end - start) + 2.0 * size)


@inlined
def short_cost(B: Any, p: int, t: int, used: int) -> Any:
    """Penalty of a pool in a step where jobs use so many GPUs and apps may take all the others."""
    return B.cost[B.step[p, t].cost_at + max(0, B.step[p, t].wanted - (B.pool[p].gpus - used))]


@inlined
def follow(B: Any, S: Any, a: int) -> Any:
    """Choose how many GPUs an app holds in each step from the room left; returns what its shortfall costs."""
    T = B.steps
    cap = B.app[a].cap
    most, count = S.line[1], S.count
    before = B.app[a].held_count
    for t in range(T):
        kept = max(0, B.app[a].held_count - cap * (t + 1))
        S.line[0, t] += kept
        before = min(S.line[0, t], max(kept, S.ceil[a, t]), before + cap)
        most[t] = before
    total = 0.0
    above = NO_LIMIT
    need = 0
    for t in range(T - 1, -1, -1):
        if most[t] > above:
            most[t] = above
        above = most[t] + cap
        wanted = B.demand[a, t]
        if wanted > most[t]:
            total += B.app[a].price * B.weight[t] * (wanted - most[t])
            wanted = most[t]
        need = max(wanted, need - cap)
        count[a, t] = need
    before = B.app[a].held_count
    for t in range(T):
        count[a, t] = max(count[a, t], before - cap)
        before = count[a, t]
        S.line[0, t] -= before
    return total


@inlined
def count_apps(B: Any, S: Any, p: int, start: int, end: int, size: int) -> Any:
    """Choose in ``S.count`` how many GPUs each app holds; returns what the shortfall in the horizon costs.

    Each app, highest priority first, gets the largest count that its cap allows: the upper Lipschitz
    envelope of the room that is left; then no more of it is kept than what is served needs.
    """
    T = B.steps
    total = 0.0
    for t in range(T):
        extra = size if start <= t and t < end else 0
        S.line[0, t] = B.pool[p].gpus - S.used[p, t] - extra
    for a in range(B.pool[p].app_first, B.pool[p].app_last):
        for t in range(T):
            kept = B.app[a].held_count - B.app[a].cap * (t + 1)
            if kept <= 0:
                break
            S.line[0, t] -= kept
    for i in range(B.pool[p].app_first, B.pool[p].app_last):
        total += follow(B, S, S.turn[i])
    return total


@kernel
def pool_penalty(B: Any, S: Any, p: int, start: int, end: int, size: int) -> Any:
    """Penalty of a pool, counting GPUs, if a block of ``size`` were added from ``start`` to ``end``.

    Without caps each step stands alone, and so does each step past the horizon.
    """
    total = 0.0
    for t in range(B.steps if B.pool[p].capped else 0, B.width):
        if B.step[p, t].wanted > 0:
            extra = size if start <= t and t < end else 0
            total += short_cost(B, p, t, S.used[p, t] + extra)
    if B.pool[p].capped:
        total += count_apps(B, S, p, start, end, size)
    return total


@kernel
def record(S: Any, spot: Any) -> None:
    """Note the placements."""
    for j in range(len(spot)):
        for k in range(3):
            spot[j, k] = S.spot[j, k]
    for i in range(len(S.turn)):
        S.best_turn[i] = S.turn[i]
        for t in range(S.ceil.shape[1]):
            S.best_ceil[i, t] = S.ceil[i, t]
