"""From findings to the weekly section: one observation an incident, and m at most."""

from __future__ import annotations

import numpy as np
import pytest

from aggregator.statistics.causes import COMPONENTS
from collectors.records.activity import Observation
from diagnosis.detect.findings import Cause, Finding, WeeklyIncidents
from tests.diagnosis.causes.findings_kit import S, diagnosis, ended, one_of_each
from wire.catalogue import LEFT_OUT, Catalogue


def observed(cause: Cause = Cause.DISK_IO, at_s: int = 112) -> Observation:
    return Observation("incidents", cause.value, 1, at_s * S)


def test_every_cause_has_its_cell_and_its_component() -> None:
    catalogue = Catalogue.load()
    assert set(Cause) == set(catalogue.classes("incident"))
    assert {*catalogue.classes("incident"), *catalogue.classes("hardware_fault")} == set(COMPONENTS)


def test_only_an_incident_is_mapped() -> None:
    for found, counted in ((diagnosis(), [observed()]), (diagnosis(incident=False), [])):
        weekly = WeeklyIncidents()
        assert weekly.take([found], 112 * S) == []
        assert weekly.flush() == counted


def test_spike_counts_once_when_it_ends() -> None:
    weekly = WeeklyIncidents()
    assert weekly.take([diagnosis(), diagnosis(at_s=113)], 113 * S) == []
    assert weekly.take([ended(diagnosis(at_s=114))], 130 * S) == [observed(at_s=114)]
    assert weekly.flush() == []


def test_later_cause_replaces_the_earlier_one() -> None:
    weekly = WeeklyIncidents()
    weekly.take([diagnosis(), diagnosis(Cause.MEMORY_PRESSURE, 115)], 115 * S)
    assert weekly.flush() == [observed(Cause.MEMORY_PRESSURE, 115)]


def test_diagnosis_that_is_no_incident_any_more_does_not_count() -> None:
    weekly = WeeklyIncidents()
    last = diagnosis(at_s=120, incident=False)
    assert weekly.take([diagnosis(), last, ended(last)], 130 * S) == []
    assert weekly.flush() == []


def test_lasting_spike_counts_after_a_minute_and_not_again() -> None:
    weekly = WeeklyIncidents()
    weekly.take([diagnosis()], 112 * S)
    assert weekly.take([diagnosis(at_s=171)], 171 * S) == []
    assert weekly.take([], 172 * S) == [observed(at_s=171)]
    again: list[Finding] = [
        diagnosis(Cause.CPU_CONTENTION, 300),
        ended(diagnosis(Cause.CPU_CONTENTION, 300)),
    ]
    assert weekly.take(again, 400 * S) == []
    assert weekly.flush() == []


def test_spikes_of_several_subjects_are_kept_apart() -> None:
    weekly = WeeklyIncidents()
    other = diagnosis(Cause.CPU_CONTENTION, subject="/train/rank1")
    findings: list[Finding] = [diagnosis(), other, ended(other)]
    found = weekly.take(findings, 130 * S)
    assert [one.cell for one in found + weekly.flush()] == ["cpu_contention", "disk_io"]


def test_spike_without_an_incident_gives_nothing() -> None:
    weekly = WeeklyIncidents()
    plain = [one for one in one_of_each() if not getattr(one, "incident", False)]
    assert weekly.take([one for one in plain if getattr(one, "last", None) is None], 130 * S) == []


def test_memory_is_bounded_however_many_spikes_never_end() -> None:
    weekly = WeeklyIncidents()
    for at in range(1_000):
        weekly.take([diagnosis(onset_s=at, at_s=at + 10)], at * S)
    assert len(weekly._open) <= 256
    assert len(weekly._counted) <= 256


def test_row_of_a_week_tells_of_each_cause_once_and_of_m_at_most() -> None:
    """Three causes on one host: the row has them all, and the sealed one two words at most."""
    from edge_agent.windows.window_accumulator import HostClock, WindowAccumulator
    from privacy.quantise import choose_indicators, uniform_words
    from tests.engine_kit import CATALOGUE, SmallFleet, plan, scenario

    week_s = 604_800
    start_s = scenario().start_s // week_s * week_s
    fleet = SmallFleet(
        scenario(30, start_s=start_s, duration_s=week_s), plan(week_s, {"incidents": 100_000})
    )
    start = fleet.task.first_window
    accumulator = WindowAccumulator(
        CATALOGUE, fleet.task, [], clock=HostClock(start * S), first_window=start
    )
    weekly = WeeklyIncidents()
    causes = (Cause.DISK_IO, Cause.CPU_CONTENTION, Cause.UNKNOWN, Cause.DISK_IO)
    for at, cause in enumerate(causes):
        found = diagnosis(cause, at_s=500 * at + 112, onset_s=500 * at + 100)
        for one in weekly.take([found, ended(found)], found.at_ns + S):
            accumulator.add(one)
    row = accumulator.close(start)
    section = CATALOGUE.section("incidents")
    assert {section.cells[at] for at in np.flatnonzero(row)} == {c.value for c in causes}
    assert set(row[row > 0].tolist()) == {1}
    rows = np.tile(row, (4_000, 1))
    rng = np.random.default_rng(4)
    kept = choose_indicators(rows[:, :-1], 2, uniform_words(len(rows), section.length, rng.bytes))
    assert (kept.sum(axis=1) == 2).all()
    met = kept.mean(axis=0)
    assert met[section.index(LEFT_OUT)] == pytest.approx(1 / 2, abs=0.04)
    assert np.allclose(met[row > 0], 1 / 2, atol=0.04)
