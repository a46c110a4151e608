"""Exact-table samplers: of a live host, of batches of hosts, and over a seeded stream.

The cumulative distribution is rounded to 2^-128. A draw needs its first 16 bits only, unless they
share a cell of the guide with a threshold; then 64 bits are searched, and on a tie there, which a
test forces and nature shows once in 2^50 draws, 64 more bits decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from math import isqrt
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from numpy.typing import NDArray

from .calibrate import SIGMA_UNIT, check_sigma_range
from .errors import ParameterError
from .noise import ExactGaussian, sigma_groups

RandomBytes = Callable[[int], bytes]

_BITS: Final = 128
_WORD: Final = 1 << 64
_WORK_BITS: Final = 320
_GUIDE_BITS: Final = 16
_SEARCH: Final = np.iinfo(np.int32).min
_MAX_SIGMA_1024: Final = (1 << 17) * SIGMA_UNIT
"""A table of 13.4 sigma to each side stays under 4 million places."""


@dataclass(frozen=True, slots=True)
class NoiseTable:
    """One sigma's distribution: P(X <= offset + i) ~ thresholds[i] / 2^128."""

    offset: int
    high: NDArray[np.uint64] = field(repr=False)
    low: NDArray[np.uint64] = field(repr=False)
    guide: NDArray[np.int32] = field(repr=False)

    def threshold(self, index: int) -> int:
        return int(self.high[index]) << 64 | int(self.low[index])

    def draw(self, count: int, random_bytes: RandomBytes) -> NDArray[np.int64]:
        words = np.frombuffer(random_bytes(8 * count), dtype="<u8")
        values = self.guide[(words >> np.uint64(64 - _GUIDE_BITS)).astype(np.intp)].astype(np.int64)
        unsure = np.flatnonzero(values == _SEARCH)
        values[unsure] = self._search(words[unsure], random_bytes)
        return values

    def _search(self, words: NDArray[np.uint64], random_bytes: RandomBytes) -> NDArray[np.int64]:
        found = np.searchsorted(self.high, words, side="left")
        # A word past the last threshold ties with none: it is greater than the one put in here.
        inside = np.minimum(found, self.high.size - 1)
        for place in np.flatnonzero(self.high[inside] == words):
            draw = int(words[place]) << 64 | int.from_bytes(random_bytes(8), "little")
            index = int(found[place])
            above = int(np.searchsorted(self.high, words[place], side="right"))
            while index < above and self.threshold(index) <= draw:
                index += 1
            found[place] = index
        return found.astype(np.int64) + self.offset


class TableSampler:
    """Discrete Gaussian noise for many hosts at once, from an injected source of random bytes."""

    seeded = False

    def __init__(self, random_bytes: RandomBytes) -> None:
        self._random_bytes = random_bytes

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        noise = np.zeros((hosts, sigma_1024.size), dtype=np.int64)
        for sigma, columns in sigma_groups(sigma_1024):
            noise[:, columns] = self._draw(sigma, hosts * columns.size).reshape(hosts, columns.size)
        return noise

    def _draw(self, sigma_1024: int, count: int) -> NDArray[np.int64]:
        return noise_table(sigma_1024).draw(count, self._random_bytes)


@lru_cache(maxsize=64)  # a host meets as many sigmas as sections
def noise_table(sigma_1024: int) -> NoiseTable:
    """Build the table of one sigma.

    sigma_1024  1 .. 2^27, in 1/1024 steps
    Raises      ParameterError outside that range
    """
    if not 0 < sigma_1024 <= _MAX_SIGMA_1024:
        raise ParameterError(
            "sigma of the table sampler", f"1 .. {_MAX_SIGMA_1024} (1/1024 steps)", sigma_1024
        )
    weights = half_weights(sigma_1024)
    total = weights[0] + 2 * sum(weights[1:])
    places = weights[:0:-1] + weights[:-1]
    thresholds, running = [], 0
    for weight in places[:-1]:
        running += weight
        thresholds.append(((running << (_BITS + 1)) + total) // (2 * total))
    # At the far right a threshold may round to 1, which no draw reaches.
    thresholds = [value for value in thresholds if value >> _BITS == 0]
    high = np.array([value >> 64 for value in thresholds], dtype=np.uint64)
    low = np.array([value % _WORD for value in thresholds], dtype=np.uint64)
    offset = 1 - len(weights)
    return NoiseTable(offset, high, low, _guide(high, offset))


def table_cut(sigma_1024: int) -> float:
    """Bound the total-variation distance of one draw to the exact discrete Gaussian.

    Rounded thresholds are each off by at most 2^-129, probabilities by 2^-128; the tail beyond
    the table holds less than 2^-128 on each side, and cutting it moves as much mass again.
    """
    return (2 * (2 * _reach(sigma_1024) + 1) + 4) / (1 << _BITS)


def _reach(sigma_1024: int) -> int:
    """The least integer past 13.4 sigma, where the remaining tail is below 2^-128."""
    return isqrt(180 * sigma_1024**2 // SIGMA_UNIT**2) + 2


def half_weights(sigma_1024: int) -> list[int]:
    """Return the weights of 0, 1, .. K in fixed point: 2^320 exp(-x^2 / (2 sigma^2)).

    K is `_reach`. w(x+1) = w(x) r(x) and r(x+1) = r(x) g with g = exp(-1/sigma^2): mpmath gives
    the two factors, integers the rest; the error stays below 2 K^2 2^-320.
    """
    import mpmath  # a tenth of a second to load: only tables need it

    one = 1 << _WORK_BITS
    with mpmath.workprec(_WORK_BITS + 32):
        square = mpmath.mpf(sigma_1024) ** 2 / SIGMA_UNIT**2
        ratio = int(mpmath.floor(mpmath.exp(-1 / (2 * square)) * one))
        growth = int(mpmath.floor(mpmath.exp(-1 / square) * one))
    weights, weight = [one], one
    for _ in range(_reach(sigma_1024)):
        weight = weight * ratio >> _WORK_BITS
        ratio = ratio * growth >> _WORK_BITS
        weights.append(weight)
    return weights


def _guide(high: NDArray[np.uint64], offset: int) -> NDArray[np.int32]:
    cells = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - _GUIDE_BITS)
    last = cells | np.uint64((1 << (64 - _GUIDE_BITS)) - 1)
    below = np.searchsorted(high, cells, side="left")
    above = np.searchsorted(high, last, side="right")
    return np.where(below == above, below + offset, _SEARCH).astype(np.int32)


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
        return self._encryptor.update(bytes(count))


class SeededSampler(TableSampler):
    """The table sampler over a seeded stream."""

    seeded = True

    def __init__(self, seed: int, name: str = "noise") -> None:
        super().__init__(SeededBytes(seed, name))


TABLE_SIGMA_1024: Final = (1 << 12) * SIGMA_UNIT
"""Up to it a table: 2 MiB, made in 0.15 s and kept. Above it draws of 15 to 25 us, without one."""


class LiveSampler(TableSampler):
    """The noise of a live host, of any sigma, from the operating system's random bytes.

    They are asked for in every call and what is left over is dropped: there is nothing that a fork,
    a suspended machine or a restored snapshot could bring back and use twice.
    """

    def _draw(self, sigma_1024: int, count: int) -> NDArray[np.int64]:
        if sigma_1024 <= TABLE_SIGMA_1024:
            return super()._draw(sigma_1024, count)
        check_sigma_range(sigma_1024)
        gaussian = ExactGaussian(sigma_1024, self._random_bytes)
        return np.fromiter((gaussian.draw() for _ in range(count)), np.int64, count)
