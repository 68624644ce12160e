"""Random effects: how far the times of a site (or of one set-up within it) lie from a prior, and how sure that is."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CENTRE_SD = 0.3
"""How far the shipped centre of a group may be off for the average site, in log time."""

PRIOR_SITES, PRIOR_ROWS = 20.0, 10.0
"""How many sites and rows the shipped spreads count for: published figures are few and kinder than users' own."""

FREEDOM = 4.0
"""Degrees of freedom of the log error at a site never seen: a handful of sources do not tell a heavy tail from a light
one. Each run of the site's own adds one."""


def student(levels: Sequence[float], rows: np.ndarray) -> np.ndarray:
    """Return Student's t quantiles, shape (rows, levels), for rows that rest on so many runs of their own site."""
    from scipy.stats import t

    own, code = np.unique(rows, return_inverse=True)
    return np.asarray(t.ppf(np.asarray(levels, dtype=float), FREEDOM + own[:, None]))[code]


@dataclass
class Effects:
    """Posterior of the log offset from the prior, by group (an algorithm, say) and site within it.

    The model is log(actual / prior) = centre + site + noise, normal at each level; its posterior is that of a
    one-way random-effects model with known variances (Gelman et al., Bayesian Data Analysis, section 5.4), the
    variances shrunk towards the shipped ones.

    Attributes
    ----------
    groups : dict
        For each group: centre, its variance, between and within variances, rows, and each site's offset and variance.
    """

    groups: dict[str, dict[str, Any]] = field(default_factory=dict)

    def learn(
        self,
        group: np.ndarray,
        site: np.ndarray,
        residual: np.ndarray,
        observed: np.ndarray,
        between: np.ndarray,
        within: np.ndarray,
    ) -> None:
        """Learn from log(actual / prior); a row that is not observed is a lower bound."""
        for name in sorted(set(group)):
            at = group == name
            self.groups[name] = _posterior(
                site[at], residual[at], observed[at], float(between[at][0]) ** 2, float(within[at][0]) ** 2
            )

    def answer(self, group: str, site: str, between: float, within: float) -> tuple[float, float, int]:
        """Return mean and variance of a new row's log offset, and how many rows of its own site it rests on."""
        known = self.groups.get(group)
        if known is None:
            return 0.0, between**2 + within**2, 0
        own = known["sites"].get(site)
        if own is None:
            return known["centre"], known["centre_var"] + known["between"] + known["within"], 0
        return own["offset"], own["var"] + known["within"], own["rows"]


def _posterior(
    site: np.ndarray, residual: np.ndarray, observed: np.ndarray, between: float, within: float
) -> dict[str, Any]:
    from scipy.stats import norm

    values = np.where(observed, residual, np.maximum(residual, 0.0))
    out: dict[str, Any] = {}
    # lower bounds stand for their conditional mean under the current fit (the E-step of Dempster et al. 1977)
    for _ in range(1 if observed.all() else 12):
        out = _complete(site, values, between, within)
        if observed.all():
            break
        for i in np.flatnonzero(~observed):
            own = out["sites"][site[i]]
            sd = np.sqrt(own["var"] + out["within"])
            z = (residual[i] - own["offset"]) / sd
            values[i] = max(residual[i], own["offset"] + sd * np.exp(norm.logpdf(z) - norm.logsf(z)))
    return out


def _complete(site: np.ndarray, values: np.ndarray, between: float, within: float) -> dict[str, Any]:
    names = sorted(set(site))
    counts = {s: int((site == s).sum()) for s in names}
    means = {s: float(values[site == s].mean()) for s in names}
    rows, sites = len(values), len(names)
    noise = sum(float(((values[site == s] - means[s]) ** 2).sum()) for s in names)
    within_now = (PRIOR_ROWS * within + noise) / (PRIOR_ROWS + rows - sites)
    weights = {s: 1.0 / (between + within_now / counts[s]) for s in names}
    precision = 1.0 / CENTRE_SD**2 + sum(weights.values())
    centre = sum(weights[s] * means[s] for s in names) / precision
    scatter = sum((means[s] - centre) ** 2 for s in names)
    between_now = between
    if sites > 1:
        between_now = (PRIOR_SITES * between + scatter) / (PRIOR_SITES + sites - 1)
    out: dict[str, Any] = {
        "centre": centre,
        "centre_var": 1.0 / precision,
        "between": between_now,
        "within": within_now,
        "sites": {},
    }
    for s in names:
        # how far the site's own mean is to be trusted against the centre
        trust = between_now / (between_now + within_now / counts[s])
        var = between_now * (1 - trust) + (1 - trust) ** 2 / precision
        offset = centre + trust * (means[s] - centre)
        out["sites"][s] = {"offset": offset, "var": var, "rows": counts[s]}
    return out
