"""Root gives files and folders to the users of roles, and follows no link that one of them made.

A role owns its folders, so any name in them may have become a symbolic link since root looked. What
changes owner or mode here is what was opened, or the link itself.
"""

from __future__ import annotations

import grp
import os
import pwd
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def give(path: Path, user: str, group: str | None = None) -> None:
    """Make a file or folder a user's own; of a symbolic link the link, not what it leads to.

    Raises      LookupError for a user or group that is not there, OSError
    """
    os.chown(path, *_ids(user, group), follow_symlinks=False)


def set_folder(path: Path, mode: int, user: str | None = None, group: str | None = None) -> None:
    """Give a folder exactly this mode, and an owner where one is named.

    Raises      NotADirectoryError for a symbolic link, too; LookupError, OSError
    """
    handle = os.open(path, _FOLDER)
    try:
        if (user, group) != (None, None):
            os.fchown(handle, *_ids(user, group))
        os.fchmod(handle, mode)
    finally:
        os.close(handle)


def _ids(user: str | None, group: str | None) -> tuple[int, int]:
    """Numbers of a user and a group; -1 leaves what is."""
    return (
        -1 if user is None else pwd.getpwnam(user).pw_uid,
        -1 if group is None else grp.getgrnam(group).gr_gid,
    )
