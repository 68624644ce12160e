"""Realtime demand: weekly curves, forecasts with bands, and the GPUs that they need."""

from tidegrid.estimators.realtime.capacity import Capacity, fit_capacity, gpu_curve
from tidegrid.estimators.realtime.curve import Curve
from tidegrid.estimators.realtime.estimator import RealtimeEstimator

__all__ = ["Capacity", "Curve", "RealtimeEstimator", "fit_capacity", "gpu_curve"]
