"""Programs run as from a checkout that root alone may enter."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from transport.privileges import ensure_users

REPOSITORY = Path(__file__).resolve().parents[1]
_UNSHARE = ("unshare", "--mount", "--propagation", "private")


def closed(command: Sequence[object], folder: Path = REPOSITORY) -> list[str]:
    """Give the command that runs `command` where a folder is root's alone, as far as we may.

    folder      the checkout, or one above it

    In a mount namespace of its own an empty folder of mode 0700 stands there, with the checkout at
    its place inside: nothing is copied, and every path stays.
    """
    words = [str(word) for word in command]
    if not may_close():
        return words
    ensure_users()
    script = ["set -e", *_mounts(folder), f"cd {_quoted(REPOSITORY)}", f"exec {shlex.join(words)}"]
    return [*_UNSHARE, "sh", "-c", "\n".join(script)]


@cache
def may_close() -> bool:
    """Whether this machine lets us make a mount namespace: root in a container may not."""
    return os.geteuid() == 0 and not subprocess.run([*_UNSHARE, "true"], check=False).returncode


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
