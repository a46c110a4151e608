"""Signed tasks, rosters and answers as files: read at the start and when the folder changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wire import labels
from wire.bounds import MAX_ROSTER_BODY
from wire.envelope import Signed
from wire.rejection import ReportRejected
from wire.roster import Roster
from wire.task import Task

TASK_SUFFIX = ".task"
ROSTER_SUFFIX = ".roster"
ENTRY_SUFFIX = ".entry"
MAX_FILE_BYTES = MAX_ROSTER_BODY + 148


class SignedFolder:
    """`NAME.roster` and `NAME.task` files; rosters come first, each file once per content."""

    def __init__(self, folder: Path, *, entries: bool = False) -> None:
        """Look into `folder`; `entries` asks for `NAME.entry` files too, after the others."""
        self._folder = folder
        self._suffixes = (ROSTER_SUFFIX, TASK_SUFFIX, *([ENTRY_SUFFIX] if entries else []))
        self._seen: dict[Path, tuple[int, int]] = {}

    def new_files(self) -> Iterator[tuple[Path, bytes]]:
        """Files that are new or changed, rosters before tasks, by version, then by name."""
        for suffix in self._suffixes:
            yield from sorted(self._changed(suffix), key=lambda one: (_version(*one), one[0]))

    def _changed(self, suffix: str) -> Iterator[tuple[Path, bytes]]:
        for path in self._folder.glob(f"*{suffix}"):
            status = path.stat()
            mark = (status.st_mtime_ns, status.st_size)
            if self._seen.get(path) == mark or status.st_size > MAX_FILE_BYTES:
                continue
            self._seen[path] = mark
            yield path, path.read_bytes()


def _version(path: Path, content: bytes) -> int:
    """The version a file says it has: only an order, for nothing is verified yet."""
    try:
        if path.suffix == TASK_SUFFIX:
            return Task.decode_body(Signed.decode(content, labels.TASK).body).version
        if path.suffix == ENTRY_SUFFIX:
            return 0
        return Roster.decode_body(Signed.decode(content, labels.ROSTER).body).version
    except ReportRejected:
        return 0
