"""Seals, boxes and signatures refuse whatever is not exactly theirs."""

import os

import pytest

from privacy import masks, sealing, signing
from wire import labels

GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
PRIME = 2**255 - 19
SMALL_ORDER = [
    (1).to_bytes(32, "little"),
    (PRIME - 1).to_bytes(32, "little"),
    (0).to_bytes(32, "little"),
    bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a"),
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"),
]


@pytest.fixture(scope="module")
def pair() -> sealing.HpkeKeyPair:
    return sealing.HpkeKeyPair.generate()


def test_seal_opens_only_under_its_information(pair: sealing.HpkeKeyPair) -> None:
    key = os.urandom(32)
    sealed = sealing.seal(pair.public_bytes, key, labels.SEAL_H + b"epoch")
    assert len(sealed) == 1168
    assert pair.open(sealed, labels.SEAL_H + b"epoch") == key
    for info in (labels.SEAL_L + b"epoch", labels.SEAL_H + b"other", b""):
        with pytest.raises(sealing.SealError):
            pair.open(sealed, info)


@pytest.mark.parametrize("place", [0, 1087, 1088, 1119, 1120, 1167])
def test_seal_altered_anywhere_does_not_open(pair: sealing.HpkeKeyPair, place: int) -> None:
    sealed = bytearray(sealing.seal(pair.public_bytes, bytes(32), b"info"))
    sealed[place] ^= 1
    with pytest.raises(sealing.SealError):
        pair.open(bytes(sealed), b"info")


def test_seal_of_another_length_is_refused(pair: sealing.HpkeKeyPair) -> None:
    sealed = sealing.seal(pair.public_bytes, bytes(32), b"info")
    for wrong in (b"", sealed[:-1], sealed + b"\0"):
        with pytest.raises(sealing.SealError, match="1168"):
            pair.open(wrong, b"info")
    with pytest.raises(ValueError, match="32 bytes"):
        sealing.seal(pair.public_bytes, bytes(31), b"info")


def test_public_key_that_is_none_is_refused(pair: sealing.HpkeKeyPair) -> None:
    with pytest.raises(sealing.SealError, match="1216"):
        sealing.seal(pair.public_bytes[:-1], bytes(32), b"info")
    with pytest.raises(sealing.SealError):
        sealing.seal(b"\xff" * sealing.PUBLIC_BYTES, bytes(32), b"info")


def test_key_pair_comes_back_from_its_file(pair: sealing.HpkeKeyPair) -> None:
    again = sealing.HpkeKeyPair.from_seed_bytes(pair.seed_bytes())
    assert again.public_bytes == pair.public_bytes
    sealed = sealing.seal(pair.public_bytes, bytes(32), b"info")
    assert again.open(sealed, b"info") == bytes(32)
    with pytest.raises(ValueError, match="96 bytes"):
        sealing.HpkeKeyPair.from_seed_bytes(bytes(95))


def test_secrets_stay_out_of_repr(pair: sealing.HpkeKeyPair) -> None:
    key = signing.SigningKey.generate()
    assert pair.seed_bytes().hex()[:16] not in repr(pair)
    assert repr(pair.seed_bytes())[2:42] not in repr(pair)
    assert "_private" not in repr(key)


def test_box_belongs_to_one_report() -> None:
    key, report_id, aad, plain = bytes(32), bytes(range(16)), b"M" * 48 + b"t" * 16, b"y" * 40
    sealed = masks.seal_box(key, report_id, aad, plain)
    assert len(sealed) == len(plain) + masks.TAG_BYTES
    assert masks.open_box(key, report_id, aad, sealed) == plain
    altered = bytes([sealed[0] ^ 1]) + sealed[1:]
    for wrong in (
        (bytes([1]) * 32, report_id, aad, sealed),
        (key, bytes(16), aad, sealed),
        (key, report_id, aad[:-1] + b"u", sealed),
        (key, report_id, aad, altered),
        (key, report_id, aad, sealed[:8]),
    ):
        with pytest.raises(masks.BoxError):
            masks.open_box(*wrong)
    with pytest.raises(ValueError, match="32 bytes"):
        masks.seal_box(bytes(16), report_id, aad, plain)
    with pytest.raises(ValueError, match="16 bytes"):
        masks.seal_box(key, bytes(12), aad, plain)


def test_signature_is_refused_when_malleable() -> None:
    key = signing.SigningKey.generate()
    signature = key.sign(b"message")
    s = int.from_bytes(signature[32:], "little")
    malleable = signature[:32] + (s + GROUP_ORDER).to_bytes(32, "little")
    assert signing.verify(key.public_bytes, b"message", signature)
    assert not signing.verify(key.public_bytes, b"message", malleable)


@pytest.mark.parametrize("point", SMALL_ORDER)
@pytest.mark.parametrize("sign", [0, 0x80])
def test_small_order_points_never_verify(point: bytes, sign: int) -> None:
    """With the identity as key, R = s B verifies any message under lax rules."""
    encoded = point[:31] + bytes([point[31] | sign])
    honest = signing.SigningKey.generate().sign(b"message")
    assert not signing.verify(encoded, b"message", encoded + bytes(32))
    assert not signing.verify(encoded, b"message", honest)
    key = signing.SigningKey.generate()
    assert not signing.verify(key.public_bytes, b"message", encoded + bytes(32))


def test_small_order_key_would_sign_everything_under_lax_rules() -> None:
    """The library alone accepts what `verify` refuses: the rule is not idle."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    identity = (1).to_bytes(32, "little")
    forged = identity + bytes(32)
    Ed25519PublicKey.from_public_bytes(identity).verify(forged, b"any message")
    assert not signing.verify(identity, b"any message", forged)


def test_malformed_signatures_are_false_not_errors() -> None:
    key = signing.SigningKey.generate()
    signature = key.sign(b"m")
    noncanonical = (PRIME + 3).to_bytes(32, "little")
    assert not signing._is_strict_point(noncanonical)
    assert signing._is_strict_point((3).to_bytes(32, "little"))
    assert not signing.verify(key.public_bytes, b"m", signature[:63])
    assert not signing.verify(key.public_bytes[:31], b"m", signature)
    assert not signing.verify(noncanonical, b"m", signature)
    assert not signing.verify(key.public_bytes, b"n", signature)
    with pytest.raises(ValueError, match="32 bytes"):
        signing.SigningKey.from_seed_bytes(bytes(31))
