"""What a file of launches holds, whatever wrote it, and what of it could not be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MOST_ROWS: Final = 20_000_000
LONGEST_NAME: Final = 1 << 16
LONGEST_NS: Final = 3_600 * 10**9
"""Of one launch."""
MOST_TOTAL_NS: Final = 1 << 62


class LaunchesRefused(Exception):
    """A file that holds no launches: says what was expected, what came, and what to export."""

    def __init__(self, problem: str, hint: str | None = None) -> None:
        super().__init__(problem)
        self.hint = hint


class Skip(StrEnum):
    """Why an entry was left out."""

    NO_TIME = "no valid start or duration"
    TOO_LONG = "a duration below 0 or above an hour"
    NO_DEVICE = "no valid device"
    NO_NAME = "no name"
    COLUMNS = "another number of columns"
    NO_TABLE = "columns that no known table has"
    NO_COUNT = "no valid number of launches"
    LONG_LINE = "a line of more than 65,536 bytes"
    NO_TEXT = "a line that is no UTF-8"


@dataclass(frozen=True, slots=True)
class Launch:
    """Some launches of one kernel.

    gpu_time_ns     of all of them together; None where the file has no times
    """

    name: str
    launches: int
    gpu_time_ns: int | None


@dataclass(frozen=True, slots=True, eq=False)
class LaunchFile:
    """One file, recognised by its content.

    form        what it was taken for
    launches    read as they are asked for; raises LaunchesRefused where the file breaks off
    skipped     entries left out so far, by reason
    """

    form: str
    launches: Iterator[Launch]
    skipped: Counter[Skip]


def duration(start: object, end: object, skipped: Counter[Skip]) -> int | None:
    """Give the nanoseconds of one launch; None, and counted, where its times make no sense."""
    if not (isinstance(start, int) and isinstance(end, int)):
        skipped[Skip.NO_TIME] += 1
    elif not 0 <= end - start <= LONGEST_NS:
        skipped[Skip.TOO_LONG] += 1
    else:
        return end - start
    return None
