"""Files that the kernel writes: of /proc, kept open, and small ones of sysfs; read with bounds."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from collectors.records.basics import FailureKind, ReadFailure

_PART: Final = 1 << 14


def cpu_numbers(text: str) -> list[int]:
    """Read the kernel's list of CPUs, as `0-3,8`; raises ValueError for what is none."""
    ranges = [part.split("-") for part in text.strip().split(",") if part]
    return [cpu for part in ranges for cpu in range(int(part[0]), int(part[-1]) + 1)]


class KernelFile:
    def __init__(self, path: str) -> None:
        """Open the file. Raises OSError."""
        self.path, self._fd = path, -1
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def head(self) -> bytes:
        """Give what one read gives: the kernel's files of one record are no longer. OSError."""
        return os.pread(self._fd, _PART, 0)

    def whole(self, most: int) -> bytes:
        """Give all of it; of a list the kernel gives a page a read. Raises OSError, ValueError."""
        text = b""
        while part := os.pread(self._fd, _PART, len(text)):
            text += part
            if len(text) > most:
                raise ValueError(f"expected at most {most} bytes of {self.path}, got more")
        return text

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with suppress(OSError):
            self.close()


MOST_ENTRIES: Final = 4_096
_LONGEST: Final = 4_096
_GONE: Final = (errno.ENODEV, errno.ENXIO)


class Tree:
    """The file system below a root; tests have their own."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.closed: dict[str, ReadFailure] = {}
        """Folders that are there and could not be listed: what is in them is not gone."""

    def entries(self, folder: str) -> list[str]:
        try:
            return sorted(path.name for path in (self.root / folder).iterdir())[:MOST_ENTRIES]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            no = isinstance(error, PermissionError)
            kind = FailureKind.NO_PERMISSION if no else FailureKind.FAILED
            self.closed[folder] = ReadFailure(kind, f"{folder}: {error.strerror}")
            return []

    def exists(self, path: str) -> bool:
        try:
            return (self.root / path).exists()
        except OSError:
            return False

    def text(self, path: str, most: int = _LONGEST) -> str | ReadFailure:
        """Read the first bytes of a file as stripped text; `unsupported` where there is none."""
        try:
            fd = os.open(self.root / path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return os.read(fd, most).decode("ascii", "replace").strip()
            finally:
                os.close(fd)
        except FileNotFoundError:
            return ReadFailure(FailureKind.UNSUPPORTED, f"no {path}")
        except PermissionError:
            return ReadFailure(FailureKind.NO_PERMISSION, f"{path}: not allowed")
        except OSError as error:
            kind = FailureKind.UNPLUGGED if error.errno in _GONE else FailureKind.FAILED
            return ReadFailure(kind, f"{path}: {error.strerror}")

    def number(self, path: str) -> int | ReadFailure:
        """Read a file that holds one whole number of at least 0, decimal or 0x."""
        found = self.text(path)
        if isinstance(found, ReadFailure):
            return found
        try:
            value = int(found, 0)
        except ValueError:
            value = -1
        if value < 0:
            return ReadFailure(FailureKind.FAILED, f"{path}: expected a number, got {found[:40]!r}")
        return value


def offered(gap: ReadFailure) -> bool:
    return gap.kind is not FailureKind.UNSUPPORTED
