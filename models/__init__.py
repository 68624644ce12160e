"""Fitted estimators on disk: a folder a version, hashed, written aside, without pickle."""

from tidegrid.models.bundle import Bundle
from tidegrid.models.decide import Decision, Scores, decide
from tidegrid.models.manifest import Lineage, VersionWarning
from tidegrid.models.retention import Retention
from tidegrid.models.store import ModelStore
from tidegrid.models.version import Problem, Version

__all__ = [
    "Bundle",
    "Decision",
    "Lineage",
    "ModelStore",
    "Problem",
    "Retention",
    "Scores",
    "Version",
    "VersionWarning",
    "decide",
]
