"""`pointillist agent doctor`: what keeps the agent from its work, and what to do about it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Final

import typer

from collectors.ebpf.ebpf_source import EbpfSource
from collectors.interface import SourceUnavailable
from edge_agent.bound_gpus import listed_gpus
from edge_agent.config import AgentConfig
from edge_agent.sending.outbox import tasks_on
from transport.clock_check import clock_beside_log
from transport.factory import Side, open_transport
from transport.interface import TransportUnavailable, UnknownTopic
from transport.kafka.kafka_frame import KafkaSettings, KafkaSettingsError
from transport.process.doctor_checks import (
    CLOCK,
    LONGEST,
    CheckVerdict,
    Finding,
    broken,
    examine,
    way_out,
)
from transport.process.printable import printable
from transport.process.privileges import way_in
from wire.catalogue import Catalogue
from wire.topics import EPOCHS, RELEASES, REPORTS

from . import agent_file
from .agent_file import DEFAULT_CONFIG, AgentConfigOption
from .output import JsonFlag, examples, say
from .party import look_as, tell_findings

AGENT_EPILOG: Final = examples("""
pointillist agent doctor
pointillist agent doctor --json | jq '.findings[] | select(.verdict != "ok")'""")
app = typer.Typer()


@app.command("doctor", epilog=AGENT_EPILOG)
def agent_doctor(config: AgentConfigOption = None, json: JsonFlag = False) -> None:
    """Say what can be collected here, what cannot, and the one thing to do about each.

    What it claims it tries: programs are loaded into the kernel and let go; nothing stays attached
    or changed. Started as root it looks with the eyes of the agent's user, and with the
    capabilities that `agent run` keeps. Exit code 1 when something keeps the agent from running,
    and when a signed task asks for what nothing here measures. What is merely absent is no failure:
    a host without GPUs, diagnosis or GPU time switched off.
    """
    from collectors.bpf.perf_events import begin_opener
    from edge_agent.service.doctor import ThisMachine, host_gpus
    from edge_agent.service.doctor_sources import CallProbes, GpuTime, fault_checks, source_check

    from .agent_top import warm_up

    warm_up()  # while this process can still reach all of its libraries
    root = os.geteuid() == 0
    there = config is not None or DEFAULT_CONFIG.exists()
    loaded = agent_file.load_file(config or DEFAULT_CONFIG) if there else None
    if loaded is not None:
        if root and "CAP_PERFMON" in loaded.sources.capabilities:
            begin_opener()  # as the agent does
        look_as(loaded.host.user, loaded.sources.capabilities)
    catalogue = Catalogue.load()
    listed = listed_gpus(catalogue.classes("gpu_model"))
    machine = ThisMachine(
        wanted=None if loaded is None else loaded.sources.capabilities, started_by_root=root
    )
    gpus = host_gpus(listed, None if loaded is None else loaded.host)
    findings = [*examine(machine, CLOCK, gpus)]
    if loaded is None:
        ebpf = source_check(EbpfSource.name, EbpfSource)
        sources = (ebpf, *fault_checks(), CallProbes(), GpuTime())
        findings += examine(*sources, failures=[SourceUnavailable])
        say(
            f"no configuration at {DEFAULT_CONFIG}: looked at the machine alone; --config names one"
        )
    else:
        findings += _of_agent(loaded, catalogue, root)
        has_gpus = not isinstance(listed, str) or bool(loaded.host.models)
        findings += _of_log(loaded, catalogue, findings, has_gpus)
    tell_findings(findings, json, "the agent cannot run")


def _of_agent(config: AgentConfig, catalogue: Catalogue, root: bool) -> Iterator[Finding]:
    from edge_agent.open_agent import sources_of
    from edge_agent.service.doctor import AgentState
    from edge_agent.service.doctor_sources import (
        CallProbes,
        GpuTime,
        KernelNames,
        fault_checks,
        load_probes,
        source_findings,
    )

    yield from source_findings(sources_of(config, catalogue), config)
    sources = config.sources
    subjects: list[object] = [*fault_checks()] if sources.faults else []
    if sources.probes.enabled:
        subjects.append(CallProbes(load=lambda: load_probes(sources.loader)))
        subjects.append(KernelNames(config.history_file))
    if sources.gpu_time.enabled:
        subjects.append(GpuTime(sources.gpu_time.socket))
    subjects += [AgentState(config, started_by_root=root), way_out(config.transport)]
    yield from examine(*subjects, failures=[SourceUnavailable])


def _of_log(
    config: AgentConfig, catalogue: Catalogue, findings: list[Finding], has_gpus: bool
) -> Iterator[Finding]:
    """Read the log as the agent does, and look at what it asks of this host; ask for its rights."""
    from edge_agent.open_agent import task_rules
    from edge_agent.service.doctor_sources import measured_findings

    if any(f.group == "transport" and f.verdict is CheckVerdict.BROKEN for f in findings):
        return
    settings = config.transport.settings
    if isinstance(settings, KafkaSettings):
        from transport.kafka.kafka_agent import AgentKafka
        from transport.kafka.kafka_roles import KafkaRole, rights_told

        rights = rights_told(AgentKafka, settings, KafkaRole.AGENT)
        yield Finding("transport", "rights", *rights)
        if rights.verdict is CheckVerdict.BROKEN:
            return
    try:
        with open_transport(settings, Side.AGENT) as log:
            clock = clock_beside_log(log, (EPOCHS, REPORTS, RELEASES), time.time())
            yield Finding("transport", "log's clock", *clock)
            tasks = tasks_on(log, task_rules(config, catalogue), int(time.time()))
    except UnknownTopic:
        tasks = []
    except (TransportUnavailable, KafkaSettingsError) as error:
        do = way_in(error) or "the agent reads it by the same user: see what keeps it out"
        yield Finding("transport", "read", *broken(printable(str(error))[:LONGEST], do))
        return
    yield from measured_findings(config, tasks, findings, has_gpus=has_gpus, catalogue=catalogue)
