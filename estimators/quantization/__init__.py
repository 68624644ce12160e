"""Quantization runs: bitsandbytes, AWQ, GPTQ and others, from what each does with a model, with a safety margin."""

from tidegrid.estimators.quantization.estimator import QuantizationEstimator

__all__ = ["QuantizationEstimator"]
