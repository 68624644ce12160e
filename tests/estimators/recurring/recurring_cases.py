"""Made-up job histories that the recurring-job tests share."""

import numpy as np
import pandas as pd

START = pd.Timestamp("2026-03-02T00:00:00Z")


def history(rows: int = 600, seed: int = 0, users: int = 8) -> tuple[pd.DataFrame, pd.Series]:
    """Jobs of a few users, each with two recipes of their own duration."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, users, rows)
    recipe = rng.integers(0, 2, rows)
    centre = np.random.default_rng(7).normal(0.0, 1.5, (users, 2))
    X = pd.DataFrame(
        {
            "user": [f"u{u}" for u in user],
            "group": [f"g{u % 2}" for u in user],
            "name": [f"run{r}-{i}" for i, r in enumerate(recipe)],
            "gpus": np.where(recipe == 0, 1.0, 4.0),
            "requested_walltime_h": np.where(recipe == 0, 12.0, 48.0),
            "submit_time": START + pd.to_timedelta(np.sort(rng.uniform(0, 30 * 86400, rows)), unit="s"),
        }
    )
    return X, pd.Series(np.exp(centre[user, recipe] + rng.normal(0, 0.3, rows)), name="duration_h")


def jobs_of(
    user: str, hours: list[float], gpus: float = 2.0, group: str = "g"
) -> tuple[pd.DataFrame, pd.Series]:
    """Jobs of one user an hour apart, each known before the next is submitted where it is short enough."""
    X = pd.DataFrame(
        {
            "user": user,
            "group": group,
            "name": "",
            "gpus": gpus,
            "submit_time": START + pd.to_timedelta(np.arange(len(hours)), unit="h"),
        }
    )
    return X, pd.Series(hours, dtype=float)


def one(**fields: object) -> pd.DataFrame:
    """One job to predict, a month later."""
    return pd.DataFrame([{"user": "", "group": "", "name": "", "gpus": 2.0, **fields}]).assign(
        submit_time=START + pd.Timedelta(days=40)
    )
