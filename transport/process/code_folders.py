"""Keep a process's own code within its reach when it gives root up.

Root's Python and checkout often lie below a home folder that nobody else may enter, and libraries
import parts of themselves long after start. So what Python loads from is held open where the
role's user could not get to it, and named by its descriptor: `/proc/self/fd/N` leads there past
the closed folders above. What may be read inside is still said by each file's own mode.

Modules find their files of data by `__file__` or importlib.resources when they read them: a path
that was made at import is the closed one.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

_PROGRAM: Final = Path(sys.executable).resolve()
_DESCRIPTORS: Final = "/proc/self/fd/"
_held: Final[dict[str, int]] = {}
"""What this process holds: path -> descriptor."""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """How another process of this Python is begun, also where its files are held alone.

    program       what to execute, with -S: `environment` names every folder of code
    descriptors   what it must inherit
    whole         whether it can read every folder of code; if not, the library at least
    """

    program: str
    environment: Mapping[str, str]
    descriptors: tuple[int, ...]
    whole: bool


def hold_code(uid: int, gid: int) -> None:
    """Hold what Python loads from and a user could not reach; this process loads by it from now."""
    folders = [Path(folder).absolute() for folder in sys.path]
    # Where such a folder's own mode closes it, what was loaded from it is held package by package.
    closed = {
        folder for folder in folders if folder.is_dir() and not _may_enter(folder.stat(), uid, gid)
    }
    roots = [folder for folder in map(Path, _package_folders()) if folder.parent in closed]
    for path in dict.fromkeys((*folders, *roots, _PROGRAM, Path(sys.base_prefix))):
        if path.exists() and not reachable(path, uid, gid):
            _held[str(path)] = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if _held:
        sys.path[:] = [_within_reach(str(folder)) for folder in folders]
        for module in list(sys.modules.values()):
            _move(module)


def closed_by_mode() -> str | None:
    """Name the folder of a loaded package that is held and yet may not be read, by its own mode."""
    paths = {str(descriptor): path for path, descriptor in _held.items()}
    for folder in _package_folders():
        number, _, inside = folder.removeprefix(_DESCRIPTORS).partition("/")
        if folder.startswith(_DESCRIPTORS) and not os.access(folder, os.R_OK | os.X_OK):
            return str(Path(paths[number], inside))
    return None


def held_descriptors() -> Iterable[int]:
    """Name what a fork that closes the rest must leave open."""
    return _held.values()


def interpreter() -> Interpreter:
    """Give this Python for another process, which finds the same code as this one."""
    folders = [Path(folder).absolute() for folder in sys.path]
    environment = {
        "PYTHONHOME": _within_reach(sys.base_prefix),
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
    }
    whole = all(os.access(folder, os.R_OK | os.X_OK) for folder in folders if folder.is_dir())
    program = _within_reach(str(_PROGRAM))
    return Interpreter(program, environment, tuple(_held.values()), whole)


def reachable(path: Path, uid: int, gid: int) -> bool:
    """Whether a user may enter a folder (execute a file) and all folders on the way, links too."""
    real = path.resolve()
    folders = {path, *path.parents, real, *real.parents}
    return all(_may_enter(folder.stat(), uid, gid) for folder in folders)


def _may_enter(status: os.stat_result, uid: int, gid: int) -> bool:
    if status.st_uid == uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _package_folders() -> list[str]:
    """Where Python looks for parts of the loaded packages."""
    return [folder for module in list(sys.modules.values()) for folder in _folders(module)]


def _folders(module: ModuleType) -> list[str]:
    """Where it looks for parts of one; namespace packages follow `sys.path` alone."""
    folders = getattr(module, "__path__", None)
    return folders if isinstance(folders, list) else []


def _move(module: ModuleType) -> None:
    """Let a loaded module find its parts and its data by what is held."""
    folders = _folders(module)
    folders[:] = [_within_reach(folder) for folder in folders]
    spec = getattr(module, "__spec__", None)
    loader = getattr(spec, "loader", None)
    for owner, name in ((module, "__file__"), (spec, "origin"), (loader, "path")):
        path = getattr(owner, name, None)
        if isinstance(path, str) and (moved := _within_reach(path)) != path:
            setattr(owner, name, moved)


def _within_reach(path: str) -> str:
    """Name a path by the nearest held one above it, where there is any."""
    for held in sorted(_held, key=len, reverse=True):  # .venv lies within the checkout
        if path == held or path.startswith(f"{held}/"):
            return f"{_DESCRIPTORS}{_held[held]}{path[len(held) :]}"
    return path
