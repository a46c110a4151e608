"""What this host can collect, what it cannot, and the one thing to do about each.

What a check claims it tries: programs are loaded and let go, nothing stays attached or changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from collectors.gpu_calls.programs import ADVICE as PROBES_ADVICE
from collectors.port import (
    Absence,
    ReportsAbsences,
    Source,
    SourceRegistry,
    SourceUnavailable,
    TriesOut,
)
from edge_agent.config import AUTO, AgentConfig
from edge_agent.host_diagnosis import NAME as DIAGNOSIS
from edge_agent.host_diagnosis import DiagnosisSettings, diagnosis_settings
from edge_agent.unmeasured import by_reason, unmeasured
from transport.process import doctor_findings
from transport.process.doctor_findings import LONGEST, Check, CheckVerdict, Finding
from transport.process.printable import printable
from wire.catalogue import Catalogue
from wire.task import Task

MEASURED: Final = "measured"
"""The group of what signed tasks ask for."""
_OTHER_KERNEL: Final = "report this line; docs/gpu-probes.md names the kernels that were tried"
_RULES: Final[tuple[tuple[str, str, str], ...]] = (
    # source begins with, reason contains, what to do: the first that fits
    ("ebpf", "refuses", _OTHER_KERNEL),
    ("steps", "refuses", _OTHER_KERNEL),
    ("probes", "refuses", _OTHER_KERNEL),
    ("ebpf", "libbpf", "install libbpf 1.1 or later (Debian, Ubuntu: libbpf1)"),
    ("ebpf", "btf", "use a kernel with CONFIG_DEBUG_INFO_BTF, or install python3-bpfcc"),
    ("ebpf", "", "start the agent as root or by its systemd unit; it needs Linux 5.11 or later"),
    ("pressure", "", "boot with psi=1, or use a kernel with CONFIG_PSI"),
    ("rdma", "", "nothing, unless this host has RDMA ports: then load their driver"),
    ("devices", "permi", "let the agent's user open /dev/nvidia*"),
    ("devices", "", "nothing, unless this host has GPUs: then install NVIDIA's driver or amdgpu"),
    ("faults", "", "start the agent as root or by its systemd unit: CAP_SYSLOG reads /dev/kmsg"),
    ("probes", "uprobe_multi", PROBES_ADVICE),
    ("probes", "btf", PROBES_ADVICE),
    ("probes", "libbpf", "install libbpf 1.1 or later (Debian, Ubuntu: libbpf1)"),
    ("probes", "table", "correct the table that sources.probes.tables names"),
    ("probes", "", "start the agent as root or by its systemd unit"),
    ("gpu_time", "", "start the agent by its systemd unit, which makes the socket's folder"),
    ("steps", "", "start the agent as root or by its systemd unit; it needs Linux 6.6 with BTF"),
    ("replay", "", "set the path of [[sources.replay]] to a readable trace"),
    ("host", "", "mount /proc where the agent runs"),
)
OFF: Final[Mapping[str, str]] = {
    "host": "CPU, memory, disk and network of this host",
    "ebpf": "kernel-level metrics at 100 Hz",
    "gpus": "utilisation, memory, power and temperature of GPUs",
    "faults": "hardware faults",
    "probes": "GPU calls of all processes",
    "gpu_time": "how long GPU kernels ran",
}
"""Switches in [sources] and what is not collected while they are off."""


def source_advice(name: str, reason: str) -> str:
    """Give the one thing to do about an absent source."""
    found = reason.lower()
    for prefix, word, advice in _RULES:
        if name.startswith(prefix) and word in found:
            return advice
    return "see docs/sources.md for what this source needs"


def examine(checks: Iterable[tuple[str, str, Check]]) -> Iterator[Finding]:
    """Run checks of (group, name); one that fails itself, as sources may, is a finding."""
    return doctor_findings.examine(checks, SourceUnavailable)


def source_findings(registry: SourceRegistry, config: AgentConfig) -> Iterator[Finding]:
    """Ask every registered source whether it can run here, and name those switched off."""
    registered = list(registry)
    yield from examine(
        ("sources", name, source_check(name, partial(registry.make, name))) for name in registered
    )
    settings = diagnosis_settings(config, keep=False)
    if settings is not None:
        yield from examine([("sources", DIAGNOSIS, _diagnosis_check(settings))])
    for switch, off in OFF.items():
        section = getattr(config.sources, switch, None)
        if switch not in registered and getattr(section, "enabled", section) is False:
            name = switch if section is False else f"{switch}.enabled"
            advice = f"sources.{name} = true in the configuration"
            yield Finding("sources", switch, CheckVerdict.ABSENT, f"switched off: {off}", advice)


def measured_findings(
    config: AgentConfig,
    tasks: Iterable[Task],
    sources: Iterable[Finding],
    *,
    has_gpus: bool,
    catalogue: Catalogue,
) -> Iterator[Finding]:
    """Hold what signed tasks ask for against what can be measured here.

    sources     findings of `source_findings`
    has_gpus    whether this machine has any, named or not
    """
    known = [finding for finding in sources if finding.group == "sources"]
    running = [finding.name for finding in known if finding.verdict is CheckVerdict.OK]
    absent = [Absence(f.name, f.found) for f in known if f.verdict is not CheckVerdict.OK]
    bound = "the drivers' GPUs" if config.host.gpus == AUTO else "the GPUs of host.gpus"
    any_task = False
    for task in sorted(tasks, key=lambda one: one.series):
        any_task = True
        found = unmeasured(task, config, running, absent, has_gpus=has_gpus, catalogue=catalogue)
        for said, gaps in by_reason(found).items():
            names = ", ".join(gap.section for gap in gaps)
            expected = all(gap.expected for gap in gaps)
            verdict = CheckVerdict.ABSENT if expected else CheckVerdict.UNMEASURED
            advice = "nothing: it is as it should be" if expected else _MEASURE
            yield Finding(MEASURED, task.series, verdict, f"{names} {said}", advice)
        if not found:
            line = f"all {len(task.sections)} sections, of {bound}"
            yield Finding(MEASURED, task.series, CheckVerdict.OK, line)
    if not any_task:
        line = "no signed task is on the log: nothing is asked so far"
        yield Finding(MEASURED, "tasks", CheckVerdict.OK, line)


_MEASURE: Final = "put the source above right, or switch it on in agent.toml: docs/sources.md"


def source_check(name: str, make: Callable[[], Source]) -> Check:
    """Give the check that tries to start a source, as far as that touches nobody else."""

    def check() -> Finding:
        source = make()
        try:
            reason = source.probe()
            lacks = () if reason is not None else _tried(source)
        except SourceUnavailable as error:
            reason, lacks = str(error), ()
        finally:
            source.stop()
        if reason is not None:
            return _absent(name, reason)
        without = "; ".join(f"{part.source}: {part.reason}" for part in lacks)
        found = f"can be collected, without {without}" if without else "can be collected"
        return Finding("sources", name, CheckVerdict.OK, printable(found)[:LONGEST])

    return check


def _tried(source: Source) -> Sequence[Absence]:
    """Try a source that can start, and give what it lacks. Raises SourceUnavailable."""
    if isinstance(source, TriesOut):
        return source.try_out()
    source.start()
    return source.absent if isinstance(source, ReportsAbsences) else ()


def _absent(name: str, reason: str) -> Finding:
    found, advice = printable(reason)[:LONGEST], source_advice(name, reason)
    return Finding("sources", name, CheckVerdict.ABSENT, found, advice)


def _diagnosis_check(settings: DiagnosisSettings) -> Check:
    def check() -> Finding:
        made = settings.start()
        if isinstance(made, Absence):
            return _absent(DIAGNOSIS, made.reason)
        made.close()
        return Finding("sources", DIAGNOSIS, CheckVerdict.OK, "can be collected")

    return check
