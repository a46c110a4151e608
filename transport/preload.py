"""Import what Python would otherwise import later, from folders that may be closed by then.

A process that gives root up may lose the way to its own interpreter: root's Python often lies below
a home folder that nobody else may enter. Libraries import parts of the standard library when they
first need them, long after start, so for such an installation all of it is loaded beforehand.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import stat
import sys
import warnings
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Final

_LEFT_OUT: Final = {
    "__main__", "antigravity", "ensurepip", "idlelib", "lib2to3", "test", "tests", "this",
    "tkinter", "turtle", "turtledemo", "venv",
}  # fmt: skip
"""They open a browser, print a poem, need a display, are programs or are tests."""
_MOST_MODULES: Final = 2_000
"""Python 3.11 has about 500; a folder that somebody filled must not keep a role from starting."""


def preload_for(uid: int, gid: int) -> bool:
    """Load the standard library when the user cannot reach it; False when nothing was needed."""
    library = Path(os.__file__).resolve().parent
    if reachable(library, uid, gid):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        waiting = deque(sorted(sys.stdlib_module_names - _LEFT_OUT))
        for _ in range(_MOST_MODULES):
            if not waiting:
                break
            name = waiting.popleft()
            _try(name)
            waiting.extend(_modules_of(name))
    return True


def _modules_of(package: str) -> list[str]:
    """Name what lies in a package of the standard library, programs and tests left out."""
    inside = pkgutil.iter_modules(getattr(sys.modules.get(package), "__path__", []))
    wanted = (module.name for module in inside if module.name not in _LEFT_OUT)
    return [f"{package}.{name}" for name in wanted if not name.startswith("test_")]


def reachable(path: Path, uid: int, gid: int) -> bool:
    """Whether a user may enter a folder and every folder above it, by their mode bits."""
    return all(_may_enter(folder.stat(), uid, gid) for folder in (path, *path.parents))


def _may_enter(status: os.stat_result, uid: int, gid: int) -> bool:
    if status.st_uid == uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _try(name: str) -> None:
    # A module of another operating system, or one that this build of Python lacks.
    with suppress(ImportError, OSError, AttributeError):
        importlib.import_module(name)
