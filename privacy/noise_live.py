"""The noise of a live host: exact, and made of bytes that are drawn for that very report.

Nothing random outlives a call, so there is nothing that a fork, a suspended machine or a restored
snapshot could bring back and use twice.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from .calibrate import SIGMA_UNIT, check_sigma_range
from .noise import sigma_groups
from .noise_exact import ExactGaussian
from .noise_table import RandomBytes, noise_table

TABLE_SIGMA_1024: Final = (1 << 12) * SIGMA_UNIT
"""Up to it a table: 2 MiB, made in 0.15 s and kept. Above it draws of 15 to 25 us, without one."""


class LiveSampler:
    """Discrete Gaussian noise from a source of random bytes; a host gives the operating system's.

    random_bytes  asked in every call for all that the call uses; what is left over is dropped
    """

    seeded = False

    def __init__(self, random_bytes: RandomBytes) -> None:
        self._random_bytes = random_bytes

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `NoiseSampler.sample`."""
        check_sigma_range(int(sigma_1024.max(initial=0)))
        noise = np.zeros((hosts, sigma_1024.size), dtype=np.int64)
        for sigma, columns in sigma_groups(sigma_1024):
            noise[:, columns] = self._draw(sigma, hosts * columns.size).reshape(hosts, columns.size)
        return noise

    def _draw(self, sigma_1024: int, count: int) -> NDArray[np.int64]:
        if sigma_1024 <= TABLE_SIGMA_1024:
            return noise_table(sigma_1024).draw(count, self._random_bytes)
        gaussian = ExactGaussian(sigma_1024, self._random_bytes)
        return np.fromiter((gaussian.draw() for _ in range(count)), np.int64, count)
