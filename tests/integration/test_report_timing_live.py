"""An idle and a saturated agent side by side, in real time: a socket stamps what leaves them."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Final

import pytest

from edge_agent.sending.outbox import BEAT_MS
from tests.timing_kit import HostRun, run_hosts

DUE_MS: Final = 5 * BEAT_MS
"""After a window's end, when a drain would be due as well."""

DRAIN_S: Final = 0.15
BOUND_MS: Final = 50
"""A third of a drain: machines that others share delay either host now and then."""


@pytest.mark.live
def test_saturated_host_sends_when_an_idle_one_does(tmp_path: Path) -> None:
    hosts = {"idle": HostRun(0.0, DUE_MS), "saturated": HostRun(DRAIN_S, DUE_MS)}
    came = run_hosts(tmp_path, hosts, window_s=3, windows=3)
    windows = came["idle"].keys() & came["saturated"].keys()
    assert len(windows) >= 3
    for name in hosts:
        beats = [came[name][window] // BEAT_MS for window in windows]
        assert statistics.mode(beats) == DUE_MS // BEAT_MS, (name, came[name])
    later = [came["saturated"][window] - came["idle"][window] for window in windows]
    assert abs(statistics.median(later)) < BOUND_MS, came
