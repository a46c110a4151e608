"""Programs run on disks that are closed, full or read-only, by mounts that nobody else sees."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from transport.process.privileges import ensure_users

REPOSITORY = Path(__file__).resolve().parents[1]
_UNSHARE = ("unshare", "--mount", "--propagation", "private")


def closed(
    command: Sequence[object], folder: Path = REPOSITORY, more: Sequence[str] = ()
) -> list[str]:
    """Give the command that runs `command` where a folder is root's alone, as far as we may.

    folder      the checkout, or one above it
    more        further lines of shell, mounts for example

    In a mount namespace of its own an empty folder of mode 0700 stands there, with the checkout at
    its place inside: nothing is copied, and every path stays.
    """
    if not may_mount():
        return [str(word) for word in command]
    ensure_users()
    return mounted([*_mounts(folder), *more, f"cd {_quoted(REPOSITORY)}"], command)


def mounted(mounts: Sequence[str], command: Sequence[object]) -> list[str]:
    """Give the command that runs `command` after some mounts, which nobody else sees.

    mounts      lines of shell
    """
    script = ["set -e", *mounts, f"exec {shlex.join(str(word) for word in command)}"]
    return [*_UNSHARE, "sh", "-c", "\n".join(script)]


@cache
def may_mount() -> bool:
    """Whether this machine lets us make a mount namespace: root in a container may not."""
    return os.geteuid() == 0 and not subprocess.run([*_UNSHARE, "true"], check=False).returncode


def let_in(folder: Path) -> None:
    """Let any user enter a test's folder, and those above it that pytest made, no others."""
    for each in (folder, *folder.parents):
        if each.name.startswith(("pytest-", "popen-")) or each == folder:
            each.chmod(each.stat().st_mode | 0o055)


def _mounts(folder: Path) -> Iterator[str]:
    yield f"exec 3<{_quoted(REPOSITORY)}"
    yield f"mount -t tmpfs -o mode=0700,size=1m tmpfs {_quoted(folder)}"
    entries = [""] if folder != REPOSITORY else [entry.name for entry in REPOSITORY.iterdir()]
    for entry in entries:
        place = _quoted(REPOSITORY / entry)
        make = "mkdir -p" if (REPOSITORY / entry).is_dir() else "touch"
        # Not by its canonical name, which is the empty folder's by now.
        yield f"{make} {place}; mount -c --bind {_quoted(f'/proc/self/fd/3/{entry}')} {place}"
    yield "exec 3<&-"


def _quoted(path: Path | str) -> str:
    return shlex.quote(str(path))
