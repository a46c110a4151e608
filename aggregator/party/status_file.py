"""The document in which a party says how it is, for `status` and whoever watches."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from aggregator.state.state_file import write_durably

STATUS_EVERY_S: Final = 2.0


def process_document(started_s: float, now_s: float) -> dict[str, object]:
    """What every document says of the process that wrote it."""
    return {
        "pid": os.getpid(),
        "version": version("pointillist"),
        "started": int(started_s),
        "time": int(now_s),
    }


def write_status(path: Path, status: Mapping[str, object]) -> None:
    """Replace the status file; readable by the party's own user alone."""
    write_durably(path, json.dumps(status, sort_keys=True).encode() + b"\n")


def read_status(path: Path) -> dict[str, Any]:
    """Read what a running or stopped party last said about itself.

    Raises      OSError, ValueError
    """
    status = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(status, dict):
        raise ValueError(f"{path}: expected a status document, got {type(status).__name__}")
    return status
