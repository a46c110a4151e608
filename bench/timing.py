"""`make bench-timing`: whether a saturated host's reports leave later than an idle one's.

Four live agents run side by side, each in its own process: two idle ones, and two whose drains take
60 and 250 ms of every second. All draw the same offsets, and a socket stamps the first byte of each
report. What the two idle hosts differ by is the machine's own share.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from bench.parts import Measured, Parts
from bench.record import Figure
from tests.timing_kit import HostRun, run_hosts

WINDOW_S: Final = 10
WINDOWS: Final = 30
HOSTS: Final = {
    "idle": HostRun(0.0),
    "other idle": HostRun(0.0),
    "busy": HostRun(0.06),
    "saturated": HostRun(0.25),
}
GOAL_MS: Final = 10.0


def spread_ms(came: Mapping[str, Mapping[int, float]], name: str) -> tuple[float, float]:
    """95th percentile and median of how far a host's reports are from the idle host's, ms."""
    idle, other = came["idle"], came[name]
    apart = [abs(other[window] - idle[window]) for window in idle.keys() & other.keys()]
    return float(np.quantile(apart, 0.95)), float(np.median(apart))


def measure(kept: Parts) -> Measured:
    with TemporaryDirectory() as folder:
        came = run_hosts(Path(folder), HOSTS, WINDOW_S, kept.scaled(WINDOWS, 2))
    spreads = {name: spread_ms(came, name) for name in HOSTS if name != "idle"}
    floor = spreads["other idle"][0]
    unit = "ms, 95th percentile"
    figures = [
        Figure("report_delay_spread_ms_busy", spreads["busy"][0], unit, GOAL_MS, floor),
        Figure("report_delay_spread_ms_saturated", spreads["saturated"][0], unit, GOAL_MS, floor),
        Figure("report_delay_floor_ms", floor, "ms, 95th percentile, two idle hosts"),
        Figure("report_delay_median_ms_busy", spreads["busy"][1], "ms"),
        Figure("report_delay_median_ms_saturated", spreads["saturated"][1], "ms"),
    ]
    return Measured(figures)
