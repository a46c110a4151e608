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
from contextlib import suppress
from pathlib import Path
from typing import Final

_LEFT_OUT: Final = {"antigravity", "this", "idlelib", "lib2to3", "test", "tkinter", "turtledemo"}
"""They open a browser, print a poem, need a display or are tests."""

_PACKAGES: Final = (
    "concurrent", "concurrent.futures", "ctypes", "email", "encodings", "html", "http", "importlib",
    "importlib.metadata", "importlib.resources", "json", "logging", "multiprocessing", "re",
    "sqlite3", "unittest", "urllib", "xml", "xml.etree", "zoneinfo",
)  # fmt: skip


def preload_for(uid: int, gid: int) -> bool:
    """Load the standard library when the user cannot reach it; False when nothing was needed."""
    library = Path(os.__file__).resolve().parent
    if reachable(library, uid, gid):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in sorted(sys.stdlib_module_names - _LEFT_OUT):
            _try(name)
        for package in _PACKAGES:
            _try(package)
            for module in pkgutil.iter_modules(getattr(sys.modules.get(package), "__path__", [])):
                if not module.name.startswith(("__", "test")):
                    _try(f"{package}.{module.name}")
    return True


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
