"""The box around a masked vector: AES-128-GCM to the Leader, so that a broker cannot read it."""

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 16
REPORT_ID_BYTES: Final = 16
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16


class BoxError(ValueError):
    """A box does not open under its key, report id and aad."""


def seal_box(k_box: bytes, report_id: bytes, aad: bytes, plaintext: bytes) -> bytes:
    """Encrypt one masked vector.

    k_box       16 B
    report_id   16 B, fresh per sealing; its first 12 are the nonce
    aad         M || tag_H
    plaintext   d words of 4 B (scheme `masked`) or 8 B (`local`), little-endian
    Returns     plaintext length + 16 B
    """
    return AESGCM(_key(k_box)).encrypt(_nonce(report_id), plaintext, aad)


def open_box(k_box: bytes, report_id: bytes, aad: bytes, box: bytes) -> bytes:
    """Decrypt one box; raises BoxError when it is altered or belongs to another report."""
    if len(box) < TAG_BYTES:
        raise BoxError(f"box: expected at least {TAG_BYTES} bytes, got {len(box)}")
    try:
        return AESGCM(_key(k_box)).decrypt(_nonce(report_id), box, aad)
    except InvalidTag as error:
        raise BoxError("box does not open under this report's key, id and header") from error


def _key(k_box: bytes) -> bytes:
    if len(k_box) != KEY_BYTES:
        raise ValueError(f"box key: expected {KEY_BYTES} bytes, got {len(k_box)}")
    return k_box


def _nonce(report_id: bytes) -> bytes:
    if len(report_id) != REPORT_ID_BYTES:
        raise ValueError(f"report id: expected {REPORT_ID_BYTES} bytes, got {len(report_id)}")
    return report_id[:NONCE_BYTES]
