"""The ring of marks: records of one length, read as a table, and never one by one."""

from __future__ import annotations

import mmap
import struct
import threading
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.port import SourceUnavailable

MARK_FIELDS: Final = ("at_ns", "value", "process", "start_ns", "cgroup", "what", "extra")
"""Words of `struct mark` in bpf/include/marks.h (a test compares)."""

_WORDS: Final = 1 + len(MARK_FIELDS)
_BYTES: Final = 8 * _WORDS
_BUSY: Final = np.uint64(1 << 31)
_CURSOR: Final = struct.Struct("=Q")


class MarkRing:
    """A BPF ring buffer whose every record is a mark; nobody is woken, one reader reads."""

    def __init__(self, fd: int, ring_bytes: int) -> None:
        """Map a ring. Raises SourceUnavailable.

        ring_bytes  its size: a power of two, at least a page
        """
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
        self._barrier = threading.Lock()

    def read(self) -> NDArray[np.uint64]:
        """Take every finished record, in order: uint64[n, MARK_FIELDS]."""
        (consumed,) = _CURSOR.unpack_from(self._consumer)
        (produced,) = _CURSOR.unpack_from(self._producer)
        with self._barrier:  # what is read below was written before the cursor
            first = (consumed & self._mask) // _BYTES
            found = self._records[first : first + (produced - consumed) // _BYTES]
            busy = np.flatnonzero(found[:, 0] & _BUSY)
        count = int(busy[0]) if len(busy) else len(found)
        with self._barrier:
            marks = found[:count, 1:].copy()
        _CURSOR.pack_into(self._consumer, 0, consumed + count * _BYTES)
        return marks

    def close(self) -> None:
        """Unmap; a second call does nothing."""
        self._records = np.zeros((0, _WORDS), np.uint64)
        self._producer.close()
        self._consumer.close()
