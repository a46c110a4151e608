"""Bounded reads of a file that may be hostile, cut short, or changed while it is read.

Nothing is mapped: a file cut short under a mapping ends the reader with SIGBUS.
"""

from __future__ import annotations

import os
from typing import BinaryIO, Final

_MOST_AT_ONCE: Final = 64 << 20


class ElfError(Exception):
    """A file is not the ELF file that was expected: says what was expected and what came."""


class ElfBytes:
    """The bytes of one open file; the caller keeps it open and closes it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = file.seek(0, os.SEEK_END)

    def read(self, offset: int, size: int, what: str) -> bytes:
        """Read exactly `size` bytes. Raises ElfError."""
        if size > _MOST_AT_ONCE:
            raise ElfError(f"{what}: expected at most {_MOST_AT_ONCE} bytes, the file says {size}")
        if offset < 0 or offset + size > self.size:
            raise ElfError(
                f"{what}: expected {size} bytes at {offset}, the file has {self.size} bytes"
            )
        content = self.read_up_to(offset, size)
        if len(content) != size:
            raise ElfError(f"{what}: expected {size} bytes at {offset}, got {len(content)}")
        return content

    def read_up_to(self, offset: int, size: int) -> bytes:
        """Read fewer than `size` bytes only where the file ends. Raises ElfError."""
        if not 0 <= offset <= self.size:
            return b""
        try:
            self._file.seek(offset)
            return self._file.read(min(size, self.size - offset))
        except OSError as error:
            raise ElfError(f"expected a readable file: {error.strerror}") from None
