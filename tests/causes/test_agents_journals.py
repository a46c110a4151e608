"""Journals that live agents wrote under real faults, found again in the fleet's released table.

`bench/journals` holds one journal a fault, each of a production agent with its eBPF sources under a
demo identity (`python -m bench.diagnosis.agent_journals`); the name says what was injected.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_agent.diagnosis.findings import Cause, Diagnosis
from simulator.journals import Journal, load_journals
from tests.causes.causes_kit import CLASSES
from tests.causes.test_causes_end_to_end import (
    LEAST_HOSTS,
    hosts_each,
    play,
    stored_table,
    weekly_fleet,
)

JOURNALS = Path(__file__).parents[2] / "bench" / "journals"
LEAST_CAUSES = 6


def injected(journal: Journal) -> Cause:
    """The cause that the bench made while the agent wrote."""
    return Cause(journal.name.split(".")[0])


@pytest.fixture(scope="module")
def journals() -> tuple[Journal, ...]:
    """What the agents wrote, whole."""
    found = load_journals(JOURNALS)
    assert not any(one.damaged for one in found)
    assert len({injected(one) for one in found}) >= LEAST_CAUSES
    return found


def test_agents_wrote_an_incident_of_what_was_injected(journals: tuple[Journal, ...]) -> None:
    for journal in journals:
        said = [line.finding for line in journal.lines if isinstance(line.finding, Diagnosis)]
        incidents = {one.cause for one in said if one.incident}
        assert injected(journal) in incidents, journal.name
        assert all(one.evidence for one in said if one.incident), journal.name


def test_faults_that_live_agents_met_are_found_again_in_the_released_table(
    journals: tuple[Journal, ...],
) -> None:
    fleet = weekly_fleet(weeks=1)
    each = hosts_each(fleet)
    assert each >= LEAST_HOSTS
    (outcome,) = play(fleet, journals, [dict.fromkeys(range(len(journals)), each)])
    rows = {row.cause: row for row in stored_table(outcome)}
    struck = {cause: sum(injected(one) is cause for one in journals) for cause in CLASSES}
    for cause, many in struck.items():
        row = rows[cause.value]
        # Of the hosts that lived through it, two in a hundred sent nothing.
        reach = 4 * row.standard_error + 0.05 * many * each
        assert abs(row.hosts - many * each) < reach, cause
        assert not (many and row.below_noise), cause
