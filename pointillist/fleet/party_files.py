"""Files of a party: folders and keys with the right modes, each role's its own where root runs."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

from privacy.signing import SigningKey
from transport.files.keyfiles import write_signing_key
from transport.files.private_files import give, set_folder
from transport.process.privileges import LOG_GROUP

PRIVATE: Final = 0o700
PUBLIC: Final = 0o755
_LOCK: Final = ".lock"
_MARK: Final = ".unfinished"
"""In the folder of a fleet until all of it is written."""


class FolderUnusable(ValueError):
    """A folder that a fleet cannot begin in; says what was expected and what came."""


@contextmanager
def new_folder(base: Path) -> Iterator[Path]:
    """Make the folder of a fleet, absolute; one that exists must be empty.

    What was made in it is removed where the block does not come to its end, so that the same
    command can be given again.
    Raises      FolderUnusable, OSError
    """
    base = base.resolve()
    _check_name(base)
    existed = base.is_dir()
    mode = stat.S_IMODE(base.stat().st_mode) if existed else PUBLIC
    mark = _begin(base)
    try:
        _check_open(base)
        base.chmod(PUBLIC)
        yield base
        mark.unlink()
    except BaseException as error:
        _clear(base, mark)
        with suppress(OSError):
            base.chmod(mode)
            if not existed:
                base.rmdir()
        if isinstance(error, OSError) and error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(base)) from error
        raise


def _check_name(base: Path) -> None:
    """Refuse a name that a configuration cannot hold, or a shell would read as a pattern."""
    name = str(base)
    if "*" in name or not name.isprintable():
        raise FolderUnusable(f"{base}: expected a path of printable characters without *")


def _begin(base: Path) -> Path:
    """Make the folder and put the mark of a beginning into it, which only one command can.

    Raises      FolderUnusable, OSError
    """
    mark = base / _MARK
    if base.exists() and not base.is_dir():
        raise FolderUnusable(f"{base}: expected a new or empty folder, found a file")
    base.mkdir(parents=True, exist_ok=True)
    try:
        mark.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        raise FolderUnusable(
            f"{base}: expected a new or empty folder, found one that another `fleet init` is "
            f"making, or did not finish: if none is running, {shlex.join(['rm', '-r', str(base)])}"
        ) from None
    if any(path != mark for path in base.iterdir()):
        mark.unlink()
        raise FolderUnusable(
            f"{base}: expected a new or empty folder, found files in it; where they are of an "
            "earlier `fleet init`, `fleet up` runs that trial, and `fleet next` goes on as a party"
        )
    return mark


def _clear(base: Path, mark: Path) -> None:
    """Remove what was made in a folder, its mark last; nobody but its maker has seen it."""
    for path in base.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path != mark:
            path.unlink(missing_ok=True)
    mark.unlink(missing_ok=True)


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
    owner = user if os.geteuid() == 0 else None
    set_folder(path, mode, owner, owner)
    return path


def give_to_role(path: Path, user: str | None) -> None:
    """Give a file to a role's user; only root can, and nobody else has to."""
    if user is not None and os.geteuid() == 0:
        give(path, user, user)


def write_identity(folder: Path, role: str, key: SigningKey, user: str | None) -> Path:
    """Write an identity where `pointillist keys generate --folder` would, as its user's own."""
    make_folder(folder, 0o711)
    make_folder(folder / role, PRIVATE, user)
    path = folder / role / "identity.key"
    write_signing_key(path, key)
    give_to_role(path, user)
    return path


def lock_folder(base: Path, *, wait: bool) -> IO[bytes]:
    """Lock a fleet's folder until what is returned is closed, or this process ends.

    Its file is its owner's alone: whoever may open a file may hold the lock of it.
    wait        for whoever holds it
    Raises      BlockingIOError where another holds it and nobody is to wait; OSError
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.fdopen(os.open(base / _LOCK, flags, 0o600), "rb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BaseException:
        file.close()
        raise
    return file


def write_new(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a new file with this mode, whole or not at all. Raises FileExistsError, OSError."""
    partial = _written(path, text, mode)
    try:
        path.hardlink_to(partial)  # unlike a rename, never replaces a file
    finally:
        partial.unlink()


def replace_text(path: Path, text: str) -> None:
    """Replace a file, whole or not at all; its owner and mode stay. Raises OSError."""
    path = path.resolve()
    before = path.stat()
    partial = _written(path, text, stat.S_IMODE(before.st_mode))
    try:
        if os.geteuid() == 0:
            os.chown(partial, before.st_uid, before.st_gid)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _written(path: Path, text: str, mode: int) -> Path:
    """Write a file beside `path`, synced to disk."""
    partial = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            os.fchmod(handle, mode)
            file.write(text)
            file.flush()
            os.fsync(handle)
    except BaseException as error:
        partial.unlink()
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    return partial


def log_group() -> str | None:
    """Who shares an embedded log: a group where roles have users of their own."""
    return LOG_GROUP if os.geteuid() == 0 else None
