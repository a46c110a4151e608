"""Who asked what and when: one line of JSON a request, in a file that only this user reads."""

from __future__ import annotations

import json
import logging
import os
from datetime import UTC, datetime
from logging.handlers import WatchedFileHandler
from pathlib import Path

from .viewers import Viewer


class QueryRecord:
    """Appends to a file; one that was moved away by rotation is begun anew.

    path    None: nothing is recorded
    """

    def __init__(self, path: Path | None) -> None:
        self._handler: WatchedFileHandler | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            self._handler = WatchedFileHandler(path, encoding="utf-8")

    def note(
        self, viewer: Viewer | None, address: str, target: str, status: int, at_s: float
    ) -> None:
        """Record one request; JSON keeps what was asked on its line, whatever it holds.

        viewer   None: nobody was let in
        target   path and query as they were asked
        """
        if self._handler is None:
            return
        line = {
            "at": datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds"),
            "viewer": viewer.name if viewer else None,
            "role": viewer.role.value if viewer else None,
            "address": address,
            "asked": target,
            "status": status,
        }
        self._handler.handle(
            logging.LogRecord("query", logging.INFO, "", 0, json.dumps(line), None, None)
        )

    def close(self) -> None:
        """Close the file."""
        if self._handler is not None:
            self._handler.close()
