"""Opens the file behind a mapping: in any mount namespace, and only if it is that very file.

Paths come from processes and may be made to mislead: each is opened as a mere handle first, looked
at, and opened for reading when it is the regular file that the kernel says is mapped.
"""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from typing import Final, NamedTuple

from transport.process.foreign import libc

from .proc_maps import FileKey

_HANDLE: Final = os.O_PATH | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
_DELETED: Final = " (deleted)"
_OVERLAY: Final = 0x794C7630


class FileIdentity(NamedTuple):
    """A file under any mount, such as an image's layer under two containers, and its state."""

    inode: int
    size: int
    modified_ns: int


class Trust(Enum):
    """How sure it is that a path leads to the mapped file."""

    NAME = "name"
    PROCESS = "process"
    KERNEL = "kernel"


class MappedFile:
    """An open file; `path` opens it again from this process as long as it is not closed."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.identity = self._look()
        self.inode_changed_ns = os.fstat(fd).st_ctime_ns
        """When it was opened; the one time that nobody can set: tells a copy made to look alike."""
        self.overlay = _file_system(fd) == _OVERLAY

    @property
    def path(self) -> str:
        """A path that leads to this file, deleted or in another mount namespace or not."""
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def changed(self) -> bool:
        """Tell whether it was written since it was opened."""
        return self._look() != self.identity

    def deleted(self) -> bool:
        """Tell whether no folder holds it any more."""
        return os.fstat(self.fd).st_nlink == 0

    def close(self) -> None:
        """Let go of it; a second call does nothing."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _look(self) -> FileIdentity:
        found = os.fstat(self.fd)
        return FileIdentity(found.st_ino, found.st_size, found.st_mtime_ns)


def open_mapped(
    proc: str, pid: int, start: int, end: int, file: FileKey, path: str
) -> MappedFile | None:
    """Open the file that a process has mapped at [start, end), or None where nothing leads to it.

    In our own mounts first: that needs neither the process alive nor a capability.
    """
    for candidate, trust in _ways(proc, pid, start, end, path):
        with suppress(OSError):
            handle = os.open(candidate, _HANDLE)
            try:
                if _is_it(os.fstat(handle), file, trust):
                    return MappedFile(os.open(f"/proc/self/fd/{handle}", _READ))
            finally:
                os.close(handle)
    return None


def open_regular(path: str) -> MappedFile | None:
    """Open a regular file that any process may have put there, or give None."""
    with suppress(OSError):
        handle = os.open(path, _HANDLE)
        try:
            if stat.S_ISREG(os.fstat(handle).st_mode):
                return MappedFile(os.open(f"/proc/self/fd/{handle}", _READ))
        finally:
            os.close(handle)
    return None


def _ways(proc: str, pid: int, start: int, end: int, path: str) -> Iterator[tuple[str, Trust]]:
    name = path.removesuffix(_DELETED)
    if name.startswith("/") and "\0" not in name:
        yield name, Trust.NAME
        yield f"{proc}/{pid}/root{name}", Trust.PROCESS
    yield f"{proc}/{pid}/map_files/{start:x}-{end:x}", Trust.KERNEL
    yield f"{proc}/{pid}/exe", Trust.PROCESS


def _is_it(found: os.stat_result, file: FileKey, trust: Trust) -> bool:
    """Compare with the kernel's word.

    overlayfs and btrfs show another device in stat() than in memory maps, always one of major 0;
    in the process's own mounts the inode's number decides there.
    """
    if not stat.S_ISREG(found.st_mode):
        return False
    (major, minor), inode = file
    same_device = found.st_dev == os.makedev(major, minor)
    anonymous = trust is Trust.PROCESS and os.major(found.st_dev) == 0
    return trust is Trust.KERNEL or (found.st_ino == inode and (same_device or anonymous))


def _file_system(fd: int) -> int:
    """Give the magic number of a file's file system (the first word of struct statfs), or 0."""
    answer = (ctypes.c_long * 32)()
    return answer[0] if libc().fstatfs(fd, ctypes.byref(answer)) == 0 else 0
