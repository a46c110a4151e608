"""The hand rules put a spike down to what the signals tell of; evidence agrees with it."""

from __future__ import annotations

from typing import Final

import pytest

from edge_agent.diagnosis.diagnoser import Diagnoser
from edge_agent.diagnosis.findings import Cause, Diagnosis
from edge_agent.diagnosis.rule_table import RULES
from edge_agent.frames.signals import SIGNALS
from tests.diagnosis_kit import CROWDED, NOISE, USUAL, Host, Second, diagnoses, run, warm

_SPIKE: Final = USUAL.with_(long_share=0.2)
_WITH_GPU: Final = USUAL.with_(gpu={})
SCENES: Final[dict[Cause, Second]] = {
    Cause.CPU_CONTENTION: CROWDED,
    Cause.CGROUP_THROTTLING: _SPIKE.with_(
        own={
            "throttled_ms_per_s": 300.0, "throttled_delay_ms_per_s": 400.0,
            "preempted_ms_per_s": 400.0,
        }
    ),
    Cause.MEMORY_PRESSURE: _SPIKE.with_(
        own={"reclaim_ms_per_s": 200.0, "page_faults_per_s": 4000.0},
        host={
            "reclaim_cgroup_ms_per_s": 200.0, "pressure_memory_some_ms_per_s": 250.0,
            "worst_disk_ms_per_s": 400.0,
        },
    ),
    Cause.DISK_IO: _SPIKE.with_(
        own={"block_wait_ms_per_s": 400.0},
        host={"worst_disk_ms_per_s": 1500.0, "worst_disk_latency_ms": 4.0},
        others={"block_ios_per_s": 3000.0},
    ),
    Cause.NIC_CROSS_TRAFFIC: _SPIKE.with_(
        host={"softirq_net_rx_ms_per_s": 60.0, "softirqs_net_rx_per_s": 6000.0},
        others={"net_receive_bytes_per_s": 2e8, "net_send_bytes_per_s": 2e8},
    ),
    Cause.NIC_LIMIT_OR_LOSS: _SPIKE.with_(
        own={"net_send_wait_ms_per_s": 300.0, "net_receive_wait_ms_per_s": 300.0},
        host={"retransmits_per_s": 60.0, "send_queue_bytes": 400_000.0},
    ),
    Cause.PCIE_PRESSURE: _SPIKE.with_(gpu={"pcie_rx_bytes_per_s": 2e10}),
    Cause.GPU_THERMAL_OR_POWER_LIMIT: _SPIKE.with_(
        gpu={"throttled_thermal_percent": 100.0, "sm_clock_percent": 60.0}
    ),
    Cause.GPU_HARDWARE_FAULT: _SPIKE.with_(gpu={"xids_faulty_per_s": 1.0}),
    Cause.GPU_SHARED: _SPIKE.with_(
        gpu={"gpu_processes_count": 2.0},
        own={"gpu_others_percent": 50.0, "gpu_others_launches_per_s": 900.0},
    ),
    Cause.COMMUNICATION_WAIT: _SPIKE.with_(
        own={
            "net_receive_wait_ms_per_s": 450.0, "cpu_ms_per_s": 350.0,
            "net_receive_bytes_per_s": 6e6,
        }
    ),
    Cause.INPUT_STARVATION: _SPIKE.with_(own={"cpu_ms_per_s": 220.0, "sleep_ms_per_s": 700.0}),
    Cause.UNKNOWN: _SPIKE,
}  # fmt: skip


def diagnosed(scene: Second) -> Diagnosis:
    """The diagnosis that stands after ten seconds of it."""
    host, diagnoser = Host(), Diagnoser()
    shared = {"gpu_others_percent": 0.0, "gpu_others_launches_per_s": 0.0}
    calm = _WITH_GPU.with_(own=shared) if scene.gpu is not None else USUAL
    warm(diagnoser, host, 30, calm)
    return diagnoses(run(diagnoser, host.frames(scene, 10)))[-1]


@pytest.mark.parametrize("cause", list(Cause))
def test_rules_name_the_cause(cause: Cause) -> None:
    found = diagnosed(SCENES[cause])
    assert found.cause == cause
    assert found.ranked[0] == (found.cause, found.confidence)
    assert sum(share for _, share in found.ranked) == pytest.approx(1.0)
    assert {one for one, _ in found.ranked} == set(Cause)
    assert found.unlike <= 0.65 or cause is Cause.UNKNOWN


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.UNKNOWN])
def test_evidence_begins_with_a_signal_of_the_cause(cause: Cause) -> None:
    found = diagnosed(SCENES[cause])
    rule = next(rule for rule in RULES if rule.cause == cause)
    needs = [tell for group in rule.needs for tell in group]
    telling = {tell.channel.partition(".")[2] for tell in (*rule.tells, *needs)}
    first = found.evidence[0]
    assert first.signal in telling
    assert abs(first.value - first.baseline) > 3 * first.spread > 0
    assert first.unit == SIGNALS[first.signal].unit
    assert found.onset_ns - 2_000_000_000 < first.since_ns <= found.at_ns


def test_interfering_cgroup_is_named() -> None:
    who = {one.signal: one.who for one in diagnosed(SCENES[Cause.CPU_CONTENTION]).evidence}
    assert who["run_delay_ms_per_s"] == NOISE
    who = {one.signal: one.who for one in diagnosed(SCENES[Cause.CGROUP_THROTTLING]).evidence}
    assert set(who.values()) == {""}


def test_host_signal_has_its_lag() -> None:
    lags = {one.signal: one.lag_ms for one in diagnosed(SCENES[Cause.NIC_CROSS_TRAFFIC]).evidence}
    lag_ms = lags["softirq_net_rx_ms_per_s"]
    assert lag_ms is not None
    assert -200 <= lag_ms <= 600


def test_diagnosis_names_the_rules_where_no_model_is_given() -> None:
    assert diagnosed(SCENES[Cause.DISK_IO]).model == "hand rules 1"


def test_rules_name_signals_that_the_table_has() -> None:
    """A rule on a name that no frame can carry would be silent for ever."""
    for rule in RULES:
        for tell in (*rule.tells, *(one for group in rule.needs for one in group)):
            assert tell.channel.partition(".")[2] in SIGNALS, tell
