"""Signed tasks and rosters as files: read at the start and again when the folder changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wire.bounds import MAX_ROSTER_BODY

TASK_SUFFIX = ".task"
ROSTER_SUFFIX = ".roster"
MAX_FILE_BYTES = MAX_ROSTER_BODY + 148


class SignedFolder:
    """`NAME.roster` and `NAME.task` files; rosters come first, each file once per content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: dict[Path, tuple[int, int]] = {}

    def new_files(self) -> Iterator[tuple[Path, bytes]]:
        """Files that are new or changed, rosters before tasks, by name."""
        for suffix in (ROSTER_SUFFIX, TASK_SUFFIX):
            for path in sorted(self._folder.glob(f"*{suffix}")):
                status = path.stat()
                mark = (status.st_mtime_ns, status.st_size)
                if self._seen.get(path) == mark or status.st_size > MAX_FILE_BYTES:
                    continue
                self._seen[path] = mark
                yield path, path.read_bytes()
