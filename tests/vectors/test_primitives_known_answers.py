"""Published vectors for every primitive the protocol builds on, through our own functions."""

import hmac
from hashlib import sha256

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.bindings._rust import openssl as rust_openssl
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR, ECB
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from privacy import masks, sealing, signing
from wire import labels

unhex = bytes.fromhex


@pytest.mark.parametrize(
    ("prk", "info", "okm"),
    [
        (
            "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5",
            "f0f1f2f3f4f5f6f7f8f9",
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            "06a6b88c5853361a06104c9ceb35b45cef760014904671014a193f40c15fc244",
            bytes(range(0xB0, 0x100)).hex(),
            (
                "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
                "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
                "cc30c58179ec3e87c14c01d5c1f3434f1d87"
            ),
        ),
        (
            "19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04",
            "",
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)
def test_hkdf_expand_matches_rfc5869(prk: str, info: str, okm: str) -> None:
    assert masks.hkdf_expand(unhex(prk), unhex(info)) == unhex(okm)[:32]


def test_mask_matches_nist_aes_ctr() -> None:
    """SP 800-38A F.5.5: the key stream is ciphertext xor plaintext, for that counter block.

    Its counter does not begin at 0, so `mask_into` is held to the block cipher itself below.
    """
    key = unhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = unhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    plain = unhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")
    encryptor = Cipher(AES256(key), CTR(counter)).encryptor()
    cipher = unhex("601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5")
    assert encryptor.update(plain) == cipher


def test_mask_words_are_little_endian_and_count_from_zero() -> None:
    key = unhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    nonce = bytes(range(12))
    blocks = Cipher(AES256(key), ECB()).encryptor()
    stream = b"".join(blocks.update(nonce + i.to_bytes(4, "big")) for i in range(300))
    out = np.empty((3, 1003), dtype=np.uint32)
    out[:] = 7
    masks.mask_into(key, nonce, out[1])
    expected = [int.from_bytes(stream[4 * j : 4 * j + 4], "little") for j in range(1003)]
    assert out[1].tolist() == expected
    assert (out[[0, 2]] == 7).all()


def test_mask_refuses_wrong_shapes() -> None:
    out = np.zeros((4, 4), dtype=np.uint32)
    with pytest.raises(ValueError, match="12 bytes"):
        masks.mask_into(bytes(32), bytes(16), out[0])
    with pytest.raises(TypeError, match="contiguous"):
        masks.mask_into(bytes(32), bytes(12), out[:, 0])
    with pytest.raises(ValueError, match="at most"):
        masks.mask_into(bytes(32), bytes(12), np.zeros((1 << 20) + 1, dtype=np.uint32))


def test_derived_keys_follow_the_layout() -> None:
    helper_key, leader_key = bytes(range(32)), bytes(range(32, 64))
    epoch_hash, task_id = bytes([3]) * 32, bytes([4]) * 32
    keys = masks.derive_epoch_task_keys(helper_key, leader_key, epoch_hash, task_id)

    def expected(key: bytes, label: bytes, length: int) -> bytes:
        return hmac.digest(key, label + epoch_hash + task_id + b"\x01", sha256)[:length]

    assert keys.k_mask == expected(helper_key, b"plst1/k-mask\0\0\0\0", 32)
    assert keys.k_id == expected(helper_key, b"plst1/k-id\0\0\0\0\0\0", 32)
    assert keys.k_box == expected(leader_key, b"plst1/k-box\0\0\0\0\0", 32)
    assert "k_mask" not in repr(keys)


def test_box_is_aes_256_gcm() -> None:
    """Test case 16 of McGrew and Viega's GCM specification, a key of 256 bits."""
    key = unhex("feffe9928665731c6d6a8f9467308308" * 2)
    nonce = unhex("cafebabefacedbaddecaf888")
    plain = unhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    aad = unhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    box = unhex(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f66276fc6ece0f4e1768cddf8853bb2d551b"
    )
    assert masks.seal_box(key, nonce + b"rest", aad, plain) == box
    assert masks.open_box(key, nonce + b"rest", aad, box) == plain
    with pytest.raises(ValueError, match="32 bytes"):
        masks.seal_box(key[:16], nonce + b"rest", aad, plain)


def test_privacy_labels_are_those_of_the_wire() -> None:
    assert masks.LABEL_K_MASK == labels.K_MASK
    assert masks.LABEL_K_ID == labels.K_ID
    assert masks.LABEL_K_BOX == labels.K_BOX


def test_tag_and_nonce_are_cut_from_one_hmac() -> None:
    output = hmac.digest(b"k" * 32, b"m" * 48, sha256)
    assert masks.tag_and_nonce(b"k" * 32, b"m" * 48) == (output[:16], output[16:28])


def test_x25519_matches_rfc7748() -> None:
    private = X25519PrivateKey.from_private_bytes(
        unhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    )
    public = X25519PublicKey.from_public_bytes(
        unhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    )
    assert private.exchange(public) == unhex(
        "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    )


def test_hpke_opens_rfc9180_base_mode() -> None:
    """A.1.1, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM; its vectors carry an aad."""
    suite = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)
    private = X25519PrivateKey.from_private_bytes(
        unhex("4612c550263fc8ad58375df3f557aac531d26850903e55a9f23f21d8534e8ac8")
    )
    encapsulated = unhex("37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431")
    cipher = unhex(
        "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a"
    )
    plain = rust_openssl.hpke._decrypt_with_aad(
        suite,
        encapsulated + cipher,
        private,
        unhex("4f6465206f6e2061204772656369616e2055726e"),
        unhex("436f756e742d30"),
    )
    assert plain == b"Beauty is truth, truth beauty"


def test_hybrid_key_bytes_are_pinned() -> None:
    pair = sealing.HpkeKeyPair.from_seed_bytes(bytes(range(96)))
    assert len(pair.public_bytes) == sealing.PUBLIC_BYTES == 1216
    digest = sha256(pair.public_bytes).hexdigest()
    assert digest == "d99e4496af749b54ee4a2d270c8057450624ecc5dc0866295ffc504a26134ad4"
    assert pair.seed_bytes() == bytes(range(96))


@pytest.mark.parametrize(
    ("seed", "public", "message", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            (
                "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555"
                "fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
            ),
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            (
                "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
                "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
            ),
        ),
    ],
)
def test_ed25519_matches_rfc8032(seed: str, public: str, message: str, signature: str) -> None:
    key = signing.SigningKey.from_seed_bytes(unhex(seed))
    assert key.public_bytes == unhex(public)
    assert key.sign(unhex(message)) == unhex(signature)
    assert signing.verify(unhex(public), unhex(message), unhex(signature))


MIXED_KEY = (
    "de5a710b03f885a812719d5f283247ad23b841e683f0d2912c6895c690cdc853",
    "9e826bd6f0a890ea",
    (
        "5d7e9197faec42ebe59d402e9778f0b2e8799be7e466aab343f9e0965fb98437"
        "f3d027bbdaa8f7664b8787dd6947a0dcd5a16360c0d2db9e21c7330dbc0d3a0a"
    ),
)
MIXED_KEY_TORSION_LEFT = (
    "0dfd98bb39304f86a8ad0446c2c04266ecaecc7f1abe4f621fc668c1f23436d0",
    "2441e3d54410492b",
    (
        "f54f6490286a2065bdf989ece142775a2edbabb8d703fc7484c08d304f8c3d7c"
        "a69db5cef1426bf589a714156d31d6264ced2773311fcb14d46bd599d2a60103"
    ),
)
MIXED_POINT = (
    "4fca1843fbf765614e010408647bcd212e1be5c2c69be9bcc7bed1b01ef220a9",
    "a6342fa0fdb8b294",
    (
        "077cfc351d848befb8c6e77d21540818ac564f2ebc87b65528419e9a99a8d5f1"
        "cd75959815054ecfe8434e9047b1efd3fd6d25a23235fc8cc966b3debd021605"
    ),
)


@pytest.mark.parametrize(
    ("vector", "holds"),
    [(MIXED_KEY, True), (MIXED_KEY_TORSION_LEFT, False), (MIXED_POINT, False)],
    ids=["no torsion left", "torsion of the key left", "torsion of the point"],
)
def test_ed25519_is_verified_without_the_cofactor(
    vector: tuple[str, str, str], holds: bool
) -> None:
    """A library that multiplies by 8 accepts all three: parties would judge one epoch in two ways.

    Key or point is a multiple of the base point and a point of order 8.
    """
    public, message, signature = map(unhex, vector)
    assert signing.verify(public, message, signature) is holds
    if holds:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    else:
        with pytest.raises(InvalidSignature):
            Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
