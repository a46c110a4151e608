"""Discrete Gaussian noise of any sigma, exactly, by integers alone.

Rejection from a discrete Laplace; every coin is a comparison of uniform integers. Slower than a
table by a hundred times, and without its limit.

Source      Canonne, Kamath, Steinke 2020, The Discrete Gaussian for Differential Privacy
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .calibrate import SIGMA_UNIT

_CHUNK_BYTES: Final = 4096


class ExactGaussian:
    """One sigma's distribution over one source of random bytes.

    sigma_1024    1 or more, in 1/1024 steps
    random_bytes  asked for chunks; what a draw leaves of a chunk is for the next draw alone
    """

    def __init__(self, sigma_1024: int, random_bytes: Callable[[int], bytes]) -> None:
        self._random_bytes = random_bytes
        self._bits = self._left = 0
        self._square = sigma_1024**2
        self._scale = sigma_1024 // SIGMA_UNIT + 1
        self._unit = self._scale * SIGMA_UNIT**2
        self._over = 2 * self._square * self._scale * self._unit

    def draw(self) -> int:
        """Draw one value, steps."""
        while True:
            value = self._laplace()
            # (|x| - sigma^2 / t)^2 / (2 sigma^2), brought to one fraction of integers.
            away = (abs(value) * self._unit - self._square) ** 2
            if self._coin_exp(away, self._over):
                return value

    def _laplace(self) -> int:
        """Draw from P(x) proportional to exp(-|x| / t), t the scale."""
        while True:
            part = self._below(self._scale)
            if not self._coin_exp(part, self._scale):
                continue
            whole = 0
            while self._coin_exp_1():
                whole += 1
            size = part + self._scale * whole
            negative = self._below(2)
            if size or not negative:
                return -size if negative else size

    def _coin_exp(self, numerator: int, denominator: int) -> bool:
        """Toss a coin that shows heads with probability exp(-numerator / denominator)."""
        whole, rest = divmod(numerator, denominator)
        for _ in range(whole):
            if not self._coin_exp_1():
                return False
        return self._coin_exp_below_1(rest, denominator)

    def _coin_exp_1(self) -> bool:
        return self._coin_exp_below_1(1, 1)

    def _coin_exp_below_1(self, numerator: int, denominator: int) -> bool:
        """Toss for exp(-p) with p up to 1: the first tail among coins of p/1, p/2, ... is odd."""
        tosses = 1
        while self._below(denominator * tosses) < numerator:
            tosses += 1
        return tosses % 2 == 1

    def _below(self, bound: int) -> int:
        """Draw a uniform integer from 0 to bound - 1; too large ones are drawn again."""
        width = (bound - 1).bit_length()
        while True:
            value = self._take(width)
            if value < bound:
                return value

    def _take(self, width: int) -> int:
        while self._left < width:
            chunk = self._random_bytes(_CHUNK_BYTES)
            self._bits |= int.from_bytes(chunk, "little") << self._left
            self._left += 8 * _CHUNK_BYTES
        value = self._bits & ((1 << width) - 1)
        self._bits >>= width
        self._left -= width
        return value
