"""Durations from a job's own past: what answers for any job that carries no workload features."""

from tidegrid.estimators.recurring.estimator import RecurringJobEstimator

__all__ = ["RecurringJobEstimator"]
