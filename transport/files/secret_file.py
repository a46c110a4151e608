"""Files that hold a secret for this program: whoever else can read one is the program too."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_secret(path: Path, most: int) -> bytes:
    """Read at most so many bytes of a file that every other user of the machine is kept from.

    Its group may read it: a secret that is mounted or shared by two roles has one.
    Raises      OSError; PermissionError with the way out where others may read it
    """
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & stat.S_IRWXO:
            why = f"open to every user of this machine (mode {mode:04o}): chmod o= it"
            raise PermissionError(errno.EACCES, why, str(path))
        return file.read(most)
