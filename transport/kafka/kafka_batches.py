"""Batches of records as the agent's client reads them: what cannot be read is passed over.

kafka-python 3.0.12 raises at such a batch once, and at the next poll looks at it again without end.
It brings one codec of four, and takes as much memory as a batch asks for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Any, Final

import cramjam
from kafka import TopicPartition, errors
from kafka.consumer.fetcher import Fetcher
from kafka.record import default_records

MOST_BYTES: Final = 32 << 20
"""Of a batch when it is unpacked: four times the longest record."""
_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES: Final = 16

_UNREADABLE: Final = (
    *(errors.KafkaError, cramjam.DecompressionError, struct.error),
    *(ValueError, TypeError, LookupError, ArithmeticError),
)
"""What the client and its codecs raise at what a stranger wrote, or a disk made of it."""

Tell = Callable[[TopicPartition, int, str], None]
"""Told of what is passed over: where it begins, and why."""


def _bounded(into: Callable[[bytes, bytearray], int]) -> Callable[[bytes], memoryview]:
    def unpack(packed: bytes) -> memoryview:
        room = bytearray(MOST_BYTES)
        return memoryview(room)[: into(bytes(packed), room)]

    return unpack


def _snappy(packed: bytes) -> bytes:
    """Unpack one block, or the blocks with their lengths that Java's clients write."""
    blocks = [packed]
    if packed.startswith(_XERIAL):
        blocks, at = [], _XERIAL_HEAD_BYTES
        while at < len(packed):
            end = at + 4 + int.from_bytes(packed[at : at + 4], "big")
            blocks.append(packed[at + 4 : end])
            at = end
    size = sum(cramjam.snappy.decompress_raw_len(block) for block in blocks)
    if size > MOST_BYTES:
        raise ValueError(f"expected at most {MOST_BYTES} bytes, got {size}")
    return b"".join(bytes(cramjam.snappy.decompress_raw(block)) for block in blocks)


default_records.gzip_decode = _bounded(cramjam.gzip.decompress_into)
default_records.lz4_decode = _bounded(cramjam.lz4.decompress_into)
default_records.zstd_decode = _bounded(cramjam.zstd.decompress_into)
default_records.snappy_decode = _snappy
for _name in ("has_snappy", "has_lz4", "has_zstd"):
    setattr(default_records.codecs, _name, lambda: True)


class _Batch:
    """A batch of the client's; its records end where they cannot be read."""

    magic = 2

    def __init__(self, inner: Any, slot: TopicPartition, tell: Tell) -> None:
        self._inner, self._slot, self._tell = inner, slot, tell
        self.base_offset = int(inner.base_offset)
        self.next_offset = int(getattr(inner, "next_offset", self.base_offset + 1))
        self.leader_epoch = int(getattr(inner, "leader_epoch", -1))
        self.is_control_batch = bool(getattr(inner, "is_control_batch", False))

    def validate_crc(self) -> bool:
        return True  # the client would end at another

    def __iter__(self) -> Iterator[Any]:
        at = self.base_offset
        try:
            if not self._inner.validate_crc():
                raise ValueError("expected the batch's own check sum, got another")
            for record in self._inner:
                yield record
                at = record.offset + 1
        except _UNREADABLE as error:
            self._tell(self._slot, at, str(error) or type(error).__name__)
        self.next_offset = max(self.next_offset, at)


class _Batches:
    def __init__(self, inner: Any, slot: TopicPartition, tell: Tell) -> None:
        self._inner, self._slot, self._tell = inner, slot, tell

    def next_batch(self) -> _Batch | None:
        inner = self._inner.next_batch()
        return None if inner is None else _Batch(inner, self._slot, self._tell)


class ReadableRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """What was fetched of one partition, in place of the client's own."""

    def __init__(self, tell: Tell, fetch_offset: int, slot: Any, records: Any, **more: Any) -> None:
        super().__init__(fetch_offset, slot, _Batches(records, slot, tell), **more)

    def take(self, n: int | None = None) -> list[Any]:
        found: list[Any] = super().take(n)
        if not found:
            self.drain()  # else the client looks for more in it without end
        return found
