"""What signed tasks ask and no source measures: said, with what is an exception and what is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collectors.gpu_calls.gpu_probes import ProbesSection
from collectors.gpu_time.gpu_time_source import GpuTimeSection
from collectors.interface import UnavailableSource
from edge_agent.config import (
    AgentConfig,
    DiagnosisSection,
    HostSection,
    SourcesSection,
    TrustSection,
)
from edge_agent.open_agent import task_rules
from edge_agent.sending.outbox import tasks_on
from edge_agent.service.doctor_sources import measured_findings
from edge_agent.unmeasured import Unmeasured, clipped, unmeasured
from edge_agent.windows.measured_by import MEASURED_BY
from tests.agent_live import surroundings
from tests.agent_world import T0
from tests.window_kit import CATALOGUE, task_of
from transport.factory import TransportTable
from transport.process.doctor_checks import CheckVerdict, Finding
from wire.catalogue import Section

EVERYTHING = ("host", "devices", "faults", "ebpf", "probes", "gpu_time", "diagnosis")
GPUS = ("H100",)


def config(gpus: tuple[str, ...] = GPUS, **sources: object) -> AgentConfig:
    diagnosis = DiagnosisSection(bool(sources.pop("diagnosis", True)))
    changed = replace(SourcesSection(ebpf=True), **sources)  # type: ignore[arg-type]
    return AgentConfig(
        HostSection(Path("key"), Path("state"), gpus),
        TransportTable(Path("log")),
        TrustSection(frozenset({bytes(32)}), frozenset({bytes([1] * 32)})),
        sources=changed,
        diagnosis=diagnosis,
    )


def gaps(
    made: AgentConfig, *running: str, sections: tuple[str, ...] = tuple(MEASURED_BY),
    absent: tuple[UnavailableSource, ...] = (), has_gpus: bool = True,
) -> dict[str, Unmeasured]:  # fmt: skip
    found = unmeasured(
        task_of(sections), made, running, absent, has_gpus=has_gpus, catalogue=CATALOGUE
    )
    return {gap.section: gap for gap in found}


def test_every_section_of_the_catalogue_has_sources() -> None:
    sections: list[Section] = list(CATALOGUE.sections)
    assert {section.name for section in sections} == set(MEASURED_BY)
    known = {*EVERYTHING, "replay"}
    assert {source for names in MEASURED_BY.values() for source in names} <= known
    assert gaps(config(), *EVERYTHING) == {}


@pytest.mark.parametrize("source", ["host", "devices", "probes", "diagnosis"])
def test_section_without_its_source_is_told(source: str) -> None:
    running = [name for name in EVERYTHING if name != source]
    absent = (UnavailableSource(source, "no right to"),)
    found = gaps(config(), *running, absent=absent)
    alone = {section for section, names in MEASURED_BY.items() if names == (source,)}
    assert set(found) == alone
    assert all(
        f"{source}: no right to" in gap.reason and not gap.expected for gap in found.values()
    )


def test_what_a_new_configuration_leaves_off_is_no_fault() -> None:
    """Diagnosis, and the GPU-time library; all else that is off is."""
    off = config(diagnosis=False, gpu_time=GpuTimeSection(enabled=False))
    running = [name for name in EVERYTHING if name not in {"diagnosis", "gpu_time"}]
    found = gaps(off, *running)
    assert {name: (gap.said, gap.expected) for name, gap in found.items()} == {
        "incidents": ("reported as unmeasured: diagnosis off", True),
        "kernel_duration": ("reported as zero: sources.gpu_time off", True),
    }
    blind = config(gpu_time=GpuTimeSection(enabled=False), probes=ProbesSection(enabled=False))
    found = gaps(blind, "host", "devices", sections=("kernel_mix", "copies", "host_cpu"))
    assert {name: (gap.said, gap.expected) for name, gap in found.items()} == {
        "kernel_mix": ("reported as unmeasured: sources.probes and sources.gpu_time off", False),
        "copies": ("reported as unmeasured: sources.probes off", False),
    }


def test_machine_without_gpus_is_no_fault_and_one_that_names_none_is() -> None:
    asked = ("kernel_mix", "gpu_power", "host_cpu", "hardware_faults")
    none = gaps(config(()), "host", "faults", "probes", sections=asked, has_gpus=False)
    assert {name: gap.expected for name, gap in none.items()} == {
        "kernel_mix": True, "gpu_power": True,
    }  # fmt: skip
    assert none["kernel_mix"].said == "reported as zero: this host has no GPU"
    unnamed = gaps(config(()), "host", "faults", "probes", "devices", sections=asked)
    assert not any(gap.expected for gap in unnamed.values())
    assert "names none of this host's GPUs" in unnamed["gpu_power"].reason


def test_replay_measures_kernels_and_nothing_of_the_driver() -> None:
    found = gaps(config(), "replay-0", sections=("kernel_mix", "kernel_duration", "gpu_power"))
    assert set(found) == {"gpu_power"}


def test_doctor_holds_the_tasks_on_the_log_against_the_sources(tmp_path: Path) -> None:
    made = surroundings(tmp_path)
    with made.log() as log:
        assert tasks_on(log, task_rules(made.config, CATALOGUE), T0) == [], "no task of a trial"
        tasks = tasks_on(log, task_rules(made.config, CATALOGUE, "demo"), T0)
    assert [task.series for task in tasks] == ["demo"]
    sources = [
        Finding("sources", "host", CheckVerdict.OK, "can be collected"),
        Finding("sources", "probes", CheckVerdict.ABSENT, "expected CAP_BPF"),
    ]

    def verdicts(made: AgentConfig, sources: list[Finding]) -> list[tuple[str, str]]:
        found = measured_findings(made, tasks, sources, has_gpus=True, catalogue=CATALOGUE)
        return [(finding.verdict.value, finding.found) for finding in found]

    assert verdicts(config(), sources) == [
        ("unmeasured", "kernel_mix reported as unmeasured: probes: expected CAP_BPF")
    ]
    sources[1] = Finding("sources", "probes", CheckVerdict.OK, "can be collected")
    assert verdicts(config(), sources) == [("ok", "all 2 sections, of the GPUs of host.gpus")]


def test_host_of_more_gpus_than_a_task_is_for_is_told() -> None:
    """It serves the task, scaled down: a share of its time would else stand for all of it."""
    task = task_of(("kernel_mix", "host_cpu"))
    assert clipped(task, config(("H100",) * 8), CATALOGUE) is None
    said = clipped(task, config(("H100",) * 9), CATALOGUE)
    assert said is not None
    assert "8 GPUs at most: the time of this one's 9" in said
    assert clipped(task_of(("host_cpu",)), config(("H100",) * 9), CATALOGUE) is None
