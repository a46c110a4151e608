"""What a file of launches holds, whatever wrote it, and what of it could not be read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

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
    NO_TIME = "no valid start or duration"
    TOO_LONG = "a duration below 0 or above an hour"
    NO_SLICE = "another phase than that of a slice"
    BROKEN = "JSON that is broken"
    CUT = "its end cut off"
    NO_NAME = "no name"
    COLUMNS = "another number of columns"
    NO_TABLE = "columns that no known table has"
    HOST = "the name of a host's function"
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
    remarks     once all are read: where their time and what else the file knows do not agree
    """

    form: str
    launches: Iterator[Launch]
    skipped: Counter[Skip]
    remarks: list[str]


def duration(start: object, end: object, skipped: Counter[Skip]) -> int | None:
    """Give the nanoseconds of one launch; None, and counted, where its times make no sense."""
    if not (isinstance(start, int) and isinstance(end, int)):
        skipped[Skip.NO_TIME] += 1
    elif not 0 <= end - start <= LONGEST_NS:
        skipped[Skip.TOO_LONG] += 1
    else:
        return end - start
    return None


MOST_DEPTH: Final = 1_000
"""Traces have six levels. Two hundred thousand of them, 200 KB, took all memory of a machine."""
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("?)', re.DOTALL)
_INSIDE: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_STEP: Final = np.zeros(256, np.int8)
_STEP[[*b"[{"]] = 1
_STEP[[*b"]}"]] = -1


class JsonDepth:
    """Follows brackets outside of strings, chunk by chunk, before a parser's memory grows by them.

    Of what is no JSON it says something.
    """

    def __init__(self) -> None:
        self._depth, self._in_string, self._rest = 0, False, b""

    def too_deep(self, chunk: bytes) -> bool:
        """Take the next bytes; tell whether they are nested deeper than MOST_DEPTH."""
        chunk = self._rest + chunk
        self._rest = b""
        if self._in_string:
            chunk = self._behind_string(chunk)
        if self._in_string:
            return False
        plain = _STRING.sub(self._string, chunk)
        steps = np.cumsum(_STEP[np.frombuffer(plain, np.uint8)], dtype=np.int64)
        if not len(steps):
            return False
        highest, self._depth = self._depth + int(steps.max()), self._depth + int(steps[-1])
        return highest > MOST_DEPTH

    def _behind_string(self, chunk: bytes) -> bytes:
        """Give what follows the string that an earlier chunk began."""
        found = _INSIDE.match(chunk)
        end = 0 if found is None else found.end()
        self._in_string = chunk[end : end + 1] != b'"'
        if self._in_string:
            self._rest = chunk[end:]  # a backslash whose character is still to come, or nothing
        return chunk[end + 1 :]

    def _string(self, found: re.Match[bytes]) -> bytes:
        if not found[1]:
            self._in_string = True
            self._rest = found.string[found.end() :]
        return b""
