"""Logs as JSON lines on standard error: one object a line, with instant, level and event."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from tidegrid.errors import printable

_LOG = logging.getLogger("tidegrid")


class Lines(logging.Formatter):
    """A record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        told = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": printable(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            told["error"] = printable(f"{type(error).__name__}: {error}")
        return json.dumps(told, default=str)  # ASCII: no character of a name ends a line


def log(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Write an event with its fields."""
    _LOG.log(level, event, extra={"fields": fields})


def set_up(level: str) -> None:
    """Send tidegrid's and the server's records to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines())
    for name in ("tidegrid", "uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level if name == "tidegrid" else logging.WARNING)
