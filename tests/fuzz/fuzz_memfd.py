"""The memory that a GPU program hands over: whatever lies there, a read ends within its bounds."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import numpy as np

from collectors.gpu_time import segment as segment_module
from collectors.gpu_time.found_programs import timing_state
from collectors.gpu_time.segment import (
    HEADER,
    HEADER_BYTES,
    NAMES_AT,
    NAMES_BYTES,
    ROW,
    ROWS,
    SEGMENT_BYTES,
    ProcessSegment,
    RowKind,
    SegmentError,
    SegmentUnsettled,
)
from tests.segment_kit import ALL_SEALS, made_header

_HEAD: Final = HEADER.itemsize
_ROWS: Final = 24
"""Rows that an input may fill: more would ask for longer inputs, not for other code."""
_MEMORY: list[int] = []


def _memory() -> int:
    """Give one sealed memory, made once: an input writes all that an earlier one wrote."""
    if not _MEMORY:
        descriptor = os.memfd_create("fuzz", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, SEGMENT_BYTES)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, ALL_SEALS)
        _MEMORY.append(descriptor)
    return _MEMORY[0]


def fuzz(data: bytes) -> None:
    """Lay header, rows and names out as the input has them, and read them twice."""
    head = data[:_HEAD].ljust(_HEAD, b"\0")
    rows = data[_HEAD : _HEAD + _ROWS * ROW.itemsize].ljust(_ROWS * ROW.itemsize, b"\0")
    names = data[_HEAD + len(rows) :][:NAMES_BYTES]
    descriptor = _memory()
    os.pwrite(descriptor, head, 0)
    os.pwrite(descriptor, rows, HEADER_BYTES)
    os.pwrite(descriptor, names + b"\0" * 64, NAMES_AT)
    segment_module._WAIT_S = 0.0  # type: ignore[misc]  # nobody writes meanwhile
    segment = ProcessSegment(descriptor)
    try:
        with suppress(SegmentError, SegmentUnsettled):
            _look(segment)
            os.pwrite(descriptor, rows[::-1], HEADER_BYTES)
            _look(segment)
    finally:
        segment.close()


def _look(segment: ProcessSegment) -> None:
    state = segment.read()
    assert 1 <= len(state.rows) <= ROWS
    assert len(state.names) == len(state.rows)
    assert sum(map(len, state.names)) <= NAMES_BYTES
    timing_state(state)
    for place in range(min(len(state.rows), _ROWS)):
        with suppress(ValueError):  # of a kind that no library has
            state.row(place)


def seeds() -> Iterator[bytes]:
    """Give a segment as the library leaves it, one in the middle of a write, one of another."""
    rows = np.zeros(3, ROW)
    rows["name_at"], rows["kind"] = [0, 0, 5], [RowKind.OTHER, RowKind.KERNEL, RowKind.COPY]
    rows["count"] = 7
    tail = rows.tobytes().ljust(_ROWS * ROW.itemsize, b"\0") + b"gemm\0copy HtoD\0"
    for fields in (
        {"rows_used": 3, "names_used": 15, "windows": 1},
        {"rows_used": 3, "names_used": 15, "generation": 1},
        {"rows_used": ROWS, "names_used": NAMES_BYTES, "state": 9},
        {"version": 2},
    ):
        yield made_header(**fields).tobytes() + tail
