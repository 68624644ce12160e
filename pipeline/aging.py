"""How a priority changes from plan to plan: what waiting and shortness do to a priority."""

import numpy as np

from tidegrid.pipeline.policy import MOST_AGING, Policy

SHORTEST_H = 1.0 / 60.0
"""Jobs of less than a minute count as one of a minute."""


def raised(priority: np.ndarray, waited_days: np.ndarray, hours: np.ndarray, policy: Policy) -> np.ndarray:
    """Return the priorities to plan with: (priority + aging · days, at most ``MOST_AGING``) · hours ** -shortness.

    Parameters
    ----------
    priority, waited_days, hours : ndarray of shape (jobs,)
        Priorities as submitted, days since the first sight, and how long the jobs are planned to take.
    """
    gain = np.minimum(MOST_AGING, policy.aging * np.maximum(waited_days, 0.0))
    return (priority + gain) * np.maximum(hours, SHORTEST_H) ** -policy.shortness
