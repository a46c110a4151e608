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
HardwareId = NewType("HardwareId", bytes)
VoucherId = NewType("VoucherId", bytes)

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


def hardware_id(leader_pk: bytes, name: str) -> HardwareId:
    """H("plst1/hardware" || leader_pk || name)[:16]: one part of a machine, in one fleet.

    The Leader's key is the salt: rosters of two fleets cannot be joined by it.
    """
    _need(leader_pk, ED25519_PUBLIC_BYTES, "an Ed25519 public key")
    return HardwareId(hashlib.sha256(labels.HARDWARE + leader_pk + name.encode()).digest()[:16])


def voucher_id(token_pk: bytes) -> VoucherId:
    """H("plst1/voucher" || token_pk)[:16]: a token's voucher enrols one host."""
    _need(token_pk, ED25519_PUBLIC_BYTES, "an Ed25519 public key")
    return VoucherId(hashlib.sha256(labels.VOUCHER + token_pk).digest()[:16])


def _need(value: bytes, length: int, what: str) -> None:
    if len(value) != length:
        raise ValueError(f"{what} has {length} bytes, got {len(value)}")
