"""How GPU time is measured, as the configuration says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from transport.settings.config import limited

DEFAULT_SOCKET: Final = Path("/run/pointillist/gpu-time.sock")
"""Where libraries look when no environment variable tells them."""
MOST_SOCKET_PATH: Final = 107
"""Bytes of a Unix socket's path."""


@dataclass(frozen=True, slots=True)
class GpuTimeSection:
    """GPU time of processes that load the library.

    enabled         whether the agent listens
    socket          where libraries report; every user may connect
    budget_percent  of a process's time that recording may cost, at most
    """

    enabled: bool = False
    socket: Path = DEFAULT_SOCKET
    budget_percent: float = limited(0.5, low=0.04, high=50)

    @property
    def budget(self) -> float:
        """The budget as a share."""
        return self.budget_percent / 100.0
