"""Names of cgroups: the kernel speaks of the id of a directory, which is its inode."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .port import SourceUnavailable

_MOUNTS: Final = Path("/proc/self/mounts")
_MOST_DIRECTORIES: Final = 20_000
_ROOT_NAME: Final = "/"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """Where a controller's directories are; `unified`: on cgroup v2."""

    path: str
    unified: bool


def hierarchy_of(*controllers: str, mounts: str | None = None) -> Hierarchy:
    """Find the hierarchy of the first controller that has a v1 mount, else the unified one.

    Raises  SourceUnavailable where no cgroup file system is mounted
    """
    text = _MOUNTS.read_text(encoding="utf-8") if mounts is None else mounts
    rows = [line.split() for line in text.splitlines()]
    for _, path, kind, options, *_ in rows:
        if kind == "cgroup" and set(controllers) & set(options.split(",")):
            return Hierarchy(path, unified=False)
    for _, path, kind, *_ in rows:
        if kind == "cgroup2":
            return Hierarchy(path, unified=True)
    raise SourceUnavailable("expected a mounted cgroup file system, found none")


class CgroupNames:
    """Ids of one hierarchy's directories to their paths; scans again when an id is unknown."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._names: dict[int, str] = {}

    def scan(self) -> None:
        """Read the whole hierarchy, up to 20,000 directories."""
        self._names = dict(self._walk())

    def name(self, cgroup: int) -> str | None:
        """Give the path below the root, or None for a directory that is gone."""
        return self._names.get(cgroup)

    def knows_all(self, cgroups: set[int]) -> bool:
        """Tell whether every id has a name without another scan."""
        return cgroups <= self._names.keys()

    def _walk(self) -> Iterator[tuple[int, str]]:
        waiting = [(self._root, _ROOT_NAME)]
        seen = 0
        while waiting and seen < _MOST_DIRECTORIES:
            path, name = waiting.pop()
            try:
                yield os.stat(path).st_ino, name  # noqa: PTH116 - a Path each would double the cost
                with os.scandir(path) as entries:
                    below = [e for e in entries if e.is_dir(follow_symlinks=False)]
            except OSError:
                continue  # removed while we looked
            seen += 1
            waiting += [(e.path, f"{name.rstrip('/')}/{e.name}") for e in below]
