"""Faces: command line, reports and pictures."""
