"""Made-up seconds for tests: each cause moves its own signals. No figure may come from these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from collectors.records.activity import StepSource
from diagnosis.detect.findings import Cause
from diagnosis.frames.frame import FINE_BINS, HostSample, Steps, Subject
from diagnosis.frames.signals import FINE
from pointillist.judging.runs import Facts, InjectedFault, RecordedRun, RunKind

NS: Final = 1_000_000_000
CALM_S: Final = 20
SUBJECT: Final = "/bench/worker"
USUAL_MS: Final = 10.0

HOST: Final[Mapping[str, float]] = {
    "run_delay_ms_per_s": 100.0,
    "throttled_delay_ms_per_s": 0.0,
    "cpu_ms_per_s": 900.0,
    "softirq_net_rx_ms_per_s": 5.0,
    "net_receive_bytes_per_s": 2e6,
    "retransmits_per_s": 0.0,
    "send_queue_bytes": 1e4,
    "block_ms_per_s": 20.0,
    "worst_disk_ms_per_s": 20.0,
    "reclaim_cgroup_ms_per_s": 0.0,
    "page_faults_per_s": 500.0,
    "pressure_cpu_some_ms_per_s": 40.0,
    "pressure_memory_some_ms_per_s": 0.0,
    "pressure_io_some_ms_per_s": 10.0,
}
OWN: Final[Mapping[str, float]] = {
    "run_delay_ms_per_s": 30.0,
    "throttled_delay_ms_per_s": 0.0,
    "cpu_ms_per_s": 600.0,
    "block_read_bytes_per_s": 1e6,
    "net_send_bytes_per_s": 1e6,
    "page_faults_per_s": 200.0,
    "reclaim_ms_per_s": 0.0,
}
MOVES: Final[Mapping[Cause, Mapping[str, float]]] = {
    Cause.CPU_CONTENTION: {"run_delay_ms_per_s": 900.0, "pressure_cpu_some_ms_per_s": 700.0},
    Cause.DISK_IO: {
        "block_ms_per_s": 1500.0,
        "worst_disk_ms_per_s": 1500.0,
        "pressure_io_some_ms_per_s": 600.0,
    },
    Cause.MEMORY_PRESSURE: {
        "reclaim_cgroup_ms_per_s": 300.0,
        "page_faults_per_s": 20_000.0,
        "pressure_memory_some_ms_per_s": 400.0,
        "reclaim_ms_per_s": 300.0,
    },
    Cause.NIC_CROSS_TRAFFIC: {
        "softirq_net_rx_ms_per_s": 120.0,
        "net_receive_bytes_per_s": 1e8,
    },
    Cause.UNKNOWN: {"retransmits_per_s": 0.0},
}
"""What each fault adds, by signal, on the host and, where the subject has it, on the subject."""


def made_up_run(
    name: str,
    cause: Cause | None,
    seed: int = 1,
    injector: str = "stress",
    intensity: str = "high",
    workload: str = "step_loop",
    seconds: int = 70,
    strength: float = 1.0,
) -> RecordedRun:
    """Make a run: calm, then a fault from second 40 to 60 where a cause is given."""
    faults = () if cause is None else (InjectedFault(cause, injector, 40 * NS, 60 * NS),)
    kind = RunKind.FAULT_FREE if cause is None else RunKind.FAULT
    facts = Facts(
        name=name, kind=kind, workload=workload, intensity=intensity if faults else "", seed=seed,
        negative="", faults=faults, calm_from_ns=CALM_S * NS, subjects=(SUBJECT,),
        workers=1,
    )  # fmt: skip
    drawn = np.random.default_rng(seed)
    frames = []
    for second in range(1, seconds + 1):
        struck = cause if faults and 40 < second <= 60 else None
        frames.append(_frame(second, struck, strength, drawn))
    return RecordedRun(facts, tuple(frames))


def _frame(
    second: int, cause: Cause | None, strength: float, drawn: np.random.Generator
) -> HostSample:
    moves = {} if cause is None else MOVES[cause]
    host = _moved(HOST, moves, strength, drawn)
    own = _moved(OWN, moves, strength, drawn)
    fine = np.array(
        [[host.get(name, np.nan)] * FINE_BINS for name in FINE], np.float32
    ) * drawn.lognormal(0, 0.05, (len(FINE), FINE_BINS)).astype(np.float32)
    steps = _steps(second, cause is not None, drawn)
    rhythm = Steps(StepSource.RHYTHM, steps.ended_ns, steps.duration_ns)
    subject = Subject(SUBJECT, "worker", own, steps, rhythm)
    return HostSample(second * NS, NS, host, fine, {SUBJECT: subject}, {SUBJECT: own})


def _moved(
    usual: Mapping[str, float],
    moves: Mapping[str, float],
    strength: float,
    drawn: np.random.Generator,
) -> dict[str, float]:
    return {
        name: (value + strength * moves.get(name, 0.0)) * float(drawn.lognormal(0, 0.08))
        for name, value in usual.items()
    }


def _steps(second: int, struck: bool, drawn: np.random.Generator) -> Steps:
    took = USUAL_MS * drawn.lognormal(0, 0.05, 90)
    if struck:
        took[drawn.random(90) < 0.1] *= 2.5
    ended = (second - 1) * NS + np.linspace(0.01, 0.99, 90) * NS
    return Steps(StepSource.UPROBE, ended.astype(np.int64), (took * 1e6).astype(np.int64))
