"""What an operator says of the GPU probes: the table [sources.probes]."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from transport.settings.config import limited

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
    budget_percent: float = limited(0.5, low=0.01, high=50)
    tables: tuple[Path, ...] = ()
    leave_out: tuple[str, ...] = limited((), most=_MOST_PATTERNS)

    @property
    def budget(self) -> float:
        """The budget as a share."""
        return self.budget_percent / 100.0
