"""A degradation is announced before it is a spike; steadiness and noise are not."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from diagnosis.detect.detection_settings import DetectionSettings
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.early import StepClimb
from diagnosis.frames.frame import Frame
from tests.diagnosis_kit import CROWDED, JOB, USUAL, Host, began, ended, run, warm, warned


def _climb(host: Host, seconds: int, slope: float, start: float = 10.0) -> list[Frame]:
    return [
        host.frame(USUAL.with_(own={"run_delay_ms_per_s": start + slope * s}))
        for s in range(seconds)
    ]


def test_climbing_run_delay_is_announced_before_the_spike() -> None:
    host, diagnoser = Host(), Diagnoser()
    warm(diagnoser, host, 60)
    findings = run(diagnoser, _climb(host, 25, 5.0))
    (warning,) = warned(findings)
    assert warning.subject == JOB
    assert warning.evidence[0].signal == "run_delay_ms_per_s"
    assert warning.expected_in_s is not None
    assert 0 < warning.expected_in_s <= 60
    assert began(run(diagnoser, host.frames(CROWDED, 5)))


def test_gpu_that_nears_its_limit_is_announced() -> None:
    host, diagnoser = Host(), Diagnoser()
    warm(diagnoser, host, 60, USUAL.with_(gpu={"temperature_celsius": 60.0}))
    hotter = [
        host.frame(USUAL.with_(gpu={"temperature_celsius": 62.0 + 0.8 * s})) for s in range(28)
    ]
    found = warned(run(diagnoser, hotter))
    assert [one.evidence[0].signal for one in found] == ["temperature_celsius"]


def test_steady_and_noisy_signals_announce_nothing() -> None:
    host, diagnoser = Host(seed=3), Diagnoser()
    warm(diagnoser, host, 60)
    higher = USUAL.with_(own={"run_delay_ms_per_s": 45.0})
    swings = [
        host.frame(USUAL.with_(own={"run_delay_ms_per_s": 10.0 + 60.0 * (s % 7 == 0)}))
        for s in range(120)
    ]
    assert warned(run(diagnoser, host.frames(higher, 60) + swings)) == []


def test_one_climb_is_announced_once() -> None:
    host, diagnoser = Host(), Diagnoser()
    warm(diagnoser, host, 60)
    findings = run(diagnoser, _climb(host, 60, 2.5))
    assert len(warned(findings)) == 1


def test_steps_that_climb_are_announced_though_no_signal_moves() -> None:
    host, diagnoser = Host(seed=5), Diagnoser()
    warm(diagnoser, host, 60)
    slower = [host.frame(USUAL.with_(step_ms=10.0 * 1.008**s)) for s in range(30)]
    (warning,) = warned(run(diagnoser, slower))
    assert warning.before is not None
    assert warning.now is not None
    assert warning.now.p99_ms > warning.before.p99_ms
    assert warning.expected_in_s is not None
    assert 0 < warning.expected_in_s <= 60


def test_steps_that_became_longer_once_announce_nothing() -> None:
    host, diagnoser = Host(seed=5), Diagnoser()
    warm(diagnoser, host, 60)
    assert warned(run(diagnoser, host.frames(USUAL.with_(step_ms=11.5), 90))) == []


def test_warnings_are_given_again_soon_after_a_spike() -> None:
    host, diagnoser = Host(), Diagnoser()
    warm(diagnoser, host, 60)
    findings = run(diagnoser, [*host.frames(CROWDED, 6), *host.frames(USUAL, 30)])
    assert ended(findings)
    assert len(warned(run(diagnoser, _climb(host, 25, 5.0)))) == 1


def _climbing(steps_per_s: int, missing: int = -1) -> StepClimb:
    climb = StepClimb(DetectionSettings())
    for second in range(15):
        if second != missing:
            took = np.full(steps_per_s, int(10e6 * 1.01**second))
            climb.take(took, 10e6, second + (30.0 if second > missing >= 0 else 0.0))
    return climb


def test_climb_is_seen_in_enough_steps_of_every_second() -> None:
    assert _climbing(20).expected_in_s() == pytest.approx(log(1.3) / log(1.01) - 14, rel=0.05)
    assert _climbing(9).expected_in_s() is None


def test_climb_with_seconds_missing_is_none() -> None:
    assert _climbing(20, missing=7).expected_in_s() is None
