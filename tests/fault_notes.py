"""What tests and their processes note of a fault: points reached, verdicts.

It stands apart from the plugin of pytest, which Spark's environment lacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Watch:
    reached: set[str] = field(default_factory=set)
    windows: int = 0
    windows_lost: int = 0
    reports_lost_or_double: int = 0


watches: list[Watch] = []
"""Of the tests that run now."""


def note(point: str) -> None:
    for watch in watches:
        watch.reached.add(point)


def note_verdict(windows: int, windows_lost: int, reports_lost_or_double: int) -> None:
    for watch in watches:
        watch.windows += windows
        watch.windows_lost += windows_lost
        watch.reports_lost_or_double += reports_lost_or_double
