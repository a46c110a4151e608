"""Identifiers: what they are made of and how long they are."""

from __future__ import annotations

import hashlib
from typing import Final, NewType

from . import labels

HostId = NewType("HostId", bytes)
EpochId = NewType("EpochId", bytes)
TaskId = NewType("TaskId", bytes)
ReportId = NewType("ReportId", bytes)
KeyId = NewType("KeyId", bytes)

ED25519_PUBLIC_BYTES: Final = 32
HPKE_PUBLIC_BYTES: Final = 1216
SIGNATURE_BYTES: Final = 64
NO_SIGNATURE: Final = bytes(SIGNATURE_BYTES)
NO_KEY: Final = KeyId(bytes(8))
NO_TAG: Final = bytes(16)


def host_id(ed25519_pk: bytes) -> HostId:
    """H("plst1/host" || ed25519_pk)[:16]."""
    _need(ed25519_pk, ED25519_PUBLIC_BYTES, "an Ed25519 public key")
    return HostId(hashlib.sha256(labels.HOST + ed25519_pk).digest()[:16])


def key_id(hpke_pk: bytes) -> KeyId:
    """H(hpke_pk)[:8]."""
    _need(hpke_pk, HPKE_PUBLIC_BYTES, "an HPKE public key")
    return KeyId(hashlib.sha256(hpke_pk).digest()[:8])


def task_id(signed_bytes: bytes) -> TaskId:
    """H("plst1/task" || the bytes both parties sign), that is `Signed.unsigned()`.

    Without the signatures: one body is one task, whatever signatures travel with it.
    """
    return TaskId(hashlib.sha256(labels.TASK + signed_bytes).digest())


def hardware_hash(hardware_ids: tuple[str, ...]) -> bytes:
    """H("plst1/hardware" || each id sorted, as u16 length || UTF-8): one roster id per machine."""
    digest = hashlib.sha256(labels.HARDWARE)
    for hardware_id in sorted(hardware_ids):
        encoded = hardware_id.encode()
        digest.update(len(encoded).to_bytes(2, "big") + encoded)
    return digest.digest()


def _need(value: bytes, length: int, what: str) -> None:
    if len(value) != length:
        raise ValueError(f"{what} has {length} bytes, got {len(value)}")
