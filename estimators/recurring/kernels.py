"""Compiled loops: remember, mix what is remembered into one distribution, and describe it in numbers."""

import numpy as np
from numba import njit

FEATURES = ("count", "last", "second", "median3", "median5", "median", "mean", "spread", "since", "observed")
"""What describes a rung's memory to the trees; durations in log hours, ``since`` in log seconds."""


@njit(cache=True)
def absorb(values, flags, counts, last, slots, y, flag, t):  # type: ignore[no-untyped-def]
    """Add one finished job to the memory of each of its rungs."""
    for level in range(slots.shape[0]):
        s = slots[level]
        if s >= 0:
            at = counts[s] % values.shape[1]
            values[s, at] = y
            flags[s, at] = flag
            counts[s] += 1
            last[s] = t


@njit(cache=True)
def mixture(values, flags, counts, slots, concentration, decay, prior, floor, grid, out):  # type: ignore[no-untyped-def]
    """Write the quantiles of one row's predictive distribution at ``grid`` into ``out``; return the prior's weight.

    Each rung answers with its last durations, the newest weighing most; a rung of effective size n takes the share
    n / (n + c) of the weight that the finer rungs left, and the prior takes the rest: the backing off of a
    hierarchical Dirichlet process (Teh et al. 2006). Lower bounds pass their weight on to what lies above
    (Kaplan and Meier 1958, in its redistribute-to-the-right form of Efron 1967).
    """
    window = values.shape[1]
    levels = slots.shape[0]
    most = levels * window + prior.shape[0]
    x = np.empty(most)
    w = np.empty(most)
    seen = np.empty(most, dtype=np.int8)
    n = 0
    left = 1.0 - floor
    for level in range(levels):
        s = slots[level]
        if s < 0 or counts[s] == 0:
            continue
        m = min(counts[s], window)
        total = 0.0
        weight = 1.0
        for back in range(m):
            at = (counts[s] - 1 - back) % window
            x[n + back] = values[s, at]
            seen[n + back] = flags[s, at]
            w[n + back] = weight
            total += weight
            weight *= decay
        share = left * total / (total + concentration[level])
        for back in range(m):
            w[n + back] *= share / total
        left -= share
        n += m
    left += floor
    for i in range(prior.shape[0]):
        x[n] = prior[i]
        w[n] = left / prior.shape[0]
        seen[n] = 1
        n += 1
    order = np.argsort(x[:n], kind="mergesort")
    at_risk = 1.0
    survive = 1.0
    g = 0
    before_x = 0.0
    before_p = -1.0
    for k in range(n):
        i = order[k]
        mass = 0.0
        if seen[i] == 1 and at_risk > 1e-12:
            mass = survive * min(w[i] / at_risk, 1.0)
        at_risk -= w[i]
        if mass <= 0.0:
            continue
        middle = 1.0 - survive + 0.5 * mass
        survive -= mass
        while g < grid.shape[0] and grid[g] <= middle:
            if before_p < 0.0:
                out[g] = x[i]
            else:
                out[g] = before_x + (x[i] - before_x) * (grid[g] - before_p) / (middle - before_p)
            g += 1
        before_x = x[i]
        before_p = middle
    while g < grid.shape[0]:
        out[g] = before_x
        g += 1
    return left


@njit(cache=True)
def describe(values, flags, counts, last, slots, t, out):  # type: ignore[no-untyped-def]
    """Write the numbers of ``FEATURES`` for each rung into ``out``, NaN where the rung remembers nothing."""
    window = values.shape[1]
    width = 10
    recent = np.empty(window)
    for level in range(slots.shape[0]):
        base = level * width
        s = slots[level]
        if s < 0 or counts[s] == 0:
            for f in range(width):
                out[base + f] = np.nan
            out[base] = 0.0
            continue
        m = min(counts[s], window)
        total = 0.0
        square = 0.0
        true = 0.0
        for back in range(m):
            at = (counts[s] - 1 - back) % window
            v = values[s, at]
            recent[back] = v
            total += v
            square += v * v
            true += flags[s, at]
        out[base] = np.log1p(counts[s])
        out[base + 1] = recent[0]
        out[base + 2] = recent[1] if m > 1 else np.nan
        out[base + 3] = np.median(recent[: min(m, 3)])
        out[base + 4] = np.median(recent[: min(m, 5)])
        out[base + 5] = np.median(recent[:m])
        out[base + 6] = total / m
        out[base + 7] = np.sqrt(max(square / m - (total / m) ** 2, 0.0))
        out[base + 8] = np.log(max(t - last[s], 1.0))
        out[base + 9] = true / m


@njit(cache=True)
def sweep(  # type: ignore[no-untyped-def]
    values,
    flags,
    counts,
    last,
    event_slots,
    event_y,
    event_flag,
    event_t,
    query_slots,
    query_t,
    concentration,
    decay,
    prior,
    floor,
    grid,
    quantiles,
    numbers,
):
    """Answer queries in order of time, each from the events before it; the memory ends with every event in it.

    Events and queries are sorted by time. An event at a query's own instant is not yet known to it.
    """
    j = 0
    for i in range(query_t.shape[0]):
        while j < event_t.shape[0] and event_t[j] < query_t[i]:
            absorb(values, flags, counts, last, event_slots[j], event_y[j], event_flag[j], event_t[j])
            j += 1
        mixture(values, flags, counts, query_slots[i], concentration, decay, prior, floor, grid, quantiles[i])
        if numbers.shape[0] > 0:
            describe(values, flags, counts, last, query_slots[i], query_t[i], numbers[i])
    while j < event_t.shape[0]:
        absorb(values, flags, counts, last, event_slots[j], event_y[j], event_flag[j], event_t[j])
        j += 1
