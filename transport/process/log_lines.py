"""Structured log lines of a program and of the processes that it begins."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from structlog.typing import Processor


def log_to_stderr(*gates: Processor) -> None:
    """Write a line of words where stderr is a terminal, else one JSON document a line.

    gates       run first on each line, and may drop it
    """
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            *gates,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper("%Y-%m-%d %H:%M:%SZ" if terminal else "iso", utc=True),
            _words() if terminal else structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
    )


def _words() -> structlog.dev.ConsoleRenderer:
    """Values with their escapes, for some are a stranger's; a traceback without its variables."""
    return structlog.dev.ConsoleRenderer(
        colors=not os.environ.get("NO_COLOR"),
        repr_native_str=True,
        exception_formatter=structlog.dev.plain_traceback,
    )
