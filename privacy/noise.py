"""Noise is a port: who draws it decides which sampler, and all draw the same distribution.

Every sampler draws the discrete Gaussian over the integers, P(x) proportional to
exp(-x^2 / (2 sigma^2)), with sigma = sigma_1024 / 1024 steps.
"""

from typing import Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .errors import ParameterError

SIGMA_UNIT: Final = 1024


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
