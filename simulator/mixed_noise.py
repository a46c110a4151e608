"""Two samplers in one batch: some hosts draw as live agents do, the others by the exact table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from privacy.noise import NoiseSampler


class MixedSampler:
    """The first hosts of every batch draw from one sampler, the rest from another."""

    def __init__(self, first: NoiseSampler, first_hosts: int, rest: NoiseSampler) -> None:
        self._first = first
        self._first_hosts = first_hosts
        self._rest = rest

    @property
    def seeded(self) -> bool:
        """True when either can be repeated."""
        return self._first.seeded or self._rest.seeded

    def sample(self, hosts: int, sigma_1024: NDArray[np.int64]) -> NDArray[np.int64]:
        """See `NoiseSampler.sample`."""
        first = min(self._first_hosts, hosts)
        return np.concatenate(
            [self._first.sample(first, sigma_1024), self._rest.sample(hosts - first, sigma_1024)]
        )
