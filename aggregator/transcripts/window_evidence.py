"""What a party keeps of a window for a week: the batch, and the share that answered it.

Both are bound by hash to the release that both parties signed, so that either copy proves who
stands in it. Bytes of another party are untrusted: they are decoded with the bounds of `wire`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from wire.batch import Batch, SignedShare

_SIGNATURE_BYTES = 64
_SHARE_BITS_AT = 52


@dataclass(frozen=True, slots=True)
class WindowEvidence:
    """Batch and share of one window, as one party has them.

    batch             unsigned batch
    batch_signature   the Leader's; empty at the Helper, which keeps none
    share             signed share; empty in scheme `local`, which has none
    cleared           reason -> hosts whose bit the Helper cleared; the Helper alone knows it
    """

    batch: bytes = field(repr=False)
    batch_signature: bytes = field(repr=False)
    share: bytes = field(repr=False)
    cleared: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of_leader(cls, signed_batch: bytes, share: bytes | None) -> WindowEvidence:
        """Take what the Leader's state has."""
        return cls(signed_batch[:-_SIGNATURE_BYTES], signed_batch[-_SIGNATURE_BYTES:], share or b"")

    def decoded_batch(self) -> Batch:
        """Decode the batch. Raises ReportRejected."""
        return Batch.decode(self.batch)

    def decoded_share(self, n: int, d: int) -> SignedShare:
        """Decode the share of n hosts and d words. Raises ReportRejected."""
        return SignedShare.decode(self.share, n, d)

    def export(self) -> dict[str, Any]:
        """Give what a transcript's file has of it."""
        return {
            "batch": self.batch.hex(),
            "batch_signature": self.batch_signature.hex(),
            "share": self.share.hex(),
            "cleared": dict(self.cleared),
        }

    @classmethod
    def of_export(cls, raw: Any) -> WindowEvidence:
        """Read it back. Raises ValueError, KeyError, TypeError."""
        cleared = cleared_of(raw["cleared"])
        batch, signature = bytes.fromhex(raw["batch"]), bytes.fromhex(raw["batch_signature"])
        return cls(batch, signature, bytes.fromhex(raw["share"]), cleared)


def cleared_of(raw: Any) -> dict[str, int]:
    """Read reason -> hosts. Raises ValueError, AttributeError, TypeError, OverflowError."""
    return {str(reason): int(hosts) for reason, hosts in raw.items()}


def accepted_ids(batch: bytes, bitmap: bytes) -> frozenset[bytes]:
    """Give the ids of the reports whose bit is set; raises ReportRejected, ValueError."""
    entries = Batch.decode(batch).entries
    if len(bitmap) != (len(entries) + 7) // 8:
        raise ValueError(f"expected a bit for each of {len(entries)} hosts, got {len(bitmap)} B")
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")[: len(entries)]
    ids: list[bytes] = entries["report_id"][bits.astype(np.bool_)].tolist()
    return frozenset(ids)


def bitmap_of(share: bytes | None, n: int) -> bytes:
    """Give the accepted hosts; all of them in scheme `local`, which has no share."""
    length = (n + 7) // 8
    return share[_SHARE_BITS_AT : _SHARE_BITS_AT + length] if share else b"\xff" * length
