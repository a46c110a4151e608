"""Journals that live agents wrote under real faults, found again in the fleet's released table.

`bench/journals` holds one journal a fault, each of a production agent with its eBPF sources under a
demo identity, recorded on 2026-11-22; the name says what was injected. Agents may be wrong: how
often is the bench's to measure, and the correction's to take out.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnosis.detect.findings import Cause, Diagnosis, WeeklyIncidents
from diagnosis.detect.journal import Series
from simulator.engine.journals import PlayedJournal, load_journals
from tests.diagnosis.causes.causes_kit import CLASSES
from tests.diagnosis.causes.test_causes_end_to_end import (
    HOSTS,
    LEAST_HOSTS,
    hosts_each,
    play,
    stored_table,
    weekly_fleet,
)

pytestmark = pytest.mark.release

JOURNALS = Path(__file__).parents[3] / "bench" / "journals"
LEAST_CAUSES = 9
"""Injected causes that their agents named."""


def injected(journal: PlayedJournal) -> Cause:
    """The cause that the bench made while the agent wrote."""
    return Cause(journal.name.split(".")[0])


def counted(journal: PlayedJournal) -> set[Cause]:
    """What that agent's week came to."""
    weekly, found = WeeklyIncidents(), []
    for line in journal.lines:
        if not isinstance(line.finding, Series):
            found += weekly.take([line.finding], line.at_ns)
    return {Cause(one.cell) for one in found + weekly.flush()}


@pytest.fixture(scope="module")
def journals() -> tuple[PlayedJournal, ...]:
    """What the agents wrote, whole."""
    found = load_journals(JOURNALS)
    assert not any(one.damaged for one in found)
    return found


def test_agents_count_one_incident_for_what_struck_them_with_its_evidence(
    journals: tuple[PlayedJournal, ...],
) -> None:
    right = {injected(one) for one in journals if injected(one) in counted(one)}
    assert len(right) >= LEAST_CAUSES
    for journal in journals:
        assert len(counted(journal)) == 1, journal.name
        said = [line.finding for line in journal.lines if isinstance(line.finding, Diagnosis)]
        known = [one for one in said if one.incident and one.cause is not Cause.UNKNOWN]
        assert all(one.evidence for one in known), journal.name


def test_faults_that_live_agents_met_are_found_again_in_the_released_table(
    journals: tuple[PlayedJournal, ...],
) -> None:
    fleet = weekly_fleet(weeks=1)
    each = hosts_each(fleet)
    assert each >= LEAST_HOSTS
    assert each * len(journals) <= HOSTS
    (outcome,) = play(fleet, journals, [dict.fromkeys(range(len(journals)), each)])
    rows = {row.cause: row for row in stored_table(outcome)}
    for cause in CLASSES:
        row, many = rows[cause.value], sum(cause in counted(one) for one in journals)
        # Of the hosts that lived through it, two in a hundred sent nothing.
        reach = 4 * row.standard_error + 0.05 * many * each
        assert abs(row.hosts - many * each) < reach, cause
        assert not (many and row.below_noise), cause
