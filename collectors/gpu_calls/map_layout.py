"""The GPU programs' maps: bounds, and layouts as in bpf/include/gpu.h (a test compares)."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from collectors.records.gpu_calls import Direction, ProbeGroup
from collectors.records.process import ProcessKey

from .meanings import MAX_ELEMENT_SIZES, ArgumentPlace, CallKind, Meaning
from .probe_table import ProbeRow, ProbeTable

MAX_FILES: Final = 1024
GROUPS: Final = tuple(ProbeGroup)
KINDS: Final = tuple(CallKind)
DIRECTIONS: Final = tuple(Direction)
SIZE_BINS: Final = 48
OTHER: Final = 0
"""Process, kernel, ... of the row of everything that found no room in a bounded map."""

_PROCESS: Final = [("start_ns", "<u8"), ("tgid", "<u4"), ("file", "<u4")]
PROCESS: Final = np.dtype(_PROCESS)
LAUNCH_KEY: Final = np.dtype([*_PROCESS, ("kernel", "<u8"), ("row", "<u8")])
CALL_KEY: Final = np.dtype([*_PROCESS, ("row", "<u8")])
ERROR_KEY: Final = np.dtype([*_PROCESS, ("row", "<u4"), ("code", "<i4")])
COPY_KEY: Final = np.dtype([*_PROCESS, ("direction", "<u4"), ("bin", "<u4")])
COLLECTIVE_KEY: Final = np.dtype([*_PROCESS, ("communicator", "<u8"), ("row", "<u8")])
ALLOCATION_KEY: Final = np.dtype([*_PROCESS, ("address", "<u8")])

LAUNCH_ROW: Final = ("launches", "blocks", "threads", "shared_bytes")
CALL_ROW: Final = ("calls", "nested", "returned", "failures", "wait_ns", "bytes", "hits")
ERROR_ROW: Final = ("failures",)
COPY_ROW: Final = ("copies", "bytes")
COLLECTIVE_ROW: Final = ("calls", "bytes", "duration_ns")
MEMORY_ROW: Final = ("live_bytes", "peak_bytes", "allocations", "frees", "untracked", "exec_id")
ALLOCATION_ROW: Final = ("bytes", "boottime_ns", "exec_id")
FRAMES: Final = 4
FRAME_BYTES: Final = 128
THREAD_FIELDS: Final = (16 + FRAMES * FRAME_BYTES) // 8

NAME_EVENT: Final = np.dtype(
    [*_PROCESS, ("handle", "<u8"), ("host", "<u8"), ("row", "<u4"), ("is_module", "<u2"),
     ("length", "<u2")]
)  # fmt: skip
SAMPLE_EVENT: Final = np.dtype(
    [*_PROCESS, ("kernel", "<u8"), ("stream", "<u8"), ("graph", "<u8"), ("event", "<u8"),
     ("correlation", "<u8"), ("bytes", "<u8"), ("boottime_ns", "<u8"), ("duration_ns", "<u8"),
     ("thread", "<u4"), ("row", "<u4"), ("stack_id", "<i8")]
)  # fmt: skip

LOST: Final = (
    "launch_rows", "call_rows", "error_rows", "copy_rows", "collective_rows", "memory_rows",
    "allocations", "threads", "frames", "names", "samples", "stacks", "unreadable",
)  # fmt: skip
"""What found no room, in the order of `enum lost`."""

_STATUS, _DEVICE, _RETURNS = 1, 2, 4
_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")

GROWING: Final = ("launches", "calls", "errors", "copies", "collectives")
"""The maps that have rows of OTHER: of no process and no file, for what finds no room."""

_LAUNCHES: Final = frozenset({CallKind.LAUNCH, CallKind.GRAPH_LAUNCH})
_COLLECTIVES: Final = frozenset({CallKind.COLLECTIVE})
_NOBODY: Final = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class ProbeLimits:
    """Rows of the bounded maps; what finds no room is counted, and added to OTHER.

    A row of the first five is there once per CPU: 32, 56, 8, 16 and 24 bytes of it.
    stacks                          user stacks of sampled calls, 1 KiB each
    names_bytes, samples_bytes      rings; powers of two, whole pages
    """

    launches: int = 4096
    calls: int = 4096
    errors: int = 1024
    copies: int = 4096
    collectives: int = 1024
    memory: int = 1024
    allocations: int = 65536
    threads: int = 8192
    sampled: int = 256
    stacks: int = 2048
    names_bytes: int = 2 << 20
    samples_bytes: int = 2 << 20


def process_key(tgid: int, start_ns: int) -> ProcessKey:
    """Name a process as /proc/PID/stat does, whose start times are whole clock ticks."""
    return ProcessKey(tgid, start_ns // _TICK_NS * _TICK_NS)


def cookie(file: int, place: int, row: int) -> int:
    """Give what an attached place hands to its program."""
    return file << 32 | place << 16 | row


def start_ticks(start_ns: int) -> int:
    """Give a start time in the clock ticks of /proc/PID/stat."""
    return start_ns // _TICK_NS


def encode_row(row: ProbeRow) -> bytes:
    """Lay out `struct row_spec`."""
    flags = _STATUS * row.status | _DEVICE * row.device | _RETURNS * row.returns
    head = struct.pack(
        f"<5B3x{MAX_ELEMENT_SIZES}s",
        KINDS.index(row.kind),
        flags,
        DIRECTIONS.index(row.direction),
        GROUPS.index(row.return_group),
        len(row.element_sizes),
        bytes(row.element_sizes),
    )
    return head + b"".join(_encode_place(row.arguments.get(meaning)) for meaning in Meaning)


def _encode_place(place: ArgumentPlace | None) -> bytes:
    if place is None:
        return bytes(4)
    return struct.pack("<BBH", place.slot + 1, place.offset is not None, place.offset or 0)


def other_keys(name: str, table: ProbeTable) -> list[bytes]:
    """Give the keys of OTHER in a growing map: one for each row, or direction and bin of sizes."""

    def of(kinds: frozenset[CallKind]) -> list[int]:
        return [place for place, row in enumerate(table.rows) if row.kind in kinds]

    key: np.dtype[np.void]
    rest: list[tuple[Any, ...]]
    match name:
        case "launches":
            key, rest = LAUNCH_KEY, [(OTHER, place) for place in of(_LAUNCHES)]
        case "calls":
            key, rest = CALL_KEY, [(place,) for place in of(frozenset(CallKind))]
        case "errors":
            key, rest = ERROR_KEY, [(place, 0) for place in of(frozenset(CallKind))]
        case "collectives":
            key, rest = COLLECTIVE_KEY, [(OTHER, p) for p in of(_COLLECTIVES)]
        case "copies":
            bins = range(SIZE_BINS)
            key = COPY_KEY
            rest = [(d, size_bin) for d in range(len(DIRECTIONS)) for size_bin in bins]
        case _:
            raise ValueError(f"expected one of {', '.join(GROWING)}, got {name}")
    return [np.array([(*_NOBODY, *tail)], key).tobytes() for tail in rest]
