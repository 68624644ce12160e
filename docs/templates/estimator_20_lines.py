"""The smallest estimator: it learns GPU-hours and divides them by the GPUs; the base class adds the band."""

import numpy as np

from tidegrid.estimators import Feature
from tidegrid.estimators.simple import PointEstimator


class GpuHours(PointEstimator):
    """Hours of a job whose GPU-hours are always about the same."""

    name, kind = "gpu_hours", "any"
    features = (Feature("gpus", "float", "GPUs", low=1, default=1, doc="GPUs of the job"),)

    def learn(self, X, hours):
        return {"gpu_hours": float(np.exp(np.mean(np.log(np.maximum(hours * X["gpus"], 1e-3)))))}

    def point(self, X, learnt):
        return learnt["gpu_hours"] / X["gpus"].to_numpy()
