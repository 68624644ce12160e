# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Regression members, compiled: ridge autoregressions of seasonal differences, by squares or by absolute loss."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def _solve(d, start, end, lags, ridge, weight, row):
    """Return the weighted ridge coefficients of ``d`` on its lags and a constant, over the rows start … end."""
    p = len(lags)
    width = p + 1
    gram = np.zeros((width, width))
    moment = np.zeros(width)
    for t in range(start, end):
        for i in range(p):
            row[i] = d[t - lags[i]]
        row[p] = 1.0
        for i in range(width):
            wr = weight[t] * row[i]
            moment[i] += wr * d[t]
            for j in range(i + 1):
                gram[i, j] += wr * row[j]
    trace = 0.0
    for i in range(p):
        trace += gram[i, i]
    penalty = ridge * trace / p + 1e-9 * gram[p, p]
    for i in range(width):
        for j in range(i):
            gram[j, i] = gram[i, j]
        gram[i, i] += penalty if i < p else 1e-9 * gram[p, p]
    return np.linalg.solve(gram, moment)


@njit(cache=True, nogil=True)
def autoregression(x, base, lags, ridge, rounds, refits, ends, horizon, low, high, beta, out):
    """Autoregression of ``x[t] - x[t - base]`` on its own lags, carried forward one hour after another.

    Parameters
    ----------
    x : ndarray of shape (n,)
        The series, about unit scale.
    base : int
        The period of the difference, hours; 0 regresses the series itself.
    lags : ndarray of int
        Lags, ascending.
    ridge : float
        Penalty as a share of the mean diagonal of the Gram matrix.
    rounds : int
        1 for least squares; more for as many rounds of reweighting towards the least absolute loss, a row's weight
        being one over its last absolute residual (floored at 0.3 of the mean one).
    refits : ndarray of int
        Positions in ``ends`` at which the coefficients are learnt anew, ascending, the first 0; empty where ``beta``
        is to be used as it is.
    ends : ndarray of int
        Forecast origins, ascending; only ``x[:end]`` is used for each.
    low, high : float
        Bounds of what a forecast may be; recursion cannot run away past them.
    beta : ndarray of shape (len(lags) + 1,)
        Coefficients of the lags and the constant, NaN where there are none yet; receives the last ones.
    out : ndarray of shape (len(ends), horizon)
        Receives the forecasts; left NaN where the past is too short.
    """
    p = len(lags)
    width = p + 1
    start = base + lags[p - 1]
    n = len(x)
    d = np.zeros(n)
    for t in range(base, n):
        d[t] = x[t] - x[t - base] if base > 0 else x[t]
    row = np.empty(width)
    path = np.empty(n + horizon)
    diff = np.empty(n + horizon)
    next_fit = 0
    fitted = len(refits) == 0
    for o in range(len(ends)):
        end = ends[o]
        due = next_fit < len(refits) and refits[next_fit] == o
        if due:
            next_fit += 1
        if end - start < 2 * width or (fitted and np.isnan(beta[0])):
            continue
        if due or not fitted:
            fitted = True
            weight = np.ones(end)
            for turn in range(rounds):
                beta[:] = _solve(d, start, end, lags, ridge, weight, row)
                if turn == rounds - 1:
                    break
                total = 0.0
                for t in range(start, end):
                    e = d[t] - beta[p]
                    for i in range(p):
                        e -= beta[i] * d[t - lags[i]]
                    weight[t] = abs(e)
                    total += abs(e)
                floor = 0.3 * total / (end - start) + 1e-12
                for t in range(start, end):
                    weight[t] = 1.0 / max(weight[t], floor)
        for k in range(end):
            path[k] = x[k]
            diff[k] = d[k]
        for k in range(horizon):
            u = end + k
            back = path[u - base] if base > 0 else 0.0
            value = beta[p] + back
            for i in range(p):
                value += beta[i] * diff[u - lags[i]]
            value = min(max(value, low), high)
            path[u] = value
            diff[u] = value - back
            out[o, k] = value
