"""What /proc says of one process: name, start, mapped files; and the very file behind a mapping.

Paths come from processes and may be made to mislead: each is opened as a mere handle first, looked
at, and opened for reading when it is the regular file that the kernel says is mapped.
"""

from __future__ import annotations

import ctypes
import os
import stat
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from collectors.records.basics import ProcessKey
from transport.process.foreign import libc
from transport.process.printable import printable

_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_STATE, _START = 0, 19
_MOST_MAPS_BYTES: Final = 16 << 20
MOST_MODULES: Final = 8192

FileKey = tuple[tuple[int, int], int]
"""((major, minor), inode) of a file, as the kernel's memory maps have them."""


class Module(NamedTuple):
    start: int
    end: int
    offset: int
    file: FileKey
    path: str

    def file_offset(self, address: int) -> int:
        return address - self.start + self.offset


class Modules:
    """One process's modules by address; a new one takes the place of what it covers; any thread."""

    def __init__(self, modules: Iterator[Module] | None = None) -> None:
        self._table: tuple[list[int], list[Module]] = ([], [])
        for module in modules or ():
            starts, held = self._table
            follows = not held or module.start >= held[-1].end
            if follows and module.start < module.end and len(held) < MOST_MODULES:
                starts.append(module.start)  # nobody looks yet, and the kernel's are in order
                held.append(module)
            else:
                self.add(module)

    def add(self, module: Module) -> None:
        starts, modules = self._table
        if module.end <= module.start or len(starts) >= MOST_MODULES:
            return
        first = bisect_right(starts, module.start)
        if first and modules[first - 1].end > module.start:
            first -= 1
        last = bisect_left(starts, module.end, lo=first)
        self._table = (
            [*starts[:first], module.start, *starts[last:]],
            [*modules[:first], module, *modules[last:]],
        )

    def find(self, address: int) -> Module | None:
        starts, modules = self._table
        index = bisect_right(starts, address) - 1
        if index >= 0 and address < modules[index].end:
            return modules[index]
        return None

    def __len__(self) -> int:
        return len(self._table[0])

    def __iter__(self) -> Iterator[Module]:
        return iter(self._table[1])

    def files(self) -> set[FileKey]:
        return {module.file for module in self._table[1]}


def coarse(process: ProcessKey) -> ProcessKey:
    """Give a process as /proc knows it: its start, CLOCK_BOOTTIME, down to the tick of 10 ms."""
    return ProcessKey(process.pid, process.start_ns // _TICK_NS * _TICK_NS)


def parse_stat(text: bytes) -> tuple[str, int] | None:
    """Give (state, start in ns) of /proc/PID/stat; the name in it may hold anything."""
    fields = text.rpartition(b")")[2].split()
    if len(fields) <= _START:
        return None
    return fields[_STATE].decode("ascii", "replace"), int(fields[_START]) * _TICK_NS


def parse_maps(text: bytes) -> Iterator[Module]:
    """Yield the executable parts of files in /proc/PID/maps; lines in disorder are left out."""
    for line in text.split(b"\n"):  # a path may hold \r, and with it a line of its own making
        parts = line.split(None, 5)
        if len(parts) < 6 or parts[1][2:3] != b"x" or parts[4] == b"0":
            continue
        try:
            start, _, end = parts[0].partition(b"-")
            major, _, minor = parts[3].partition(b":")
            yield Module(
                int(start, 16),
                int(end, 16),
                int(parts[2], 16),
                ((int(major, 16), int(minor, 16)), int(parts[4])),
                parts[5].decode("utf-8", "surrogateescape"),
            )
        except ValueError:
            continue


def process_key(proc: str, pid: int, *, ended: bool = False) -> ProcessKey | None:
    """Name the process of a number; `ended`: also one whose first thread has ended."""
    read = parse_stat(content_of(f"{proc}/{pid}/stat", 4096))
    return ProcessKey(pid, read[1]) if read and (ended or read[0] not in "XZ") else None


def read_maps(proc: str, pid: int) -> Iterator[Module]:
    """Yield the modules of a process; none where it is gone or not ours to see."""
    yield from parse_maps(content_of(f"{proc}/{pid}/maps", _MOST_MAPS_BYTES))


def all_pids(proc: str) -> list[int]:
    try:
        with os.scandir(proc) as entries:
            return [int(entry.name) for entry in entries if entry.name.isdecimal()]
    except OSError:
        return []


def content_of(path: str, most: int) -> bytes:
    """Read a file of /proc in pieces, up to `most` bytes or little more; b"" where that fails."""
    pieces, size = [], 0
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        while size < most and (piece := os.read(fd, min(65536, most - size))):
            pieces.append(piece)
            size += len(piece)
    except OSError:
        return b""  # it ended while we read
    finally:
        os.close(fd)
    return b"".join(pieces)


_MOST_NAMES: Final = 1024


def comm_of(proc: str, pid: int) -> str:
    """Read a process's name, "" where it is gone; what a terminal would act on is written out."""
    return printable(content_of(f"{proc}/{pid}/comm", 64).decode("utf-8", "replace").strip("\n"))


class ProgramNames:
    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._names: dict[tuple[int, int], str] = {}

    def name(self, pid: int, start_ns: int) -> str:
        key = (pid, start_ns)
        if key not in self._names:
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[key] = comm_of(str(self._proc), pid)
        return self._names[key]

    def alive(self, pid: int, start_ns: int) -> bool:
        return process_key(str(self._proc), pid) == coarse(ProcessKey(pid, start_ns))


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
    NAME = "name"
    PROCESS = "process"
    KERNEL = "kernel"


class MappedFile:
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
        return self._look() != self.identity

    def deleted(self) -> bool:
        return os.fstat(self.fd).st_nlink == 0

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _look(self) -> FileIdentity:
        found = os.fstat(self.fd)
        return FileIdentity(found.st_ino, found.st_size, found.st_mtime_ns)


def open_mapped(
    proc: str, pid: int, start: int, end: int, file: FileKey, path: str
) -> MappedFile | None:
    """Open the file that a process has mapped at [start, end), in our own mounts first, or None."""
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


SHARE: Final = 0.1
BURST_S: Final = 2.0
"""Of CPU time that may be spent at once: a hundred programs that start together take half of it."""


class CpuShare:
    """What a thread may still spend; earned as time passes, up to the burst."""

    def __init__(self, now_s: float, cpu_s: float) -> None:
        """Begin with a full burst at a monotonic time and the thread's CPU time, both in s."""
        self._now_s, self._cpu_s = now_s, cpu_s
        self._credit_s = BURST_S

    def pause_s(self, now_s: float, cpu_s: float) -> float:
        """Give how long to do nothing now, so that the share holds."""
        earned = max(0.0, now_s - self._now_s) * SHARE
        spent = max(0.0, cpu_s - self._cpu_s)
        self._now_s, self._cpu_s = now_s, cpu_s
        self._credit_s = min(BURST_S, self._credit_s + earned) - spent
        return max(0.0, -self._credit_s / SHARE)
