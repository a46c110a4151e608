"""Files of a party: folders and keys with the right modes, each role's its own where root runs."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from transport.privileges import LOG_GROUP

PRIVATE: Final = 0o700
PUBLIC: Final = 0o755


class FolderUnusable(ValueError):
    """A folder that a fleet cannot begin in; says what was expected and what came."""


def begin_folder(base: Path) -> Path:
    """Make the folder of a fleet, absolute; one that exists must be empty.

    Raises      FolderUnusable, OSError
    """
    base = base.resolve()
    if base.exists() and (not base.is_dir() or any(base.iterdir())):
        found = "files in it" if base.is_dir() else "a file"
        raise FolderUnusable(f"{base}: expected a new or empty folder, found {found}")
    _check_open(base)
    base.mkdir(parents=True, exist_ok=True)
    base.chmod(PUBLIC)
    return base


def _check_open(base: Path) -> None:
    """Refuse a folder that users of the roles could not enter; without root there are none."""
    if os.geteuid() != 0:
        return
    for above in base.parents:
        if above.exists() and not above.stat().st_mode & stat.S_IXOTH:
            raise FolderUnusable(
                f"{base}: expected a place that the users of the roles may enter, but {above} is "
                "closed to others; take one like /srv/trial"
            )


def make_folder(path: Path, mode: int, user: str | None = None) -> Path:
    """Make a folder with exactly this mode, whatever the umask; root gives it to a role's user."""
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    give(path, user)
    return path


def give(path: Path, user: str | None) -> None:
    """Give a file to a role's user; only root can, and nobody else has to."""
    if user is not None and os.geteuid() == 0:
        shutil.chown(path, user, user)


def write_new(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a new file with exactly this mode.

    Raises      FileExistsError
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        os.fchmod(handle, mode)
        file.write(text)


def log_group() -> str | None:
    """Who shares an embedded log: a group where roles have users of their own."""
    return LOG_GROUP if os.geteuid() == 0 else None
