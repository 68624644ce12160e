"""Batch inference: tokens to read and to write over the throughput of model, GPUs and precision."""

from tidegrid.estimators.batch_inference.estimator import BatchInferenceEstimator

__all__ = ["BatchInferenceEstimator"]
