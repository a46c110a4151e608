"""The journal of diagnoses: one line a finding, on this host alone, in two bounded files of which
the full one takes the older's place. A line that a crash cut short is skipped by readers.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

LEAST_BYTES: Final = 64 << 10
LONGEST_LINE: Final = 64 << 10


class Journal:
    """Appends lines; readable by its owner alone."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        """Open for appending, and end a line that was cut short. Raises OSError."""
        self._path = path
        self._half_bytes = max_bytes // 2
        self._file = _open(path)
        self._turning = self._cut = False
        self._written = os.fstat(self._file).st_size
        if self._written and not _ends_a_line(path, self._written):
            self._written += os.write(self._file, b"\n")

    def append(self, line: bytes) -> None:
        """Add a line, without its end. Raises OSError; ValueError for none, or a too long one."""
        if b"\n" in line or len(line) >= LONGEST_LINE:
            raise ValueError(f"expected one line below {LONGEST_LINE} bytes, got {len(line)} bytes")
        if self._turning:  # and it failed: the disk may have room again
            self._file = _open(self._path)
            self._written = os.fstat(self._file).st_size
            self._turning = False
        if self._written + len(line) + 1 > self._half_bytes and self._written:
            self._turn()
        whole = (b"\n" if self._cut else b"") + line + b"\n"
        put = os.write(self._file, whole)
        self._written += put
        self._cut = put < len(whole)
        if self._cut:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._turning = -1, False

    def _turn(self) -> None:
        os.close(self._file)
        self._file = -1  # a failure below leaves nothing that could be closed twice
        self._turning = True
        self._path.replace(older(self._path))
        self._file = _open(self._path)
        self._written = 0
        self._turning = self._cut = False


def older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield both files' lines, oldest first, but too long ones. Raises OSError without a file."""
    found = [journal for journal in (older(path), path) if journal.exists()]
    if not found:
        path.open("rb").close()
    for journal in found:
        with journal.open("rb") as file:
            while line := file.readline(LONGEST_LINE):
                if line.endswith(b"\n"):
                    yield line[:-1]
                    continue
                while line and not line.endswith(b"\n"):
                    line = file.readline(LONGEST_LINE)


def follow_lines(path: Path, wait: Callable[[], bool]) -> Iterator[bytes]:
    """Yield lines written from now on, over a turn too, until `wait` gives False."""
    file = path.open("rb")
    try:
        file.seek(0, os.SEEK_END)
        part = b""
        while True:
            read = file.readline(LONGEST_LINE)
            if read:
                part = part + read if len(part) < LONGEST_LINE else read
                if part.endswith(b"\n"):
                    yield part[:-1]
                    part = b""
                continue
            if not wait():
                return
            try:
                newer = path.open("rb")
            except FileNotFoundError:
                continue  # it is being turned
            if os.fstat(newer.fileno()).st_ino == os.fstat(file.fileno()).st_ino:
                newer.close()
                continue
            rest = file.read()
            yield from (part + rest).splitlines()
            file.close()
            file, part = newer, b""
    finally:
        file.close()


def _open(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, 0o600)


def _ends_a_line(path: Path, size: int) -> bool:
    with path.open("rb") as file:
        file.seek(size - 1)
        return file.read(1) == b"\n"
