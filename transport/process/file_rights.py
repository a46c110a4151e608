"""Who may open what this process may not, and what to type for it."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
import sys
from pathlib import Path

from .privileges import became


def way_in(error: BaseException) -> str | None:
    """Say what to do where the kernel refused a file; None where it is no such refusal.

    Root is never told to become root: it became a role's user, or the file's owner is meant.
    """
    found = error if isinstance(error, PermissionError) else error.__cause__
    if not isinstance(found, PermissionError) or found.errno is None:
        return None
    if found.strerror != os.strerror(found.errno):
        return None  # our own words, which say it
    if found.filename is None:
        return None if os.geteuid() == 0 else f"give the command as root: `{typed_as(0)}`"
    return _way_to(Path(os.fsdecode(found.filename)).absolute())


def user_name(number: int) -> str:
    """Give a user's name, or `#NUMBER` where it has none."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"#{number}"


def typed_as(user: int) -> str:
    """Write this command as it is given as a user."""
    program = sys.argv[0] if os.access(sys.argv[0], os.X_OK) else "pointillist"
    command = shlex.join([program, *sys.argv[1:]])
    if user == os.geteuid():
        return command
    if os.geteuid() != 0:
        named = "" if user == 0 else f"-u {shlex.quote(user_name(user))} "
        return f"sudo {named}{command}"
    try:
        return f"runuser -u {shlex.quote(pwd.getpwuid(user).pw_name)} -- {command}"
    except KeyError:
        return f"setpriv --reuid {user} --clear-groups {command}"


def way_to_own(path: Path, owner: int, wanted: int) -> str:
    """Say what to do about a file of `owner` that must be the user `wanted`'s."""
    chown = shlex.join(["chown", user_name(wanted).removeprefix("#"), str(path)])
    if became:
        return f"as root: `{chown}`"
    if os.geteuid() != 0:
        chown = f"sudo {chown}"
    if wanted != os.geteuid():
        return f"`{chown}`"
    return f"give the command as {user_name(owner)}: `{typed_as(owner)}`, or `{chown}`"


def _way_to(path: Path) -> str:
    closed = _closed(path)
    try:
        status = closed.lstat()
    except OSError:
        return f"give the command as the user to whom {closed} belongs"
    owner, me = status.st_uid, os.geteuid()
    whose = f"{closed} is {user_name(owner)}'s, mode {stat.S_IMODE(status.st_mode):04o}"
    if became:
        folder = closed.is_dir()
        opens = f"chmod o+x {closed}" if folder else f"chown {became[-1]} {closed}"
        moved = f", or put it where {became[-1]} may go" if folder else ""
        return f"the command became {became[-1]}, and {whose}: as root `{opens}`{moved}"
    if owner != me:
        return f"{whose}: give the command as {user_name(owner)}: `{typed_as(owner)}`"
    if me != 0:
        return f"{whose}: `chmod u+rwX {closed}`"
    return (
        f"{whose}, and refused to root itself: an immutable file (`lsattr`), a file system of "
        "another machine, or a container without CAP_DAC_OVERRIDE"
    )


def _closed(path: Path) -> Path:
    """Give the first folder on the way that is closed to this user, else the file or its folder."""
    for folder in reversed(path.parents):
        if folder.is_dir() and not os.access(folder, os.X_OK, effective_ids=True):
            return folder
    return path if os.path.lexists(path) else path.parent
