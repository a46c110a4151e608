"""Whether a party runs: it holds a lock on a file beside its status for as long as it lives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from transport.closing import Closing


class Presence(Closing):
    """A shared lock, which the kernel ends with the process, however it ends."""

    def __init__(self, status_file: Path) -> None:
        """Take it. Raises OSError."""
        path = _lock_file(status_file)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._handle, fcntl.LOCK_SH)

    def close(self) -> None:
        """Let it go."""
        os.close(self._handle)


def is_present(status_file: Path) -> bool:
    """Whether some process holds it.

    Raises      PermissionError where the file is another user's
    """
    try:
        handle = os.open(_lock_file(status_file), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(handle)


def _lock_file(status_file: Path) -> Path:
    return status_file.with_name(status_file.name + ".lock")
