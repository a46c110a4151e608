"""What a party keeps of a window for a week: the batch, and the share that answered it.

Both are bound by hash to the release that both parties signed, so that either copy proves who
stands in it. Of a suppressed window the Helper's signature under its share is the evidence: it
cannot say later that it answered otherwise, and a Leader cannot make up what it was given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from privacy.signing import verify
from wire.batch import Batch
from wire.fields import SIGNATURE_BYTES
from wire.labels import SHARE

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

    def export(self) -> dict[str, Any]:
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


@dataclass(frozen=True, slots=True)
class UnreleasedShare:
    """An answered batch without a release.

    reason      why the Leader suppressed the window; empty at the Helper, which is not told
    share_hash  H of the unsigned share
    share       as the Helper signed it: the Leader's evidence; empty at the Helper
    """

    series: str
    cohort: int
    window: int
    reason: str
    batch_hash: bytes
    share_hash: bytes
    share: bytes = field(default=b"", repr=False)

    def holds(self, helper_pk: bytes) -> bool:
        """Whether the Helper signed this very share, for this batch."""
        message, signature = self.share[:-SIGNATURE_BYTES], self.share[-SIGNATURE_BYTES:]
        names = message.startswith(SHARE + self.batch_hash)
        same = hashlib.sha256(message).digest() == self.share_hash
        return names and same and verify(helper_pk, message, signature)

    def record(self) -> dict[str, object]:
        known = ((field.name, getattr(self, field.name)) for field in fields(self))
        return {name: one.hex() if isinstance(one, bytes) else one for name, one in known}

    @classmethod
    def of_record(cls, raw: dict[str, Any]) -> Self:
        """Read it back; ValueError, KeyError or TypeError where it is another."""
        place = str(raw["series"]), int(raw["cohort"]), int(raw["window"])
        shares = (bytes.fromhex(raw[name]) for name in ("batch_hash", "share_hash", "share"))
        return cls(*place, str(raw["reason"]), *shares)


def compare_unreleased(
    leader: Sequence[UnreleasedShare], helper: Sequence[UnreleasedShare], helper_pk: bytes
) -> Iterable[tuple[UnreleasedShare, str]]:
    """Say where a share under which the Leader suppressed a window is not the Helper's own."""
    kept = {answered.batch_hash: answered.share_hash for answered in helper}
    for suppressed in leader:
        if not suppressed.holds(helper_pk):
            yield suppressed, "the Helper did not sign the suppressed share"
        elif kept.get(suppressed.batch_hash) != suppressed.share_hash:
            yield suppressed, "the Helper signed another share than it keeps"
