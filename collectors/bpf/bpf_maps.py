"""BPF maps, rings of marks and the kernel's account of programs, whatever loaded them."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.interface import SourceUnavailable
from collectors.kernel_files import cpu_numbers
from collectors.records.activity import HostTable

from .system_calls import barrier, bpf, structure_fields

LOOKUP, UPDATE, DELETE, NEXT_KEY, LOOKUP_BATCH, LINK_CREATE = 1, 2, 3, 4, 24, 28
_MOST_ROWS: Final = 256
_LEAST_ROWS: Final = 32
"""A batch holds a bucket of the hash at least; the kernel refuses a smaller one."""
_BATCH_BYTES: Final = 1 << 16
"""Below malloc's limit for fresh pages: their faults cost more than the read."""


class Element(ctypes.Structure):
    _fields_ = structure_fields("map_fd:32 key value flags")


class MapBatch(ctypes.Structure):
    _fields_ = structure_fields(
        "in_batch out_batch keys values count:32 map_fd:32 elem_flags flags"
    )


def possible_cpus(text: str | None = None) -> int:
    """Count the CPUs for which per-CPU maps have a value, from the kernel's list `0-3,8`."""
    if text is None:
        text = Path("/sys/devices/system/cpu/possible").read_text(encoding="ascii")
    return len(cpu_numbers(text))


class _Room:
    """Memory of one map's reads: keys uint8[rows, key_bytes], values uint64[rows, cpus, fields]."""

    def __init__(self, table: PerCpuMap) -> None:
        rows = _BATCH_BYTES // (8 * table.cpus * table.fields)
        rows = self.rows = max(_LEAST_ROWS, min(rows, table.capacity, _MOST_ROWS))
        self.keys = np.empty((rows, table.key_bytes), np.uint8)
        self.values = np.empty((rows, table.cpus, table.fields), np.uint64)
        # The kernel's cursor of a hash is a u32 bucket, whatever the key's size.
        self._cursor = np.zeros(max(table.key_bytes, 8), np.uint8)
        self.cursor = self._cursor.ctypes.data
        places = self.keys.ctypes.data, self.values.ctypes.data
        self.batch = MapBatch(0, self.cursor, *places, rows, table.fd)


@dataclass(slots=True)
class PerCpuMap:
    """A per-CPU map: at most `capacity` keys to uint64[cpus, fields]."""

    fd: int
    key_bytes: int
    fields: int
    cpus: int
    capacity: int = 1
    _room: _Room | None = field(default=None, init=False, repr=False, compare=False)

    def value(self, key: bytes) -> NDArray[np.uint64]:
        """Read one value. Raises SourceUnavailable."""
        out = np.empty((self.cpus, self.fields), np.uint64)
        _element(LOOKUP, self.fd, key, out.ctypes.data)
        return out

    def set_zero(self, key: bytes) -> None:
        zero = np.zeros((self.cpus, self.fields), np.uint64)
        _element(UPDATE, self.fd, key, zero.ctypes.data)

    def delete(self, key: bytes) -> None:
        """Remove a row; one that is gone already is no error."""
        try:
            _element(DELETE, self.fd, key, 0)
        except FileNotFoundError:
            return

    def batches(self) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint64]]]:
        """Yield keys and values, written over by the next step. Raises SourceUnavailable."""
        if self._room is None:
            self._room = _Room(self)
        room = self._room
        batch, batch.in_batch = room.batch, 0
        while True:
            batch.count = room.rows
            failed = bpf_call(LOOKUP_BATCH, batch)
            if failed not in {0, errno.ENOENT}:
                raise SourceUnavailable(f"cannot read a BPF map: {os.strerror(failed)}")
            yield room.keys[: batch.count], room.values[: batch.count]
            if failed:
                return
            batch.in_batch = room.cursor


class ArrayView:
    """A mapped array map: uint64[entries, fields], read without a system call."""

    def __init__(self, fd: int, entries: int, fields: int) -> None:
        length = -(-entries * fields * 8 // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            self._memory = mmap.mmap(fd, length, mmap.MAP_SHARED, mmap.PROT_READ)
        except OSError as error:
            raise SourceUnavailable(f"cannot map a BPF array: {error}") from None
        flat = np.frombuffer(self._memory, np.uint64, entries * fields)
        self.rows: NDArray[np.uint64] = flat.reshape(entries, fields)

    def close(self) -> None:
        """Unmap; `rows` must not be used afterwards."""
        self.rows = np.zeros((0, 0), np.uint64)
        self._memory.close()


def set_element(fd: int, key: bytes, value: bytes) -> None:
    """Write one value of a map that is not per CPU. Raises SourceUnavailable."""
    memory = ctypes.create_string_buffer(value, len(value))
    _element(UPDATE, fd, key, ctypes.addressof(memory))


def bpf_descriptor(command: int, attributes: ctypes.Structure) -> int:
    """Do a bpf(2) that gives a descriptor. Raises OSError."""
    fd = bpf(command, attributes)
    if fd < 0:
        raise OSError(-fd, os.strerror(-fd))
    return fd


def _element(command: int, fd: int, key: bytes, value: int) -> None:
    memory = ctypes.create_string_buffer(key, len(key))
    failed = bpf_call(command, Element(fd, ctypes.addressof(memory), value, 0))
    if failed == errno.ENOENT:
        raise FileNotFoundError(failed, os.strerror(failed))
    if failed:
        raise SourceUnavailable(f"cannot use a BPF map: {os.strerror(failed)}")


def bpf_call(command: int, attributes: ctypes.Structure) -> int:
    """Do bpf(2); 0 or an errno."""
    return -bpf(command, attributes)


MARK_FIELDS: Final = ("at_ns", "value", "process", "start_ns", "cgroup", "what", "extra")
"""Words of `struct mark` in bpf/include/marks.h (a test compares)."""

_WORDS: Final = 1 + len(MARK_FIELDS)
_BYTES: Final = 8 * _WORDS
_BUSY: Final = np.uint64(1 << 31)
_CURSOR: Final = struct.Struct("=Q")


class MarkRing:
    """A BPF ring buffer whose every record is a mark; nobody is woken, one reader reads."""

    def __init__(self, fd: int, ring_bytes: int) -> None:
        """Map a ring of a power of two of bytes, at least a page. Raises SourceUnavailable."""
        page = mmap.PAGESIZE
        try:
            self._consumer = mmap.mmap(fd, page, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
            # The kernel maps the records twice in a row: what crosses the end is in one piece.
            self._producer = mmap.mmap(
                fd, page + 2 * ring_bytes, mmap.MAP_SHARED, mmap.PROT_READ, offset=page
            )
        except OSError as error:
            raise SourceUnavailable(f"cannot map a ring of marks: {error}") from None
        words = np.frombuffer(self._producer, np.uint64, 2 * ring_bytes // 8, offset=page)
        self._records: NDArray[np.uint64] = words.reshape(-1, _WORDS)
        self._mask = ring_bytes - 1

    def read(self) -> NDArray[np.uint64]:
        """Take every finished record, in order: uint64[n, MARK_FIELDS]."""
        (consumed,) = _CURSOR.unpack_from(self._consumer)
        (produced,) = _CURSOR.unpack_from(self._producer)
        barrier()  # what is read below was written before the cursor
        first = (consumed & self._mask) // _BYTES
        found = self._records[first : first + (produced - consumed) // _BYTES]
        busy = np.flatnonzero(found[:, 0] & _BUSY)
        count = int(busy[0]) if len(busy) else len(found)
        barrier()  # a record that is not busy is whole
        marks = found[:count, 1:].copy()
        barrier()  # and its room is given back once it has been copied
        _CURSOR.pack_into(self._consumer, 0, consumed + count * _BYTES)
        return marks

    def close(self) -> None:
        self._records = np.zeros((0, _WORDS), np.uint64)
        self._producer.close()
        self._consumer.close()


SWITCH: Final = Path("/proc/sys/kernel/bpf_stats_enabled")
COLUMNS: Final = ("runs", "run_ns")
INFO_BY_FD: Final = 15
_INFO_BYTES: Final = 208
RUN_TIME_AT: Final = 192
"""Offset in struct bpf_prog_info of run_time_ns; run_cnt follows. Linux 5.1."""

Runs = dict[str, tuple[int, int]]


class InfoByFd(ctypes.Structure):
    _fields_ = structure_fields("bpf_fd:32 info_len:32 info")


def object_info(fd: int) -> bytes:
    """Give struct bpf_prog_info or bpf_map_info of a descriptor. Raises SourceUnavailable."""
    info = ctypes.create_string_buffer(_INFO_BYTES)
    failed = bpf_call(INFO_BY_FD, InfoByFd(fd, _INFO_BYTES, ctypes.addressof(info)))
    if failed:
        raise SourceUnavailable(f"cannot ask about a BPF object: {os.strerror(failed)}")
    return info.raw


class BpfStatistics:
    """What the kernel counted since the last call; nothing while its statistics are off."""

    def __init__(self, fds: Mapping[str, int], switch: Path = SWITCH) -> None:
        self._fds = dict(fds)
        self._switch = switch
        self._before: Runs | None = None

    def grown(self, boottime_ns: int, span_ns: int) -> HostTable | None:
        now = self._read() if self._enabled() else None
        before, self._before = self._before, now
        if now is None or before is None or not now:
            return None
        values = [np.subtract(now[name], before[name]) for name in now]
        table = np.array(values, np.int64)
        return HostTable("bpf_statistics", tuple(now), COLUMNS, table, boottime_ns, span_ns)

    def _enabled(self) -> bool:
        try:
            descriptor = os.open(self._switch, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return os.read(descriptor, 16).strip() == b"1"
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def _read(self) -> Runs:
        runs: Runs = {}
        for name, fd in self._fds.items():
            run_ns, count = struct.unpack_from("=QQ", object_info(fd), RUN_TIME_AT)
            runs[name] = count, run_ns
        return runs
