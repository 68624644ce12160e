# mypy: disable-error-code="no-untyped-def, no-untyped-call"
"""Regression members, compiled: ridge autoregressions on seasonal differences."""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def ridge_forecast(x, base, lags, ridge, forget, ends, horizon, low, high, out):
    """Ridge autoregression of ``x - base`` on its own lags, refitted at each of the ascending ``ends``.

    ``base`` is what is subtracted before the regression and, past the end, added again: for a seasonal
    difference the value one period before (taken from the forecast itself where the horizon is longer),
    given here as the period ``base`` > 0. With ``base`` = 0 the series itself is regressed.

    Parameters
    ----------
    x : ndarray of shape (n,)
        The series, about unit scale.
    base : int
        The period of the difference, hours; 0 for none.
    lags : ndarray of int
        Lags, ascending.
    ridge : float
        Penalty as a share of the mean diagonal of the Gram matrix.
    forget : float
        Weight of a row one hour older: 1 keeps all alike.
    ends : ndarray of int
        Forecast origins, ascending; only ``x[:end]`` is used for each.
    low, high : float
        Bounds of what a forecast may be; recursion cannot run away past them.
    out : ndarray of shape (len(ends), horizon)
        Receives the forecasts; NaN where the past is too short.
    """
    p = len(lags)
    first = base + lags[p - 1]
    width = p + 1
    gram = np.zeros((width, width))
    moment = np.zeros(width)
    row = np.empty(width)
    n = len(x)
    d = np.zeros(n)
    for t in range(base, n):
        d[t] = x[t] - x[t - base] if base > 0 else x[t]
    path = np.empty(n + horizon)
    diff = np.empty(n + horizon)
    t = first
    weight = 1.0
    grow = 1.0 / forget
    for o in range(len(ends)):
        end = ends[o]
        while t < end:
            for i in range(p):
                row[i] = d[t - lags[i]]
            row[p] = 1.0
            for i in range(width):
                wr = weight * row[i]
                moment[i] += wr * d[t]
                for j in range(i + 1):
                    gram[i, j] += wr * row[j]
            weight *= grow
            t += 1
        if end - first < 2 * width:
            for k in range(horizon):
                out[o, k] = np.nan
            continue
        system = np.empty((width, width))
        trace = 0.0
        for i in range(p):
            trace += gram[i, i]
        penalty = ridge * trace / p + 1e-9 * gram[p, p]
        for i in range(width):
            for j in range(i + 1):
                system[i, j] = gram[i, j]
                system[j, i] = gram[i, j]
            system[i, i] += penalty if i < p else 1e-9 * gram[p, p]
        beta = np.linalg.solve(system, moment)
        for k in range(end):
            path[k] = x[k]
            diff[k] = d[k]
        for k in range(horizon):
            u = end + k
            step = beta[p]
            for i in range(p):
                step += beta[i] * diff[u - lags[i]]
            value = step + (path[u - base] if base > 0 else 0.0)
            value = min(max(value, low), high)
            path[u] = value
            diff[u] = value - (path[u - base] if base > 0 else 0.0)
            out[o, k] = value
