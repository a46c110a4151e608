"""`pointillist agent doctor`: what can be collected here, and what to do about the rest."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from . import agent_file
from .agent_file import DEFAULT_CONFIG
from .findings_table import show_findings
from .output import CommandError, ExitCode, JsonFlag, emit, say

if TYPE_CHECKING:
    from edge_agent.config import AgentConfig
    from transport.process.doctor_findings import Finding
    from wire.catalogue import Catalogue

EPILOG: Final = """Examples:

pointillist agent doctor

pointillist agent doctor --json | jq '.findings[] | select(.verdict != "ok")'"""


def doctor(
    config: Annotated[
        Path | None,
        typer.Option("--config", "-c", help="TOML file; else /etc/pointillist/agent.toml."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Say what can be collected here, what cannot, and the one thing to do about each.

    What it claims it tries: programs are loaded into the kernel and let go; nothing stays attached
    or changed. Started as root it looks with the eyes of the agent's user, and with the
    capabilities that `agent run` keeps. Exit code 1 when something keeps the agent from running,
    and when a signed task asks for what nothing here measures. What is merely absent is no failure:
    a host without GPUs, diagnosis or GPU time switched off.
    """
    from collectors.ebpf.ebpf_source import EbpfSource
    from edge_agent.bound_gpus import listed_gpus
    from edge_agent.service.doctor import examine, source_check
    from edge_agent.service.doctor_collectors import fault_checks, probe_checks
    from edge_agent.service.doctor_gpu_time import gpu_time_checks
    from edge_agent.service.doctor_gpus import gpus_finding
    from edge_agent.service.doctor_host import host_checks
    from transport.process.doctor_findings import CheckVerdict, named, worst
    from wire.catalogue import Catalogue

    from .top_screen import warm_up

    warm_up()  # while this process can still reach all of its libraries
    root = os.geteuid() == 0
    there = config is not None or DEFAULT_CONFIG.exists()
    loaded = agent_file.load_file(config or DEFAULT_CONFIG) if there else None
    if loaded is not None:
        _look_as(loaded)
    catalogue = Catalogue.load()
    listed = listed_gpus(catalogue.classes("gpu_model"))
    gpus = gpus_finding(listed, None if loaded is None else loaded.host)
    wanted = None if loaded is None else loaded.sources.capabilities
    findings = [*examine(host_checks(wanted=wanted, started_by_root=root)), gpus]
    if loaded is None:
        ebpf = "sources", EbpfSource.name, source_check(EbpfSource.name, EbpfSource)
        findings += examine([ebpf, *fault_checks(), *probe_checks(), *gpu_time_checks()])
        say(
            f"no configuration at {DEFAULT_CONFIG}: looked at the machine alone; --config names one"
        )
    else:
        findings += _of_agent(loaded, catalogue, root)
        has_gpus = not isinstance(listed, str) or bool(loaded.host.models)
        findings += _of_log(loaded, catalogue, findings, has_gpus)
    verdict = worst(findings)
    emit({"verdict": verdict, "findings": findings}, json, lambda _body: show_findings(findings))
    if verdict is CheckVerdict.BROKEN:
        line = f"the agent cannot run until this is put right: {named(findings, verdict)}"
        raise CommandError(ExitCode.FAILED, line)
    if verdict is CheckVerdict.UNMEASURED:
        line = f"asked for and not measured here: {named(findings, verdict)}"
        raise CommandError(ExitCode.FAILED, line)


def _of_agent(config: AgentConfig, catalogue: Catalogue, root: bool) -> Iterator[Finding]:
    """Look at what one configuration asks for."""
    from edge_agent.live import sources_of
    from edge_agent.service.doctor import examine, source_findings
    from edge_agent.service.doctor_agent import agent_checks
    from edge_agent.service.doctor_collectors import fault_checks, load_probes, probe_checks
    from edge_agent.service.doctor_gpu_time import gpu_time_checks

    yield from source_findings(sources_of(config, catalogue), config)
    if config.sources.faults:
        yield from examine(fault_checks())
    if config.sources.probes.enabled:
        loader = config.sources.loader
        yield from examine(probe_checks(load=lambda: load_probes(loader)))
    if config.sources.gpu_time.enabled:
        yield from examine(gpu_time_checks(config.sources.gpu_time.socket))
    yield from examine(agent_checks(config, started_by_root=root))


def _of_log(
    config: AgentConfig, catalogue: Catalogue, findings: list[Finding], has_gpus: bool
) -> Iterator[Finding]:
    """Look at the log's time, and what its tasks ask of this host; no log is told elsewhere."""
    from edge_agent.live import task_rules
    from edge_agent.sending.control_feed import tasks_on
    from edge_agent.service.doctor import MEASURED, measured_findings
    from transport.log_clock import clock_beside_log
    from transport.opening import Side, open_transport
    from transport.port import TransportUnavailable, UnknownTopic
    from transport.process.doctor_findings import CheckVerdict, Finding
    from wire.topics import EPOCHS, RELEASES, REPORTS

    if any(f.group == "transport" and f.verdict is CheckVerdict.BROKEN for f in findings):
        return
    try:
        with open_transport(config.transport.settings, Side.AGENT) as log:
            yield clock_beside_log("transport", log, (EPOCHS, REPORTS, RELEASES), time.time())
            tasks = tasks_on(log, task_rules(config, catalogue), int(time.time()))
    except UnknownTopic:
        tasks = []
    except TransportUnavailable as error:
        yield Finding(MEASURED, "tasks", CheckVerdict.ABSENT, str(error), "see transport")
        return
    yield from measured_findings(config, tasks, findings, has_gpus=has_gpus, catalogue=catalogue)


def _look_as(config: AgentConfig) -> None:
    """Become the agent's user where root can; a user that does not exist yet is not made."""
    from transport.process.privileges import PrivilegeError, drop_to

    if os.geteuid() != 0:
        return
    try:
        say(drop_to(config.host.user, keep_caps=config.sources.capabilities).line)
    except (PrivilegeError, LookupError) as error:
        say(f"looks as root: {error}")
