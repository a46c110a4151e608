"""The kernel's list of named uprobe events: where BCC puts a place when perf cannot take it itself.

A kernel without the PMU `uprobe` (before Linux 4.17) knows a place by a line of `uprobe_events`,
which outlives the descriptor and the process that wrote it. Ours are told by their names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from .bcc import tracing

_FILE: Final = "uprobe_events"
_OURS: Final = re.compile(r"^[pr]:(uprobes/gpu_[pr]_\d+_[0-9a-f]+_(\d+)_bcc_\2) ", re.MULTILINE)
"""BCC adds `_bcc_` and the process id to a name."""


def event_name(file: int, offset: int, returns: bool) -> str:
    """Name a place for BCC; no other of this process has the name."""
    return f"gpu_{'r' if returns else 'p'}_{file}_{offset:x}_{os.getpid()}"


def remove(names: Collection[str], folder: Path | None = None) -> None:
    """Remove what is left of places of this process, once their descriptors are closed."""
    left = {f"uprobes/{name}_bcc_{os.getpid()}" for name in names}
    _remove([event for event, _ in listed(folder) if event in left], folder)


def remove_stale(folder: Path | None = None) -> None:
    """Remove what a loader left that was killed; what somebody uses the kernel keeps."""
    stale = [event for event, pid in listed(folder) if not Path(f"/proc/{pid}").exists()]
    _remove(stale, folder)


def listed(folder: Path | None = None) -> Iterator[tuple[str, int]]:
    """Give the events that are ours, each with the process that made it."""
    path = _path(folder)
    text = ""
    if path is not None:
        with suppress(OSError):
            text = path.read_text(encoding="utf-8", errors="replace")
    for found in _OURS.finditer(text):
        yield found[1], int(found[2])


def _remove(events: Collection[str], folder: Path | None) -> None:
    path = _path(folder)
    if path is None or not events:
        return
    with suppress(OSError):
        # Not open(..., "a"), which seeks to the end, where this file has none.
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            for event in events:
                with suppress(OSError):  # one that is in use must not keep the others
                    os.write(fd, f"-:{event}\n".encode())
        finally:
            os.close(fd)


def _path(folder: Path | None) -> Path | None:
    folder = folder or tracing()
    return folder / _FILE if folder is not None else None
