"""What of the GPU programs of this host was not taken in or not recorded, counted by reason."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final

from .segment import RecordingState, Snapshot


class LeftOutReason(StrEnum):
    """Why; docs/gpu-time.md has a row for each, and for each `ConnectionRefusal`."""

    MALFORMED = "malformed"
    OCCUPIED = "occupied"
    CUPTI = "cupti"
    LOST = "lost_records"
    BAD_TIMES = "bad_times"


_GROWING: Final = {
    LeftOutReason.OCCUPIED: "occupied",
    LeftOutReason.LOST: "records_lost_cupti",
    LeftOutReason.BAD_TIMES: "bad_times",
}
_MOST: Final = 1 << 40
"""Growth between two looks that no library writes."""


class LeftOutCounts:
    """Counts over all processes, those that have gone among them."""

    def __init__(self) -> None:
        self.counts: Counter[LeftOutReason] = Counter()

    def malformed(self) -> None:
        """Count a process whose memory is none of a library's."""
        self.counts[LeftOutReason.MALFORMED] += 1

    def follow(self, before: Snapshot, after: Snapshot) -> None:
        """Count what came between two states of one process."""
        for reason, field in _GROWING.items():
            grown = after.header[field] - before.header[field]
            if 0 < grown <= _MOST:
                self.counts[reason] += grown
        refused = RecordingState.REFUSED
        if after.header["state"] == refused != before.header["state"]:
            self.counts[LeftOutReason.CUPTI] += 1
