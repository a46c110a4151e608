"""What truly happened: the gate on impact, its onset, faults that overlap, labels refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from collectors.records.activity import StepSource
from diagnosis.detect.findings import Cause
from diagnosis.frames.frame import HostSample, Steps
from pointillist.judging.runs import (
    GATE,
    InjectedFault,
    RecordedRun,
    RunKind,
    RunRefused,
    episodes,
    facts_of,
    lasting,
)
from tests.diagnosis_runs_kit import NS, SUBJECT, made_up_run


def run_with_long_steps(*at_s: float, ratio: float = 2.0) -> RecordedRun:
    """Ten steps a second of 10 ms; those that end at the given seconds take `ratio` as long."""
    whole = made_up_run("steps", Cause.CPU_CONTENTION)
    frames = []
    for frame in whole.frames:
        ended = frame.boottime_ns - NS + (np.arange(10) * 100 + 50) * 1_000_000
        took = np.full(10, 10_000_000)
        for moment in at_s:
            took[ended == int(moment * NS)] = int(10_000_000 * ratio)
        steps = Steps(StepSource.UPROBE, ended.astype(np.int64), took.astype(np.int64))
        old = frame.subjects[SUBJECT]
        frames.append(replace(frame, subjects={SUBJECT: replace(old, steps=steps)}))
    return RecordedRun(whole.facts, tuple(frames))


def test_episode_has_no_impact_below_the_gate() -> None:
    slow = tuple(40.05 + k for k in range(20))
    found = episodes(run_with_long_steps(*slow, ratio=GATE - 0.05))[0]
    assert not found.impact
    assert found.rise == pytest.approx(GATE - 0.05, rel=1e-3)


def test_episode_begins_when_the_first_of_two_close_long_steps_was_too_long() -> None:
    lonely, first, second = 41.05, 47.05, 49.05
    found = episodes(run_with_long_steps(lonely, first, second, *np.arange(52.05, 60).tolist()))[0]
    assert found.onset_ns is not None
    began = int(first * NS) - 20_000_000
    assert found.onset_ns == pytest.approx(began + GATE * 10_000_000, abs=2000)


def test_two_long_steps_among_hundreds_begin_no_impact() -> None:
    ended = np.arange(0, 20 * NS, NS // 100)
    took = np.full(ended.size, 10_000_000)
    took[[300, 400]] = 20_000_000  # one in 150 within three seconds
    assert lasting(ended, took, 13e6) is None
    took[1_500:1_990:50] = 20_000_000
    assert lasting(ended, took, 13e6) == 1_500


def test_overlapping_faults_are_one_episode_of_both_causes() -> None:
    run = made_up_run("pair", Cause.CPU_CONTENTION)
    other = InjectedFault(Cause.DISK_IO, "own", 50 * NS, 65 * NS)
    facts = replace(run.facts, faults=(*run.facts.faults, other), kind=RunKind.OVERLAP)
    found = episodes(RecordedRun(facts, run.frames))
    assert [one.causes for one in found] == [(Cause.CPU_CONTENTION, Cause.DISK_IO)]
    assert (found[0].start_ns, found[0].end_ns) == (40 * NS, 65 * NS)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"seed": "one"}, "seed"),
        ({"workload": None}, "workload"),
        ({"intensity": 7}, "intensity"),
        ({"spans": [{"cause": "gremlins", "start_ns": 1, "end_ns": 2}]}, "cause"),
        ({"spans": [{"cause": "disk_io", "start_ns": 2, "end_ns": 2}]}, "end"),
        ({"spans": "none"}, "spans"),
    ],
)
def test_facts_are_refused_by_the_field_that_is_wrong(wrong: dict[str, Any], named: str) -> None:
    meta = {"workload": "step_loop", "seed": 1, "spans": [], **wrong}
    frames: tuple[HostSample, ...] = made_up_run("calm", None, seconds=1).frames
    with pytest.raises(RunRefused, match=named):
        facts_of("calm", meta, frames)
