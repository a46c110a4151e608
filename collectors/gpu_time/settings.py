"""How GPU time is measured, as the configuration says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_SOCKET = Path("/run/pointillist/gpu-time.sock")
"""Where libraries look when no environment variable tells them."""


@dataclass(frozen=True, slots=True)
class GpuTimeSection:
    """GPU time of processes that load the library.

    enabled         whether the agent listens
    socket          where libraries report; every user may connect
    budget_percent  of a process's time that recording may cost, at most
    """

    enabled: bool = False
    socket: Path = DEFAULT_SOCKET
    budget_percent: float = 0.5

    def __post_init__(self) -> None:
        if not 0.01 <= self.budget_percent <= 50.0:
            raise ValueError(f"budget_percent: expected 0.01 to 50, got {self.budget_percent}")

    @property
    def budget(self) -> float:
        """The budget as a share."""
        return self.budget_percent / 100.0
