"""The rolling horizon: learn what happened, forecast, plan, commit step 0, and go again."""

from tidegrid.pipeline.rolling.accuracy import Accuracy, accuracy
from tidegrid.pipeline.rolling.store import Commit, StateStore
from tidegrid.pipeline.rolling.tick import Settings, site_version, tick

__all__ = ["Accuracy", "Commit", "Settings", "StateStore", "accuracy", "site_version", "tick"]
