"""Which release a report of this host entered, by the transcripts of both parties."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import ExitCode, refused, reported

if TYPE_CHECKING:
    from aggregator.report_check import OwnReport, ReportVerdict
    from aggregator.transcript import Transcript, Windows
    from edge_agent.config import AgentConfig
    from edge_agent.local.sent_view import SentReport
    from wire.task import Task

Files = tuple[Path | None, Path | None]
"""Of the Leader and of the Helper; None where it was not named."""


def verdicts_of(
    chosen: Sequence[SentReport], loaded: AgentConfig, files: Files
) -> list[ReportVerdict | None]:
    """Check the chosen reports with both transcripts; None each where none were named."""
    own = [own_report(report) for report in chosen]
    if None in files:
        return [None] * len(chosen)
    places = {report.place for report in own if report is not None}
    both = _transcripts(files, lambda *place: place in places)
    return [
        None if mine is None or report.task is None else _checked(mine, report.task, both, loaded)
        for mine, report in zip(own, chosen, strict=True)
    ]


def own_report(report: SentReport) -> OwnReport | None:
    from aggregator.report_check import OwnReport

    left, task = report.left, report.task
    if left is None or task is None or not task.helper_pk:
        return None
    return OwnReport(
        left.host_id, left.epoch_id, left.report_id, left.tag_h, left.task_id, left.series,
        left.cohort, left.window_start, task.d,
    )  # fmt: skip


def _transcripts(files: Files, wanted: Windows) -> tuple[Transcript, Transcript]:
    from aggregator.state_file import StateUnusable
    from aggregator.transcript import read_transcript, transcript_file
    from wire.rejection import ReportRejected

    hint = "the agent's user reads it: expected a file that others may read"
    with (
        reported(ExitCode.USAGE, StateUnusable, ReportRejected),
        reported(ExitCode.USAGE, OSError, hint=hint),
    ):
        leader, helper = (
            read_transcript(transcript_file(path, party), evidence_of=wanted, ids_of=wanted)
            for path, party in zip(files, ("leader", "helper"), strict=True)
            if path is not None
        )
    return leader, helper


def _checked(
    own: OwnReport,
    task: Task,
    both: tuple[Transcript, Transcript],
    loaded: AgentConfig,
) -> ReportVerdict:
    from aggregator.directory import PinnedParties
    from aggregator.report_check import check_report

    parties = PinnedParties(task.leader_pk, task.helper_pk)
    pins = loaded.trust.pins
    if parties.leader_pk not in pins.leaders or parties.helper_pk not in pins.helpers:
        raise refused(
            f"the parties of {task.series} are no longer those that the configuration pins",
            "name them in [trust] again to check what went to them",
        )
    return check_report(own, *both, parties)


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
