"""What both parties' state machines take: a task, a roster, and whoever times their stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

Stopwatch = Callable[[str], None]
"""Charges the time since its last call to a stage: decode, authenticate, dedupe, sum, unmask."""


def no_stopwatch(stage: str) -> None:
    """Measure nothing."""


@dataclass(frozen=True, slots=True)
class TaskSeen:
    """A signed task arrived; `now_s` is the party's own clock, as everywhere here.

    at_start   it was read back after a restart
    """

    signed_bytes: bytes
    now_s: float
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class RosterSeen:
    """A signed roster arrived."""

    signed_bytes: bytes
