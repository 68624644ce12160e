"""Compiled loops: remember, recall, weigh what is recalled into one distribution, and describe it to the trees."""
# ruff: noqa: D103
# mypy: disable-error-code="no-untyped-def"

import numpy as np
from numba import njit

from tidegrid.estimators.recurring.keys import COLUMNS, FIRST_ONCE, FIRST_RATIO, RUNGS

MEMBERS = (
    *(
        (0, 0.6),
        (0, 0.9),
        (0, 1.0),
        (1, 0.6),
        (1, 0.9),
        (2, 0.6),
        (2, 0.9),
        (2, 1.0),
        (3, 0.6),
        (3, 0.9),
        (3, 1.0),
    ),
    *((4, 0.9), (5, 0.9), (5, 1.0), (6, 0.9), (6, 1.0), (7, 0.9), (8, 1.0), (9, 0.9), (10, 1.0)),
)
"""The members of the mixture: (column, weight of each older job against the next newer one)."""

COLUMN = np.array([column for column, _ in MEMBERS], dtype=np.int64)
DECAY = np.array([decay for _, decay in MEMBERS])

FACTS = 9
"""What decides a member's weight: 1, log jobs, spread, time since the newest, distance of the newest from the mean,
whether the recipe is new, open jobs of the user and of the recipe, time since the user's last submission."""

GRACE = 0.02
"""What a job may run past its walltime, in log time: schedulers need a moment to end it."""

FRESH_S = 1800.0
"""Seconds of silence after which a recipe counts once more in the once-a-recipe columns."""

NARROW, WIDE, TAIL = 0.12, 0.9, 0.3
"""Widths of the two-sided exponential kernel in log time, and the weight of the wide one."""

LOW, BINS, BIN = -9.0, 950, 0.02
"""The grid of log hours on which the mixture is summed: from 0.4 seconds to 22,000 hours in steps of 2 %."""

_RUNGS, _COLUMNS, _ONCE, _RATIO, _MEMBERS = len(RUNGS), len(COLUMNS), FIRST_ONCE, FIRST_RATIO, len(MEMBERS)
BY_RUNG = 6
"""How many numbers describe a rung to the trees."""

NUMBERS = 2 * _MEMBERS + BY_RUNG * _RUNGS
"""How many numbers describe a row to the trees: mean and spread of each member, then newest, count, time since,
open jobs, time since the last submission and age of the open ones for each rung."""


@njit(cache=True)
def remember(values, flags, counts, last, slots, y, log_limit, flag, t):
    recipe = slots[0] if slots[0] >= 0 else slots[2]
    fresh = recipe < 0 or counts[recipe] == 0 or t - last[recipe] > FRESH_S
    window = values.shape[1]
    for column in range(_COLUMNS):
        s = slots[column]
        if s < 0 or (not fresh and (column == _ONCE or column == _ONCE + 1 or column == _COLUMNS - 1)):
            continue
        at = counts[s] % window
        values[s, at] = y - log_limit if column >= _RATIO else y
        flags[s, at] = flag
        counts[s] += 1
        last[s] = t


@njit(cache=True)
def submit(submits, submitted, slots, t):
    for rung in range(_RUNGS):
        s = slots[rung]
        if s >= 0:
            submits[s, submitted[s] % submits.shape[1]] = t
            submitted[s] += 1


@njit(cache=True)
def _redistribute(x, w, seen, m):
    # Kaplan and Meier (1958) as Efron (1967) has it: a lower bound hands its weight to the values above it
    order = np.argsort(x[:m], kind="mergesort")
    for k in range(m):
        i = order[k]
        if seen[i] == 1 or w[i] == 0.0:
            continue
        above = 0.0
        for j in range(k + 1, m):
            above += w[order[j]]
        if above > 0.0:
            for j in range(k + 1, m):
                w[order[j]] *= 1.0 + w[i] / above
            w[i] = 0.0
        else:
            # nothing above: the truth lies somewhere beyond, half as long again
            x[i] += 0.4


@njit(cache=True)
def recall(
    values, flags, counts, last, submits, submitted, own, hold, slots, t, log_limit, x, w, used, facts
):
    """Fill in each member's values, weights (summing to 1), how many, and its facts; 0 values for none.

    ``own`` is 1 where the row itself is among the submissions, and must not count as another; ``hold`` is 1 where jobs
    end at the walltime that they asked for, so that no past job foretells more.
    """
    window = values.shape[1]
    keep = submits.shape[1]
    recipe, user = slots[0], slots[3]
    new = 1.0 if recipe == -1 or (recipe >= 0 and counts[recipe] == 0) else 0.0
    open_user = np.log1p(max(submitted[user] - counts[user] - own, 0)) / 3 if user >= 0 else 0.0
    open_recipe = np.log1p(max(submitted[recipe] - counts[recipe] - own, 0)) / 3 if recipe >= 0 else 0.0
    idle = 1.5
    if user >= 0 and submitted[user] > own:
        idle = min(np.log(max(t - submits[user, (submitted[user] - 1 - own) % keep], 1.0)), 15.0) / 10
    seen = np.empty(window, dtype=np.int8)
    cap = log_limit + GRACE if hold == 1 else np.inf
    for member in range(_MEMBERS):
        column = COLUMN[member]
        s = slots[column]
        used[member] = 0
        if s < 0 or counts[s] == 0:
            continue
        shift = log_limit if column >= _RATIO else 0.0
        m = min(counts[s], window)
        total = 0.0
        weight = 1.0
        mean = 0.0
        square = 0.0
        whole = True
        n = 0
        for back in range(m):
            at = (counts[s] - 1 - back) % window
            v = min(values[s, at] + shift, cap)
            x[member, back] = v
            w[member, back] = weight
            seen[back] = flags[s, at]
            whole = whole and flags[s, at] == 1
            total += weight
            mean += weight * v
            square += weight * v * v
            weight *= DECAY[member]
            n += 1
            if weight < 1e-3:
                break
        mean /= total
        for back in range(n):
            w[member, back] /= total
        if not whole:
            _redistribute(x[member], w[member], seen, n)
        used[member] = n
        spread = np.sqrt(max(square / total - mean * mean, 0.0))
        facts[member, 0] = 1.0
        facts[member, 1] = np.log1p(counts[s]) / 3
        facts[member, 2] = spread / 2
        facts[member, 3] = np.log(max(t - last[s], 1.0)) / 10
        facts[member, 4] = abs(x[member, 0] - mean) / 2
        facts[member, 5] = new
        facts[member, 6] = open_user
        facts[member, 7] = open_recipe
        facts[member, 8] = idle


@njit(cache=True)
def density(x, w, n, y, flag):
    """Return a member's smoothed density at y, or its share above y where y is a lower bound."""
    out = 0.0
    for i in range(n):
        e = y - x[i]
        a = abs(e)
        if flag == 1:
            narrow = np.exp(-a / NARROW) / (2 * NARROW)
            wide = np.exp(-a / WIDE) / (2 * WIDE)
        else:
            narrow = 0.5 * np.exp(-a / NARROW)
            wide = 0.5 * np.exp(-a / WIDE)
            if e < 0:
                narrow, wide = 1.0 - narrow, 1.0 - wide
        out += w[i] * ((1 - TAIL) * narrow + TAIL * wide)
    return out


@njit(cache=True)
def weigh(theta, used, facts, share):
    """Fill in the members' shares: a softmax of linear scores over those that recall anything; the prior is last."""
    top = theta[_MEMBERS, 0]
    for member in range(_MEMBERS):
        score = -1e9
        if used[member] > 0:
            score = 0.0
            for f in range(FACTS):
                score += theta[member, f] * facts[member, f]
        share[member] = score
        top = max(top, score)
    share[_MEMBERS] = theta[_MEMBERS, 0]
    total = 0.0
    for member in range(_MEMBERS + 1):
        share[member] = np.exp(share[member] - top)
        total += share[member]
    for member in range(_MEMBERS + 1):
        share[member] /= total


@njit(cache=True)
def _smooth(mass, scratch):
    # the members' kernel, as two recursive passes for each width: a two-sided exponential is one forward, one back
    for width in range(2):
        keep = np.exp(-BIN / (NARROW if width == 0 else WIDE))
        gain = (1.0 - keep) / (1.0 + keep)
        run = 0.0
        for b in range(BINS):
            run = run * keep + mass[b]
            scratch[width, b] = run
        run = 0.0
        for b in range(BINS - 1, -1, -1):
            scratch[width, b] = gain * (scratch[width, b] + run)
            run = (run + mass[b]) * keep
    total = 0.0
    for b in range(BINS):
        mass[b] = (1.0 - TAIL) * scratch[0, b] + TAIL * scratch[1, b]
        total += mass[b]
    for b in range(BINS):
        mass[b] /= total


@njit(cache=True)
def mix(x, w, used, share, prior, grid, mass, scratch, out):
    """Write the mixture's quantiles at ``grid`` into ``out``."""
    for b in range(BINS):
        mass[b] = share[_MEMBERS] * prior[b]
    for member in range(_MEMBERS):
        for i in range(used[member]):
            at = int((x[member, i] - LOW) / BIN)
            mass[min(max(at, 0), BINS - 1)] += share[member] * w[member, i]
    _smooth(mass, scratch)
    below = 0.0
    g = 0
    for b in range(BINS):
        after = below + mass[b]
        while g < grid.shape[0] and grid[g] <= after:
            inside = (grid[g] - below) / mass[b] if mass[b] > 0 else 0.5
            out[g] = LOW + BIN * (b + inside)
            g += 1
        below = after
    while g < grid.shape[0]:
        out[g] = LOW + BIN * BINS
        g += 1


@njit(cache=True)
def describe(counts, last, submits, submitted, own, slots, t, x, w, used, out):
    """Write what the trees are told of a row into ``out``, NaN where nothing is recalled."""
    keep = submits.shape[1]
    for member in range(_MEMBERS):
        out[2 * member] = np.nan
        out[2 * member + 1] = np.nan
        if used[member] > 0:
            mean = 0.0
            square = 0.0
            for i in range(used[member]):
                mean += w[member, i] * x[member, i]
                square += w[member, i] * x[member, i] ** 2
            out[2 * member] = mean
            out[2 * member + 1] = np.sqrt(max(square - mean * mean, 0.0))
    for rung in range(_RUNGS):
        base = 2 * _MEMBERS + BY_RUNG * rung
        for f in range(BY_RUNG):
            out[base + f] = np.nan
        s = slots[rung]
        if s == -1:
            # a key never seen is one of no jobs
            out[base + 1] = 0.0
            out[base + 3] = 0.0
        if s < 0:
            continue
        out[base + 1] = np.log1p(counts[s])
        if counts[s] > 0:
            out[base + 2] = np.log(max(t - last[s], 1.0))
        unfinished = max(submitted[s] - counts[s] - own, 0)
        out[base + 3] = unfinished
        if submitted[s] > own:
            out[base + 4] = np.log(max(t - submits[s, (submitted[s] - 1 - own) % keep], 1.0))
        if unfinished > 0:
            # jobs end in their order, about: the open ones are the newest, and this is the median one's age
            middle = min((min(unfinished, keep - own) + 1) // 2, keep - own)
            out[base + 5] = np.log(max(t - submits[s, (submitted[s] - middle - own) % keep], 1.0))
    for member in range(_MEMBERS):
        rung = COLUMN[member]
        if rung < _RUNGS and used[member] > 0:
            out[2 * _MEMBERS + BY_RUNG * rung] = x[member, 0]


@njit(cache=True)
def sweep(
    values,
    flags,
    counts,
    last,
    submits,
    submitted,
    event_slots,
    event_y,
    event_limit,
    event_flag,
    event_t,
    submit_slots,
    submit_t,
    own,
    hold,
    query_slots,
    query_y,
    query_limit,
    query_flag,
    query_t,
    theta,
    prior,
    prior_density,
    grid,
    density_out,
    facts_out,
    quantiles_out,
    numbers_out,
):
    """Answer queries in order of time, each from the events before it; the memory ends with every event in it.

    Events (jobs that become known), submissions and queries are each sorted by time. An event at a query's own instant
    is not yet known to it; submissions at that instant are, an array's jobs see one another. Outputs with no rows are
    not computed.
    """
    x = np.empty((_MEMBERS, values.shape[1]))
    w = np.empty((_MEMBERS, values.shape[1]))
    used = np.zeros(_MEMBERS, dtype=np.int64)
    facts = np.zeros((_MEMBERS, FACTS))
    share = np.empty(_MEMBERS + 1)
    mass = np.empty(BINS)
    scratch = np.empty((2, BINS))
    j = 0
    k = 0
    for i in range(query_t.shape[0]):
        t = query_t[i]
        while j < event_t.shape[0] and event_t[j] < t:
            remember(
                values,
                flags,
                counts,
                last,
                event_slots[j],
                event_y[j],
                event_limit[j],
                event_flag[j],
                event_t[j],
            )
            j += 1
        while k < submit_t.shape[0] and submit_t[k] <= t:
            submit(submits, submitted, submit_slots[k], submit_t[k])
            k += 1
        slots = query_slots[i]
        recall(
            values,
            flags,
            counts,
            last,
            submits,
            submitted,
            own,
            hold,
            slots,
            t,
            query_limit[i],
            x,
            w,
            used,
            facts,
        )
        if density_out.shape[0] > 0:
            for member in range(_MEMBERS):
                density_out[i, member] = density(
                    x[member], w[member], used[member], query_y[i], query_flag[i]
                )
                for f in range(FACTS):
                    facts_out[i, member, f] = facts[member, f] if used[member] > 0 else 0.0
            density_out[i, _MEMBERS] = prior_density[i]
            facts_out[i, _MEMBERS, 0] = 1.0
        if quantiles_out.shape[0] > 0:
            weigh(theta, used, facts, share)
            mix(x, w, used, share, prior, grid, mass, scratch, quantiles_out[i])
        if numbers_out.shape[0] > 0:
            describe(counts, last, submits, submitted, own, slots, t, x, w, used, numbers_out[i])
    while j < event_t.shape[0]:
        remember(
            values, flags, counts, last, event_slots[j], event_y[j], event_limit[j], event_flag[j], event_t[j]
        )
        j += 1
    while k < submit_t.shape[0]:
        submit(submits, submitted, submit_slots[k], submit_t[k])
        k += 1
