"""Noise is a port: who draws it decides which sampler, and all draw the same distribution.

Every sampler draws the discrete Gaussian over the integers, P(x) proportional to
exp(-x^2 / (2 sigma^2)), with sigma = sigma_1024 / 1024 steps.

A live host draws by `noise_live`. opendp is the implementation of others that ours are held
against: it costs 0.4 s and 52 MB to import, which this module does not do, making a sampler does.
"""

from collections.abc import Callable
from typing import Protocol, cast, runtime_checkable

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
        self._make = _load_gaussian()
        self._measurements: dict[int, Callable[[list[int]], list[int]]] = {}

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `NoiseSampler.sample`."""
        check_sigma_range(int(sigma_1024.max(initial=0)))
        noise = np.zeros((hosts, sigma_1024.size), dtype=np.int64)
        for sigma, columns in sigma_groups(sigma_1024):
            draws = self._measurement(sigma)([0] * (hosts * columns.size))
            noise[:, columns] = np.array(draws, dtype=np.int64).reshape(hosts, columns.size)
        return noise

    def _measurement(self, sigma_1024: int) -> Callable[[list[int]], list[int]]:
        # A multiple of 1/1024 below 2^43 is exact in a double, so opendp draws this very sigma.
        if sigma_1024 not in self._measurements:
            self._measurements[sigma_1024] = self._make(sigma_1024 / SIGMA_UNIT)
        return self._measurements[sigma_1024]


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
