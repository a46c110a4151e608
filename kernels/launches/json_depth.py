"""How deep JSON is nested, told before it is parsed: builders take memory by the square of it."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

MOST_DEPTH: Final = 1_000
"""Traces have six levels. Two hundred thousand of them, 200 KB, took all memory of a machine."""
_STRING: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*("?)', re.DOTALL)
_INSIDE: Final = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_STEP: Final = np.zeros(256, np.int8)
_STEP[[*b"[{"]] = 1
_STEP[[*b"]}"]] = -1


class JsonDepth:
    """Follows brackets outside of strings, chunk by chunk; of what is no JSON it says something."""

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
        """Leave a string out; one without an end goes on in the next chunk."""
        if not found[1]:
            self._in_string = True
            self._rest = found.string[found.end() :]
        return b""
