"""Clocks that are stepped or apart, each role's own: by injection, never the machine's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault_fleet import STEP_S, FaultFleet
from tests.outage_kit import HOSTS

HOUR_S = 3600.0


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FaultFleet]:
    made = FaultFleet(tmp_path)
    yield made
    made.close()


@pytest.fixture
def long_fleet(tmp_path: Path) -> Iterator[FaultFleet]:
    made = FaultFleet(tmp_path, windows=24)
    yield made
    made.close()


@pytest.mark.fault_case("clocks-skewed")
@pytest.mark.parametrize("leader_s", [-20.0, 20.0])
def test_clocks_seconds_apart_cost_no_report(fleet: FaultFleet, leader_s: float) -> None:
    fleet.ahead_s |= {"leader": leader_s, "helper": -leader_s}
    fleet.ahead_s |= {f"host-{number}": float(number) for number in range(HOSTS)}
    verdict = fleet.finish(after_s=160)
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})
    assert fleet.all_refused() == {}


@pytest.mark.release
@pytest.mark.fault_case("agent-clock-stepped")
def test_agent_that_was_an_hour_ahead_goes_on_and_doubles_nothing(long_fleet: FaultFleet) -> None:
    """A step is believed once it stands for ten minutes; windows spent ahead stay spent."""
    fleet = long_fleet
    fleet.run_to(fleet.first + 120, step_s=STEP_S)
    fleet.ahead_s["host-0"] = HOUR_S
    fleet.run_to(fleet.first + 740, step_s=STEP_S)
    fleet.ahead_s["host-0"] = 0.0
    verdict = fleet.finish()
    assert verdict.windows == 24
    of_host = {window.window for window in fleet.sealed_by(0)}
    assert {fleet.task.first_window, fleet.task.last_window} <= of_host
    assert sum(verdict.lost.values()) <= 24 - 13


@pytest.mark.release
@pytest.mark.parametrize("step_s", [120.0, 3 * HOUR_S, -3 * HOUR_S, 720 * HOUR_S])
@pytest.mark.parametrize(
    "party",
    [
        pytest.param("leader", marks=pytest.mark.fault_case("leader-clock-stepped")),
        pytest.param("helper", marks=pytest.mark.fault_case("helper-clock-stepped")),
    ],
)
def test_party_whose_clock_is_stepped_over_a_windows_end_and_put_right_loses_no_report(
    fleet: FaultFleet, party: str, step_s: float
) -> None:
    """By such a clock windows of hours would close, reports come early or a task be over."""
    fleet.run_to(fleet.first + 100, step_s=STEP_S)
    fleet.ahead_s[party] = step_s
    fleet.run_to(fleet.first + 150, step_s=STEP_S)
    fleet.ahead_s[party] = 0.0
    verdict = fleet.finish(after_s=200)
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})
    assert fleet.all_refused() == {}


@pytest.mark.release
def test_leader_whose_clock_is_set_right_by_half_an_hour_goes_on_once_it_has_stood(
    long_fleet: FaultFleet,
) -> None:
    """It began behind on a machine that runs for long. What comes meanwhile waits in the log."""
    fleet = long_fleet
    fleet.stop_leader()
    fleet.ahead_s["leader"] = -HOUR_S / 2
    fleet.start_leader()
    fleet.run_to(fleet.first + 30, step_s=STEP_S)
    fleet.ahead_s["leader"] = 0.0
    verdict = fleet.finish(after_s=300)
    assert (verdict.windows, verdict.released, verdict.lost) == (24, 24 * HOSTS, {})
