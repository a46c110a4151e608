"""Which partition a key belongs to: the same in every transport and client, for ever."""

from __future__ import annotations

import zlib


def partition_of(key: bytes, partitions: int) -> int:
    """The partition of a key: CRC-32 modulo the number of partitions."""
    return zlib.crc32(key) % partitions
