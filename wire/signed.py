"""The envelope of tasks, rosters and entry answers: an opaque body under two signatures."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Self

from . import labels
from .bounds import MAX_JOIN_BODY, MAX_ROSTER_BODY, MAX_TASK_BODY, need_label, need_length
from .ids import NO_SIGNATURE
from .rejection import Reason, ReportRejected

_HEAD = struct.Struct(">16sI")
_LIMITS = {
    labels.TASK: MAX_TASK_BODY,
    labels.ROSTER: MAX_ROSTER_BODY,
    labels.ENTRY_ANSWER: MAX_JOIN_BODY,
}


@dataclass(frozen=True, slots=True)
class Signed:
    """label16 || u32 len || body || sig_Leader64 || sig_Helper64, both over all before the first.

    The body is opaque here: verify `unsigned()` first, decode the body after.
    Scheme `local` has no Helper: sig_helper is zeros.
    """

    label: bytes
    body: bytes
    sig_leader: bytes = NO_SIGNATURE
    sig_helper: bytes = NO_SIGNATURE

    def unsigned(self) -> bytes:
        """Return what both parties sign."""
        return _HEAD.pack(self.label, len(self.body)) + self.body

    def encode(self) -> bytes:
        return self.unsigned() + self.sig_leader + self.sig_helper

    @classmethod
    def decode(cls, data: bytes, want: bytes) -> Self:
        """Decode bytes whose label must be `want` (TASK, ROSTER or ENTRY_ANSWER)."""
        limit = _LIMITS[want]
        if not _HEAD.size + 128 <= len(data) <= _HEAD.size + limit + 128:
            raise ReportRejected(Reason.LENGTH, f"148 to {limit + 148} bytes", len(data))
        got, length = _HEAD.unpack_from(data)
        need_label(got, want)
        need_length(data, _HEAD.size + length + 128, "a signed message")
        end = _HEAD.size + length
        return cls(got, data[_HEAD.size : end], data[end : end + 64], data[end + 64 :])
