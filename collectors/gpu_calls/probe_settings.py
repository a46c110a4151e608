"""What an operator says of the GPU probes: the table [sources.probes]."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

_MOST_PATTERNS: Final = 64


@dataclass(frozen=True, slots=True)
class ProbesSection:
    """GPU calls of all processes, by uprobes.

    enabled         whether calls are probed at all
    budget_percent  of the wall time of the worst-hit process, at most
    tables          probe tables beside those that come with the agent
    leave_out       patterns of process names (`comm`) whose calls are not counted: they are probed
                    all the same, because a probe is on a file and serves every process that maps it
    """

    enabled: bool = True
    budget_percent: float = 0.5
    tables: tuple[Path, ...] = ()
    leave_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0.01 <= self.budget_percent <= 50.0:
            raise ValueError(f"budget_percent: expected 0.01 to 50, got {self.budget_percent}")
        if len(self.leave_out) > _MOST_PATTERNS:
            raise ValueError(f"leave_out: expected at most {_MOST_PATTERNS} patterns")

    @property
    def budget(self) -> float:
        """The budget as a share."""
        return self.budget_percent / 100.0
