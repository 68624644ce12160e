"""Made-up traffic for the realtime tests: a weekly rhythm with noise, seeded."""

import numpy as np
import pandas as pd

from tidegrid.estimators.realtime import RealtimeEstimator

START = pd.Timestamp("2026-01-05", tz="UTC")
LEVELS = (0.025, 0.1, 0.5, 0.9, 0.975)


def weekly(hours: int, seed: int = 0, level: float = 1000.0, noise: float = 0.08) -> np.ndarray:
    """Traffic with a day, a quiet weekend and multiplicative noise."""
    rng = np.random.default_rng(seed)
    t = np.arange(hours)
    day = 1.0 + 0.6 * np.sin(2 * np.pi * (t % 24 - 9) / 24)
    weekend = np.where((t // 24) % 7 >= 5, 0.5, 1.0)
    return level * day * weekend * np.exp(noise * rng.standard_normal(hours))


def frame(
    values: np.ndarray, name: str = "chat", start: pd.Timestamp = START
) -> tuple[pd.DataFrame, pd.Series]:
    """History rows of one series."""
    ds = pd.date_range(start, periods=len(values), freq="h")
    return pd.DataFrame({"unique_id": name, "ds": ds}), pd.Series(values, dtype=float)


def ahead(hours: int, after: int, name: str = "chat", start: pd.Timestamp = START) -> pd.DataFrame:
    """Rows of the ``hours`` hours that follow a history of ``after`` hours."""
    ds = pd.date_range(start + pd.Timedelta(hours=after), periods=hours, freq="h")
    return pd.DataFrame({"unique_id": name, "ds": ds})


def forecast(values: np.ndarray, hours: int = 24, **parameters: object) -> pd.DataFrame:
    """Fit one series and forecast what follows."""
    estimator = RealtimeEstimator(**parameters).fit(*frame(values))
    return estimator.predict_quantiles(ahead(hours, len(values)), LEVELS)
