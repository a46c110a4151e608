"""Attaches one program to many places of a file by one link (uprobe_multi, Linux 6.6)."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from typing import Final

from collectors.port import SourceUnavailable

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


def _reason(path: str, error: OSError) -> str:
    if error.errno in {errno.EPERM, errno.EACCES}:
        return f"cannot attach to {path}: expected CAP_BPF, CAP_PERFMON and a file we may look up"
    return f"cannot attach to {path}: {error.strerror}"
