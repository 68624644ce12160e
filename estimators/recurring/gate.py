"""How much each member of the mixture is believed: a softmax learnt from how well each has foretold the past."""

import numpy as np

from tidegrid.estimators.recurring.kernels import FACTS, MEMBERS

PENALTY = 1e-2
"""Ridge penalty on the distance from where the learning starts, per mean log density of a burst."""

BURST_GAP_S = 3600.0
"""Jobs of one recipe submitted with no longer gaps are one burst, and one piece of evidence."""


def _bursts(recipe: np.ndarray, submit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((submit, recipe))
    start = np.ones(len(order), dtype=bool)
    start[1:] = (recipe[order][1:] != recipe[order][:-1]) | (np.diff(submit[order]) > BURST_GAP_S)
    return order, np.cumsum(start) - 1


def burst_sizes(recipe: np.ndarray, submit: np.ndarray) -> np.ndarray:
    """Return how many jobs each row's burst has.

    Parameters
    ----------
    recipe : ndarray of uint64, shape (rows,)
        What makes two jobs the same.
    submit : ndarray of float64, shape (rows,)
        Instants of submission, seconds.
    """
    out = np.empty(len(recipe))
    if len(recipe):
        order, burst = _bursts(recipe, submit)
        out[order] = np.bincount(burst)[burst]
    return out


def thinned(recipe: np.ndarray, submit: np.ndarray) -> np.ndarray:
    """Return which rows stand for their bursts: the 1st, 4th, 9th … of each, the root of its jobs in number."""
    out = np.zeros(len(recipe), dtype=bool)
    if len(recipe):
        order, burst = _bursts(recipe, submit)
        first = np.concatenate([[0], np.flatnonzero(np.diff(burst)) + 1])
        place = np.arange(len(order)) - first[burst] + 1
        root = np.rint(np.sqrt(place))
        out[order] = root * root == place
    return out


def learn(density: np.ndarray, facts: np.ndarray, weight: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the scores' coefficients that make the past's outcomes likeliest, not far from ``start``.

    Parameters
    ----------
    density : ndarray of shape (rows, members + 1)
        Each member's smoothed density at the outcome.
    facts : ndarray of shape (rows, members + 1, FACTS)
        What the scores are linear in; all zero where a member recalls nothing.
    weight : ndarray of shape (rows,)
        How much a row counts.
    start : ndarray of shape (members + 1, FACTS)
        Where to start from, and what to stay near.
    """
    from scipy.optimize import minimize

    absent = facts[:, :, 0] == 0
    log_density = np.log(density + 1e-9)
    share = weight / weight.sum()

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta = flat.reshape(start.shape)
        score = np.einsum("rmf,mf->rm", facts, theta)
        score[absent] = -1e9
        score -= score.max(axis=1, keepdims=True)
        prior = np.exp(score)
        prior /= prior.sum(axis=1, keepdims=True)
        joint = np.log(prior + 1e-300) + log_density
        top = joint.max(axis=1, keepdims=True)
        posterior = np.exp(joint - top)
        total = posterior.sum(axis=1, keepdims=True)
        posterior /= total
        away = theta - start
        value = -float(((np.log(total) + top)[:, 0] * share).sum()) + PENALTY * float((away**2).sum())
        slope = np.einsum("rm,rmf->mf", (prior - posterior) * share[:, None], facts) + 2 * PENALTY * away
        return value, slope.ravel()

    found = minimize(loss, start.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": 60})
    return np.asarray(found.x).reshape(start.shape)


def even() -> np.ndarray:
    """Return coefficients that believe every member alike."""
    return np.zeros((len(MEMBERS) + 1, FACTS))


def shipped() -> np.ndarray:
    """Return the coefficients that answer before a site has enough jobs of its own."""
    return even()
