"""Waiting for what another thread, process or machine does."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(what: Callable[[], T | None], patience_s: float = 420.0) -> T:
    """Ask until the answer is true, and give it; the bound only ends a test that would hang."""
    give_up_s = time.monotonic() + patience_s
    while not (seen := what()):
        assert time.monotonic() < give_up_s, f"waited in vain, last seen {seen!r}"
        time.sleep(0.01)
    return seen
