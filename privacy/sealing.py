"""Seal epoch keys and join requests to one aggregator: HPKE base mode, ML-KEM-768 + X25519.

The hybrid key has no serialisation in the library, so the protocol fixes one: a key file holds the
ML-KEM seed (64 B) and the X25519 private key (32 B), an announcement the two public keys in that
order. Context goes into `info`; there is no aad.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hpke
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

MLKEM_SEED_BYTES: Final = 64
MLKEM_PUBLIC_BYTES: Final = 1184
SEED_BYTES: Final = MLKEM_SEED_BYTES + 32
PUBLIC_BYTES: Final = MLKEM_PUBLIC_BYTES + 32
KEY_BYTES: Final = 32
SEAL_OVERHEAD_BYTES: Final = 1136
"""ML-KEM ciphertext 1088, X25519 share 32, AES-GCM tag 16."""

_SUITE: Final = Suite(hpke.KEM.MLKEM768_X25519, hpke.KDF.HKDF_SHA256, hpke.AEAD.AES_256_GCM)


class SealError(ValueError):
    """A seal or a public key does not open or parse; says nothing about the secret inside."""


@dataclass(frozen=True, slots=True)
class HpkeKeyPair:
    """An aggregator's daily sealing key; `public_bytes` is what it announces (1216 B)."""

    public_bytes: bytes
    _private: MLKEM768X25519PrivateKey = field(repr=False, compare=False)
    _seed: bytes = field(repr=False, compare=False)

    @classmethod
    def generate(cls) -> Self:
        seed = MLKEM768PrivateKey.generate().private_bytes_raw()
        return cls.from_seed_bytes(seed + X25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def from_seed_bytes(cls, seed: bytes) -> Self:
        """Rebuild a key pair from its key file.

        seed        96 B: ML-KEM seed 64, X25519 private key 32
        Raises      ValueError when the length differs
        """
        if len(seed) != SEED_BYTES:
            raise ValueError(f"HPKE key seed: expected {SEED_BYTES} bytes, got {len(seed)}")
        mlkem = MLKEM768PrivateKey.from_seed_bytes(seed[:MLKEM_SEED_BYTES])
        x25519 = X25519PrivateKey.from_private_bytes(seed[MLKEM_SEED_BYTES:])
        public = mlkem.public_key().public_bytes_raw() + x25519.public_key().public_bytes_raw()
        return cls(public, MLKEM768X25519PrivateKey(mlkem, x25519), bytes(seed))

    def seed_bytes(self) -> bytes:
        return self._seed

    def open(self, sealed: bytes, info: bytes) -> bytes:
        """Open a sealed key, 32 B; raises SealError for one altered or under other information."""
        return self.open_message(sealed, info, KEY_BYTES)

    def open_message(self, sealed: bytes, info: bytes, length: int) -> bytes:
        """Open a sealed message; raises SealError for another length or a failed opening."""
        wanted = length + SEAL_OVERHEAD_BYTES
        if len(sealed) != wanted:
            raise SealError(f"seal: expected {wanted} bytes, got {len(sealed)}")
        try:
            return _SUITE.decrypt(sealed, self._private, info=info)
        except (InvalidTag, ValueError) as error:
            raise SealError("seal does not open under this key and header") from error


def seal(public_bytes: bytes, key: bytes, info: bytes) -> bytes:
    """Seal an epoch key to an aggregator.

    public_bytes  1216 B, as announced
    key           32 B, fresh
    info          label (16 B) || epoch header E
    Returns       1168 B
    Raises        ValueError for a key of another length, SealError for a bad public key
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"sealed key: expected {KEY_BYTES} bytes, got {len(key)}")
    return seal_message(public_bytes, key, info)


def seal_message(public_bytes: bytes, message: bytes, info: bytes) -> bytes:
    """Seal a message, as `seal`: SEAL_OVERHEAD_BYTES longer; raises SealError for a bad key."""
    return _SUITE.encrypt(message, _public_key(public_bytes), info=info)


def check_public_key(public_bytes: bytes) -> None:
    """Raise SealError for an announced key that nothing can be sealed to."""
    try:
        seal(public_bytes, bytes(KEY_BYTES), b"")
    except SealError:
        raise
    except Exception as error:  # the library has several for a share of small order
        raise SealError("HPKE public key: nothing can be sealed to it") from error


@lru_cache(maxsize=64)  # a host seals to two keys all day; parsing costs as much as sealing
def _public_key(public_bytes: bytes) -> MLKEM768X25519PublicKey:
    if len(public_bytes) != PUBLIC_BYTES:
        raise SealError(f"HPKE public key: expected {PUBLIC_BYTES} bytes, got {len(public_bytes)}")
    try:
        return MLKEM768X25519PublicKey(
            MLKEM768PublicKey.from_public_bytes(public_bytes[:MLKEM_PUBLIC_BYTES]),
            X25519PublicKey.from_public_bytes(public_bytes[MLKEM_PUBLIC_BYTES:]),
        )
    except ValueError as error:
        raise SealError("HPKE public key: not a valid ML-KEM-768 encapsulation key") from error
