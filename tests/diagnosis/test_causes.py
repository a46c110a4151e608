"""The hand rules put a spike down to what the signals tell of; evidence agrees with it."""

from __future__ import annotations

from typing import Final

import pytest

from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.features import FEATURE_NAMES
from diagnosis.detect.findings import Cause, Diagnosis
from diagnosis.detect.rules import hand_rules
from diagnosis.frames.signals import SIGNALS
from tests.diagnosis_kit import CROWDED, NOISE, USUAL, Host, Second, diagnoses, run, warm

_SPIKE: Final = USUAL.with_(long_share=0.2)
_LESS: Final = {
    "net_send_bytes_per_s": 4e6,
    "net_receive_bytes_per_s": 4e6,
    "block_read_bytes_per_s": 2e6,
}  # what fewer steps need
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
    Cause.INPUT_STARVATION: USUAL.with_(
        step_ms=25.0, own={"cpu_ms_per_s": 240.0, "sleep_ms_per_s": 700.0, **_LESS},
    ),
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
    rules = [rule for rule in hand_rules() if rule.cause == cause]
    tells = [tell for rule in rules for group in (rule.tells, *rule.needs) for tell in group]
    telling = {tell.channel.partition(".")[2] for tell in tells}
    first = found.evidence[0]
    assert first.signal in telling
    assert abs(first.value - first.baseline) > 3 * first.spread > 0
    assert first.unit == SIGNALS[first.signal].unit
    assert found.onset_ns - 2_000_000_000 < first.since_ns <= found.at_ns


def test_input_made_at_home_starves_the_subject_too() -> None:
    """Its own loader works harder for steps that are otherwise the same."""
    found = diagnosed(USUAL.with_(step_ms=25.0, own={"cpu_ms_per_s": 900.0, **_LESS}))
    assert found.cause is Cause.INPUT_STARVATION


@pytest.mark.parametrize(
    ("least_us", "cause"),
    [
        (1_100.0, Cause.NIC_LIMIT_OR_LOSS),  # each packet is put on the wire more slowly
        (9_000.0, Cause.COMMUNICATION_WAIT),  # a detour
        (300.0, Cause.COMMUNICATION_WAIT),  # the peer itself
    ],
)
def test_round_trips_tell_a_slow_link_from_a_slow_peer(least_us: float, cause: Cause) -> None:
    host, diagnoser = Host(), Diagnoser()
    known = {"round_trip_us": 900.0, "round_trip_least_us": 300.0}
    waiting = {"cpu_ms_per_s": 350.0, "net_receive_wait_ms_per_s": 350.0, **_LESS}
    warm(diagnoser, host, 30, USUAL.with_(own=known))
    slow = USUAL.with_(step_ms=25.0, own=known | waiting | {"round_trip_least_us": least_us})
    assert diagnoses(run(diagnoser, host.frames(slow, 10)))[-1].cause is cause


def test_what_the_hypervisor_takes_is_cpu_contention() -> None:
    """To the guest a thread without its CPU looks like one that runs: none waits in a queue."""
    host, diagnoser = Host(), Diagnoser()
    warm(diagnoser, host, 30, USUAL.with_(host={"steal_percent": 0.0}))
    taken = _SPIKE.with_(host={"steal_percent": 9.0})
    found = diagnoses(run(diagnoser, host.frames(taken, 10)))[-1]
    assert found.cause is Cause.CPU_CONTENTION
    assert found.evidence[0].signal == "steal_percent"


def test_batch_that_has_grown_is_no_spike() -> None:
    """Each step sends, receives and reads twice as much, and takes nearly twice as long."""
    host, diagnoser = Host(), Diagnoser()
    warm(diagnoser, host, 30)
    rates = {name: 1.15 * 2.5 * value for name, value in _LESS.items()}
    grown = USUAL.with_(step_ms=17.5, own={"cpu_ms_per_s": 450.0, **rates})
    assert diagnoses(run(diagnoser, host.frames(grown, 20))) == []


def test_subject_that_neither_sends_nor_reads_can_starve() -> None:
    host, diagnoser = Host(), Diagnoser()
    idle = dict.fromkeys(_LESS, 0.0)
    warm(diagnoser, host, 30, USUAL.with_(own=idle))
    slow = USUAL.with_(step_ms=25.0, own={"cpu_ms_per_s": 240.0, "sleep_ms_per_s": 700.0, **idle})
    found = diagnoses(run(diagnoser, host.frames(slow, 10)))
    assert found[-1].cause is Cause.INPUT_STARVATION


def test_fault_that_was_told_once_before_the_spike_is_its_cause() -> None:
    host, diagnoser = Host(), Diagnoser()
    warm(diagnoser, host, 30, _WITH_GPU)
    told = host.frame(_WITH_GPU.with_(gpu={"xids_faulty_per_s": 1.0}))
    found = run(diagnoser, [told, *host.frames(_WITH_GPU.with_(long_share=0.3), 10)])
    assert {one.cause for one in diagnoses(found)} == {Cause.GPU_HARDWARE_FAULT}


def test_second_cause_stands_behind_the_louder() -> None:
    both = SCENES[Cause.CGROUP_THROTTLING].with_(
        host={"retransmits_per_s": 25.0}, others=SCENES[Cause.DISK_IO].others
    )
    ranked = [cause for cause, _ in diagnosed(both).ranked]
    assert ranked[:2] == [Cause.CGROUP_THROTTLING, Cause.NIC_LIMIT_OR_LOSS]


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
    for rule in hand_rules():
        for tell in (*rule.tells, *(one for group in rule.needs for one in group)):
            assert tell.feature in FEATURE_NAMES, tell
            assert tell.channel.partition(".")[2] in SIGNALS or tell.channel in FEATURE_NAMES


def test_evidence_shows_round_trips_that_became_longer() -> None:
    host, diagnoser = Host(), Diagnoser()
    usual = USUAL.with_(own={"round_trip_least_us": 300.0})
    warm(diagnoser, host, 60, usual)
    slower = {"round_trip_least_us": 900.0, "net_receive_wait_ms_per_s": 400.0}
    found = diagnoses(run(diagnoser, host.frames(USUAL.with_(long_share=0.3, own=slower), 4)))[-1]
    assert found.cause is Cause.NIC_LIMIT_OR_LOSS
    assert "round_trip_least_us" in {one.signal for one in found.evidence}
