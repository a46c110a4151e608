"""Structured logs whose level can change while the agent runs."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from transport.process import supervision

LEVELS: Final = ("debug", "info", "warning", "error")


class LevelGate:
    """Drops lines below the level; set `level` at any time, for loggers made before as well."""

    def __init__(self, level: str = "info") -> None:
        self.level = level

    def __call__(
        self, _logger: object, method: str, line: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        rank = LEVELS.index(method) if method in LEVELS else len(LEVELS)
        if rank < LEVELS.index(self.level):
            raise structlog.DropEvent
        return line


def log_to_stderr(level: str = "info") -> LevelGate:
    """Write lines to stderr; give the gate that holds the level."""
    gate = LevelGate(level)
    supervision.log_to_stderr(gate)
    return gate
