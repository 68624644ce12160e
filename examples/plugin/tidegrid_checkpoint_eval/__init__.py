"""How long it takes to run a model checkpoint through a set of benchmark questions."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from tidegrid.estimators import Feature
from tidegrid.estimators.simple import PointEstimator

PRIOR = (np.log(2e-5), 0.8, -0.8)
"""Before any history: log hours a question of a 1 B model on one GPU, its growth with parameters and with GPUs.

Round figures for the example, not measured ones.
"""

PRIOR_WEIGHT = 5.0
"""Past jobs that the prior counts for."""


class CheckpointEval(PointEstimator):
    """Hours = a · questions · parameters^b · GPUs^c, fitted by ridge regression towards the prior."""

    name, kind = "checkpoint_eval", "batch_inference"
    predicts_unfitted = True
    features = (
        Feature("questions", "float", "questions", low=1, required=True, doc="benchmark questions to answer"),
        Feature("model_params_b", "float", "billion parameters", low=0.001, required=True, doc="model size"),
        Feature("gpus", "int", "GPUs", low=1, default=1, doc="GPUs of the job"),
    )

    def prior(self) -> Mapping[str, Any]:
        return {"coefficients": np.array(PRIOR)}

    def learn(self, X: pd.DataFrame, hours: np.ndarray) -> Mapping[str, Any]:
        prior, columns = np.array(PRIOR), _columns(X)
        left = np.log(np.maximum(hours, 1e-4)) - np.log(X["questions"].to_numpy()) - columns @ prior
        moved = np.linalg.solve(columns.T @ columns + PRIOR_WEIGHT * np.eye(3), columns.T @ left)
        return {"coefficients": prior + moved}

    def point(self, X: pd.DataFrame, learnt: Mapping[str, Any]) -> np.ndarray:
        a, b, c = learnt["coefficients"]
        # written out: a product of matrices may add up in another order for another number of rows
        size, gpus = np.log(X["model_params_b"].to_numpy()), np.log(X["gpus"].to_numpy())
        return X["questions"].to_numpy() * np.exp(a + b * size + c * gpus)


def _columns(X: pd.DataFrame) -> np.ndarray:
    return np.column_stack([np.ones(len(X)), np.log(X["model_params_b"]), np.log(X["gpus"])])
