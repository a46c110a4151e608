"""A second, plain writer of every layout: concatenation only, nothing imported from `wire`.

Known-answer vectors made by the encoder under test would agree with any mistake it makes.
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM


def pattern(name: str, length: int) -> bytes:
    """Return fixed bytes that look random: SHA-256 over the name and a counter."""
    blocks = (length + 31) // 32
    stream = b"".join(hashlib.sha256(f"{name}/{i}".encode()).digest() for i in range(blocks))
    return stream[:length]


def sha(message: bytes) -> bytes:
    return hashlib.sha256(message).digest()


def label(text: str) -> bytes:
    return text.encode() + bytes(16 - len(text))


def big(value: int, width: int) -> bytes:
    return value.to_bytes(width, "big")


def expand(key: bytes, name: str, context: bytes) -> bytes:
    """HKDF-Expand to 32 bytes, which is one HMAC."""
    return hmac.digest(key, label(name) + context + b"\x01", "sha256")


def key_stream(key: bytes, nonce: bytes, length: int) -> bytes:
    return Cipher(AES256(key), CTR(nonce + bytes(4))).encryptor().update(bytes(length))


def gcm(key: bytes, nonce: bytes, aad: bytes, plaintext: bytes) -> bytes:
    """AES-256-GCM: ciphertext and tag."""
    encryptor = Cipher(AES256(key), GCM(nonce)).encryptor()
    encryptor.authenticate_additional_data(aad)
    return encryptor.update(plaintext) + encryptor.finalize() + encryptor.tag


def words(values: list[int]) -> bytes:
    return b"".join(value.to_bytes(4, "little") for value in values)


def host_id(public_key: bytes) -> bytes:
    return sha(label("plst1/host") + public_key)[:16]


def signed(name: str, body: bytes, sig_leader: bytes, sig_helper: bytes) -> bytes:
    return label(name) + big(len(body), 4) + body + sig_leader + sig_helper


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def number(field: int, value: int) -> bytes:
    """A protobuf varint field; proto3 leaves zeros out."""
    return varint(field * 8) + varint(value) if value else b""


def blob(field: int, value: bytes) -> bytes:
    """A protobuf bytes, string or message field."""
    return varint(field * 8 + 2) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    return blob(field, value.encode())


def numbers(fields: dict[int, int]) -> bytes:
    return b"".join(number(field, value) for field, value in fields.items())
