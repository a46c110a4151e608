"""What a host knows, in words: findings, how kernels are timed, values with the units people read.
A signal is a sentence: "its threads waited 4.2 s/s for a CPU, usually 80 ms/s".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from collectors.records.activity import StepSource
from collectors.records.gpu_calls import Unnamed
from collectors.records.gpu_time import TimingState
from diagnosis.detect.findings import (
    Cause,
    Diagnosis,
    Evidence,
    Finding,
    SpikeBegan,
    SpikeEnded,
    StepTimes,
)
from diagnosis.frames.signals import SIGNALS

_LADDERS: Final[dict[str, tuple[tuple[float, str], ...]]] = {
    "ms/s": ((1e3, " s/s"), (1.0, " ms/s")),
    "ms": ((1e3, " s"), (1.0, " ms")),
    "µs": ((1e6, " s"), (1e3, " ms"), (1.0, " µs")),
    "bytes/s": ((1e9, " GB/s"), (1e6, " MB/s"), (1e3, " kB/s"), (1.0, " B/s")),
    "bytes": ((1e9, " GB"), (1e6, " MB"), (1e3, " kB"), (1.0, " B")),
    "1/s": ((1.0, "/s"),),
    "": ((1.0, ""),),
}
"""Units by the value from which each is used, the largest first. Decimal: 1 MB is 10^6 bytes."""
_WHOLE_FROM: Final = 100.0
_READ_AS: Final[dict[str, tuple[float, str]]] = {
    "ns/s": (1e6, "ms/s"), "us/s": (1e3, "ms/s"), "ns": (1e6, "ms"), "us": (1.0, "µs"),
    "/s": (1.0, "1/s"), "millionths": (1e4, "%"), "millionths of full scale": (1e4, "%"),
    "GPU-ms": (1e3, "GPU-s"),
}  # fmt: skip
"""Units that records have and people do not: what a value is divided by, and the unit of that."""


def read_as(unit: str) -> tuple[float, str]:
    """Give what a value is divided by to be read, and the unit that it then has."""
    return _READ_AS.get(unit, (1.0, unit))


def quantity(value: float, unit: str) -> str:
    """Say a value in the fitting unit of its ladder, with three digits."""
    for least, name in _LADDERS.get(unit, ((1.0, f" {unit}"),)):
        if abs(value) >= least:
            return f"{number(value / least)}{name}"
    least, name = _LADDERS.get(unit, ((1.0, f" {unit}"),))[-1]
    return f"{number(value / least)}{name}"


def number(value: float) -> str:
    """Say a number with three digits at least; whole from 100, and never as a power of ten."""
    if not math.isfinite(value):
        return "?"
    if abs(value) >= _WHOLE_FROM:
        return f"{value:,.0f}"
    if value == 0 or abs(value) < 0.005:  # less than the last digit that is shown
        return "0"
    digits = 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}".rstrip("0").rstrip(".")


def counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


_WHOSE: Final = {
    "own": "its", "host": "the host's", "other": "other groups'", "gpu": "its GPU's",
}  # fmt: skip

CAUSES: Final = {
    Cause.CPU_CONTENTION: "others wanted the CPUs",
    Cause.CGROUP_THROTTLING: "its CPU quota ran out",
    Cause.MEMORY_PRESSURE: "memory ran short and was reclaimed",
    Cause.DISK_IO: "the disk was busy",
    Cause.NIC_CROSS_TRAFFIC: "other traffic on the network card",
    Cause.NIC_LIMIT_OR_LOSS: "the network was limited or lost packets",
    Cause.PCIE_PRESSURE: "the PCIe link was busy",
    Cause.GPU_THERMAL_OR_POWER_LIMIT: "the GPU was held back by heat or power",
    Cause.GPU_HARDWARE_FAULT: "the GPU reported a hardware fault",
    Cause.GPU_SHARED: "another process used the GPU",
    Cause.COMMUNICATION_WAIT: "it waited for a peer that was slow",
    Cause.INPUT_STARVATION: "its input came too slowly",
    Cause.UNKNOWN: "like no cause that is known",
}

ADVICE: Final = {
    Cause.CPU_CONTENTION: "give the other group less (cpuset, cpu.weight), or move it away",
    Cause.CGROUP_THROTTLING: "raise the group's CPU quota (cpu.max, a pod's CPU limit), or start "
    "fewer threads",
    Cause.MEMORY_PRESSURE: "look at memory.max, memory.high and who grows (memory.current); give "
    "it more memory or move the other",
    Cause.DISK_IO: "see who writes (io.stat); give it io.max, or move the data to another disk",
    Cause.NIC_CROSS_TRAFFIC: "shape or move the other traffic, or give the job a card of its own",
    Cause.NIC_LIMIT_OR_LOSS: "look at the link's rate, drops and errors (ethtool -S, tc -s qdisc), "
    "at cables and at the switch's port",
    Cause.PCIE_PRESSURE: "see which copies share the link, and its width and generation "
    "(nvidia-smi topo -m, nvidia-smi -q -d PCIE)",
    Cause.GPU_THERMAL_OR_POWER_LIMIT: "look at fans, inlet air and the power limit "
    "(nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE)",
    Cause.GPU_HARDWARE_FAULT: "take the host out of service and run the vendor's diagnosis; "
    "`pointillist agent health` has the row",
    Cause.GPU_SHARED: "see who else is on the GPU (nvidia-smi, `pointillist agent top`), and give "
    "each job its own",
    Cause.COMMUNICATION_WAIT: "look at the other ranks of the job: `pointillist stragglers` names "
    "the slow one",
    Cause.INPUT_STARVATION: "look at the data loader and the store it reads: more workers, "
    "prefetching, a local copy",
    Cause.UNKNOWN: "look at the job's own log around this time; `pointillist diagnosis groups` "
    "puts like ones together",
}
"""What to look at next: one line for each cause."""

_DONE_BY_OTHERS: Final = frozenset(
    {Cause.CPU_CONTENTION, Cause.MEMORY_PRESSURE, Cause.DISK_IO, Cause.NIC_CROSS_TRAFFIC}
)
"""Causes that another group on the host brings about: who it was comes first."""

_TWINS: Final = (
    frozenset({"worst_disk_ms_per_s", "block_ms_per_s"}),
    frozenset({"throttled_ms_per_s", "throttled_delay_ms_per_s"}),
    frozenset({"retransmits_per_s", "worst_peer_retransmits_per_s"}),
    frozenset({"irqs_per_s", "busiest_cpu_irqs_per_s"}),
    frozenset({"block_reads_per_s", "block_waits_per_s", "block_ios_per_s"}),
)
"""Signals that say the same but for where there are several disks, CPUs or peers."""


def sentence(scope: str, signal: str, value: str) -> str:
    """Say one signal; one of a later version that has no sentence is said by its name."""
    whose = _WHOSE.get(scope, "the")
    if signal not in SIGNALS:
        return f"{whose} {signal} was {value}"
    return SIGNALS[signal].said.format(whose=whose, value=value)


def title(scope: str, signal: str) -> str:
    """Say a signal without a value, as above a plot: "its threads waited ... for a CPU"."""
    return sentence(scope, signal, "…")


def said(finding: Finding) -> str:
    """Say one finding in one line, without its subject and time."""
    match finding:
        case SpikeBegan():
            return spike_said(finding)
        case SpikeEnded():
            return ended_said(finding)
        case Diagnosis():
            why = f": {evidence_said(finding.evidence[0])}" if finding.evidence else ""
            return f"{diagnosis_said(finding)}{why}"


def spike_said(spike: SpikeBegan) -> str:
    """Say how far the steps are from usual, and where steps are guessed, that they are."""
    guessed = " (steps guessed from its rhythm)" if spike.source is StepSource.RHYTHM else ""
    return f"spike: {steps_said(spike.before, spike.now)}{guessed}"


def ended_said(spike: SpikeEnded) -> str:
    lasted = max(0, spike.ended_ns - spike.onset_ns) / 1e9
    last = spike.last.cause.value if spike.last else "no cause was found"
    return f"over after {lasted:.0f} s: {last}"


def diagnosis_said(diagnosis: Diagnosis) -> str:
    group = f" ({diagnosis.group})" if diagnosis.group else ""
    marks = ", incident" if diagnosis.incident else ""
    who = interferer(diagnosis)
    by = f", by {who}" if who else ""
    sure = f"{100 * diagnosis.confidence:.0f} %{marks}"
    return f"{diagnosis.cause.value}{group} {sure}: {CAUSES[diagnosis.cause]}{by}"


def unknown_said(diagnosis: Diagnosis) -> str:
    """Say what `unknown` means; "" for a cause that is known."""
    if diagnosis.cause is not Cause.UNKNOWN:
        return ""
    moved = "what moved all the same:" if diagnosis.evidence else "no signal moved"
    return f"{100 * diagnosis.confidence:.0f} % sure that it is none of the known causes; {moved}"


def interferer(diagnosis: Diagnosis) -> str:
    """Name the group that brought a spike about, where the cause is the doing of another."""
    if diagnosis.cause not in _DONE_BY_OTHERS:
        return ""
    return next((evidence.who for evidence in diagnosis.evidence if evidence.who), "")


def evidence_said(evidence: Evidence, known: Sequence[str] = ()) -> str:
    """Say a signal: its value, the usual one, what came first, and who unless `known`."""
    text = sentence(evidence.scope, evidence.signal, quantity(evidence.value, evidence.unit))
    usual = quantity(evidence.baseline, evidence.unit) if evidence.baseline else "none"
    text += f", usually {usual}"
    if evidence.lag_ms is not None and evidence.lag_ms > 0:
        text += f", from {quantity(evidence.lag_ms, 'ms')} before the first slow step"
    return f"{text}, most by {evidence.who}" if evidence.who and evidence.who not in known else text


def most_telling(found: Sequence[Evidence], most: int) -> list[Evidence]:
    """Choose the first signals, of those that say the same thing the first alone."""
    kept: list[Evidence] = []
    for evidence in found:
        pair = next((twins for twins in _TWINS if evidence.signal in twins), frozenset())
        if not any(other.signal in pair and other.scope == evidence.scope for other in kept):
            kept.append(evidence)
    return kept[:most]


def evidence_in_full(evidence: Evidence) -> str:
    """Give one signal's name and figures as they are in JSON, for `--verbose`."""
    lag = "" if evidence.lag_ms is None else f", lag {evidence.lag_ms:g} ms"
    scope = f"{evidence.scope}." if evidence.scope else ""
    usual = f"usual {evidence.baseline:.6g} ± {evidence.spread:.3g} {evidence.unit}".rstrip()
    return f"{scope}{evidence.signal} {evidence.value:.6g}, {usual}{lag}"


def steps_said(before: StepTimes, now: StepTimes) -> str:
    """Say how step times changed; where no step ended there are none to tell."""
    if not now.steps:
        return f"no step ends any more (usually p50 {_ms(before.p50_ms)}, p99 {_ms(before.p99_ms)})"
    return (
        f"step p50 {_ms(before.p50_ms)} → {_ms(now.p50_ms)}, "
        f"p99 {_ms(before.p99_ms)} → {_ms(now.p99_ms)}"
    )


def _ms(value: float) -> str:
    return quantity(value, "ms")


SAID: Final[Mapping[TimingState, str]] = {
    TimingState.MEASURED: "measured",
    TimingState.STARTING: "no window yet",
    TimingState.OCCUPIED: "another profiler has CUPTI",
    TimingState.REFUSED: "CUPTI refused",
    TimingState.NO_LIBRARY: "the library is not loaded",
    TimingState.SILENT: "the library is loaded and does not reach this agent",
    TimingState.UNKNOWN: "does not report",
}
TIMING_ADVICE: Final[Mapping[TimingState, str]] = {
    TimingState.OCCUPIED: "nothing: it is timed again once the other profiler has left",
    TimingState.REFUSED: "look the code up in CUPTI's results; another CUPTI may do "
    "(POINTILLIST_CUPTI)",
    TimingState.NO_LIBRARY: "start it with what `pointillist agent attach` prints",
    TimingState.SILENT: "check that it may reach the agent's socket, and POINTILLIST_AGENT_UID",
    TimingState.UNKNOWN: "start it with what `pointillist agent attach` prints",
}
_TOOLKITS: Final = {
    18: "11.8", 19: "12.0", 20: "12.2", 21: "12.3", 22: "12.4", 23: "12.5", 24: "12.6",
    26: "12.8", 27: "12.9", 28: "12.9",
}  # fmt: skip
"""Of a CUPTI that numbers its versions from 1; from CUDA 13.0 the number says it."""
_NUMBERED_BY_TOOLKIT: Final = 130_000


UNNAMED_SAID: Final[dict[str, str]] = {
    Unnamed.READING: "their file is being read",
    Unnamed.HANDLE: "their handles were made before the agent came",
    Unnamed.FILE: "their file gives no name that can be read",
    Unnamed.PROCESS: "their process had ended",
    Unnamed.ROOM: "there was no room for more kernels",
}


def unnamed_said(shares: Mapping[str, float]) -> str:
    """Say which launches had no kernel name and why, by shares of all; "" where all had one."""
    parts = [
        f"{number(100 * share)} % as {UNNAMED_SAID.get(why, why)}"
        for why, share in sorted(shares.items(), key=lambda one: -one[1])
        if share > 0.0
    ]
    return f"without a kernel name: {', '.join(parts)}" if parts else ""


def timing_said(state: TimingState, error: int = 0) -> str:
    """Say why a process is not measured, with CUPTI's code where it refused."""
    refused = state is TimingState.REFUSED and error
    return f"{SAID[state]}, code {error}" if refused else SAID[state]


def cupti_name(version: int) -> str:
    """Name a CUPTI by the CUDA toolkit it comes with; "" for none."""
    if version >= _NUMBERED_BY_TOOLKIT:
        return f"{version // 10_000}.{version // 100 % 100}"
    return _TOOLKITS.get(version, f"API {version}" if version else "")
