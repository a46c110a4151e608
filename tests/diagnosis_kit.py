"""Made-up seconds of a host, for tests of diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from collectors.records.activity import StepSource
from diagnosis.detect.diagnoser import Diagnoser
from diagnosis.detect.findings import Diagnosis, Finding, SpikeBegan, SpikeEnded
from diagnosis.frames.frame import FINE_BINS, HostSample, Signals, Steps, Subject
from diagnosis.frames.signals import FINE

SECOND_NS: Final = 1_000_000_000
JOB: Final = "/jobs/train"
NOISE: Final = "/system/backup"
_OWN: Final = {
    "run_delay_ms_per_s": 10.0, "cpu_ms_per_s": 600.0, "switches_per_s": 800.0,
    "switches_involuntary_per_s": 20.0, "throttled_ms_per_s": 0.0, "throttled_delay_ms_per_s": 0.0,
    "net_send_bytes_per_s": 1e7, "net_receive_bytes_per_s": 1e7, "block_read_bytes_per_s": 5e6,
    "block_write_bytes_per_s": 0.0, "block_ios_per_s": 100.0, "block_wait_ms_per_s": 30.0,
    "net_send_wait_ms_per_s": 1.0, "net_receive_wait_ms_per_s": 100.0, "reclaim_ms_per_s": 0.0,
    "page_faults_per_s": 50.0, "sleep_ms_per_s": 100.0, "preempted_ms_per_s": 10.0,
}  # fmt: skip
_HOST: Final = {
    "run_delay_ms_per_s": 30.0, "cpu_ms_per_s": 700.0, "softirq_net_rx_ms_per_s": 6.0,
    "softirqs_net_rx_per_s": 900.0, "retransmits_per_s": 0.0, "send_queue_bytes": 20_000.0,
    "worst_disk_ms_per_s": 30.0, "worst_disk_latency_ms": 0.3, "reclaim_direct_ms_per_s": 0.0,
    "reclaim_cgroup_ms_per_s": 0.0, "pressure_cpu_some_ms_per_s": 30.0, "net_send_bytes_per_s": 1e7,
    "pressure_memory_some_ms_per_s": 0.0, "pressure_io_some_ms_per_s": 10.0,
}  # fmt: skip
_GPU: Final = {
    "sm_clock_percent": 95.0, "throttled_thermal_percent": 0.0, "throttled_power_percent": 0.0,
    "temperature_celsius": 60.0, "pcie_rx_bytes_per_s": 1e9, "pcie_replays_per_s": 0.0,
    "ecc_corrected_per_s": 0.0, "ecc_uncorrected_per_s": 0.0, "xids_faulty_per_s": 0.0,
    "gpu_processes_count": 1.0,
}  # fmt: skip
_STEADY: Final = ("pcie_width_percent", "pcie_generation_percent")
"""Lanes and generations do not flutter."""


@dataclass(frozen=True)
class Second:
    """What happens in one second.

    step_ms     usual step time; `long_share` of the steps take `long_times` as long
    own, host, others, gpu   signals that differ from the usual ones
    running_ms  age of the step that does not end; then no step ends
    marked      steps are measured; else there is a rhythm alone
    steps       False: nothing runs
    """

    step_ms: float = 10.0
    jitter: float = 0.05
    long_share: float = 0.0
    long_times: float = 3.0
    own: Mapping[str, float] = field(default_factory=dict)
    host: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[str, float] = field(default_factory=dict)
    gpu: Mapping[str, float] | None = None
    running_ms: float | None = None
    marked: bool = True
    steps: bool = True

    def with_(self, **changes: object) -> Second:
        return replace(self, **changes)  # type: ignore[arg-type]


USUAL: Final = Second()
CROWDED: Final = Second(
    long_share=0.15,
    own={"run_delay_ms_per_s": 250.0, "switches_involuntary_per_s": 200.0},
    host={"run_delay_ms_per_s": 1500.0, "cpu_ms_per_s": 1990.0},
    others={"cpu_ms_per_s": 1400.0},
)


class Host:
    """Frames of one host, a second each; the same seed gives the same frames."""

    def __init__(self, seed: int = 1, jobs: Iterable[str] = (JOB,)) -> None:
        self._random = np.random.default_rng(seed)
        self._jobs = tuple(jobs)
        self.seconds = 100  # since boot

    def frame(self, what: Second = USUAL, elsewhere: Second = USUAL) -> HostSample:
        """One more second; `what` happens to the first job, `elsewhere` to the others."""
        self.seconds += 1
        jobs = {job: what if i == 0 else elsewhere for i, job in enumerate(self._jobs)}
        subjects = {job: self._subject(job, one) for job, one in jobs.items()}
        host = self._jittered({**_HOST, **what.host})
        fine = np.full((len(FINE), FINE_BINS), np.nan, np.float32)
        for row, name in enumerate(FINE):
            if name in host:
                fine[row] = host[name]
        cgroups: dict[str, Signals] = {job: subject.signals for job, subject in subjects.items()}
        cgroups[NOISE] = {"cpu_ms_per_s": 5.0, "block_ios_per_s": 1.0, **what.others}
        gpus: dict[int, Signals] = {}
        if what.gpu is not None:
            steady = {k: v for k, v in what.gpu.items() if k in _STEADY}
            gpus[0] = self._jittered({**_GPU, **what.gpu}) | steady
        end_ns = self.seconds * SECOND_NS
        return HostSample(end_ns, SECOND_NS, host, fine, subjects, cgroups, gpus)

    def frames(self, what: Second, seconds: int) -> list[HostSample]:
        return [self.frame(what) for _ in range(seconds)]

    def _subject(self, job: str, what: Second) -> Subject:
        steps = self._steps(what)
        signals = self._jittered({**_OWN, **what.own})
        if not what.steps:
            return Subject(job, "python3", signals, None, None)
        gpus = (0,) if what.gpu is not None else ()
        if what.marked:
            return Subject(job, "python3", signals, steps, None, gpus)
        rhythm = replace(steps, source=StepSource.RHYTHM)
        return Subject(job, "python3", signals, None, rhythm, gpus)

    def _steps(self, what: Second) -> Steps:
        if what.running_ms is not None:
            nothing = np.zeros(0, np.int64)
            return Steps(StepSource.UPROBE, nothing, nothing, 0, int(what.running_ms * 1e6))
        most = int(1500 / what.step_ms) + 2
        durations = self._random.lognormal(np.log(what.step_ms), what.jitter, most) * 1e6
        long = self._random.random(most) < what.long_share
        durations[long] *= what.long_times
        ends = np.cumsum(durations.astype(np.int64))
        kept = ends < SECOND_NS
        start_ns = (self.seconds - 1) * SECOND_NS
        durations_ns = durations.astype(np.int64)[kept]
        return Steps(StepSource.UPROBE, start_ns + ends[kept], durations_ns, 0, 1_000_000)

    def _jittered(self, signals: Mapping[str, float]) -> dict[str, float]:
        return {k: float(v * self._random.normal(1, 0.03)) for k, v in signals.items()}


BOOT: Final = 7_000 * SECOND_NS


def frames_of_contention(seconds: int, slow_from: int, slow_until: int) -> Iterator[HostSample]:
    """Give a frame a second after BOOT; while it is slow others take the job's CPU."""
    host = Host()
    host.seconds = BOOT // SECOND_NS
    for number in range(1, seconds + 1):
        yield host.frame(CROWDED if slow_from <= number < slow_until else USUAL)


def run(diagnoser: Diagnoser, frames: Iterable[HostSample]) -> list[Finding]:
    return [found for frame in frames for found in diagnoser.handle(frame)]


def began(findings: Iterable[Finding]) -> list[SpikeBegan]:
    return [found for found in findings if isinstance(found, SpikeBegan)]


def diagnoses(findings: Iterable[Finding]) -> list[Diagnosis]:
    return [found for found in findings if isinstance(found, Diagnosis)]


def ended(findings: Iterable[Finding]) -> list[SpikeEnded]:
    return [found for found in findings if isinstance(found, SpikeEnded)]


def warm(diagnoser: Diagnoser, host: Host, seconds: int = 30, what: Second = USUAL) -> None:
    """Let it learn what is usual; nothing may be found meanwhile."""
    assert run(diagnoser, host.frames(what, seconds)) == []
