"""What will happen: one room per workload, all on one contract."""

from tidegrid.estimators.base import BASES, LEVELS, Estimator, Feature

__all__ = ["BASES", "LEVELS", "Estimator", "Feature"]
