"""`pointillist agent doctor`: what can be collected here, and what to do about the rest."""

from __future__ import annotations

import os
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

    It changes nothing. Started as root it looks with the eyes of the agent's user, and with the
    capabilities that `agent run` keeps. Exit code 1
    when something keeps the agent from running; what is merely absent is no failure.
    """
    from edge_agent.service.doctor import examine
    from edge_agent.service.doctor_collectors import fault_checks, probe_checks
    from edge_agent.service.doctor_gpu_time import gpu_time_checks
    from edge_agent.service.doctor_gpus import gpu_lines, gpus_finding, listed_gpus
    from edge_agent.service.doctor_host import host_checks
    from transport.process.doctor_findings import CheckVerdict, broken, worst
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
        findings += examine([*fault_checks(), *probe_checks(), *gpu_time_checks()])
        say(
            f"no configuration at {DEFAULT_CONFIG}: looked at the machine alone; --config names one"
        )
    else:
        findings += _of_agent(loaded, catalogue, root)
    verdict = worst(findings)
    emit({"verdict": verdict, "findings": findings}, json, lambda _body: show_findings(findings))
    if not json and not isinstance(listed, str) and (loaded is None or gpus.do):
        say(gpu_lines(listed))
    if verdict is CheckVerdict.BROKEN:
        raise CommandError(
            ExitCode.FAILED, f"the agent cannot run until this is put right: {broken(findings)}"
        )


def _of_agent(config: AgentConfig, catalogue: Catalogue, root: bool) -> Iterator[Finding]:
    """Look at what one configuration asks for."""
    from edge_agent.live import sources_of
    from edge_agent.service.doctor import examine, source_findings
    from edge_agent.service.doctor_agent import agent_checks
    from edge_agent.service.doctor_collectors import fault_checks, probe_checks
    from edge_agent.service.doctor_gpu_time import gpu_time_checks

    yield from source_findings(sources_of(config, catalogue), config)
    if config.sources.faults:
        yield from examine(fault_checks())
    if config.sources.probes.enabled:
        yield from examine(probe_checks())
    if config.sources.gpu_time.enabled:
        yield from examine(gpu_time_checks(config.sources.gpu_time.socket))
    yield from examine(agent_checks(config, started_by_root=root))


def _look_as(config: AgentConfig) -> None:
    """Become the agent's user where root can; a user that does not exist yet is not made."""
    from transport.process.privileges import PrivilegeError, drop_to

    if os.geteuid() != 0:
        return
    try:
        say(drop_to(config.host.user, keep_caps=config.sources.capabilities).line)
    except (PrivilegeError, LookupError) as error:
        say(f"looks as root: {error}")
