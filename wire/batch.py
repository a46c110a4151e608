"""A batch: which reports the Leader asks the Helper to unmask together."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, field
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from . import labels
from .bounds import MAX_COUNTER, MAX_HOSTS, MAX_TIME, need_label, need_length, need_range
from .ids import NO_SIGNATURE, TaskId
from .rejection import Reason, ReportRejected

ENTRY: Final = np.dtype(
    [
        ("host_id", "V16"),
        ("epoch_id", "V16"),
        ("report_id", "V16"),
        ("tag_h", "V16"),
        ("check", "V8"),
    ]
)
Entries = NDArray[np.void]
_HEAD = struct.Struct(">16s32sIQQI")


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """plst1/batch || task_id32 || cohort4 || window8 || roster_ver8 || n4 || n x 72 bytes.

    entries  ENTRY[n], host_id strictly increasing as big-endian numbers
    check    a report's two masked check words, little-endian
    """

    task_id: TaskId
    cohort: int
    window: int
    roster_ver: int
    entries: Entries = field(repr=False)

    @property
    def n(self) -> int:
        return len(self.entries)

    def unsigned(self) -> bytes:
        """Return what the Leader signs."""
        head = _HEAD.pack(
            labels.BATCH, self.task_id, self.cohort, self.window, self.roster_ver, self.n
        )
        return head + self.entries.tobytes()

    def hash(self) -> bytes:
        """Return bh."""
        return hashlib.sha256(self.unsigned()).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self.unsigned() == other.unsigned()

    def __hash__(self) -> int:
        return hash(self.unsigned())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        if len(data) < _HEAD.size:
            raise ReportRejected(Reason.LENGTH, f"at least {_HEAD.size} bytes", len(data))
        got, task, cohort, window, roster_ver, n = _HEAD.unpack_from(data)
        need_label(got, labels.BATCH)
        need_range(n, 1, MAX_HOSTS, "n")
        need_length(data, _HEAD.size + n * ENTRY.itemsize, "a batch")
        need_range(window, 0, MAX_TIME, "window")
        need_range(roster_ver, 0, MAX_COUNTER, "roster_ver")
        entries: Entries = np.frombuffer(data, dtype=ENTRY, offset=_HEAD.size)
        if not hosts_increase(entries):
            raise ReportRejected(Reason.ORDER, "host_id strictly increasing", "another order")
        return cls(task, cohort, window, roster_ver, entries)


@dataclass(frozen=True, slots=True)
class SignedBatch:
    """A batch and the Leader's signature over it."""

    batch: Batch
    signature: bytes = NO_SIGNATURE

    def encode(self) -> bytes:
        return self.batch.unsigned() + self.signature

    @classmethod
    def decode(cls, data: bytes) -> Self:
        return cls(Batch.decode(data[:-64]), data[-64:])


def hosts_increase(entries: Entries) -> bool:
    """True when host_id rises strictly from row to row."""
    raw = np.ascontiguousarray(entries["host_id"]).view(">u8").reshape(-1, 2)
    high, low = raw[:, 0], raw[:, 1]
    rises = (high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))
    return bool(rises.all())
