"""What diagnosis finds: spikes and their causes, each with evidence for a person."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from collectors.records.activity import StepSource


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
    """Step times over some seconds, in milliseconds."""

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
    """The tail of a subject's step times has left its baseline.

    onset_ns   the long step from which on the steps are likeliest to have changed; at_ns: when
               this was known
    """

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
