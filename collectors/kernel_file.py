"""Files that the kernel writes anew at each read: opened once, read from their beginning."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

_PART: Final = 1 << 14


class KernelFile:
    """A file of /proc; opening it costs as much as reading it."""

    def __init__(self, path: str) -> None:
        """Open the file. Raises OSError."""
        self.path, self._fd = path, -1
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def head(self) -> bytes:
        """Give what one read gives: the kernel's files of one record are no longer. OSError."""
        return os.pread(self._fd, _PART, 0)

    def whole(self, most: int) -> bytes:
        """Give all of it; of a list the kernel gives a page a read. Raises OSError, ValueError.

        most    bytes that it may have
        """
        text = b""
        while part := os.pread(self._fd, _PART, len(text)):
            text += part
            if len(text) > most:
                raise ValueError(f"expected at most {most} bytes of {self.path}, got more")
        return text

    def close(self) -> None:
        """Let it go; a second call does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()
