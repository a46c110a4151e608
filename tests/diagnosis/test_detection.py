"""Spikes in the tail are found, and what only looks like one is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnosis.detect.detection_settings import DetectionSettings
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Cause, Diagnosis, SpikeBegan, SpikeEnded
from diagnosis.frames.signals import SIGNALS
from tests.diagnosis_kit import (
    CROWDED,
    JOB,
    SECOND_NS,
    USUAL,
    Host,
    Second,
    began,
    diagnoses,
    ended,
    run,
    warm,
)


@pytest.fixture
def host() -> Host:
    return Host()


@pytest.fixture
def diagnoser() -> Diagnoser:
    return Diagnoser()


@pytest.mark.parametrize("step_ms", [2.0, 10.0, 90.0, 300.0])
def test_spike_in_the_tail_is_found_within_three_seconds(step_ms: float) -> None:
    host, diagnoser = Host(), Diagnoser()
    warm(diagnoser, host, 60, USUAL.with_(step_ms=step_ms))
    share = 0.1 if step_ms < 50 else 0.7
    findings = run(
        diagnoser, host.frames(CROWDED.with_(step_ms=step_ms, long_share=share, long_times=2.5), 8)
    )
    (spike,) = began(findings)
    assert spike.at_ns - spike.onset_ns <= 3 * SECOND_NS
    assert spike.subject == JOB
    assert spike.before.p99_ms < 1.3 * step_ms
    assert spike.now.p99_ms > 1.5 * spike.before.p99_ms


def test_fewer_long_steps_are_enough_where_a_signal_tells_of_a_cause() -> None:
    def begun_after_ns(scene: Second, seed: int) -> int:
        host, diagnoser = Host(seed=seed), Diagnoser()
        warm(diagnoser, host, 30)
        since_ns = host.seconds * SECOND_NS
        return began(run(diagnoser, host.frames(scene, 12)))[0].at_ns - since_ns

    few = {"long_share": 0.03}
    alone = [begun_after_ns(USUAL.with_(**few), seed) for seed in range(8)]
    backed = [begun_after_ns(CROWDED.with_(**few), seed) for seed in range(8)]
    assert np.mean(backed) <= np.mean(alone) - SECOND_NS / 2


def test_spike_of_little_evidence_needs_little_to_stand() -> None:
    """22 of 1,000 steps are long for a minute: what was enough to begin it would not end it."""
    spikes = 0
    for seed in range(8):
        host, diagnoser = Host(seed=seed), Diagnoser()
        warm(diagnoser, host, 60)
        spikes += len(began(run(diagnoser, host.frames(CROWDED.with_(long_share=0.022), 60))))
    assert spikes <= 10, "13 where all that stand are measured alike"


def test_spike_leaves_the_median_where_it_was(diagnoser: Diagnoser, host: Host) -> None:
    warm(diagnoser, host)
    findings = run(diagnoser, host.frames(CROWDED.with_(long_share=0.04), 10))
    (spike,) = began(findings)
    assert spike.now.p50_ms == pytest.approx(spike.before.p50_ms, rel=0.1)


def test_spike_ends_when_the_tail_is_back(diagnoser: Diagnoser, host: Host) -> None:
    warm(diagnoser, host)
    run(diagnoser, host.frames(CROWDED, 10))
    over_ns = host.seconds * SECOND_NS
    (end,) = ended(run(diagnoser, host.frames(USUAL, 15)))
    assert end.ended_ns - over_ns <= 8 * SECOND_NS
    assert end.last is not None


@pytest.mark.parametrize("seconds", range(6, 11))
def test_spike_that_recedes_keeps_its_cause(diagnoser: Diagnoser, host: Host, seconds: int) -> None:
    """In the seconds after a fault long steps are near, and the signals are usual again.

    A standing spike is diagnosed every few seconds: one of these lengths has its turn just then.
    """
    warm(diagnoser, host)
    told = diagnoses(run(diagnoser, host.frames(CROWDED, seconds)))
    over_ns = host.seconds * SECOND_NS
    after = run(diagnoser, host.frames(USUAL, 15))
    (end,) = ended(after)
    assert end.last is not None
    assert end.last.cause is told[-1].cause is Cause.CPU_CONTENTION
    receding = [one for one in diagnoses(after) if one.at_ns > over_ns]
    assert [one.ranked for one in receding] in ([], [told[-1].ranked])
    assert all(one.incident for one in receding), "nothing else is new"


def test_long_usual_running_raises_no_alarm(diagnoser: Diagnoser, host: Host) -> None:
    noisy = USUAL.with_(jitter=0.25, long_share=0.004, long_times=2.0)
    assert began(run(diagnoser, host.frames(noisy, 900))) == []


def test_single_burst_raises_no_alarm(diagnoser: Diagnoser, host: Host) -> None:
    warm(diagnoser, host)
    findings = run(diagnoser, host.frames(CROWDED, 1) + host.frames(USUAL, 10))
    assert began(findings) == []


def test_slow_beginning_raises_no_alarm(diagnoser: Diagnoser, host: Host) -> None:
    slow = [host.frame(USUAL.with_(step_ms=40.0 - 3 * second)) for second in range(10)]
    assert run(diagnoser, slow + host.frames(USUAL, 40)) == []


def test_job_that_begins_anew_may_be_slow_at_first(diagnoser: Diagnoser, host: Host) -> None:
    warm(diagnoser, host, 60)
    cold = USUAL.with_(long_share=0.5, own={"page_faults_per_s": 9000.0})
    gone = [host.frame(USUAL.with_(steps=False)) for _ in range(3)]
    assert run(diagnoser, gone + host.frames(cold, 4) + host.frames(USUAL, 20)) == []
    assert began(run(diagnoser, host.frames(CROWDED, 6)))


def test_stalled_subject_is_a_spike(diagnoser: Diagnoser, host: Host) -> None:
    warm(diagnoser, host)
    stalled = [host.frame(USUAL.with_(running_ms=1000.0 * s)) for s in range(1, 6)]
    (spike,) = began(run(diagnoser, stalled))
    assert spike.at_ns <= stalled[2].boottime_ns


def test_larger_batch_is_a_new_phase_and_no_spike(diagnoser: Diagnoser, host: Host) -> None:
    warm(diagnoser, host, 60)
    assert run(diagnoser, host.frames(USUAL.with_(step_ms=21.0), 60)) == []
    (spike,) = began(run(diagnoser, host.frames(CROWDED.with_(step_ms=21.0), 6)))
    assert spike.before.p50_ms == pytest.approx(21.0, rel=0.1)


def test_larger_batch_in_the_middle_of_a_second_is_no_spike(
    diagnoser: Diagnoser, host: Host
) -> None:
    warm(diagnoser, host, 60, USUAL.with_(step_ms=22.0))
    half = host.frame(USUAL.with_(step_ms=22.0))
    subject = half.subjects[JOB]
    assert subject.steps is not None
    later = subject.steps.ended_ns > half.boottime_ns - SECOND_NS // 2
    every_other = ~later | (np.arange(later.size) % 2 == 0)
    durations = np.where(later, 2, 1) * subject.steps.duration_ns
    steps = replace(
        subject.steps,
        ended_ns=subject.steps.ended_ns[every_other],
        duration_ns=durations[every_other],
    )
    mixed = replace(half, subjects={JOB: replace(subject, steps=steps)})
    assert run(diagnoser, [mixed, *host.frames(USUAL.with_(step_ms=44.0), 30)]) == []


def test_slower_steps_with_a_cause_are_no_new_phase(diagnoser: Diagnoser, host: Host) -> None:
    warm(diagnoser, host, 60)
    slower = CROWDED.with_(step_ms=21.0, long_share=0.0)
    assert len(began(run(diagnoser, host.frames(slower, 20)))) == 1


def test_checkpoint_write_raises_no_alarm(diagnoser: Diagnoser, host: Host) -> None:
    warm(diagnoser, host, 60)
    write = {"block_write_bytes_per_s": 2e8, "block_ios_per_s": 900.0}
    disk = {"worst_disk_ms_per_s": 900.0, "pressure_io_some_ms_per_s": 300.0}
    checkpoint = USUAL.with_(long_share=0.5, long_times=8.0, own=write, host=disk)
    for _ in range(3):
        assert run(diagnoser, host.frames(checkpoint, 3) + host.frames(USUAL, 20)) == []


def test_slow_degradation_is_not_learned(diagnoser: Diagnoser, host: Host) -> None:
    warm(diagnoser, host, 120)
    worse = [host.frame(USUAL.with_(step_ms=10.0 * (1 + s / 400))) for s in range(400)]
    assert began(run(diagnoser, worse))


def test_faster_steps_sharpen_the_limit(diagnoser: Diagnoser, host: Host) -> None:
    warm(diagnoser, host, 60, USUAL.with_(step_ms=30.0))
    run(diagnoser, host.frames(USUAL.with_(step_ms=10.0), 300))
    (spike,) = began(run(diagnoser, host.frames(CROWDED.with_(long_times=2.0), 6)))
    assert spike.now.p99_ms < 30.0


def test_rhythm_alone_shows_a_spike(host: Host) -> None:
    diagnoser = Diagnoser(source="rhythm")
    warm(diagnoser, host, 30, USUAL.with_(marked=False))
    findings = run(diagnoser, host.frames(CROWDED.with_(marked=False), 6))
    assert began(findings)[0].source == "rhythm"


def test_rhythm_that_stops_with_its_processes_is_no_spike(host: Host) -> None:
    diagnoser, idle = Diagnoser(), {"switches_per_s": 0.0, "cpu_ms_per_s": 0.0}
    warm(diagnoser, host, 30, USUAL.with_(marked=False))
    done = [USUAL.with_(marked=False, own=idle, running_ms=1000.0 * s) for s in range(1, 20)]
    assert run(diagnoser, [host.frame(one) for one in done]) == []


def test_job_that_ended_beside_a_waiting_shell_is_no_spike(host: Host) -> None:
    shell = {"switches_per_s": 1.0, "cpu_ms_per_s": 0.2}
    diagnoser = Diagnoser()
    warm(diagnoser, host, 30, USUAL.with_(marked=False))
    done = [USUAL.with_(marked=False, own=shell, running_ms=1000.0 * s) for s in range(1, 20)]
    assert run(diagnoser, [host.frame(one) for one in done]) == []


def test_rhythm_of_a_job_that_hangs_at_work_is_a_spike(host: Host) -> None:
    diagnoser = Diagnoser()
    warm(diagnoser, host, 30, USUAL.with_(marked=False))
    hung = [USUAL.with_(marked=False, running_ms=1000.0 * s) for s in range(1, 6)]
    assert began(run(diagnoser, [host.frame(one) for one in hung]))


def test_subjects_are_watched_apart() -> None:
    host, diagnoser = Host(jobs=("/jobs/a", "/jobs/b", "/jobs/c")), Diagnoser()
    warm(diagnoser, host)
    findings = run(diagnoser, host.frames(CROWDED, 8))
    assert {found.subject for found in findings} == {"/jobs/a"}


def test_subjects_beyond_the_limit_are_left_out() -> None:
    diagnoser = Diagnoser(DetectionSettings(subjects=2))
    host = Host(jobs=tuple(f"/jobs/{i}" for i in range(5)))
    run(diagnoser, host.frames(USUAL, 3))
    assert diagnoser.watched == ("/jobs/0", "/jobs/1")


def test_vanished_subject_ends_its_spike_and_is_forgotten() -> None:
    diagnoser, host = Diagnoser(), Host()
    warm(diagnoser, host)
    assert began(run(diagnoser, host.frames(CROWDED, 5)))
    other = Host(jobs=("/jobs/next",))
    other.seconds = host.seconds
    findings = run(diagnoser, other.frames(USUAL, 40))
    assert [end.subject for end in ended(findings)] == [JOB]
    assert diagnoser.watched == ("/jobs/next",)


def test_incident_needs_persistence(diagnoser: Diagnoser, host: Host) -> None:
    warm(diagnoser, host)
    short = run(diagnoser, host.frames(CROWDED, 16) + host.frames(USUAL, 20))
    assert diagnoses(short)
    assert not any(found.incident for found in diagnoses(short))
    long = run(diagnoser, host.frames(CROWDED, 30))
    assert diagnoses(long)[-1].incident


def test_incident_needs_impact(diagnoser: Diagnoser, host: Host) -> None:
    warm(diagnoser, host)
    mild = run(diagnoser, host.frames(CROWDED.with_(long_times=1.55), 40))
    assert diagnoses(mild)
    assert not any(found.incident for found in diagnoses(mild))


_SIGNAL = st.sampled_from(sorted(SIGNALS))
_SIGNALS = st.dictionaries(_SIGNAL, st.floats(0, 1e12), max_size=5)


@st.composite
def _seconds(draw: st.DrawFn) -> Second:
    return Second(
        step_ms=draw(st.floats(0.05, 900.0)),
        long_share=draw(st.floats(0, 1)),
        long_times=draw(st.floats(1, 50)),
        own=draw(_SIGNALS),
        host=draw(_SIGNALS),
        others=draw(_SIGNALS),
        gpu=draw(st.none() | _SIGNALS),
        running_ms=draw(st.none() | st.floats(0, 1e7)),
        marked=draw(st.booleans()),
    )


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(_seconds(), st.integers(1, 30)), min_size=1, max_size=8))
def test_any_frames_give_whole_findings(story: list[tuple[Second, int]]) -> None:
    host, diagnoser = Host(), Diagnoser()
    standing: dict[str, int] = {}
    for what, seconds in story:
        for found in run(diagnoser, host.frames(what, seconds)):
            if isinstance(found, SpikeBegan):
                assert found.subject not in standing
                standing[found.subject] = found.onset_ns
                assert found.onset_ns <= found.at_ns
            if isinstance(found, Diagnosis):
                assert standing[found.subject] == found.onset_ns
                assert sum(share for _, share in found.ranked) == pytest.approx(1.0)
                assert found.ranked == tuple(sorted(found.ranked, key=lambda one: -one[1]))
                assert 0 <= found.unlike <= 1
            if isinstance(found, SpikeEnded):
                assert standing.pop(found.subject) == found.onset_ns


@pytest.mark.parametrize("seed", [3, 5])
def test_long_steps_of_a_spike_that_is_over_begin_no_other_one(seed: int) -> None:
    host, diagnoser = Host(seed), Diagnoser()
    warm(diagnoser, host, 60)
    crowded = host.frames(CROWDED, 4)
    lingering = host.frames(USUAL.with_(long_share=0.005), 14)
    findings = run(diagnoser, crowded + lingering)
    assert len(began(findings)) == len(ended(findings)) == 1


@pytest.mark.parametrize("seed", range(6))
def test_spike_begins_with_the_first_of_many_long_steps_not_with_an_outlier(seed: int) -> None:
    host, diagnoser = Host(seed), Diagnoser()
    warm(diagnoser, host, 60)
    outlier, *calm = host.frames(USUAL, 2)
    steps = outlier.subjects[JOB].steps
    assert steps is not None
    steps.duration_ns[50] *= 3
    struck_ns = host.seconds * SECOND_NS
    (spike,) = began(run(diagnoser, [outlier, *calm, *host.frames(CROWDED, 6)]))
    assert struck_ns < spike.onset_ns < struck_ns + SECOND_NS
