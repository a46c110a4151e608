"""Findings in words: what a person reads in `agent top`, in the journal and on a plot."""

from __future__ import annotations

from typing import Final

from edge_agent.diagnosis.findings import (
    Cause,
    Diagnosis,
    Evidence,
    Finding,
    SpikeBegan,
    SpikeEnded,
    StepTimes,
    Warned,
)

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
    Cause.UNKNOWN: "nothing that is known",
}

_WHOSE: Final = {"own": "its", "host": "the host's", "other": "others'", "gpu": "its GPU's"}


def said(finding: Finding) -> str:
    """Say one finding in one line, without its subject and time."""
    if isinstance(finding, Warned):
        due = finding.expected_in_s
        when = f", a spike in about {due:.0f} s" if due is not None else ""
        return f"early warning{when}: {'; '.join(map(evidence_said, finding.evidence[:2]))}"
    if isinstance(finding, SpikeBegan):
        return f"spike: {steps_said(finding.before, finding.now)}"
    if isinstance(finding, SpikeEnded):
        lasted = max(0, finding.ended_ns - finding.onset_ns) / 1e9
        last = f", {finding.last.cause.value}" if finding.last else ", no cause was found"
        return f"over after {lasted:.0f} s{last}"
    return diagnosis_said(finding)


def diagnosis_said(one: Diagnosis) -> str:
    """Say a cause, how sure it is, and the strongest evidence."""
    group = f" ({one.group})" if one.group else ""
    head = f"{one.cause.value}{group} {100 * one.confidence:.0f} %"
    marks = ", incident" if one.incident else ""
    why = f": {evidence_said(one.evidence[0])}" if one.evidence else ""
    return f"{head}{marks}{why}"


def evidence_said(one: Evidence) -> str:
    """Say one signal: its value, its usual one, whose doing it was."""
    unit = f" {one.unit}" if one.unit else ""
    usual = f"usually {one.baseline:,.4g} ± {one.spread:,.2g}"
    text = f"{signal_said(one.scope, one.signal)} {one.value:,.4g}{unit}, {usual}"
    if one.lag_ms is not None:
        ahead = "before" if one.lag_ms >= 0 else "after"
        text += f", moved {abs(one.lag_ms):.0f} ms {ahead} the spike"
    return f"{text}, by {one.who}" if one.who else text


def signal_said(scope: str, signal: str) -> str:
    """Say whose signal it is."""
    return f"{_WHOSE[scope]} {signal}" if scope in _WHOSE else signal


def steps_said(before: StepTimes, now: StepTimes) -> str:
    """Say how step times changed."""
    return (
        f"step p50 {before.p50_ms:.3g} → {now.p50_ms:.3g} ms, "
        f"p99 {before.p99_ms:.3g} → {now.p99_ms:.3g} ms"
    )
