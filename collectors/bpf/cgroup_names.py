"""Names of cgroups: the kernel speaks of the id of a directory, which is its inode."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from collectors.interface import SourceUnavailable

_MOUNTS: Final = Path("/proc/self/mounts")
_MOST_DIRECTORIES: Final = 20_000
_MOUNT_FIELDS: Final = 4
_ROOT_NAME: Final = "/"


@dataclass(frozen=True, slots=True)
class Hierarchy:
    path: str
    unified: bool


def hierarchy_of(*controllers: str, mounts: str | None = None) -> Hierarchy:
    """Find the first controller's v1 mount, else the unified one. Raises SourceUnavailable."""
    text = (
        _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape") if mounts is None else mounts
    )
    # Users name the folders they mount on: only these two letters part what the kernel wrote.
    rows = [row for line in text.split("\n") if len(row := line.split(" ")) >= _MOUNT_FIELDS]
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
        self.cut_short = False
        """The last scan met more than 20,000 directories: what has no name may still be there."""

    def scan(self) -> None:
        self._names = dict(self._walk())

    def name(self, cgroup: int) -> str | None:
        """Give the path below the root, or None for a directory that is gone."""
        return self._names.get(cgroup)

    def ids(self, names: Collection[str]) -> set[int]:
        return {cgroup for cgroup, name in self._names.items() if name in names}

    def every(self) -> Collection[str]:
        return self._names.values()

    def unknown(self, cgroups: set[int]) -> set[int]:
        return cgroups - self._names.keys()

    def _walk(self) -> Iterator[tuple[int, str]]:
        # By levels: a user with thousands of directories hides no other's.
        waiting = deque([(self._root, _ROOT_NAME)])
        seen, self.cut_short = 0, False
        while waiting and seen < _MOST_DIRECTORIES:
            path, name = waiting.popleft()
            try:
                yield os.stat(path).st_ino, name  # noqa: PTH116 - a Path each would double the cost
                with os.scandir(path) as entries:
                    below = [e for e in entries if e.is_dir(follow_symlinks=False)]
            except OSError:
                continue  # removed while we looked
            seen += 1
            waiting += [(e.path, f"{name.rstrip('/')}/{e.name}") for e in below]
        self.cut_short = bool(waiting)
