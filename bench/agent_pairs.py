"""The same work with and without the agent, interleaved: what it takes from its neighbours."""

from __future__ import annotations

import statistics
import subprocess
import sys
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Final

LOAD: Final = Path(__file__).with_name("agent_load.py")
TRIPS_PER_S: Final = 4_000
"""Two switches a trip: 8,000 a second, under the stated 10,000."""
SAMPLE_S: Final = 2.5
PINGPONG_TRIPS: Final = 100_000
_CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a workload: seconds of wall and CPU time, and context switches."""

    wall_s: float
    cpu_s: float
    switches: int


def run(*arguments: object) -> Sample:
    """Run one workload in processes of their own."""
    done = subprocess.run(
        [sys.executable, "-S", str(LOAD), *map(str, arguments)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    wall_ns, cpu_ns, switches = map(int, done.stdout.split())
    return Sample(wall_ns / 1e9, cpu_ns / 1e9, switches)


@dataclass(frozen=True, slots=True)
class Workload:
    """Arguments of the workload with network traffic, fitted to this machine."""

    trips: int
    hashed_bytes: int

    def run(self) -> Sample:
        """Run it once."""
        return run("network", self.trips, self.hashed_bytes)


def fitted() -> Workload:
    """Choose the bytes to hash so that a trip takes 1/4000 s."""
    trips = 4_000
    bare = min(run("network", trips, 128).wall_s for _ in range(3)) / trips
    size = 1 << 17
    full = min(run("network", trips, size).wall_s for _ in range(3)) / trips
    wanted = max(1.0 / TRIPS_PER_S - bare, 0.0)
    return Workload(round(SAMPLE_S * TRIPS_PER_S), max(128, round(size * wanted / (full - bare))))


def pingpong() -> Sample:
    """Run the worst case once."""
    return run("pingpong", PINGPONG_TRIPS)


@dataclass(frozen=True, slots=True)
class Median:
    """A median and the interval of order statistics that holds it with 95 % confidence."""

    value: float
    low: float
    high: float


def median_of(values: list[float]) -> Median:
    """Give the median; no assumption on the values but that they are independent."""
    ordered, n = sorted(values), len(values)
    outside, k = 0.0, 0
    while k < n // 2:
        outside += 2 * comb(n, k) / 2**n
        if outside > 1 - _CONFIDENCE:
            break
        k += 1
    k = max(k - 1, 0)
    return Median(statistics.median(ordered), ordered[k], ordered[n - 1 - k])
