# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Exponential smoothing members, compiled: double-seasonal Holt–Winters with an AR(1) term, and damped
levels.

Each is fitted on a multi-step absolute loss: what is wanted is good forecasts one to two days ahead, and the
one-step loss that is usual picks smoothing that reacts far too fast for that.
"""

import numpy as np
from numba import njit

DAY = 24
WEEK = 168


@njit(cache=True, nogil=True)
def _start_states(x, weekly):
    """Return the level, the daily and the weekly pattern that the first two weeks show."""
    n = len(x)
    first = min(n, 2 * WEEK if n >= 2 * WEEK else max(DAY, (n // DAY) * DAY))
    level = 0.0
    for t in range(first):
        level += x[t]
    level /= first
    day = np.zeros(DAY)
    week = np.zeros(WEEK)
    count = np.zeros(DAY)
    for t in range(first):
        day[t % DAY] += x[t] - level
        count[t % DAY] += 1.0
    for s in range(DAY):
        # half an observation of "no pattern" keeps a single day from being taken at face value
        day[s] /= count[s] + 0.5
    if weekly and n >= 2 * WEEK:
        for t in range(first):
            week[t % WEEK] += (x[t] - level - day[t % DAY]) / (first / WEEK + 1.0)
    return level, day, week


@njit(cache=True, nogil=True)
def dshw_run(x, end, start, alpha, delta, omega, phi, level, day, week, stride, horizon, step):
    """Filter ``x[:end]`` in place of the states; return (level, last error, multi-step absolute loss).

    Taylor (2003), additive, in error-correction form: with e the error before the AR term, the level moves by
    alpha e, the daily pattern by delta e and the weekly one by omega e; the forecast k ahead adds phi**k e.
    The loss is taken at every ``stride``-th hour from ``start`` on, over the leads 1, 1 + step … ``horizon``.
    """
    e = 0.0
    loss = 0.0
    count = 0
    for t in range(end):
        i = t % DAY
        j = t % WEEK
        e = x[t] - level - day[i] - week[j]
        level += alpha * e
        day[i] += delta * e
        week[j] += omega * e
        if stride > 0 and t >= start and (end - 1 - t) % stride == 0:
            rest = phi * e
            k = 1
            fade = phi**step
            while k <= horizon and t + k < end:
                u = t + k
                loss += abs(x[u] - level - day[u % DAY] - week[u % WEEK] - rest)
                count += 1
                rest *= fade
                k += step
    return level, e, loss / max(count, 1)


@njit(cache=True, nogil=True)
def _unpack(p, weekly, out):
    """Map the real line to (0, 1) for each of the four parameters; the weekly one is 0 without a weekly pattern."""
    for i in range(4):
        out[i] = 1.0 / (1.0 + np.exp(-min(max(p[i], -12.0), 12.0)))
    if not weekly:
        out[2] = 0.0


@njit(cache=True, nogil=True)
def _dshw_loss(p, weekly, x, end, start, horizon, stride, step, level, day, week, q):
    _unpack(p, weekly, q)
    _, _, loss = dshw_run(
        x, end, start, q[0], q[1], q[2], q[3], level, day.copy(), week.copy(), stride, horizon, step
    )
    # a whisper of preference for slow seasons settles ties on short or constant histories
    return loss * (1.0 + 1e-3 * (q[1] + q[2]))


@njit(cache=True, nogil=True)
def dshw_fit(x, end, horizon, guess, budget, weekly):
    """Return the four smoothing parameters (logits) by Nelder–Mead from ``guess``, at most ``budget``
    losses."""
    level, day, week = _start_states(x[:end], weekly)
    start = min(WEEK, end // 2)
    stride = 7
    step = 3
    q = np.empty(4)
    simplex = np.empty((5, 4))
    value = np.empty(5)
    for i in range(5):
        simplex[i] = guess
        if i:
            simplex[i, i - 1] += 1.2
        value[i] = _dshw_loss(simplex[i], weekly, x, end, start, horizon, stride, step, level, day, week, q)
    used = 5
    while used < budget:
        order = np.argsort(value, kind="mergesort")
        simplex = simplex[order].copy()
        value = value[order].copy()
        if value[4] - value[0] <= 1e-4 * abs(value[0]):
            break
        centre = np.zeros(4)
        for i in range(4):
            centre += simplex[i] / 4.0
        trial = centre + (centre - simplex[4])
        got = _dshw_loss(trial, weekly, x, end, start, horizon, stride, step, level, day, week, q)
        used += 1
        if got < value[0]:
            further = centre + 2.0 * (centre - simplex[4])
            better = _dshw_loss(further, weekly, x, end, start, horizon, stride, step, level, day, week, q)
            used += 1
            if better < got:
                simplex[4] = further
                value[4] = better
            else:
                simplex[4] = trial
                value[4] = got
        elif got < value[3]:
            simplex[4] = trial
            value[4] = got
        else:
            inner = trial if got < value[4] else simplex[4]
            trial = centre + 0.5 * (inner - centre)
            better = _dshw_loss(trial, weekly, x, end, start, horizon, stride, step, level, day, week, q)
            used += 1
            if better < min(got, value[4]):
                simplex[4] = trial
                value[4] = better
            else:
                for i in range(1, 5):
                    simplex[i] = simplex[0] + 0.5 * (simplex[i] - simplex[0])
                    value[i] = _dshw_loss(
                        simplex[i], weekly, x, end, start, horizon, stride, step, level, day, week, q
                    )
                used += 4
    return simplex[np.argmin(value)]


@njit(cache=True, nogil=True)
def dshw_forecast(x, ends, horizon, p, weekly, out):
    """Write the forecasts from each of the ascending ``ends`` to ``out[origin, lead]``, filtering once."""
    q = np.empty(4)
    _unpack(p, weekly, q)
    level, day, week = _start_states(x[: ends[0]], weekly)
    e = 0.0
    t = 0
    for o in range(len(ends)):
        while t < ends[o]:
            i = t % DAY
            j = t % WEEK
            e = x[t] - level - day[i] - week[j]
            level += q[0] * e
            day[i] += q[1] * e
            week[j] += q[2] * e
            t += 1
        rest = e
        for k in range(horizon):
            rest *= q[3]
            u = t + k
            out[o, k] = level + day[u % DAY] + week[u % WEEK] + rest


LEVELS = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0])


@njit(cache=True, nogil=True)
def level_forecast(x, ends, horizon, out):
    """Simple exponential smoothing; one weight of LEVELS at each end.

    The weight is the one with the least multi-step absolute loss on what lies before the end.
    """
    m = len(LEVELS)
    level = np.full(m, x[0])
    loss = np.zeros(m)
    t = 0
    for o in range(len(ends)):
        while t < ends[o]:
            for i in range(m):
                level[i] += LEVELS[i] * (x[t] - level[i])
            # judged at leads of 6, 12, 18 and 24 hours, on what the past already shows
            if t >= DAY and t % 5 == 0 and t + DAY < ends[o]:
                for i in range(m):
                    loss[i] += abs(x[t + 6] - level[i]) + abs(x[t + 12] - level[i])
                    loss[i] += abs(x[t + 18] - level[i]) + abs(x[t + 24] - level[i])
            t += 1
        best = np.argmin(loss)
        for k in range(horizon):
            out[o, k] = level[best]
