"""One forecast from many members: each weighed by how it did on the series' own past."""

import numpy as np

SHARPNESS = 3.0
"""Power with which a member's weight falls with its past loss."""

FADE = 0.97
"""Weight of an origin one day older."""

LEADS = (6, 24, 48, 169)
"""Upper ends of the groups of leads, hours, that have weights of their own."""

OWN_GROUP = 0.5
"""How far a group's weights follow the losses in the group rather than those over the first two days (in logs)."""


STEADY_LIFT = 16.0
STEADY_TURN = 12.0
"""Members without a rhythm count 1 + LIFT / (1 + r ** TURN) times, r being the least loss among them over the least
among the others: where a series has no rhythm, the many members that look for one must not outvote the few. Chosen on
the older weeks of instance counts, as far as no other file's older weeks lost 1 %."""


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


def member_weights(errors: np.ndarray, prior: np.ndarray, steady: np.ndarray) -> np.ndarray:
    """Return each member's weight in each group of LEADS, from its errors at past origins.

    Parameters
    ----------
    errors : ndarray of shape (members, origins, horizon)
        Past errors; NaN is unknown.
    prior : ndarray of shape (members,)
        Weights at equal loss.
    steady : ndarray of bool, shape (members,)
        Members that forecast one value for all leads.

    Returns
    -------
    ndarray of shape (groups, members)
        Each row sums to one, or is all 0 where nothing is known.
    """
    overall = _mean_losses(errors[:, :, : LEADS[2]])
    weights = np.zeros((len(LEADS), len(errors)))
    start = 0
    for g, stop in enumerate(LEADS):
        near = _mean_losses(errors[:, :, start:stop])
        start = stop
        # leads that no past origin has seen to the end are weighed by those that were
        near = np.where(np.isfinite(near).any(), near, overall)
        mixed = OWN_GROUP * np.log(near) + (1.0 - OWN_GROUP) * np.log(overall)
        usable = np.isfinite(mixed)
        if usable.any():
            w = np.where(usable, prior * np.exp(-SHARPNESS * (mixed - mixed[usable].min())), 0.0)
            if (usable & steady).any() and (usable & ~steady).any():
                apart = mixed[usable & steady].min() - mixed[usable & ~steady].min()
                w[steady] *= 1.0 + STEADY_LIFT / (1.0 + np.exp(np.clip(STEADY_TURN * apart, -50.0, 50.0)))
            weights[g] = w / w.sum()
    return weights


def _mean_losses(errors: np.ndarray) -> np.ndarray:
    """Return each member's faded mean absolute error, NaN for one that misses most of the origins others have."""
    seen = np.isfinite(errors)
    count = seen.sum(axis=2)
    loss = np.where(seen, np.abs(errors), 0.0).sum(axis=2) / np.maximum(count, 1)
    mass = (FADE ** np.arange(errors.shape[1])[::-1])[None, :] * (count > 0)
    total = mass.sum(axis=1)
    mean = (loss * mass).sum(axis=1) / np.maximum(total, 1e-300)
    good = (total > 0) & (total >= 0.5 * total.max(initial=0.0))
    # a member that was always right must not weigh infinitely more than one that nearly was
    return np.where(good, np.maximum(mean, 1e-9), np.nan)


def combine(paths: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weighted median of the members, group of leads by group, shape ``paths.shape[1:]``.

    Parameters
    ----------
    paths : ndarray of shape (members, ..., horizon)
        Forecasts.
    weights : ndarray of shape (groups, members)
        From :func:`member_weights`.
    """
    out = np.empty(paths.shape[1:])
    start = 0
    for g, stop in enumerate(LEADS):
        out[..., start:stop] = weighted_median(paths[..., start:stop], weights[g])
        start = stop
    return out


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
