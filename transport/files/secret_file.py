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


class UnfitToken(ValueError):
    """What lies there is no token that a header of HTTP can hold; it is not quoted."""


def read_token(path: Path, most: int) -> str:
    """Read a token of one line of printable ASCII, without the space around it; it may be empty.

    HTTP libraries quote a header that they refuse, so that one must not get there.
    Raises      UnfitToken; as `read_secret`
    """
    token = read_secret(path, most).strip()
    if not token.isascii() or not token.decode("ascii").isprintable():
        raise UnfitToken(
            f"expected a token of one line of printable ASCII in {path}, got other bytes"
        )
    return token.decode("ascii")
