"""Requests and made-up histories that the tests of the training predictor share."""

import numpy as np
import pandas as pd

from tidegrid.estimators.training import TrainingEstimator, variants

FIELDS = {
    "variant": "full_sft", "gpu_type": "A100-SXM-80GB", "precision": "bf16", "model_params_b": 7.0,
    "tokens_per_epoch_m": 100.0, "gpus": 8.0, "seq_len": 2048.0,
}  # fmt: skip


def request(**fields: object) -> pd.DataFrame:
    """One request; fields given replace the usual ones."""
    return pd.DataFrame([{**FIELDS, **fields}])


def requests(rows: int, seed: int = 0) -> pd.DataFrame:
    """Requests of every kind, with users, groups and names."""
    rng = np.random.default_rng(seed)
    return pd.DataFrame({
        "variant": rng.choice(variants.NAMES, rows),
        "gpu_type": rng.choice(["H100", "A100-SXM-80GB", "L40S"], rows),
        "precision": rng.choice(["bf16", "fp8"], rows),
        "model_params_b": np.exp(rng.uniform(0, 4, rows)),
        "tokens_per_epoch_m": np.exp(rng.uniform(1, 6, rows)),
        "epochs": rng.integers(1, 4, rows).astype(float),
        "gpus": rng.choice([1.0, 2.0, 4.0, 8.0, 16.0], rows),
        "seq_len": rng.choice([1024.0, 2048.0, 4096.0], rows),
        "global_batch": rng.choice([16.0, 32.0, 64.0], rows),
        "user": rng.choice(["ann", "bob", "cem"], rows),
        "group": rng.choice(["vision", "language"], rows),
        "name": [f"run-{i % 7}-{i}" for i in range(rows)],
    })  # fmt: skip


def history(
    rows: int, seed: int = 0, noise: float = 0.1, factor: float = 1.0
) -> tuple[pd.DataFrame, pd.Series]:
    """Requests and hours that differ from the prior by a factor and noise."""
    X = requests(rows, seed)
    rng = np.random.default_rng(seed + 1)
    hours = TrainingEstimator().predict(X).to_numpy() * factor * np.exp(rng.normal(0.0, noise, rows))
    return X, pd.Series(hours, index=X.index, name="duration_h")
