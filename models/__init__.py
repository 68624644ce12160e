"""Fitted estimators on disk: a folder a version, hashed, written aside, without pickle."""

from tidegrid.models.bundle import Bundle

__all__ = ["Bundle"]
