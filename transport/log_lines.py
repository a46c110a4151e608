"""Structured log lines of a program and of the processes that it begins."""

from __future__ import annotations

import sys

import structlog


def log_to_stderr() -> None:
    """Write one JSON document a line, on stderr."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )
