"""Domain-separation labels: 16 bytes, ASCII, zero-padded, the protocol's version in each."""

from __future__ import annotations

from typing import Final

LABEL_BYTES: Final = 16


def label(text: str) -> bytes:
    """Return text as its 16 zero-padded bytes; ValueError when it does not fit."""
    encoded = text.encode("ascii")
    if not 0 < len(encoded) <= LABEL_BYTES:
        raise ValueError(f"a label has 1 to {LABEL_BYTES} ASCII bytes, got {len(encoded)}")
    return encoded.ljust(LABEL_BYTES, b"\0")


TASK: Final = label("plst1/task")
ROSTER: Final = label("plst1/roster")
ENTRY_ANSWER: Final = label("plst1/entry")
JOIN: Final = label("plst1/join")
JOIN_SEAL: Final = label("plst1/join-seal")
VOUCHER: Final = label("plst1/voucher")
HARDWARE: Final = label("plst1/hardware")
HPKE_KEY: Final = label("plst1/hpke-key")
HOST: Final = label("plst1/host")
EPOCH: Final = label("plst1/epoch")
SEAL_H: Final = label("plst1/seal-h")
SEAL_L: Final = label("plst1/seal-l")
K_MASK: Final = label("plst1/k-mask")
K_ID: Final = label("plst1/k-id")
K_BOX: Final = label("plst1/k-box")
REPORT: Final = label("plst1/report")
BATCH: Final = label("plst1/batch")
SHARE: Final = label("plst1/share")
RELEASE: Final = label("plst1/release")
LINK: Final = label("plst1/link")
ASK: Final = label("plst1/ask")
HEAD: Final = label("plst1/head")
