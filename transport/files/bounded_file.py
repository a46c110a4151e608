"""Files that somebody else made: read up to a bound, and never waited for."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Final

_NO_FILE: Final = {errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV}
"""Of links to nothing, links in a circle, sockets."""


class UnfitFile(OSError):
    """What lies there is no file, or too long for one; its `strerror` says which."""


def read_bounded(path: Path, most: int) -> bytes:
    """Read a regular file of at most so many bytes; a pipe or a device is none.

    Raises      UnfitFile, OSError
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise UnfitFile(error.errno, error.strerror, str(path)) from error
        raise
    with ExitStack() as stack:
        stack.callback(os.close, handle)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise UnfitFile(errno.EINVAL, "expected a regular file", str(path))
        with os.fdopen(handle, "rb", closefd=False) as file:
            content = file.read(most + 1)
    if len(content) > most:
        raise UnfitFile(errno.EFBIG, f"expected at most {most:,} bytes, got more", str(path))
    return content
