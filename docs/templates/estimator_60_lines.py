"""An estimator with a formula, a prior for the first day, a parameter, and a say on what is possible at all.

The job reads ``images`` images and writes an embedding of each; a GPU does so many an hour, by its type.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.estimators import Feature
from tidegrid.estimators.simple import PointEstimator

IMAGES_AN_HOUR = {"H100": 900_000.0, "A100": 500_000.0}
"""What one GPU does in an hour; made up: your own figures go here, with their source."""


class Embedding(PointEstimator):
    """Hours of an embedding job: images over throughput, corrected by what past jobs took.

    ``scaling`` says how throughput grows with GPUs: 1 is linear.
    """

    name, kind = "embedding", "batch_inference"
    predicts_unfitted = True
    features = (
        Feature("images", "float", "images", low=1, required=True, doc="images to embed"),
        Feature("gpus", "int", "GPUs", low=1, high=64, default=1, doc="GPUs of the job"),
        Feature("gpu_type", "text", doc="what GPU it is; an unknown one counts as the slowest known"),
        Feature("precision", "category", categories=("fp16", "fp32"), default="fp16", doc="number format"),
    )

    def __init__(self, scaling: float = 0.95) -> None:
        self.scaling = scaling

    def prior(self) -> Mapping[str, Any]:
        return {"correction": 1.0}

    def learn(self, X: pd.DataFrame, hours: np.ndarray) -> Mapping[str, Any]:
        ratio = np.log(np.maximum(hours, 1e-3)) - np.log(self._formula(X))
        # a few jobs move it a little, many jobs all the way
        return {"correction": float(np.exp(np.median(ratio) * len(ratio) / (len(ratio) + 5.0)))}

    def point(self, X: pd.DataFrame, learnt: Mapping[str, Any]) -> np.ndarray:
        return learnt["correction"] * self._formula(X)

    def feasible(self, X: pd.DataFrame) -> pd.DataFrame:
        small = pd.to_numeric(X["images"], errors="coerce") < 10_000
        many = pd.to_numeric(X.get("gpus", pd.Series(1, index=X.index)), errors="coerce") > 8
        reason = np.where(small & many, "fewer than 10,000 images do not fill more than 8 GPUs", "")
        return pd.DataFrame({"feasible": reason == "", "reason": reason}, index=X.index)

    def _formula(self, X: pd.DataFrame) -> np.ndarray:
        slowest = min(IMAGES_AN_HOUR.values())
        speed = X["gpu_type"].map(lambda kind: IMAGES_AN_HOUR.get(kind, slowest)).to_numpy(dtype=float)
        half = np.where(X["precision"] == "fp32", 0.5, 1.0)
        return X["images"].to_numpy() / (speed * half * X["gpus"].to_numpy() ** self.scaling)
