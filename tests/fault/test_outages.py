"""An outage of the log costs no window, and every window that a task names ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from aggregator.releases import windows_without_an_end
from edge_agent.config import TransportSection
from tests.outage_kit import OutageFleet

Start = Callable[..., OutageFleet]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a fleet on the embedded log."""
    with ExitStack() as stack:

        def begin(window_s: int, windows: int) -> OutageFleet:
            log = TransportSection(tmp_path / "log")
            fleet = OutageFleet(tmp_path, log, window_s=window_s, windows=windows)
            stack.callback(fleet.close)
            return fleet

        yield begin


@pytest.mark.parametrize("outage_s", [1, 30, 150])
def test_outage_of_the_log_costs_no_window(start: Start, outage_s: int) -> None:
    fleet = start(window_s=60, windows=6)
    fleet.run_to(fleet.first + 118)
    fleet.line.cut = True
    fleet.run_to(fleet.first + 118 + outage_s)
    fleet.line.cut = False
    fleet.run_to(fleet.first + 6 * 60 + 100)
    ends = fleet.ends()
    assert list(ends.outcome) == ["released"] * 6
    assert set(ends.n_hosts) == {10}
    assert windows_without_an_end(fleet.folder / "releases").empty


@pytest.mark.slow
def test_outage_of_six_hours_costs_no_window_of_six_hours_retention(start: Start) -> None:
    fleet = start(window_s=600, windows=40)
    fleet.run_to(fleet.first + 660, step_s=5)
    fleet.line.cut = True
    fleet.run_to(fleet.first + 660 + 6 * 3600, step_s=20)
    fleet.line.cut = False
    fleet.run_to(fleet.first + 40 * 600 + 200, step_s=10)
    ends = fleet.ends()
    assert list(ends.outcome) == ["released"] * 40
    assert windows_without_an_end(fleet.folder / "releases").empty


@pytest.mark.slow
def test_outage_beyond_the_retention_costs_what_is_past_it_and_says_so(start: Start) -> None:
    fleet = start(window_s=600, windows=48)
    fleet.run_to(fleet.first + 660, step_s=5)
    fleet.line.cut = True
    fleet.run_to(fleet.first + 660 + 7 * 3600, step_s=20)
    fleet.line.cut = False
    fleet.run_to(fleet.first + 48 * 600 + 200, step_s=10)
    ends = fleet.ends()
    # The hour before the last six: its reports expired on the hosts, its windows end all the same.
    assert list(ends.outcome) == ["released"] + ["suppressed"] * 6 + ["released"] * 41
    assert list(ends.n_hosts[1:7]) == [0] * 6
    assert windows_without_an_end(fleet.folder / "releases").empty
