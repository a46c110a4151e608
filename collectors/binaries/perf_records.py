"""Records of a perf event that tell of programs and libraries: the bytes are untrusted.

Source  perf_event_open(2), "MMAP layout"; each record ends with its time (sample_id_all)
"""

from __future__ import annotations

import struct
from collections.abc import Container, Iterator
from typing import Final, NamedTuple

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

    start, length  addresses in the process
    offset         of the part in the file
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
    """A process replaced its program by another."""

    boottime_ns: int
    pid: int


class Forked(NamedTuple):
    """A process made another, which has the same mappings."""

    boottime_ns: int
    parent: int
    pid: int


class Lost(NamedTuple):
    """The ring had no room for some records."""

    boottime_ns: int
    records: int


Record = Mapped | Executed | Forked | Lost


class BrokenRing(Exception):
    """Bytes of a ring are no records: says what was expected and what came."""


def file_mark(device: tuple[int, int], inode: int, generation: int) -> bytes:
    """Give the bytes by which a record names a file."""
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
