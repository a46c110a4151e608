"""A full disk under each role, real ENOSPC: it waits, and nothing is lost but what it says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.disk_kit import fill, small_disk
from tests.fault_fleet import STEP_S, FaultFleet
from tests.outage_kit import HOSTS

pytestmark = pytest.mark.root

ROOMS = {
    "leader": "leader-state",
    "helper": "helper-state",
    "store": "store",
    "log": "log",
    "agent": "host-0/state",
}
"""Role -> the folder of a fleet that its files lie in."""


class RoomyFleet(FaultFleet):
    """Leader and Helper have folders of their own."""

    def leader_folder(self) -> Path:
        return self.folder / ROOMS["leader"]

    def helper_folder(self) -> Path:
        return self.folder / ROOMS["helper"]


@pytest.fixture
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The small disk of the role that the test names."""
    with small_disk(tmp_path / ROOMS[request.param], "3m") as disk:
        yield disk


@pytest.fixture
def fleet(tmp_path: Path, room: Path) -> Iterator[RoomyFleet]:
    del room
    made = RoomyFleet(tmp_path)
    yield made
    made.close()


@pytest.mark.release
@pytest.mark.parametrize(
    "room",
    [
        pytest.param(role, marks=pytest.mark.fault_case(f"{role}-disk-full"))
        for role in ("leader", "helper", "store", "log")
    ],
    indirect=True,
)
def test_full_disk_costs_no_window(fleet: RoomyFleet, room: Path) -> None:
    fleet.run_to(fleet.first + 65, step_s=STEP_S)
    ballast = fill(room)
    fleet.run_to(fleet.first + 130, step_s=STEP_S)
    ballast.unlink()
    verdict = fleet.finish(after_s=200)
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS, {})


@pytest.mark.release
@pytest.mark.fault_case("agent-disk-full")
@pytest.mark.parametrize("room", ["agent"], indirect=True)
def test_agent_on_a_full_disk_spends_and_sends_nothing(fleet: RoomyFleet, room: Path) -> None:
    """The window that it could not pay for is lacking; the others are whole."""
    fleet.run_to(fleet.first + 50, step_s=STEP_S)
    ballast = fill(room)
    fleet.run_to(fleet.first + 110, step_s=STEP_S)
    assert fleet.agents[0].tally.refused["disk_full"] == 1
    ballast.unlink()
    verdict = fleet.finish(after_s=200)
    assert (verdict.windows, verdict.released, verdict.lost) == (3, 3 * HOSTS - 1, {})
    assert [report.window - fleet.first for report in fleet.sealed_by(0)] == [60, 120]
