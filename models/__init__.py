"""Fitted estimators on disk: a folder a version, hashed, written atomically, without pickle."""

from tidegrid.models.bundle import Bundle
from tidegrid.models.decide import Decision, Scores, decide
from tidegrid.models.manifest import Lineage, VersionWarning
from tidegrid.models.retention import Retention
from tidegrid.models.store import ModelStore
from tidegrid.models.version import Damage, Version

__all__ = [
    "Bundle",
    "Damage",
    "Decision",
    "Lineage",
    "ModelStore",
    "Retention",
    "Scores",
    "Version",
    "VersionWarning",
    "decide",
]
