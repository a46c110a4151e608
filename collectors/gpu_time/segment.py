"""The shared memory of one process's library, laid out as cupti/include/layout.h (a test compares).

Whatever a process writes there, a read ends, stays within bounds and gives whole counts or nothing.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from collectors.binaries.symbols import Demangler
from kernels.families import FamilyRules

MAGIC: Final = 0x54475450
VERSION: Final = 1
HEADER_BYTES: Final = 4096
ROWS: Final = 4096
BINS: Final = 32
DEVICES: Final = 16
NAME_BYTES: Final = 2048
NAMES_BYTES: Final = 1 << 21
NO_NAME: Final = 0xFFFFFFFF
TRIES: Final = 16
_WAIT_S: Final = 0.0002
"""Looks at a segment that is being written, and between them: the writer holds it for some 0.1 ms,
unless the kernel stops it there."""

_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

DEVICE: Final = np.dtype(
    [
        (name, "<u8")
        for name in (
            "busy_ns", "compute_ns", "copy_ns", "collective_ns", "copy_beside_compute_ns",
            "collective_beside_compute_ns", "kernels_beside_ns", "late_ns",
        )
    ]
)  # fmt: skip
HEADER: Final = np.dtype(
    [
        ("magic", "<u4"), ("version", "<u4"), ("bytes", "<u8"),
        ("rows", "<u4"), ("row_bytes", "<u4"), ("devices", "<u4"), ("device_bytes", "<u4"),
        ("names_at", "<u8"), ("names_bytes", "<u8"), ("generation", "<u8"),
        ("rows_used", "<u4"), ("names_used", "<u4"), ("pid", "<i4"), ("state", "<u4"),
        ("error", "<i4"), ("cupti_version", "<u4"),
        ("records", "<u8"), ("kernels", "<u8"), ("copies", "<u8"), ("memsets", "<u8"),
        ("graphs", "<u8"), ("records_lost_cupti", "<u8"), ("buffers_refused", "<u8"),
        ("bad_times", "<u8"), ("unknown_records", "<u8"), ("without_row", "<u8"),
        ("overheads", "<u8"), ("overhead_ns", "<u8"), ("windows", "<u8"), ("on_ns", "<u8"),
        ("opened_ns", "<u8"), ("closed_ns", "<u8"), ("written_ns", "<u8"),
        ("switch_on_ns", "<u8"), ("switch_on_longest_ns", "<u8"),
        ("switch_off_ns", "<u8"), ("switch_off_longest_ns", "<u8"),
        ("flush_ns", "<u8"), ("flush_longest_ns", "<u8"),
        ("detach_ns", "<u8"), ("detach_longest_ns", "<u8"), ("detaches", "<u8"),
        ("occupied", "<u8"), ("cpu_ns", "<u8"),
        ("launches", "<u8"), ("numbered", "<u8"), ("without_context", "<u8"),
        ("reserved", "<u8", (4,)), ("uuid", "u1", (DEVICES, 16)),
        ("device", DEVICE, (DEVICES,)),
    ]
)  # fmt: skip
ROW: Final = np.dtype(
    [
        ("name_at", "<u4"), ("device", "<u2"), ("kind", "u1"), ("detail", "u1"),
        ("count", "<u8"), ("total_ns", "<u8"), ("bytes", "<u8"), ("bins", "<u4", (BINS,)),
        ("longest_ns", "<u8"), ("delay_ns", "<u8"), ("delays", "<u8"),
    ]
)  # fmt: skip
_COUNTS: Final = tuple(n for n in HEADER.names or () if HEADER[n].shape == ())
NAMES_AT: Final = HEADER_BYTES + ROWS * ROW.itemsize
SEGMENT_BYTES: Final = NAMES_AT + NAMES_BYTES


class SegmentError(Exception):
    """A segment is not what the library makes: one line says what was expected and what came."""


class SegmentUnsettled(Exception):
    """A segment was being written at every look."""


class RowKind(IntEnum):
    KERNEL = 0
    COPY = 1
    MEMSET = 2
    GRAPH = 3
    OTHER = 4
    NODE = 5


class RecordingState(IntEnum):
    OFF = 0
    ON = 1
    REFUSED = 2
    OCCUPIED = 3


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """One whole state of a segment.

    uuids    of these devices, as the driver writes them without a prefix; "" where unknown
    rows     records of ROW, the first is OTHER
    names    by row, as CUPTI has them; "" for OTHER
    """

    header: Mapping[str, int]
    devices: NDArray[np.void]
    uuids: tuple[str, ...]
    rows: NDArray[np.void]
    names: tuple[str, ...]

    def row(self, place: int) -> tuple[int, RowKind, str]:
        """Give a row's device, kind and name. Raises ValueError for a kind that no library has."""
        row = self.rows[place]
        return int(row["device"]), RowKind(int(row["kind"])), self.names[place]


class ProcessSegment:
    """A segment that is read, never mapped: touched pages would be ours. It dups the descriptor."""

    def __init__(self, descriptor: int) -> None:
        """Keep it open. Raises SegmentError."""
        try:
            # Asked first: only files in memory have seals, and only these surely answer at once.
            seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
            size = os.fstat(descriptor).st_size
        except OSError as error:
            raise SegmentError(f"expected a sealed memory file, got {error.strerror}") from None
        if size != SEGMENT_BYTES:
            raise SegmentError(f"expected {SEGMENT_BYTES} bytes of shared memory, got {size}")
        if seals & _SEALS != _SEALS:
            raise SegmentError("expected shared memory sealed against resizing, got it unsealed")
        self._memory = os.fdopen(os.dup(descriptor), "rb", buffering=0)
        self._names: list[str] = [""]
        self._named = 0

    def close(self) -> None:
        self._memory.close()

    def read(self) -> Snapshot:
        """Copy one whole state. Raises SegmentError, and SegmentUnsettled after TRIES looks."""
        for _ in range(TRIES):
            header = np.frombuffer(self._bytes(0, HEADER_BYTES), HEADER, 1)[0]
            _check(header)
            if header["generation"] % 2:
                time.sleep(_WAIT_S)
                continue
            used = int(header["rows_used"])
            rows = np.frombuffer(self._bytes(HEADER_BYTES, used * ROW.itemsize), ROW)
            after = np.frombuffer(self._bytes(0, HEADER_BYTES), HEADER, 1)[0]["generation"]
            if header["generation"] == after:
                return self._snapshot(header, rows)
        raise SegmentUnsettled(f"expected a state at rest within {TRIES} looks, got none")

    def _bytes(self, at: int, number: int) -> bytes:
        try:
            found = os.pread(self._memory.fileno(), number, at)
        except OSError as error:
            raise SegmentError(f"expected memory to read, got {error.strerror}") from None
        if len(found) != number:
            raise SegmentError(f"expected {number} bytes from {at} on, got {len(found)}")
        return found

    def _snapshot(self, header: np.void, rows: NDArray[np.void]) -> Snapshot:
        # A row's name never changes once the row is there.
        for row in rows[len(self._names) :]:
            self._names.append(self._name(int(row["name_at"]), int(header["names_used"])))
        counts = {name: int(header[name]) for name in _COUNTS}
        uuids = tuple(
            str(uuid.UUID(bytes=bytes(raw))) if raw.any() else "" for raw in header["uuid"]
        )
        return Snapshot(counts, header["device"], uuids, rows, tuple(self._names[: len(rows)]))

    def _name(self, at: int, used: int) -> str:
        if at >= used:
            return ""
        text = self._bytes(NAMES_AT + at, min(NAME_BYTES, used - at)).partition(b"\0")[0]
        self._named += len(text)
        if self._named > NAMES_BYTES:
            raise SegmentError(f"expected at most {NAMES_BYTES} bytes of names, got more")
        return text.decode("utf-8", "replace")


def _check(header: np.void) -> None:
    expected = {
        "magic": MAGIC, "version": VERSION, "bytes": SEGMENT_BYTES, "rows": ROWS,
        "row_bytes": ROW.itemsize, "devices": DEVICES, "device_bytes": DEVICE.itemsize,
        "names_at": NAMES_AT, "names_bytes": NAMES_BYTES,
    }  # fmt: skip
    for name, value in expected.items():
        if header[name] != value:
            raise SegmentError(f"expected {name} {value} in the header, got {header[name]}")
    if not 1 <= header["rows_used"] <= ROWS or header["names_used"] > NAMES_BYTES:
        raise SegmentError(
            f"expected 1 to {ROWS} rows and at most {NAMES_BYTES} bytes of names, "
            f"got {header['rows_used']} and {header['names_used']}"
        )


_NAMES: Final = {
    RowKind.MEMSET: ("Memset", "memset"),
    RowKind.GRAPH: ("(graph)", "other"),
    RowKind.OTHER: ("(other)", "other"),
}
_MOST_NAMES: Final = 65_536
_MOST_CHARACTERS: Final = 64 << 20
"""More than all processes have for which there is room: what is in use is not learnt anew."""


class RowNames:
    """Knows kernels by their mangled names; strangers' names take bounded memory."""

    def __init__(self) -> None:
        self._rules = FamilyRules.load()
        self._demangler = Demangler()
        self._named: dict[str, tuple[str, str]] = {}
        self._characters = 0

    def learn_some(self, names: Iterable[str], most: int) -> int:
        """Learn at most so many kernels that are new; give how many there were."""
        new = [name for name in dict.fromkeys(names) if name not in self._named]
        self.learn((RowKind.KERNEL, name) for name in new[:most])
        return len(new)

    def learn(self, rows: Iterable[tuple[RowKind, str]]) -> None:
        kernels = {name for kind, name in rows if kind in (RowKind.KERNEL, RowKind.NODE)}
        new = sorted(kernels - self._named.keys())
        more = sum(map(len, new))
        if len(self._named) + len(new) > _MOST_NAMES or self._characters + more > _MOST_CHARACTERS:
            self._named.clear()
            self._characters = 0
            new = sorted(kernels)
        for mangled, name in zip(new, self._demangler.demangle(new), strict=True):
            self._named[mangled] = name, self._rules.classify(name)[0]
            self._characters += len(mangled) + len(name)

    def called(self, kind: RowKind, name: str) -> tuple[str, str]:
        """Give a row's name and family. Raises KeyError for a kernel that was not learnt."""
        if kind is RowKind.COPY:
            return f"Memcpy {name.removeprefix('copy').strip()}".strip(), "memcpy"
        return _NAMES.get(kind) or self._named[name]
