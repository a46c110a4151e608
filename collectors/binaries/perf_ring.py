"""The kernel's word on programs and libraries as they are mapped: one perf ring per CPU.

A software event that counts nothing carries the records (mmap2, comm, task). CAP_PERFMON is enough.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
import threading
import time
from collections.abc import Container, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Final

from collectors.bpf.system_calls import SOFTWARE, PerfEventAttributes, perf_event_open
from collectors.port import SourceUnavailable

from .perf_records import BrokenRing, Lost, Record, parse_records

_PAGE: Final = mmap.PAGESIZE
RING_BYTES: Final = 32 * 4096
"""Of each CPU: some 900 records, the mappings of a hundred processes' start."""
_HEAD, _TAIL = 1024, 1032
_WORD: Final = struct.Struct("<Q")
DUMMY: Final = 9
"""PERF_COUNT_SW_DUMMY"""
SAMPLE_TIME: Final = 1 << 2
"""PERF_SAMPLE_TIME"""
_POSSIBLE: Final = Path("/sys/devices/system/cpu/possible")
_TIME_OF: Final = attrgetter("boottime_ns")
FLAGS: Final = sum(
    1 << bit
    for bit in (
        5,  # exclude_kernel
        6,  # exclude_hv
        8,  # mmap
        9,  # comm
        13,  # task
        14,  # watermark
        18,  # sample_id_all
        23,  # mmap2
        24,  # comm_exec
        25,  # use_clockid
    )
)


class PerfRing:
    """One CPU's ring, mapped and read."""

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
        self._fence = threading.Lock()
        try:
            self._pages = mmap.mmap(self.fd, _PAGE + ring_bytes)
        except OSError as error:
            os.close(self.fd)
            raise SourceUnavailable(
                f"cannot map a perf ring of {ring_bytes} bytes: {error.strerror} "
                "(kernel.perf_event_mlock_kb or the memlock limit is too low)"
            ) from None

    def take(self) -> bytes:
        """Give the bytes of all records since the last call, and the room back to the kernel.

        Raises  BrokenRing where head and tail cannot be
        """
        (head,) = _WORD.unpack_from(self._pages, _HEAD)
        (tail,) = _WORD.unpack_from(self._pages, _TAIL)
        if head == tail:
            return b""
        for _ in range(2):  # a full barrier: the records are read after the head
            with self._fence:
                pass
        if not 0 < head - tail <= self._size:
            _WORD.pack_into(self._pages, _TAIL, head)
            raise BrokenRing(f"expected at most {self._size} bytes in a ring, got {head - tail}")
        first = _PAGE + tail % self._size
        until = _PAGE + head % self._size
        if first < until:
            content = self._pages[first:until]
        else:
            content = self._pages[first : _PAGE + self._size] + self._pages[_PAGE:until]
        _WORD.pack_into(self._pages, _TAIL, head)
        return content

    def close(self) -> None:
        """Unmap and close."""
        self._pages.close()
        os.close(self.fd)


class PerfRings:
    """The rings of all CPUs that are on."""

    def __init__(self, ring_bytes: int = RING_BYTES) -> None:
        """Open them. Raises SourceUnavailable."""
        self._rings: list[PerfRing] = []
        self.lost = 0
        try:
            for cpu in possible_cpus(_POSSIBLE.read_text(encoding="ascii")):
                self._open(cpu, ring_bytes)
        except SourceUnavailable:
            self.close()
            raise

    @property
    def fds(self) -> list[int]:
        """Descriptors that become readable when records wait."""
        return [ring.fd for ring in self._rings]

    def take(self, plain: Container[bytes] = ()) -> list[Record]:
        """Give all waiting records in the order of their times; counts what was lost.

        plain  marks of files whose mappings are left out
        A ring in disorder counts as one lost record: its reader starts anew at its head.
        """
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
        """Close every ring; a second call does nothing."""
        while self._rings:
            self._rings.pop().close()

    def _open(self, cpu: int, ring_bytes: int) -> None:
        try:
            self._rings.append(PerfRing(cpu, ring_bytes))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise


def possible_cpus(text: str) -> Iterator[int]:
    """Yield the numbers of a list such as `0-3,8-11`."""
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _refused(error: OSError) -> OSError | SourceUnavailable:
    if error.errno == errno.ENODEV:
        return error
    unprivileged = error.errno in {errno.EPERM, errno.EACCES}
    need = "expected CAP_PERFMON" if unprivileged else error.strerror
    return SourceUnavailable(f"cannot watch programs start (perf_event_open): {need}")
