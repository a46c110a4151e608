"""Noise is a port: who draws it decides which sampler, and all draw the same distribution.

That is the discrete Gaussian over the integers, P(x) proportional to exp(-x^2 / (2 sigma^2)), with
sigma = sigma_1024 / 1024 steps. A live host draws by `noise_table.LiveSampler`, in
`edge_agent/protocol/participant.py`. opendp is the
implementation of others that ours are held against: making its sampler costs 0.4 s and 52 MB.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .calibrate import SIGMA_UNIT, check_sigma_range
from .errors import ParameterError


@runtime_checkable
class NoiseSampler(Protocol):
    """A source of discrete Gaussian noise."""

    @property
    def seeded(self) -> bool:
        """True when someone who knows a seed can repeat the noise: no protection at all."""
        ...

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        """Draw each host's share of the noise.

        hosts       rows to draw
        sigma_1024  int64[d], 1/1024 steps; 0 means no noise (the check words)
        Returns     int64[hosts, d], steps, independent
        Raises      ParameterError for a negative sigma
        """
        ...


def sigma_groups(sigma_1024: NDArray[np.int64]) -> list[tuple[int, NDArray[np.intp]]]:
    """Group a vector's coordinates by their sigma, leaving out those without noise."""
    if sigma_1024.size and sigma_1024.min() < 0:
        raise ParameterError("sigma", ">= 0 (in 1/1024 steps)", int(sigma_1024.min()))
    values = [int(value) for value in np.unique(sigma_1024) if value > 0]
    return [(value, np.flatnonzero(sigma_1024 == value)) for value in values]


class OpenDpSampler:
    """Discrete Gaussian noise by opendp; 85,000 to 100,000 draws a second on one core.

    Its bits come from OpenSSL's generator, which lives in the process: seeded by the operating
    system, and again after a fork, but not for each call, so that a restored snapshot of a machine
    repeats them. It is for simulations and tests.
    """

    seeded = False

    def __init__(self) -> None:
        """Load opendp now: a process that gives privileges up does so after its last import."""
        self._make = lru_cache(_load_gaussian())

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        check_sigma_range(int(sigma_1024.max(initial=0)))
        noise = np.zeros((hosts, sigma_1024.size), dtype=np.int64)
        for sigma, columns in sigma_groups(sigma_1024):
            # A multiple of 1/1024 below 2^43 is exact in a double: opendp draws this very sigma.
            draws = self._make(sigma / SIGMA_UNIT)([0] * (hosts * columns.size))
            noise[:, columns] = np.array(draws, dtype=np.int64).reshape(hosts, columns.size)
        return noise


def _load_gaussian() -> Callable[[float], Callable[[list[int]], list[int]]]:
    """Give what makes the sampler of a sigma.

    Its parts come one by one: `opendp.prelude` imports scikit-learn, SciPy, pandas and Arrow as
    well wherever they are installed, 130 MiB of an agent that uses none of them.
    """
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")

    def make(scale: float) -> Callable[[list[int]], list[int]]:
        # opendp saturates at the ends of its type: 64 bits, so that no draw ever lies there.
        space = vector_domain(atom_domain(T="i64")), l2_distance(T="f64")
        return cast(Callable[[list[int]], list[int]], make_gaussian(*space, scale=scale))

    return make


_CHUNK_BYTES: Final = 4096


class ExactGaussian:
    """One sigma's distribution by integers alone: slower than a table by a hundred times.

    Rejection from a discrete Laplace; every coin is a comparison of uniform integers.
    sigma_1024    1 or more, in 1/1024 steps
    random_bytes  asked for chunks; what a draw leaves of a chunk is for the next draw alone
    Source        Canonne, Kamath, Steinke 2020, The Discrete Gaussian for Differential Privacy
    """

    def __init__(self, sigma_1024: int, random_bytes: Callable[[int], bytes]) -> None:
        self._random_bytes = random_bytes
        self._bits = self._left = 0
        self._square = sigma_1024**2
        self._scale = sigma_1024 // SIGMA_UNIT + 1
        self._unit = self._scale * SIGMA_UNIT**2
        self._over = 2 * self._square * self._scale * self._unit

    def draw(self) -> int:
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
            while self._coin_exp_below_1(1, 1):
                whole += 1
            size = part + self._scale * whole
            negative = self._below(2)
            if size or not negative:
                return -size if negative else size

    def _coin_exp(self, numerator: int, denominator: int) -> bool:
        """Toss a coin that shows heads with probability exp(-numerator / denominator)."""
        whole, rest = divmod(numerator, denominator)
        for _ in range(whole):
            if not self._coin_exp_below_1(1, 1):
                return False
        return self._coin_exp_below_1(rest, denominator)

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
