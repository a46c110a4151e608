"""`agent doctor`, `leader doctor` and `helper doctor`: what keeps each from its work."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import Final

import typer
from rich.console import Console

from aggregator.party.config import load_leader_config
from collectors.ebpf.ebpf_source import EbpfSource
from collectors.interface import SourceUnavailable
from edge_agent.bound_gpus import listed_gpus
from edge_agent.config import AgentConfig
from edge_agent.sending.outbox import tasks_on
from pointillist.table import Column, table_text
from transport.factory import Side, open_transport
from transport.interface import TransportUnavailable, UnknownTopic
from transport.log_clock import clock_beside_log
from transport.process.doctor_checks import (
    CLOCK,
    CheckVerdict,
    Finding,
    examine,
    named,
    way_out,
    worst,
)
from transport.process.privileges import PrivilegeError, drop_to
from wire.catalogue import Catalogue
from wire.topics import EPOCHS, RELEASES, REPORTS

from . import agent_file
from .agent_file import DEFAULT_CONFIG, AgentConfigOption
from .output import CommandError, ConfigOption, ExitCode, JsonFlag, emit, examples, say
from .party import load_helper, read_config

AGENT_EPILOG: Final = examples("""
pointillist agent doctor
pointillist agent doctor --json | jq '.findings[] | select(.verdict != "ok")'""")
LEADER_EPILOG: Final = examples("""
pointillist leader doctor --config leader.toml
pointillist leader doctor -c leader.toml --json | jq '.findings[] | select(.verdict != "ok")'""")
HELPER_EPILOG: Final = LEADER_EPILOG.replace("leader", "helper")

_STYLES: Final = {"ok": "green", "absent": "yellow", "unmeasured": "red", "broken": "red"}
_PARTY: Final = "the {} does not do its work"

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
    from edge_agent.service.doctor import ThisMachine, host_gpus
    from edge_agent.service.doctor_sources import CallProbes, GpuTime, fault_checks, source_check

    from .agent_top import warm_up

    warm_up()  # while this process can still reach all of its libraries
    root = os.geteuid() == 0
    there = config is not None or DEFAULT_CONFIG.exists()
    loaded = agent_file.load_file(config or DEFAULT_CONFIG) if there else None
    if loaded is not None:
        _look_as(loaded.host.user, loaded.sources.capabilities)
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
    _tell(findings, json, "the agent cannot run")


def _of_agent(config: AgentConfig, catalogue: Catalogue, root: bool) -> Iterator[Finding]:
    from edge_agent.live import sources_of
    from edge_agent.service.doctor import AgentState
    from edge_agent.service.doctor_sources import (
        CallProbes,
        GpuTime,
        fault_checks,
        load_probes,
        source_findings,
    )

    yield from source_findings(sources_of(config, catalogue), config)
    sources = config.sources
    subjects: list[object] = [*fault_checks()] if sources.faults else []
    if sources.probes.enabled:
        subjects.append(CallProbes(load=lambda: load_probes(sources.loader)))
    if sources.gpu_time.enabled:
        subjects.append(GpuTime(sources.gpu_time.socket))
    subjects += [AgentState(config, started_by_root=root), way_out(config.transport)]
    yield from examine(*subjects, failures=[SourceUnavailable])


def _of_log(
    config: AgentConfig, catalogue: Catalogue, findings: list[Finding], has_gpus: bool
) -> Iterator[Finding]:
    """Look at the log's time, and what its tasks ask of this host; no log is told elsewhere."""
    from edge_agent.live import task_rules
    from edge_agent.service.doctor_sources import MEASURED, measured_findings

    if any(f.group == "transport" and f.verdict is CheckVerdict.BROKEN for f in findings):
        return
    try:
        with open_transport(config.transport.settings, Side.AGENT) as log:
            clock = clock_beside_log(log, (EPOCHS, REPORTS, RELEASES), time.time())
            yield Finding("transport", "log's clock", *clock)
            tasks = tasks_on(log, task_rules(config, catalogue), int(time.time()))
    except UnknownTopic:
        tasks = []
    except TransportUnavailable as error:
        yield Finding(MEASURED, "tasks", CheckVerdict.ABSENT, str(error), "see transport")
        return
    yield from measured_findings(config, tasks, findings, has_gpus=has_gpus, catalogue=catalogue)


def leader_doctor(config: ConfigOption, json: JsonFlag = False) -> None:
    """Say what keeps the Leader from releasing, and the one thing to do about each.

    It looks at the clock, keys, folders, the log with its topics, the Helper and what lies signed;
    it changes nothing. Started as root it looks with the eyes of the Leader's user. Exit code 1
    where something is broken; what is merely absent is no failure.
    """
    from pointillist.party_doctor.party_findings import leader_findings

    loaded, root = read_config(config, "leader", load_leader_config), os.geteuid() == 0
    _look_as(loaded.user)
    _tell(leader_findings(loaded, started_by_root=root), json, _PARTY.format("Leader"))


def helper_doctor(config: ConfigOption, json: JsonFlag = False) -> None:
    """Say what keeps the Helper from answering, and the one thing to do about each.

    It looks at the clock, keys, folders, certificate, witness and what lies signed; it changes
    nothing. Started as root it looks with the eyes of the Helper's user. Exit code 1 where
    something is broken; what is merely absent is no failure.
    """
    from pointillist.party_doctor.party_findings import helper_findings

    loaded, root = load_helper(config), os.geteuid() == 0
    _look_as(loaded.user)
    _tell(helper_findings(loaded, started_by_root=root), json, _PARTY.format("Helper"))


def _look_as(user: str, capabilities: Sequence[str] = ()) -> None:
    """Become the program's user where root can; a user that does not exist yet is not made."""
    if os.geteuid() != 0:
        return
    try:
        say(drop_to(user, keep_caps=capabilities).line)
    except (PrivilegeError, LookupError) as error:
        say(f"looks as root: {error}")


def _tell(found: Iterable[Finding], json: bool, kept_from: str) -> None:
    """Print what was found.

    kept_from   what does not go on where something is broken
    Raises      CommandError where something is broken, or asked for and not measured
    """
    findings = list(found)
    verdict = worst(findings)
    emit({"verdict": verdict, "findings": findings}, json, lambda _body: show_findings(findings))
    if verdict is CheckVerdict.BROKEN:
        line = f"{kept_from} until this is put right: {named(findings, verdict)}"
        raise CommandError(ExitCode.FAILED, line)
    if verdict is CheckVerdict.UNMEASURED:
        line = f"asked for and not measured here: {named(findings, verdict)}"
        raise CommandError(ExitCode.FAILED, line)


def show_findings(findings: Sequence[Finding]) -> None:
    rows: list[tuple[str, Finding | None]] = []
    for at, finding in enumerate(findings):
        if not at or findings[at - 1].group != finding.group:
            rows.append((finding.group, None))
        rows.append((f"  {finding.name}", finding))
    console = Console()
    console.print(table_text(_COLUMNS, rows, console.width, "--json has them"))


def _of(write: Callable[[Finding], str]) -> Callable[[tuple[str, Finding | None]], str]:
    return lambda row: "" if row[1] is None else write(row[1])


_COLUMNS: Final = (
    Column("", itemgetter(0), style=lambda row: "bold" if row[1] is None else ""),
    Column(
        "", _of(lambda finding: finding.verdict.value),
        style=_of(lambda finding: _STYLES[finding.verdict.value]),
    ),
    Column("found", _of(attrgetter("found")), folds=True),
    Column("what to do", _of(lambda finding: finding.do or ""), folds=True, below=True),
)  # fmt: skip
