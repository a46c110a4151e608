"""Hosts that cannot measure send zeros: where these count, they pull the fleet's numbers down.

From the windows of agents to the released numbers, without noise: any bias is the counting's.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pytest

import aggregator.protocol.released
from aggregator.statistics.statistics import Cell, estimate
from collectors.records import activity
from collectors.records.activity import Observation
from edge_agent.windows.encode import encode_rows
from edge_agent.windows.window_accumulator import HostClock, WindowAccumulator
from tests.window_kit import CATALOGUE, OFFSET, START, task_of

HOSTS = 300
WINDOW_S = 60
TASK = task_of(["host_cpu", "host_network", "hardware_faults", "incidents"], WINDOW_S)
BOOT = START * 10**9 - OFFSET


def window(host: int, *, blind: bool) -> WindowAccumulator:
    """One host's window; a blind one has neither counters nor the rights for logs."""
    made = WindowAccumulator(
        CATALOGUE, TASK, (), clock=HostClock(OFFSET), first_window=START,
        random_bytes=secrets.token_bytes,
    )  # fmt: skip
    if blind:
        return made
    for name, value in (("user", 300_000), ("system", 150_000)):
        made.add(Observation("host_cpu", name, value, BOOT + 10**9))
    made.add(Observation("host_network", "receive", 40_000 * (host % 20), BOOT + 10**9))
    # Of sources that tell only what happened, the agent says itself that they worked.
    covered: Any = getattr(activity, "SourceCoverage", None)
    for source in ("faults", "diagnosis") if covered else ():
        made.add(covered(source, BOOT, WINDOW_S * 10**9))
    if host % 10 == 0:
        made.add(Observation("hardware_faults", "ssd", 1, BOOT + 10**9))
        made.add(Observation("incidents", "disk_io", 1, BOOT + 10**9))
    return made


def released(blind_hosts: int) -> dict[str, Cell]:
    rows = np.stack([window(at, blind=at < blind_hosts).close(START) for at in range(HOSTS)])
    vector = encode_rows(TASK, rows, secrets.token_bytes).sum(axis=0)
    coarse: Any = getattr(aggregator.protocol.released, "CoarseCounts", None)
    counts: Any = coarse.of(TASK, HOSTS) if coarse else HOSTS
    cells = estimate(TASK, CATALOGUE, vector, counts)
    return {f"{cell.section}/{cell.cell}": cell for cell in cells}


@pytest.mark.parametrize("blind_hosts", [0, HOSTS // 3])
def test_means_and_shares_are_of_the_hosts_that_measured(blind_hosts: int) -> None:
    found = released(blind_hosts)
    share = {name: cell.share or 0.0 for name, cell in found.items()}
    assert share["host_cpu/user"] == pytest.approx(0.30, rel=0.02)
    assert share["host_cpu/system"] == pytest.approx(0.15, rel=0.03)
    assert share["host_network/receive"] == pytest.approx(0.38, rel=0.03)
    assert share["hardware_faults/ssd"] == pytest.approx(0.10, rel=1e-9)
    assert share["incidents/disk_io"] == pytest.approx(0.10, rel=1e-9)


def test_release_says_how_many_measured() -> None:
    found = released(HOSTS // 3)
    for section in ("host_cpu", "host_network", "hardware_faults", "incidents"):
        cell = found[f"{section}/measured"]
        assert (cell.value, cell.unit, cell.share) == (HOSTS - HOSTS // 3, "hosts", None)
