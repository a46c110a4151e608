"""`make bench-timing`: whether a saturated host's reports leave later than an idle one's.

Four live agents run side by side, each in its own process: two idle ones, and two whose drains take
60 and 250 ms of every second. All draw the same offsets, and a socket stamps the first byte of each
report. What the two idle hosts differ by is the machine's own share.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from bench.record import Figure, merge_result
from tests.timing_kit import HostRun, run_hosts

COMMAND: Final = "make bench-timing"
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


def main() -> None:
    """Run the hosts, print a table, and put the figures into bench/results/outages.json."""
    parser = argparse.ArgumentParser(prog="bench.timing", description=__doc__)
    parser.add_argument("--windows", type=int, default=WINDOWS, help="other than 30 writes nothing")
    windows: int = parser.parse_args().windows
    with TemporaryDirectory() as folder:
        came = run_hosts(Path(folder), HOSTS, WINDOW_S, windows)
    spreads = {name: spread_ms(came, name) for name in HOSTS if name != "idle"}
    for name, (most, middle) in spreads.items():
        print(f"  {name:12} {len(came[name])} reports; from the idle host's {middle:.2f} ms at the")
        print(f"               median, {most:.2f} ms at the 95th percentile")
    floor = spreads["other idle"][0]
    unit = "ms, 95th percentile"
    figures = [
        Figure("report_delay_spread_ms_busy", spreads["busy"][0], unit, GOAL_MS, floor),
        Figure("report_delay_spread_ms_saturated", spreads["saturated"][0], unit, GOAL_MS, floor),
        Figure("report_delay_floor_ms", floor, "ms, 95th percentile, two idle hosts"),
        Figure("report_delay_median_ms_busy", spreads["busy"][1], "ms"),
        Figure("report_delay_median_ms_saturated", spreads["saturated"][1], "ms"),
    ]
    if windows == WINDOWS:
        print(f"wrote {merge_result('outages', COMMAND, figures)}")


if __name__ == "__main__":
    main()
