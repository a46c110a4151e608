"""Models of GPUs: by the name that a driver has for one, and by the catalogue's."""

from __future__ import annotations

import re
from collections.abc import Iterable


def gpu_class(name: str, classes: Iterable[str]) -> str:
    """Give the catalogue's class of a GPU by the name that its driver has for it."""
    words = set(re.split(r"[ -]", name))
    return next((known for known in classes if known in words), "other")
