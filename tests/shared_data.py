"""Where real traces lie, for tests that need them: beside the repository, or where told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[1]


def shared_data(path: str) -> Path:
    """Return a file of real data; skip the test, with the reason, where it is absent.

    path  relative to the folder `shared/data` beside the repository, or to the folder that the
          environment variable POINTILLIST_SHARED_DATA names
    """
    named = os.environ.get("POINTILLIST_SHARED_DATA")
    folder = Path(named) if named else _ROOT.parent / "shared" / "data"
    found = folder / path
    if not found.exists():
        pytest.skip(f"no real data at {found}; name its folder in POINTILLIST_SHARED_DATA")
    return found
