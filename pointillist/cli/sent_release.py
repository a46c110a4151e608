"""Which release a report of this host entered, by the transcripts of both parties."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import ExitCode, refused, reported

if TYPE_CHECKING:
    from aggregator.protocol.directory import PinnedParties
    from aggregator.transcripts.report_check import Chains, OwnReport, ReportVerdict
    from aggregator.transcripts.transcript import Windows
    from aggregator.transcripts.transcript_check import Transcript
    from edge_agent.config import AgentConfig
    from edge_agent.local.sent_view import SentReport
    from wire.task import Task

Files = tuple[Path | None, Path | None]
"""Of the Leader and of the Helper; None where it was not named."""


def verdicts_of(
    chosen: Sequence[SentReport], loaded: AgentConfig, files: Files, *, ask_log: bool = False
) -> list[ReportVerdict | None]:
    """Check the chosen reports with both transcripts; None each where none were named.

    ask_log   whether the log's own copy of the chain is compared, too
    """
    from aggregator.transcripts.report_check import check_report

    own = [own_report(report) for report in chosen]
    if None in files:
        return [None] * len(chosen)
    places = {report.place for report in own if report is not None}
    both = _transcripts(files, lambda *place: place in places)
    chains: Chains = {}
    verdicts: list[ReportVerdict | None] = []
    for mine, report in zip(own, chosen, strict=True):
        if mine is None or report.task is None:
            verdicts.append(None)
            continue
        parties = _pinned(report.task, loaded)
        verdict = check_report(mine, *both, parties, chains)
        if ask_log:
            _ask_log(mine, both[0], parties, loaded, verdict)
        verdicts.append(verdict)
    return verdicts


def _pinned(task: Task, loaded: AgentConfig) -> PinnedParties:
    from aggregator.protocol.directory import PinnedParties

    pins = loaded.trust
    if task.leader_pk not in pins.leaders or task.helper_pk not in pins.helpers:
        raise refused(
            f"the parties of {task.series} are no longer those that the configuration pins",
            "name them in [trust] again to check what went to them",
        )
    return PinnedParties(task.leader_pk, task.helper_pk)


def _ask_log(
    own: OwnReport,
    leader: Transcript,
    parties: PinnedParties,
    loaded: AgentConfig,
    verdict: ReportVerdict,
) -> None:
    from aggregator.transcripts.report_check import check_public, read_chain
    from transport.opening import Side, open_transport
    from transport.port import TransportUnavailable, UnknownTopic

    group = f"agent-{own.host_id.hex()}-{secrets.token_hex(6)}"
    try:
        with open_transport(loaded.transport.settings, Side.AGENT) as log:
            public = read_chain(log, group, own.series, own.cohort)
    except (TransportUnavailable, UnknownTopic) as error:
        verdict.open.append(f"the log's own copy of the chain: {error}")
        return
    check_public(own, leader, public, parties, verdict)


def own_report(report: SentReport) -> OwnReport | None:
    """Give what a check needs of a report; None where there is no Helper, or no more is kept."""
    from aggregator.transcripts.report_check import OwnReport
    from wire.report import KeptReport

    left, task = report.left, report.task
    if left is None or task is None or not task.helper_pk:
        return None
    known = {field.name: getattr(left, field.name) for field in fields(KeptReport)}
    return OwnReport(**known, d=task.d)


def _transcripts(files: Files, wanted: Windows) -> tuple[Transcript, Transcript]:
    from aggregator.state.state_file import StateUnusable
    from aggregator.transcripts.transcript import read_transcript, transcript_file
    from wire.rejection import ReportRejected

    hint = "the agent's user reads it: expected a file that others may read"
    export = "a party exports its own: pointillist leader transcript export STATE FILE"
    with (
        reported(ExitCode.USAGE, StateUnusable, ReportRejected, hint=export),
        reported(ExitCode.USAGE, OSError, hint=hint),
    ):
        leader, helper = (
            read_transcript(transcript_file(path, party), evidence_of=wanted, ids_of=wanted)
            for path, party in zip(files, ("leader", "helper"), strict=True)
            if path is not None
        )
    return leader, helper


def release_body(verdict: ReportVerdict | None) -> dict[str, Any] | None:
    """Give what the transcripts tell of one report, as JSON has it."""
    if verdict is None:
        return None
    return {
        "verdict": verdict.verdict,
        "release": verdict.release,
        "hosts": verdict.hosts,
        "why": verdict.outside or verdict.suppressed,
        "held": verdict.held,
        "failed": verdict.failed,
        "could_not_be_checked": verdict.open,
    }
