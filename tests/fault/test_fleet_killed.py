"""kill -9 of an agent at every step of a report's way, in a fleet whose windows are released."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from edge_agent.agent_runtime import AgentRuntime
from tests.fault_cases import STEPS
from tests.fault_fleet import STEP_S, FaultFleet
from tests.outage_kit import HOSTS
from tests.process_agent import ProcessAgent


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FaultFleet]:
    made = FaultFleet(tmp_path)
    yield made
    made.close()


@pytest.mark.release
@pytest.mark.fault_case("agent-killed")
@pytest.mark.parametrize("point", STEPS["agent"])
def test_agent_killed_in_a_fleet_loses_no_sealed_report(fleet: FaultFleet, point: str) -> None:
    fleet.agents[0].close()
    agent = ProcessAgent(fleet, 0, point, 1 if point == "runtime:epoch-sealed" else 2)
    fleet.agents[0] = cast("AgentRuntime", agent)
    fleet.run_to(fleet.end_s + 100, step_s=STEP_S)
    verdict = fleet.judge()
    assert agent.kills == 1
    sealed = sum(1 for _ in fleet.sealed_by(0))
    assert sealed >= 2, "no window but the one in which it fell is lacking"
    assert (verdict.windows, verdict.lost) == (3, {})
    assert verdict.released == 3 * (HOSTS - 1) + sealed
