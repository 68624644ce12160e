"""Quantization runs: bitsandbytes, AWQ, GPTQ and others, by tiers of size, with a safety margin."""

from tidegrid.estimators.quantization.estimator import QuantizationEstimator

__all__ = ["QuantizationEstimator"]
