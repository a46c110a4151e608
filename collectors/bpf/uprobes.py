"""Places of a file that are probed: many by one link, and the named events where BCC puts them.

A kernel without the PMU `uprobe` (before Linux 4.17) knows a place by a line of `uprobe_events`,
which outlives the descriptor and the process that wrote it. Ours are told by their names.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from collectors.port import SourceUnavailable

from .bcc import tracing
from .bpf_maps import create_link

UPROBE_MULTI: Final = 48
"""BPF_TRACE_UPROBE_MULTI: attach type of the programs and of their links."""

RETURN: Final = 1
_MAX_PLACES: Final = 4096


class LinkCreate(ctypes.Structure):
    """bpf_attr of BPF_LINK_CREATE with its part uprobe_multi."""

    _fields_ = (
        ("prog_fd", ctypes.c_uint32),
        ("target_fd", ctypes.c_uint32),
        ("attach_type", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
        ("path", ctypes.c_uint64),
        ("offsets", ctypes.c_uint64),
        ("ref_ctr_offsets", ctypes.c_uint64),
        ("cookies", ctypes.c_uint64),
        ("count", ctypes.c_uint32),
        ("multi_flags", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    )


class UprobeLink:
    """One link; it lasts until `close`."""

    def __init__(
        self,
        program_fd: int,
        path: str,
        offsets: Sequence[int],
        cookies: Sequence[int],
        *,
        semaphores: Sequence[int] = (),
        returns: bool = False,
        pid: int = 0,
    ) -> None:
        """Attach to every offset of the file, for every process. Raises SourceUnavailable.

        offsets     bytes from the start of the file; beside each its cookie, and the offset of its
                    USDT counter, 0: none
        pid         a process for which alone the places are probed, 0: none
        """
        count = len(offsets)
        if not 1 <= count <= _MAX_PLACES or len(cookies) != count:
            raise ValueError(f"expected 1 to {_MAX_PLACES} offsets, each with a cookie")
        numbers = ctypes.c_uint64 * count
        name = ctypes.create_string_buffer(os.fsencode(path))
        places, given = numbers(*offsets), numbers(*cookies)
        counters = numbers(*semaphores) if any(semaphores) else None
        attributes = LinkCreate(
            prog_fd=program_fd,
            attach_type=UPROBE_MULTI,
            path=ctypes.addressof(name),
            offsets=ctypes.addressof(places),
            ref_ctr_offsets=ctypes.addressof(counters) if counters else 0,
            cookies=ctypes.addressof(given),
            count=count,
            multi_flags=RETURN if returns else 0,
            pid=pid,
        )
        try:
            self._fd = create_link(attributes)
        except OSError as error:
            raise SourceUnavailable(_reason(path, error)) from None

    def close(self) -> None:
        """Detach; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def expect_links(program_fd: int) -> None:
    """Find out whether this kernel makes such links; nothing is attached.

    A kernel that does looks at the path, and refuses a folder as one that is no file.

    Raises      SourceUnavailable
    """
    name, number = ctypes.create_string_buffer(b"/"), ctypes.c_uint64(0)
    attributes = LinkCreate(
        prog_fd=program_fd,
        attach_type=UPROBE_MULTI,
        path=ctypes.addressof(name),
        offsets=ctypes.addressof(number),
        count=1,
    )
    try:
        os.close(create_link(attributes))
    except OSError as error:
        if error.errno != errno.EBADF:
            line = f"this kernel makes no uprobe_multi link: {error.strerror}"
            raise SourceUnavailable(line) from None


def _reason(path: str, error: OSError) -> str:
    if error.errno in {errno.EPERM, errno.EACCES}:
        return f"cannot attach to {path}: expected CAP_BPF, CAP_PERFMON and a file we may look up"
    return f"cannot attach to {path}: {error.strerror}"


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
