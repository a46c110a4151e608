"""Ed25519 with strict verification: one message, one key, one verdict at every party.

Cofactorless libraries agree on honest signatures only. Small-order and non-canonical points are
refused here, so that a peer cannot craft a signature which one party accepts and another does not,
nor one key that signs many messages. OpenSSL signs; libsodium verifies, by the same cofactorless
equation and in half the time.
"""

from dataclasses import dataclass, field
from typing import Final, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

PUBLIC_BYTES: Final = 32
SEED_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_FIELD_PRIME: Final = 2**255 - 19
_Y_BITS: Final = 2**255 - 1
_GROUP_ORDER: Final = 2**252 + 27742317777372353535851937790883648493
_ORDER_8_Y: Final = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER_Y: Final = frozenset({0, 1, _FIELD_PRIME - 1, _ORDER_8_Y, _FIELD_PRIME - _ORDER_8_Y})


@dataclass(frozen=True, slots=True)
class SigningKey:
    public_bytes: bytes
    _private: Ed25519PrivateKey = field(repr=False, compare=False)

    @classmethod
    def generate(cls) -> Self:
        return cls._of(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed_bytes(cls, seed: bytes) -> Self:
        """Rebuild a key from its 32-byte seed; raises ValueError for another length."""
        if len(seed) != SEED_BYTES:
            raise ValueError(f"signing key seed: expected {SEED_BYTES} bytes, got {len(seed)}")
        return cls._of(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def _of(cls, private: Ed25519PrivateKey) -> Self:
        return cls(private.public_key().public_bytes_raw(), private)

    def seed_bytes(self) -> bytes:
        return self._private.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)


def verify(public_bytes: bytes, message: bytes, signature: bytes) -> bool:
    """Say whether `signature` is this key's strict Ed25519 signature of `message`.

    False for every malformed key or signature: s >= the group order, a point that is not canonical
    or has small order, a wrong length.
    Source      RFC 8032, section 5.1.7, and "Taming the many EdDSAs" (2020), strict rules
    """
    if len(signature) != SIGNATURE_BYTES or len(public_bytes) != PUBLIC_BYTES:
        return False
    if int.from_bytes(signature[32:], "little") >= _GROUP_ORDER:
        return False
    if not (_is_strict_point(signature[:32]) and _is_strict_point(public_bytes)):
        return False
    try:
        crypto_sign_open(b"".join((signature, message)), bytes(public_bytes))
    except BadSignatureError:
        return False
    return True


def _is_strict_point(encoded: bytes) -> bool:
    y = int.from_bytes(encoded, "little") & _Y_BITS
    return y < _FIELD_PRIME and y not in _SMALL_ORDER_Y
