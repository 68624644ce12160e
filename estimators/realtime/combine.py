"""One forecast from many members: each weighed by how it did on the series' own past."""

import numpy as np

SHARPNESS = 4.0
"""Power with which a member's weight falls with its past loss."""

FADE = 0.97
"""Weight of an origin one day older."""


def past_errors(x: np.ndarray, known: np.ndarray, ends: np.ndarray, paths: np.ndarray) -> np.ndarray:
    """Return actual minus forecast at the past origins, NaN where the actual is unknown or still to come.

    Parameters
    ----------
    x, known : ndarray of shape (n,)
        The cleaned series, and which of its hours were measured.
    ends : ndarray of int, shape (origins,)
        The past origins.
    paths : ndarray of shape (..., origins, horizon)
        Forecasts from them.
    """
    horizon = paths.shape[-1]
    at = ends[:, None] + np.arange(horizon)[None, :]
    actual = np.full(at.shape, np.nan)
    inside = at < len(x)
    usable = inside & known[np.minimum(at, len(x) - 1)]
    actual[usable] = x[at[usable]]
    return actual - paths


def member_weights(errors: np.ndarray, leads: int) -> np.ndarray:
    """Return each member's weight, summing to one, from its errors at past origins.

    Parameters
    ----------
    errors : ndarray of shape (members, origins, horizon)
        Past errors; NaN is unknown.
    leads : int
        The leads that are judged: 1 … ``leads`` hours.
    """
    gone = np.abs(errors[:, :, :leads])
    fade = FADE ** np.arange(errors.shape[1])[::-1]
    seen = np.isfinite(gone)
    loss = np.where(seen, gone, 0.0).sum(axis=2) / np.maximum(seen.sum(axis=2), 1)
    mass = fade[None, :] * (seen.mean(axis=2) > 0)
    total = mass.sum(axis=1)
    usable = total > 0.5 * total.max() if total.size and total.max() > 0 else np.zeros(len(total), dtype=bool)
    weights = np.zeros(len(errors))
    if not usable.any():
        return weights
    mean = (loss * mass).sum(axis=1)[usable] / total[usable]
    best = float(mean.min())
    floor = max(best, 1e-12)
    weights[usable] = (np.maximum(mean, floor) / floor) ** -SHARPNESS
    return weights / weights.sum()


def weighted_median(paths: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weighted median over members, shape ``paths.shape[1:]``.

    The median is taken halfway along the steps of the weighted distribution, so that equal weights give the
    plain median and a small change of weight a small change of forecast.

    Parameters
    ----------
    paths : ndarray of shape (members, ...)
        Forecasts; a member with NaN anywhere is left out there.
    weights : ndarray of shape (members,)
        Non-negative.
    """
    shape = paths.shape[1:]
    flat = paths.reshape(len(paths), -1)
    w = np.where(np.isfinite(flat), weights[:, None], 0.0)
    order = np.argsort(np.where(w > 0, flat, np.inf), axis=0, kind="stable")
    values = np.take_along_axis(flat, order, axis=0)
    mass = np.take_along_axis(w, order, axis=0)
    total = mass.sum(axis=0)
    middle = np.cumsum(mass, axis=0) - 0.5 * mass
    half = 0.5 * total
    above = np.argmax(middle >= half[None, :] - 1e-15, axis=0)
    below = np.maximum(above - 1, 0)
    columns = np.arange(flat.shape[1])
    low_at, high_at = middle[below, columns], middle[above, columns]
    low, high = values[below, columns], values[above, columns]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(high_at > low_at, (half - low_at) / (high_at - low_at), 1.0)
        mixed = low + (high - low) * np.clip(share, 0.0, 1.0)
    return np.where(total > 0, mixed, np.nan).reshape(shape)
