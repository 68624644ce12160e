"""What clusters run today, as event simulations: FIFO, conservative backfill, EASY, by arrival, priority or length.

Events are arrivals and ends. Realtime keeps its peak reserved at the pool's far end; jobs get blocks of the contract
(contiguous, a power of two, inside a node or starting at one), the tightest that fits.
"""

from typing import Any

import numpy as np
from numba import njit

STRICT, EASY, CONSERVATIVE = 0, 1, 2
DEPTH = 200
"""Waiting jobs that conservative backfill holds reservations for; Slurm's default for ``bf_max_job_test`` is 500."""


@njit(cache=True)
def find_block(busy: Any, size: int, node: int) -> int:
    """Return the first GPU of the tightest free block, or -1.

    Blocks of at most a node are aligned to their size in the node with the fewest free GPUs, so that whole nodes
    stay free for wide jobs; wider ones start at a node.
    """
    total = len(busy)
    if size > node:
        run = 0
        for first in range(0, total - node + 1, node):
            whole = True
            for g in range(first, first + node):
                if busy[g]:
                    whole = False
                    break
            run = run + node if whole else 0
            if run >= size:
                return first + node - run
        return -1
    best, best_free = -1, node + 1
    for start in range(0, total, node):
        stop = min(start + node, total)
        free = 0
        for g in range(start, stop):
            free += not busy[g]
        if free < size or free >= best_free:
            continue
        for first in range(start, stop - size + 1, size):
            clear = True
            for g in range(first, first + size):
                if busy[g]:
                    clear = False
                    break
            if clear:
                best, best_free = first, free
                break
    return best


@njit(cache=True)
def _shadow(free_at: Any, size: int, node: int) -> Any:
    """Return when and where a block of ``size`` is expected to be free first, by its GPUs' expected ends."""
    total = len(free_at)
    best_at, best_first = np.inf, -1
    step = node if size > node else size
    for first in range(0, total - size + 1, step):
        if size <= node and first // node != (first + size - 1) // node:
            continue
        at = free_at[first]
        for g in range(first + 1, first + size):
            at = max(at, free_at[g])
            if at >= best_at:
                break
        if at < best_at:
            best_at, best_first = at, first
    return best_at, best_first


@njit(cache=True)
def _expected_end(start: float, estimate: float, now: float) -> float:
    """Return when a job is expected to end; one that has overrun is given half of its age again."""
    end = start + estimate
    return end if end > now else now + 60.0 + 0.5 * (now - start)


@njit(cache=True)
def _find_clear(busy: Any, size: int, node: int, low: int, high: int) -> int:
    """Return a free block that touches no GPU of ``low`` … ``high`` − 1, or -1."""
    kept = busy[low:high].copy()
    busy[low:high] = True
    first = find_block(busy, size, node)
    busy[low:high] = kept
    return first


@njit(cache=True)
def simulate(
    submit: Any,
    duration: Any,
    estimate: Any,
    size: Any,
    key: Any,
    capacity: int,
    node: int,
    mode: int,
    end: float,
) -> Any:
    """Play a trace against a queue.

    Parameters
    ----------
    submit, duration, estimate : ndarray of shape (jobs,)
        Seconds; submit times sorted. ``estimate`` is all that the queue sees of a duration.
    size
        Block sizes.
    key
        The queue's order, the smallest first.
    capacity
        GPUs that jobs may use, from GPU 0.
    node
        GPUs of a node.
    mode
        ``STRICT``: nobody passes the head. ``EASY``: the head has a reservation, others may pass where they do not
        delay it. ``CONSERVATIVE``: the first ``DEPTH`` have reservations by GPU counts.
    end
        Where the replay ends; infinity plays until all has run.

    Returns
    -------
    start : ndarray of shape (jobs,)
        Seconds; infinity for a job that did not start.
    first_gpu : ndarray of shape (jobs,)
        The first GPU of its block; -1 for a job that did not start.
    """
    n = len(submit)
    start = np.full(n, np.inf)
    busy = np.zeros(capacity, np.bool_)
    first_gpu = np.full(n, -1, np.int64)
    queue = np.empty(n, np.int64)
    waiting = 0
    running = np.empty(n, np.int64)
    active = 0
    arrived = 0
    free_at = np.zeros(capacity)
    while True:
        now = np.inf
        if arrived < n:
            now = submit[arrived]
        for k in range(active):
            j = running[k]
            now = min(now, start[j] + duration[j])
        if not now < end:
            break
        k = 0
        while k < active:
            j = running[k]
            if start[j] + duration[j] <= now:
                busy[first_gpu[j] : first_gpu[j] + size[j]] = False
                active -= 1
                running[k] = running[active]
            else:
                k += 1
        while arrived < n and submit[arrived] <= now:
            if size[arrived] <= capacity:
                at = waiting
                while at > 0 and key[queue[at - 1]] > key[arrived]:
                    queue[at] = queue[at - 1]
                    at -= 1
                queue[at] = arrived
                waiting += 1
            arrived += 1
        if waiting == 0:
            continue
        kept = 0
        head = -1
        shadow, low, high = np.inf, 0, 0
        smallest_stuck = capacity + 1
        if mode == CONSERVATIVE:
            times, counts, points = _profile(start, estimate, size, running, active, busy, now, 2 * DEPTH)
        for q in range(waiting):
            j = queue[q]
            first = -1
            if mode == STRICT:
                if head < 0:
                    first = find_block(busy, size[j], node)
                    if first < 0:
                        head = j
            elif mode == EASY:
                if head < 0:
                    first = find_block(busy, size[j], node)
                    if first < 0:
                        head = j
                        for g in range(capacity):
                            free_at[g] = now if not busy[g] else np.inf
                        for k in range(active):
                            r = running[k]
                            ends = _expected_end(start[r], estimate[r], now)
                            free_at[first_gpu[r] : first_gpu[r] + size[r]] = ends
                        shadow, low = _shadow(free_at, size[j], node)
                        high = low + size[j]
                        smallest_stuck = size[j]
                elif size[j] < smallest_stuck:
                    if now + estimate[j] <= shadow:
                        first = find_block(busy, size[j], node)
                        if first < 0:
                            smallest_stuck = size[j]
                    else:
                        first = _find_clear(busy, size[j], node, low, high)
            elif q < DEPTH:
                at = _earliest(times, counts, points, size[j], estimate[j])
                if at <= now:
                    first = find_block(busy, size[j], node)
                points = _reserve(times, counts, points, at, estimate[j], size[j])
            if first >= 0:
                start[j] = now
                first_gpu[j] = first
                busy[first : first + size[j]] = True
                running[active] = j
                active += 1
            else:
                queue[kept] = j
                kept += 1
        waiting = kept
    return start, first_gpu


@njit(cache=True)
def _profile(
    start: Any, estimate: Any, size: Any, running: Any, active: int, busy: Any, now: float, room: int
) -> Any:
    """Return the free GPUs over time as steps: times, counts from each time on, and how many steps there are."""
    ends = np.empty(active)
    for k in range(active):
        ends[k] = _expected_end(start[running[k]], estimate[running[k]], now)
    order = np.argsort(ends)
    times = np.empty(active + room + 2)
    counts = np.empty(active + room + 2, np.int64)
    free = 0
    for g in range(len(busy)):
        free += not busy[g]
    times[0], counts[0] = now, free
    points = 1
    for k in order:
        free += size[running[k]]
        if ends[k] == times[points - 1]:
            counts[points - 1] = free
        else:
            times[points], counts[points] = ends[k], free
            points += 1
    return times, counts, points


@njit(cache=True)
def _earliest(times: Any, counts: Any, points: int, size: int, estimate: float) -> float:
    begin = 0
    while begin < points:
        ok = True
        k = begin
        while k < points and times[k] < times[begin] + estimate:
            if counts[k] < size:
                ok = False
                break
            k += 1
        if ok:
            return times[begin]
        begin = k + 1
    return times[points - 1]


@njit(cache=True)
def _split(times: Any, counts: Any, points: int, at: float) -> int:
    k = points
    while k > 0 and times[k - 1] > at:
        k -= 1
    if k > 0 and times[k - 1] == at:
        return points
    for i in range(points, k, -1):
        times[i], counts[i] = times[i - 1], counts[i - 1]
    times[k] = at
    counts[k] = counts[k - 1]
    return points + 1


@njit(cache=True)
def _reserve(times: Any, counts: Any, points: int, at: float, estimate: float, size: int) -> int:
    if points + 2 > len(times):
        return points
    points = _split(times, counts, points, at)
    points = _split(times, counts, points, at + estimate)
    for k in range(points):
        if at <= times[k] < at + estimate:
            counts[k] -= size
    return points
