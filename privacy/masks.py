"""Keys of one host, epoch and task, the tag of a report, its one-time mask, and its box.

Keys and masks are values of the caller: nothing here keeps, logs or prints them.
"""

import hmac
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

LABEL_K_MASK: Final = b"plst1/k-mask".ljust(16, b"\0")
LABEL_K_ID: Final = b"plst1/k-id".ljust(16, b"\0")
LABEL_K_BOX: Final = b"plst1/k-box".ljust(16, b"\0")
BOX_KEY_BYTES: Final = 32
MAX_WORDS: Final = 1 << 20
"""Words of the longest vector: 2^18 cipher blocks, far below the 32-bit block counter."""

_COUNTER_START: Final = bytes(4)
_ZEROS: Final = memoryview(bytes(4 * MAX_WORDS))
_BIG_ENDIAN: Final = bool(np.dtype("=u4") != np.dtype("<u4"))


@dataclass(frozen=True, slots=True)
class EpochTaskKeys:
    """What a host derives once per epoch and task; erased at the epoch's end."""

    k_mask: bytes = field(repr=False)
    k_id: bytes = field(repr=False)
    k_box: bytes = field(repr=False)


def hkdf_expand(prk: bytes, info: bytes) -> bytes:
    """Expand a pseudorandom key into 32 bytes, which is one HMAC.

    Source      RFC 5869, section 2.3, with SHA-256
    """
    return hmac.digest(prk, info + b"\x01", sha256)


def derive_helper_keys(helper_key: bytes, epoch_hash: bytes, task_id: bytes) -> tuple[bytes, bytes]:
    """Derive (k_mask 32 B, k_id 32 B), which the host and the Helper share, from K_H."""
    context = _context(helper_key, epoch_hash, task_id)
    k_mask = hkdf_expand(helper_key, LABEL_K_MASK + context)
    return k_mask, hkdf_expand(helper_key, LABEL_K_ID + context)


def derive_box_key(leader_key: bytes, epoch_hash: bytes, task_id: bytes) -> bytes:
    """Derive k_box (32 B), which the host and the Leader share, from K_L."""
    context = _context(leader_key, epoch_hash, task_id)
    return hkdf_expand(leader_key, LABEL_K_BOX + context)


def derive_epoch_task_keys(
    helper_key: bytes, leader_key: bytes, epoch_hash: bytes, task_id: bytes
) -> EpochTaskKeys:
    k_mask, k_id = derive_helper_keys(helper_key, epoch_hash, task_id)
    return EpochTaskKeys(k_mask, k_id, derive_box_key(leader_key, epoch_hash, task_id))


def tag_and_nonce(k_id: bytes, report_header: bytes) -> tuple[bytes, bytes]:
    """Return (tag_H 16 B, mask nonce 12 B) of the report header M (48 B)."""
    output = hmac.digest(k_id, report_header, sha256)
    return output[:16], output[16:28]


def mask_into(k_mask: bytes, nonce: bytes, out: NDArray[np.uint32]) -> None:
    """Write the mask of one report over `out`.

    k_mask      32 B; a fresh cipher context per call, because every report has its own key
    nonce       12 B; the cipher's counter follows it, 4 B big-endian, from 0
    out         uint32[d], contiguous, d <= 2^20; key-stream bytes 4j..4j+3 are word j,
                little-endian
    Raises      ValueError when a length is wrong, TypeError when `out` is not contiguous
    """
    if len(nonce) != 12:
        raise ValueError(f"mask nonce: expected 12 bytes, got {len(nonce)}")
    size = out.nbytes
    if size > len(_ZEROS):
        raise ValueError(f"mask: expected at most {MAX_WORDS} words, got {out.size}")
    encryptor = Cipher(AES256(k_mask), CTR(nonce + _COUNTER_START)).encryptor()
    encryptor.update_into(_ZEROS[:size], out.data.cast("B"))
    if _BIG_ENDIAN:
        out.byteswap(inplace=True)


def _context(key: bytes, epoch_hash: bytes, task_id: bytes) -> bytes:
    for name, value in (("key", key), ("epoch hash", epoch_hash), ("task id", task_id)):
        if len(value) != 32:
            raise ValueError(f"{name}: expected 32 bytes, got {len(value)}")
    return epoch_hash + task_id


REPORT_ID_BYTES: Final = 16
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16


class BoxError(ValueError):
    """A box does not open under its key, report id and aad."""


def seal_box(k_box: bytes, report_id: bytes, aad: bytes, plaintext: bytes) -> bytes:
    """Encrypt one masked vector by AES-256-GCM.

    k_box       32 B
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


def open_box_into(
    k_box: bytes, report_id: bytes, aad: bytes, box: memoryview, out: memoryview
) -> None:
    """Decrypt one box over `out`, plaintext length bytes, of which nothing counts on an error.

    Raises      BoxError as `open_box`, ValueError when `out` is of another length
    """
    try:
        AESGCM(_key(k_box)).decrypt_into(_nonce(report_id), box, aad, out)
    except InvalidTag as error:
        raise BoxError("box does not open under this report's key, id and header") from error


def _key(k_box: bytes) -> bytes:
    if len(k_box) != BOX_KEY_BYTES:
        raise ValueError(f"box key: expected {BOX_KEY_BYTES} bytes, got {len(k_box)}")
    return k_box


def _nonce(report_id: bytes) -> bytes:
    if len(report_id) != REPORT_ID_BYTES:
        raise ValueError(f"report id: expected {REPORT_ID_BYTES} bytes, got {len(report_id)}")
    return report_id[:NONCE_BYTES]
