"""Where real traces lie on machines that have them: they are too large for the repository."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

DATA_VARIABLE = "POINTILLIST_DATA"
_BESIDE_THE_CHECKOUT = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_data(path: str) -> Path:
    """A file or folder of the data set; the test is skipped, with the reason, where it is absent.

    The data set lies where the variable POINTILLIST_DATA says, else beside the checkout.
    """
    root = Path(os.environ.get(DATA_VARIABLE, _BESIDE_THE_CHECKOUT))
    found = root / path
    if not found.exists():
        pytest.skip(f"needs {path} of the trace data set; {DATA_VARIABLE} names its folder")
    return found
