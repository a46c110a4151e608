"""What a Leader takes on before it refuses: memory, an operator's excess, dead letters."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from transport.settings.config import limited

RETRIES: Final = 3
"""A host sends the same bytes again after a time-out whose first try arrived: rarely twice."""


def half_of_memory() -> int:
    """Half of the bytes of this machine's memory: the other half is for epochs, sums and others."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


@dataclass(frozen=True, slots=True)
class DeadLetterQuota:
    """How much is written of messages that are refused.

    per_minute          letters
    bytes_per_minute    of letters
    records             whether a letter holds the refused bytes too, where they are short
    """

    per_minute: int = limited(600, low=1, high=60_000)
    bytes_per_minute: int = limited(1 << 20, low=4096, high=1 << 30)
    records: bool = False


@dataclass(frozen=True, slots=True)
class Quotas:
    """The table [quotas] of a Leader's file.

    window_bytes   masked vectors of windows that have not ended, of one process
    retries        reports beyond the first that an operator's hosts may send for one window: so
                   many times the hosts that the roster gives it
    operators      retries of single operators, by name
    dead_letters   None: none are written
    """

    window_bytes: int = field(default_factory=half_of_memory, metadata={"low": 1 << 20})
    retries: int = limited(RETRIES, low=0, high=1000)
    operators: Mapping[str, int] = field(default_factory=dict, metadata={"low": 0, "high": 1000})
    dead_letters: DeadLetterQuota | None = None

    def excess(self, operator: str, hosts: int) -> int:
        """The reports beyond the first of each host that an operator may send for one window."""
        return self.operators.get(operator, self.retries) * hosts
