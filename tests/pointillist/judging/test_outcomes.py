"""What diagnosis said beside the truth: misses, delays, alarms, no point adjustment."""

from __future__ import annotations

from dataclasses import replace

from diagnosis.detect.findings import Cause
from pointillist.judging.figures import alarm_rate, pairs_of
from pointillist.judging.outcomes import Judged, Said, Spell, judge
from pointillist.judging.runs import Episode, RecordedRun, RunKind
from tests.diagnosis_runs_kit import NS, SUBJECT, made_up_run

FAULT = Episode("run", SUBJECT, (Cause.DISK_IO,), 40 * NS, 60 * NS, 2.0, 42 * NS)


def spell(*said: Said, onset_s: float = 42, known_s: float = 44, ended_s: float = 65) -> Spell:
    return Spell(SUBJECT, int(onset_s * NS), int(known_s * NS), int(ended_s * NS), said)


def said(at_s: float, cause: Cause, incident: bool = False) -> Said:
    return Said(int(at_s * NS), cause, None, incident)


def judged(*spells: Spell) -> Judged:
    return judge(made_up_run("run", Cause.DISK_IO), [FAULT], spells)


def test_outcome_is_what_was_said_last_before_the_fault_ended() -> None:
    found = judged(
        spell(said(44, Cause.CPU_CONTENTION), said(47, Cause.DISK_IO), said(62, Cause.UNKNOWN))
    ).outcomes[0]
    assert found.answer is Cause.DISK_IO
    assert (found.detect_s, found.cause_s) == (2.0, 5.0)


def test_outcome_of_silence_is_a_miss() -> None:
    found = judged().outcomes[0]
    assert (found.answer, found.detect_s, found.cause_s) == (None, None, None)
    assert not found.right


def test_outcome_takes_no_cause_that_did_not_last() -> None:
    found = judged(spell(said(44, Cause.DISK_IO), said(50, Cause.CPU_CONTENTION))).outcomes[0]
    assert found.cause_s is None


def test_a_right_second_makes_no_other_second_right() -> None:
    short = spell(said(44, Cause.DISK_IO), ended_s=45)
    by_second = judged(short).outcomes[0].by_second
    assert by_second[Cause.DISK_IO] == 2
    assert by_second[None] == 16


def test_a_spike_that_began_before_its_fault_is_an_alarm_and_no_answer() -> None:
    early = spell(said(36, Cause.DISK_IO), onset_s=35, known_s=36)
    found = judged(early)
    assert found.outcomes[0].answer is None
    assert [one.cause for one in found.alarms] == [Cause.DISK_IO]


def test_a_spike_just_after_a_fault_is_no_alarm() -> None:
    late = spell(said(66, Cause.DISK_IO), onset_s=64, known_s=66, ended_s=69)
    assert judged(late).alarms == ()


def test_a_spike_in_the_warm_up_is_no_alarm() -> None:
    early = spell(said(12, Cause.DISK_IO), onset_s=10, known_s=12, ended_s=14)
    assert judged(early).alarms == ()


def test_incident_is_what_stood_a_minute_after_it_became_one() -> None:
    long = spell(
        said(44, Cause.DISK_IO), said(54, Cause.DISK_IO, True), said(115, Cause.UNKNOWN, True)
    )
    assert judged(long).outcomes[0].incident is Cause.DISK_IO
    taken_back = spell(said(54, Cause.DISK_IO, True), said(60, Cause.DISK_IO, False))
    assert judged(taken_back).outcomes[0].incident is None


def test_an_alarm_is_told_apart_when_the_hypervisor_took_cpu_time() -> None:
    run = made_up_run("calm", None)
    alarm = spell(said(44, Cause.CPU_CONTENTION), onset_s=43, known_s=44)
    assert [one.stolen for one in judge(run, (), [alarm]).alarms] == [False]
    frames = [
        replace(one, host={**one.host, "steal_percent": 7.0}) if at == 42 else one
        for at, one in enumerate(run.frames)
    ]
    stolen = RecordedRun(run.facts, tuple(frames))
    assert [one.stolen for one in judge(stolen, (), [alarm]).alarms] == [True]


def test_alarms_of_quiet_hours_are_a_rate_and_those_of_hard_negatives_answers_too() -> None:
    quiet = made_up_run("calm", None)
    negative = RecordedRun(replace(quiet.facts, kind=RunKind.HARD_NEGATIVE), quiet.frames)
    alarm = [spell(said(44, Cause.DISK_IO), onset_s=43)]
    of_quiet, of_negative = (judge(run, (), alarm) for run in (quiet, negative))
    assert alarm_rate([of_quiet, of_negative]).alarms == 2
    assert (pairs_of(of_quiet), pairs_of(of_negative)) == ([], [(None, Cause.DISK_IO)])
    assert pairs_of(of_quiet, quiet=True) == [(None, Cause.DISK_IO)]
