"""What diagnosis finds, and what of it enters the fleet's weekly count.

Under noise only the name of a cause leaves the host; evidence, names and times stay. A host that
met more causes in a week than the section admits reports some, drawn at random when it is sealed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from collectors.records.activity import Observation, StepSource


class Cause(StrEnum):
    """Causes of tail latency, as the catalogue's table `incident` names them."""

    CPU_CONTENTION = "cpu_contention"
    CGROUP_THROTTLING = "cgroup_throttling"
    MEMORY_PRESSURE = "memory_pressure"
    DISK_IO = "disk_io"
    NIC_CROSS_TRAFFIC = "nic_cross_traffic"
    NIC_LIMIT_OR_LOSS = "nic_limit_or_loss"
    PCIE_PRESSURE = "pcie_pressure"
    GPU_THERMAL_OR_POWER_LIMIT = "gpu_thermal_or_power_limit"
    GPU_HARDWARE_FAULT = "gpu_hardware_fault"
    GPU_SHARED = "gpu_shared"
    COMMUNICATION_WAIT = "communication_wait"
    INPUT_STARVATION = "input_starvation"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class StepTimes:
    p50_ms: float
    p99_ms: float
    steps: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """One signal that speaks for a cause.

    signal      name in the table of signals
    value       now, in the signal's unit
    baseline    usual value; `spread` how far it usually strays from it (MAD x 1.4826)
    since_ns    CLOCK_BOOTTIME since when it has been away from its baseline
    lag_ms      how long after the signal the spike came; negative: the signal followed
    who         the interfering cgroup or process where the kernel knows it, else ""
    scope       whose signal: `own`, the `host`'s, all `other` cgroups', its `gpu`s'; "" unknown
    """

    signal: str
    unit: str
    value: float
    baseline: float
    spread: float
    since_ns: int
    lag_ms: float | None = None
    who: str = ""
    scope: str = ""


@dataclass(frozen=True, slots=True)
class SpikeBegan:
    """The tail of step times left its baseline at `onset_ns`, which was known at `at_ns`."""

    subject: str
    onset_ns: int
    at_ns: int
    source: StepSource
    before: StepTimes
    now: StepTimes


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The cause of a spike, as far as it is known now; a later one of the same onset replaces it.

    ranked       every cause with its share of belief, largest first; they sum to 1
    confidence   of `cause`, 0..1
    unlike       how far this is from everything that the rules know, 0..1
    group        "" but in journals of older agents: the group of unknown spikes it belonged to
    incident     persistent and heavy enough to enter the fleet's weekly count
    model        name and version of what spoke: the hand rules, of older agents perhaps a model
    """

    subject: str
    cause: Cause
    confidence: float
    ranked: tuple[tuple[Cause, float], ...]
    unlike: float
    onset_ns: int
    at_ns: int
    source: StepSource
    before: StepTimes
    now: StepTimes
    evidence: tuple[Evidence, ...]
    model: str
    group: str = ""
    incident: bool = False


@dataclass(frozen=True, slots=True)
class SpikeEnded:
    """Step times are back at their baseline; `last` is the diagnosis that stood."""

    subject: str
    onset_ns: int
    ended_ns: int
    last: Diagnosis | None


Finding = SpikeBegan | Diagnosis | SpikeEnded
"""What is found stays with the host: of an incident, its cause alone is reported."""


SECTION: Final = "incidents"

SETTLE_NS: Final = 60_000_000_000
"""A spike that lasts is counted this long after it became an incident: a host that goes down during
a fault would otherwise never have reported it, and causes are known within seconds."""

MAX_OPEN: Final = 256
"""Spikes that are followed at once; subjects of a host are far fewer."""


@dataclass(slots=True)
class WeeklyIncidents:
    """Counts each spike once, by the cause that stands when it ends or has lasted for a minute.

    A later diagnosis of a spike replaces the one before, so that one spike never fills two cells;
    one that is no incident any more takes it out again. Times are CLOCK_BOOTTIME, ns.
    """

    _open: dict[tuple[str, int], tuple[int, Diagnosis]] = field(default_factory=dict)
    _counted: dict[tuple[str, int], None] = field(default_factory=dict)

    def take(self, findings: Iterable[Finding], now_ns: int) -> list[Observation]:
        found: list[Observation] = []
        for finding in findings:
            if isinstance(finding, Diagnosis):
                self._stand(finding)
            elif isinstance(finding, SpikeEnded):
                found += self._end(finding)
        due = [key for key, (since_ns, _) in self._open.items() if now_ns - since_ns >= SETTLE_NS]
        return found + [observation for key in due for observation in self._count(key)]

    def flush(self) -> list[Observation]:
        """Count what stands: the agent stops, or the week is about to be sealed."""
        return [observation for key in list(self._open) for observation in self._count(key)]

    def _stand(self, diagnosis: Diagnosis) -> None:
        key = (diagnosis.subject, diagnosis.onset_ns)
        if key in self._counted:
            return
        known = self._open.pop(key, None)
        if diagnosis.incident and len(self._open) < MAX_OPEN:
            self._open[key] = diagnosis.at_ns if known is None else known[0], diagnosis

    def _end(self, ended: SpikeEnded) -> list[Observation]:
        if ended.last is not None:
            self._stand(ended.last)
        key = (ended.subject, ended.onset_ns)
        counted = self._count(key)
        self._counted.pop(key, None)
        return counted

    def _count(self, key: tuple[str, int]) -> list[Observation]:
        incident = self._open.pop(key, None)
        if incident is None:
            return []
        self._counted[key] = None
        if len(self._counted) > MAX_OPEN:
            del self._counted[next(iter(self._counted))]
        _, standing = incident
        return [Observation(SECTION, standing.cause.value, 1, standing.at_ns)]
