"""What a loop keeps between decisions: commits, outcomes, the jobs under watch, and how the promises fared."""

from tidegrid.pipeline.rolling.accuracy import Accuracy, accuracy
from tidegrid.pipeline.rolling.store import Commit, StateStore

__all__ = ["Accuracy", "Commit", "StateStore", "accuracy"]
