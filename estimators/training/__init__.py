"""The training predictor: 22 features, 10 variants, a physics prior that history corrects."""

from tidegrid.estimators.training.estimator import TrainingEstimator
from tidegrid.estimators.training.explain import Explanation

__all__ = ["Explanation", "TrainingEstimator"]
