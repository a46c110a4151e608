"""Folders that every role's user may enter: pytest's own are closed to them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def fleet_folder() -> Iterator[Path]:
    """Give a folder with a short name for one test, and remove it."""
    with tempfile.TemporaryDirectory(prefix="plst-") as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        yield folder
