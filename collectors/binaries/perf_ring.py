"""Programs and libraries as they are mapped, by one perf ring per CPU; CAP_PERFMON is enough.

Source  perf_event_open(2), "MMAP layout"; each record ends with its time (sample_id_all)
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import time
from collections.abc import Container, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from collectors.bpf.perf_events import DUMMY, SOFTWARE, perf_event_open, why_refused
from collectors.bpf.system_calls import PerfEventAttributes, barrier
from collectors.interface import SourceUnavailable
from collectors.kernel_files import cpu_numbers

LOST, COMM, FORK, MMAP2 = 2, 3, 7, 10
_EXECUTED: Final = 1 << 13
_HEADER: Final = struct.Struct("<IHH")
_TASK: Final = struct.Struct("<IIII")
_MAP: Final = struct.Struct("<IIQQQIIQQII")
_FILE: Final = struct.Struct("<IIQQ")
_FILE_AT: Final = 40
_FILE_END: Final = _FILE_AT + _FILE.size
_TWO_WORDS: Final = struct.Struct("<QQ")
_TIME: Final = struct.Struct("<Q")
_MOST_NAME: Final = 4096


class Mapped(NamedTuple):
    """A process mapped a part of a file with the right to execute it.

    device         (major, minor), as /proc/PID/maps has them
    generation     of the inode: an inode number used again has another
    """

    boottime_ns: int
    pid: int
    start: int
    length: int
    offset: int
    device: tuple[int, int]
    inode: int
    generation: int
    path: str


class Executed(NamedTuple):
    boottime_ns: int
    pid: int


class Forked(NamedTuple):
    boottime_ns: int
    parent: int
    pid: int


class Lost(NamedTuple):
    boottime_ns: int
    records: int


Record = Mapped | Executed | Forked | Lost


class BrokenRing(Exception):
    """Bytes of a ring are no records: says what was expected and what came."""


def file_mark(device: tuple[int, int], inode: int, generation: int) -> bytes:
    return _FILE.pack(*device, inode, generation)


def parse_records(content: bytes, plain: Container[bytes] = ()) -> Iterator[Record]:
    """Yield what the records of a ring say; other kinds are passed over.

    plain   file marks whose mappings are passed over as well: nearly all, so this is done first
    Raises  BrokenRing for a record that does not fit: what follows cannot be found
    """
    at, end = 0, len(content)
    while at < end:
        if at + _HEADER.size > end:
            raise BrokenRing(f"expected a header of 8 bytes, {end - at} are left")
        kind, misc, size = _HEADER.unpack_from(content, at)
        if size < 2 * _HEADER.size or size % 8 or at + size > end:
            raise BrokenRing(f"expected a record of 16 to {end - at} bytes, it says {size}")
        if kind != MMAP2 or content[at + _FILE_AT : at + _FILE_END] not in plain:
            record = _record(kind, misc, content[at + _HEADER.size : at + size])
            if record is not None:
                yield record
        at += size


def _record(kind: int, misc: int, body: bytes) -> Record | None:
    (time_ns,) = _TIME.unpack_from(body, len(body) - _TIME.size)
    if kind == MMAP2 and len(body) >= _MAP.size + _TIME.size:
        return _mapped(time_ns, body)
    if kind == COMM and misc & _EXECUTED:
        return Executed(time_ns, int.from_bytes(body[:4], "little"))
    if kind == FORK and len(body) >= _TASK.size + _TIME.size:
        pid, parent, _, _ = _TASK.unpack_from(body)
        # A new thread is told as a fork within one process.
        return Forked(time_ns, parent, pid) if pid != parent else None
    if kind == LOST and len(body) >= _TWO_WORDS.size + _TIME.size:
        return Lost(time_ns, _TWO_WORDS.unpack_from(body)[1])
    return None


def _mapped(time_ns: int, body: bytes) -> Mapped | None:
    pid, _, start, length, offset, major, minor, inode, generation, _, _ = _MAP.unpack_from(body)
    if not inode:
        return None  # no file behind it
    path = body[_MAP.size : min(len(body) - _TIME.size, _MAP.size + _MOST_NAME)]
    text = path.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
    device = (major, minor)
    return Mapped(time_ns, pid, start, length, offset, device, inode, generation, text)


_PAGE: Final = mmap.PAGESIZE
RING_BYTES: Final = 32 * 4096
"""Of each CPU: some 900 records, the mappings of a hundred processes' start."""
_HEAD, _TAIL = 1024, 1032
_WORD: Final = struct.Struct("<Q")
SAMPLE_TIME: Final = 1 << 2
_POSSIBLE: Final = Path("/sys/devices/system/cpu/possible")
_TIME_OF: Final = attrgetter("boottime_ns")
FLAGS: Final = sum(1 << bit for bit in (5, 6, 8, 9, 13, 14, 18, 23, 24, 25))
"""exclude_kernel, exclude_hv, mmap, comm, task, watermark, sample_id_all, mmap2, comm_exec,
use_clockid"""


class PerfRing:
    def __init__(self, cpu: int, ring_bytes: int = RING_BYTES) -> None:
        """Open it. Raises SourceUnavailable, or OSError ENODEV for a CPU that is off."""
        attributes = PerfEventAttributes(
            type=SOFTWARE,
            config=DUMMY,
            sample_type=SAMPLE_TIME,
            flags=FLAGS,
            wakeup=1,  # a waiting poll() ends with the first record
            clockid=time.CLOCK_BOOTTIME,
        )
        try:
            self.fd = perf_event_open(attributes, cpu)
        except OSError as error:
            raise _refused(error) from None
        self._size = ring_bytes
        try:
            self._pages = mmap.mmap(self.fd, _PAGE + ring_bytes)
        except OSError as error:
            os.close(self.fd)
            raise SourceUnavailable(
                f"cannot map a perf ring of {ring_bytes} bytes: {error.strerror} "
                "(kernel.perf_event_mlock_kb or the memlock limit is too low)"
            ) from None

    def take(self) -> bytes:
        """Give the bytes of all new records, and the room back. Raises BrokenRing."""
        (head,) = _WORD.unpack_from(self._pages, _HEAD)
        (tail,) = _WORD.unpack_from(self._pages, _TAIL)
        if head == tail:
            return b""
        barrier()  # the records are read after the head
        if not 0 < head - tail <= self._size:
            _WORD.pack_into(self._pages, _TAIL, head)
            raise BrokenRing(f"expected at most {self._size} bytes in a ring, got {head - tail}")
        first = _PAGE + tail % self._size
        until = _PAGE + head % self._size
        if first < until:
            content = self._pages[first:until]
        else:
            content = self._pages[first : _PAGE + self._size] + self._pages[_PAGE:until]
        barrier()  # and their room is given back once they have been copied
        _WORD.pack_into(self._pages, _TAIL, head)
        return content

    def close(self) -> None:
        self._pages.close()
        os.close(self.fd)


class PerfRings:
    def __init__(self, ring_bytes: int = RING_BYTES) -> None:
        """Open them. Raises SourceUnavailable."""
        self._rings: list[PerfRing] = []
        self.lost = 0
        try:
            for cpu in cpu_numbers(_POSSIBLE.read_text(encoding="ascii")):
                self._open(cpu, ring_bytes)
        except SourceUnavailable:
            self.close()
            raise

    @property
    def fds(self) -> list[int]:
        return [ring.fd for ring in self._rings]

    def take(self, plain: Container[bytes] = ()) -> list[Record]:
        """Give all records in the order of their times; a ring in disorder counts as one lost."""
        found: list[Record] = []
        for ring in self._rings:
            try:
                found += parse_records(ring.take(), plain)
            except BrokenRing:
                found.append(Lost(0, 1))
        self.lost += sum(record.records for record in found if isinstance(record, Lost))
        found.sort(key=_TIME_OF)
        return found

    def close(self) -> None:
        while self._rings:
            self._rings.pop().close()

    def _open(self, cpu: int, ring_bytes: int) -> None:
        try:
            self._rings.append(PerfRing(cpu, ring_bytes))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise


def _refused(error: OSError) -> OSError | SourceUnavailable:
    if error.errno == errno.ENODEV:
        return error
    return SourceUnavailable(f"cannot watch programs start: {why_refused(error)}")
