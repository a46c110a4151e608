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
@pytest.mark.fault_case("leader-clock-stepped")
def test_leader_that_is_two_minutes_ahead_waits_for_the_hosts(fleet: FaultFleet) -> None:
    """By its clock nobody was heard for longer than a window: it takes that for an outage."""
    fleet.run_to(fleet.first + 70, step_s=STEP_S)
    fleet.ahead_s["leader"] = 120.0
    fleet.run_to(fleet.first + 110, step_s=STEP_S)
    fleet.ahead_s["leader"] = 0.0
    verdict = fleet.finish(after_s=200)
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})


@pytest.mark.release
@pytest.mark.fault_case("helper-clock-stepped")
def test_helper_that_is_behind_answers_once_its_clock_is_right(fleet: FaultFleet) -> None:
    fleet.run_to(fleet.first + 50, step_s=STEP_S)
    fleet.ahead_s["helper"] = -900.0
    fleet.run_to(fleet.first + 150, step_s=STEP_S)
    assert not fleet.written
    fleet.ahead_s["helper"] = 0.0
    verdict = fleet.finish(after_s=200)
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})
