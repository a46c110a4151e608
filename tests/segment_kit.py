"""Segments as the library makes them, and as no library does."""

from __future__ import annotations

import fcntl
import mmap
import os
from typing import Any

import numpy as np

from collectors.gpu_time import segment as layout
from collectors.gpu_time.segment import HEADER, ROW, ProcessSegment, RowKind, Snapshot

ALL_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def made_header(**fields: int) -> np.ndarray[Any, np.dtype[np.void]]:
    header = np.zeros(1, HEADER)
    usual = {
        "magic": layout.MAGIC, "version": layout.VERSION, "bytes": layout.SEGMENT_BYTES,
        "rows": layout.ROWS, "row_bytes": ROW.itemsize, "devices": layout.DEVICES,
        "device_bytes": layout.DEVICE.itemsize, "names_at": layout.NAMES_AT,
        "names_bytes": layout.NAMES_BYTES, "rows_used": 1, "pid": os.getpid(),
    }  # fmt: skip
    for name, value in (usual | fields).items():
        header[name] = value
    return header


class FakeMemory:
    def __init__(
        self, size: int = layout.SEGMENT_BYTES, seals: int = ALL_SEALS, **fields: int
    ) -> None:
        self.descriptor = os.memfd_create("fake", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self.descriptor, size)
        self.memory = mmap.mmap(self.descriptor, size)
        fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, seals)
        self.head(**fields)

    def head(self, **fields: int) -> None:
        raw = made_header(**fields).tobytes()
        self.memory[: len(raw)] = raw

    def rows(self, *rows: tuple[str, dict[str, int]]) -> None:
        names = b""
        for at, (name, fields) in enumerate(rows, 1):
            row = np.zeros(1, ROW)
            row["name_at"] = len(names)
            for field, value in fields.items():
                row[field] = value
            begin = layout.HEADER_BYTES + at * ROW.itemsize
            self.memory[begin : begin + ROW.itemsize] = row.tobytes()
            names += name.encode() + b"\0"
        self.memory[layout.NAMES_AT : layout.NAMES_AT + len(names)] = names
        self.head(rows_used=1 + len(rows), names_used=len(names))

    def segment(self) -> ProcessSegment:
        return ProcessSegment(self.descriptor)

    def close(self) -> None:
        self.memory.close()
        os.close(self.descriptor)


def snapshot(*rows: tuple[str, RowKind, int, int], **fields: int) -> Snapshot:
    """Make a state of (name, kind, count, total_ns), OTHER before them."""
    made = np.zeros(1 + len(rows), ROW)
    made[0]["kind"] = RowKind.OTHER
    for row, (_, kind, count, total_ns) in zip(made[1:], rows, strict=True):
        row["kind"], row["count"], row["total_ns"] = kind, count, total_ns
        row["bins"][3] = count % (1 << 32)
    header = made_header(rows_used=len(made))[0]
    counts = {name: int(header[name]) for name in layout._COUNTS} | fields
    names = ("", *(name for name, *_ in rows))
    return Snapshot(counts, header["device"], ("",) * layout.DEVICES, made, names)
