"""What a Helper's answer is for and says: values, no state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BODY_RETENTION_S: Final = 7 * 86_400
"""Batch bodies are evidence for a week; 12,500 hosts write 1.30 GB a day. Hashes stay for ever."""

HOST_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class BatchKey:
    """What one answer is for: task_id 32 B, cohort, window start in seconds."""

    task_id: bytes
    cohort: int
    window: int


@dataclass(frozen=True, slots=True)
class Answer:
    """One committed verdict; `reply` is absent only between the commit and the sum.

    bitmap       accepted hosts, bit i is byte i/8, least significant first
    rejections   reason -> hosts whose bit was cleared
    used         16 B host ids with bit 1, one after the other
    """

    key: BatchKey
    series: str
    batch_hash: bytes
    bitmap: bytes
    n_batch: int
    rejections: dict[str, int]
    committed_s: int
    body: bytes | None
    used: bytes | None
    reply: bytes | None = None
    share_hash: bytes | None = None
