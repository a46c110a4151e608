"""Answered batches without a release: what a transcript keeps of windows that were suppressed.

The Helper's signature under its share is the evidence: it cannot say later that it answered
otherwise, and a Leader cannot make up what it was given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from privacy.signing import verify
from wire.fields import SIGNATURE_BYTES
from wire.labels import SHARE


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
        """Give it as an exported transcript has it."""
        return {
            "series": self.series,
            "cohort": self.cohort,
            "window": self.window,
            "reason": self.reason,
            "batch_hash": self.batch_hash.hex(),
            "share_hash": self.share_hash.hex(),
            "share": self.share.hex(),
        }

    @classmethod
    def of_record(cls, raw: dict[str, Any]) -> Self:
        """Read it back; ValueError, KeyError or TypeError where it is another."""
        return cls(
            str(raw["series"]),
            int(raw["cohort"]),
            int(raw["window"]),
            str(raw["reason"]),
            bytes.fromhex(raw["batch_hash"]),
            bytes.fromhex(raw["share_hash"]),
            bytes.fromhex(raw["share"]),
        )


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
