"""Repeatable noise for tests, the demo and the simulator; `agent run` refuses it."""

from hashlib import sha256
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from .noise_table import TableSampler

_LABEL: Final = b"plst1/seeded-stream".ljust(32, b"\0")


class SeededBytes:
    """A deterministic byte stream: AES-256-CTR under H(label, seed, name).

    seed        any integer
    name        tells streams of one seed apart: two purposes, or two windows, share no byte
    """

    def __init__(self, seed: int, name: str = "") -> None:
        digest = sha256(_LABEL + f"{seed}/{name}".encode()).digest()
        self._encryptor = Cipher(AES256(digest), CTR(bytes(16))).encryptor()

    def __call__(self, count: int) -> bytes:
        """Return the next `count` bytes of the stream."""
        return self._encryptor.update(bytes(count))


class SeededSampler:
    """The table sampler over a seeded stream."""

    seeded = True

    def __init__(self, seed: int, name: str = "noise") -> None:
        self._table = TableSampler(SeededBytes(seed, name))

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `NoiseSampler.sample`."""
        return self._table.sample(hosts, sigma_1024)
