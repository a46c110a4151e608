"""A host's report of one window: the header M, the Helper's tag and the Leader's box."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, Self

from . import labels
from .fields import MAX_D, MAX_TIME, MIN_D, NO_TAG, EpochId, HostId, ReportId, Scheme, TaskId
from .rejection import Reason, ReportRejected

GCM_TAG_BYTES: Final = 16
HEAD_BYTES: Final = 128
EPOCH_AT: Final = 16
TASK_AT: Final = 32
M_AT: Final = 64
REPORT_ID_AT: Final = 96
TAG_AT: Final = 112
_HEADER = struct.Struct(">16sIIQ16s")
_HEAD = struct.Struct(">16s16s32s16sIIQ16s16s")
_MIN_BYTES: Final = HEAD_BYTES + 4 * MIN_D + GCM_TAG_BYTES


def box_length(d: int, scheme: Scheme) -> int:
    """Bytes of the box of d coordinates, its authentication tag included."""
    return scheme.word_bytes * d + GCM_TAG_BYTES


def report_length(d: int, scheme: Scheme) -> int:
    return HEAD_BYTES + box_length(d, scheme)


@dataclass(frozen=True, slots=True)
class ReportHeader:
    """M, 48 bytes. d counts the two check words; window is its start in seconds."""

    cohort: int
    d: int
    window: int
    report_id: ReportId

    def encode(self) -> bytes:
        return _HEADER.pack(labels.REPORT, self.cohort, self.d, self.window, self.report_id)


@dataclass(frozen=True, slots=True)
class KeptReport:
    """What a host knows of a report that it sealed: host_id, epoch_id, report_id, tag_h 16 B each.

    tag_h  with which the Helper knows the report; in clear on the log
    """

    host_id: bytes
    epoch_id: bytes
    report_id: bytes
    tag_h: bytes
    task_id: bytes
    series: str
    cohort: int
    window: int


@dataclass(frozen=True, slots=True)
class Report:
    """host_id16 || epoch_id16 || task_id32 || M48 || tag_H16 || box.

    tag_h  zeros in scheme `local`
    box    4 d + 16 bytes in scheme `masked`, 8 d + 16 in `local`
    raw    the bytes as received, empty for a report made here; decoding is one-to-one, so
           `encode()` gives the same bytes
    """

    host_id: HostId
    epoch_id: EpochId
    task_id: TaskId
    header: ReportHeader
    tag_h: bytes
    box: bytes = field(repr=False)
    raw: bytes = field(default=b"", init=False, compare=False, repr=False)

    @property
    def scheme(self) -> Scheme:
        masked = len(self.box) == 4 * self.header.d + GCM_TAG_BYTES
        return Scheme.MASKED if masked else Scheme.LOCAL

    @property
    def header_bytes(self) -> bytes:
        """M as received."""
        return self.raw[M_AT:TAG_AT] if self.raw else self.header.encode()

    @property
    def aad(self) -> bytes:
        """M || tag_H, what the box authenticates beside its content."""
        return self.raw[M_AT:HEAD_BYTES] if self.raw else self.header.encode() + self.tag_h

    def encode(self) -> bytes:
        if self.raw:
            return self.raw
        ids = self.host_id + self.epoch_id + self.task_id
        return ids + self.header.encode() + self.tag_h + self.box

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a report in 2 us whatever d: one unpack and two slices, no copy per word."""
        size = len(data)
        if size < _MIN_BYTES:
            raise ReportRejected(Reason.LENGTH, f"a report of at least {_MIN_BYTES} bytes", size)
        host, epoch, task, got, cohort, d, window, report, tag = _HEAD.unpack_from(data)
        if got != labels.REPORT:
            raise ReportRejected(Reason.VERSION, "plst1/report", got.hex())
        if not MIN_D <= d <= MAX_D:
            raise ReportRejected(Reason.FIELD, f"d in {MIN_D}..{MAX_D}", d)
        if size != 144 + 4 * d and size != report_length(d, Scheme.LOCAL):
            expected = f"{report_length(d, Scheme.MASKED)} bytes for d = {d}"
            raise ReportRejected(Reason.LENGTH, expected, size)
        if size != 144 + 4 * d and tag != NO_TAG:
            raise ReportRejected(Reason.FIELD, "tag_H of zeros in scheme local", "a tag")
        if window > MAX_TIME:
            raise ReportRejected(Reason.FIELD, f"window up to {MAX_TIME}", window)
        header = ReportHeader(cohort, d, window, report)
        decoded = cls(host, epoch, task, header, tag, data[HEAD_BYTES:])
        # Not an argument, so that dataclasses.replace() never carries bytes of another report.
        object.__setattr__(decoded, "raw", data)
        return decoded
