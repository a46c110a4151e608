"""What measuring costs the fleet: how often a host measures times what it then loses."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PUBLISHED_PERCENT: Final = (0.0035, 0.014)
"""Overhead that the planet-scale profiling paper gives, least and most."""

_SOURCES: Final = (
    ("agent.json", "workload_slowdown_percent"),
    ("probes.json", "governor_overhead_percent_50k"),
)
"""What the agent costs its host, and what its GPU probes cost a process that launches 50,000
kernels a second: both are paid by a host that measures, so they are added."""


@dataclass(frozen=True, slots=True)
class HostSlowdown:
    """A measured slowdown of a host that measures all the time.

    percent, low, high  of its workload's time; median, and 95 % interval where the file has one
    source              file and figure that it comes from
    """

    percent: float
    low: float | None
    high: float | None
    source: str

    def fleet_percent(self, rate: float) -> float:
        """Slowdown of a fleet whose hosts measure at this rate."""
        if not 0 <= rate <= 1:
            raise ValueError(f"expected a sampling rate of 0 to 1, got {rate}")
        return rate * self.percent

    def rate_for(self, percent: float) -> float:
        """Rate at which the fleet loses at most so much; 1 where it always does."""
        return min(percent / self.percent, 1.0) if self.percent > 0 else 1.0


def measured_slowdown(results: Path) -> HostSlowdown | None:
    """Add what bench/results says that measuring costs a host; None where nobody measured it.

    The interval is that of the file, where there is one part alone.
    """
    parts = [part for name, figure in _SOURCES if (part := _part(results / name, figure))]
    if not parts:
        return None
    if len(parts) == 1:
        return parts[0]
    source = " + ".join(part.source for part in parts)
    return HostSlowdown(sum(part.percent for part in parts), None, None, source)


def _part(path: Path, figure: str) -> HostSlowdown | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        figures = {one["name"]: float(one["value"]) for one in document["figures"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if figure not in figures:
        return None
    low, high = figures.get(f"{figure}_low"), figures.get(f"{figure}_high")
    return HostSlowdown(figures[figure], low, high, f"{path.name}: {figure}")
