"""Features: what is missing stays missing, names are stable, baselines hold."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diagnosis.detect.baseline import (
    CHANNEL_NAMES,
    CHANNELS,
    INDEX,
    FineHistory,
    SignalBaseline,
    StepBaseline,
    read,
    step_bins,
)
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.features import FEATURE_INDEX, FEATURE_NAMES
from diagnosis.frames.frame import FINE_BINS, HostSample, Subject
from diagnosis.frames.signals import FINE, SIGNALS, Scope
from tests.diagnosis_kit import CROWDED, JOB, NOISE, SECOND_NS, USUAL, Host, run, warm


def test_channels_are_signals_of_their_scope() -> None:
    scopes = {
        "own": Scope.SUBJECT, "host": Scope.HOST, "other": Scope.CGROUP, "gpu": Scope.GPU,
    }  # fmt: skip
    for channel in CHANNELS:
        assert scopes[channel.place] in SIGNALS[channel.signal].scopes, channel
        assert channel.floor > 0
    assert len(set(CHANNEL_NAMES)) == len(CHANNEL_NAMES)


def test_every_feature_has_a_name_of_its_own() -> None:
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES)


def test_absent_signal_is_missing_and_zero_is_not() -> None:
    frame = Host().frame(USUAL.with_(own={"throttled_ms_per_s": 0.0}))
    values = read(frame, JOB)
    assert values[INDEX["own.throttled_ms_per_s"]] == 0.0
    assert np.isnan(values[INDEX["own.gpu_others_percent"]])
    assert np.isnan(values[INDEX["gpu.temperature_celsius"]])


def test_others_are_neither_the_subject_nor_its_ancestors() -> None:
    frame = Host().frame(USUAL)
    cgroups = {
        JOB: {"cpu_ms_per_s": 600.0},
        "/jobs": {"cpu_ms_per_s": 601.0},
        f"{JOB}/worker": {"cpu_ms_per_s": 50.0},
        "/jobs/train2": {"cpu_ms_per_s": 40.0},
        NOISE: {"cpu_ms_per_s": 5.0},
    }
    changed = HostSample(
        frame.boottime_ns, frame.span_ns, frame.host, frame.fine, frame.subjects, cgroups
    )
    assert read(changed, JOB)[INDEX["other.cpu_ms_per_s"]] == 45.0


def test_worst_gpu_of_the_subject_counts() -> None:
    frame = Host().frame(USUAL)
    own = Subject(JOB, "python3", {}, None, None, (0, 2))
    gpus = {
        0: {"sm_clock_percent": 90.0, "temperature_celsius": 60.0},
        1: {"sm_clock_percent": 10.0, "temperature_celsius": 99.0},
        2: {"sm_clock_percent": 50.0, "temperature_celsius": 70.0},
    }
    changed = HostSample(
        frame.boottime_ns, frame.span_ns, {}, frame.fine, {JOB: own}, frame.cgroups, gpus
    )
    values = read(changed, JOB)
    assert values[INDEX["gpu.sm_clock_percent"]] == 50.0
    assert values[INDEX["gpu.temperature_celsius"]] == 70.0


def _judged_by(host: Host, diagnoser: Diagnoser, seconds: int) -> np.ndarray:
    """What a crowded job was last judged by: float64[FEATURE_NAMES]."""
    run(diagnoser, host.frames(CROWDED, seconds))
    return diagnoser.vectors[JOB].copy()


def test_features_show_the_fault_and_nothing_missing_as_zero() -> None:
    host, diagnoser = Host(), Diagnoser()
    warm(diagnoser, host)
    last = _judged_by(host, diagnoser, 10)
    assert last[FEATURE_INDEX["own.run_delay_ms_per_s.z"]] > 4
    assert last[FEATURE_INDEX["own.run_delay_ms_per_s.r"]] > 3
    assert abs(last[FEATURE_INDEX["own.throttled_ms_per_s.z"]]) < 1
    assert last[FEATURE_INDEX["step.p99"]] > 1
    assert abs(last[FEATURE_INDEX["step.p50"]]) < 0.3
    assert np.isnan(last[FEATURE_INDEX["gpu.temperature_celsius.z"]])
    assert np.isnan(last[FEATURE_INDEX["lag.reclaim_direct_ms_per_s"]])


def test_fault_does_not_leak_into_the_baseline() -> None:
    host, diagnoser = Host(), Diagnoser()
    warm(diagnoser, host)
    early, late = _judged_by(host, diagnoser, 10), _judged_by(host, diagnoser, 110)
    place = FEATURE_INDEX["own.run_delay_ms_per_s.z"]
    assert late[place] == pytest.approx(early[place], abs=0.2)


def test_lag_is_the_time_from_departure_to_onset() -> None:
    history, row = FineHistory(), FINE.index("run_delay_ms_per_s")
    onset_ns = 100 * SECOND_NS
    for second in range(80, 104):
        frame = Host().frame(USUAL)
        fine = np.full((len(FINE), FINE_BINS), 20.0, np.float32)
        ends_ns = second * SECOND_NS + (np.arange(FINE_BINS) - FINE_BINS + 1) * SECOND_NS // 10
        fine[row, ends_ns > onset_ns - 700_000_000] = 900.0
        history.take(HostSample(second * SECOND_NS, SECOND_NS, frame.host, fine, {}))
    lags = history.lags_s(onset_ns)
    assert lags[row] == pytest.approx(0.6, abs=0.05)
    assert np.isnan(np.delete(lags, row)).all()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 1e6) | st.just(float("nan")), min_size=3, max_size=60),
    st.integers(5, 40),
)
def test_median_and_spread_are_those_of_the_last_known_values(
    values: list[float], length: int
) -> None:
    baseline = SignalBaseline(np.array([1.0]), length, np.zeros(1))
    for value in values:
        baseline.add(np.array([value]))
    baseline.refresh()
    known = np.array([value for value in values[-length:] if value == value])  # noqa: PLR0124
    if known.size == 0:
        assert np.isnan(baseline.median[0])
        return
    middle = np.median(known)
    assert baseline.median[0] == pytest.approx(middle)
    spread = max(1.0, 1.4826 * float(np.median(np.abs(known - middle))))
    assert baseline.spread[0] == pytest.approx(spread)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2_000, 100_000_000_000), min_size=20, max_size=300))
def test_step_quantiles_are_right_to_a_bin(durations: list[int]) -> None:
    baseline = StepBaseline(60.0, 400.0)
    baseline.add(step_bins(np.array(durations)), 1.0)
    for share in (0.1, 0.5, 0.99):
        exact = float(np.quantile(durations, share, method="inverted_cdf"))
        assert baseline.quantile_ns(share) == pytest.approx(exact, rel=0.023)
    assert baseline.steps == len(durations)


def test_step_baseline_forgets() -> None:
    baseline = StepBaseline(60.0, 400.0)
    slow, fast = np.full(100, 50_000_000), np.full(100, 10_000_000)
    for durations in (slow, fast):
        for _ in range(300):
            baseline.add(step_bins(durations), 1.0)
    assert baseline.quantile_ns(0.99) == pytest.approx(1e7, rel=0.03)
