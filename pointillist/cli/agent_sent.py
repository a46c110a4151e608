"""`pointillist agent sent`: what left this host, and the check of one report with both parties."""

from __future__ import annotations

import secrets
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from aggregator.protocol.directory import PinnedParties
from aggregator.state.state_file import StateUnusable
from aggregator.transcripts.report_check import (
    Chains,
    OwnReport,
    ReportVerdict,
    Verdict,
    check_public,
    check_report,
    read_chain,
)
from aggregator.transcripts.transcript import Windows, read_transcript, transcript_file
from aggregator.transcripts.transcript_check import Transcript
from edge_agent.config import AgentConfig
from edge_agent.ledger.ledger_records import LedgerNone, LedgerRefused
from edge_agent.ledger.left_reports import read_left
from edge_agent.local.history_read import HistoryReader
from edge_agent.local.history_tables import HistoryUnavailable
from edge_agent.local.sent_view import (
    SentReport,
    put_into,
    sections_of,
    sent_reports,
)
from edge_agent.open_agent import read_ledger
from edge_agent.protocol.eligibility import cohort_faults
from pointillist.installation import public_fingerprint
from transport.factory import Side, open_transport
from transport.interface import TransportUnavailable
from wire.catalogue import Catalogue
from wire.rejection import ReportRejected
from wire.report import KeptReport
from wire.task import Task
from wire.topics import REPORTS

from . import agent_file
from .agent_file import DEFAULT_CONFIG
from .output import (
    CommandError,
    ConfigOption,
    ExitCode,
    JsonFlag,
    emit,
    examples,
    jsonable,
    moment,
    refused,
    reported,
    usage_error,
)
from .sent_text import check_text, report_text, reports_text

Files = tuple[Path | None, Path | None]
"""Of the Leader and of the Helper; None where it was not named."""


def verdicts_of(
    chosen: Sequence[SentReport], loaded: AgentConfig, files: Files, *, ask_log: bool = False
) -> list[dict[str, Any] | None]:
    """Check reports with both transcripts, as JSON has it; None each where none were named.

    ask_log   whether the log's own copy of the chain is compared, too
    """
    own = [own_report(report) for report in chosen]
    if None in files:
        return [None] * len(chosen)
    places = {report.place for report in own if report is not None}
    both = _transcripts(files, lambda *place: place in places)
    chains: defaultdict[PinnedParties, Chains] = defaultdict(dict)
    verdicts: list[dict[str, Any] | None] = []
    for mine, report in zip(own, chosen, strict=True):
        if mine is None or report.task is None:
            verdicts.append(None)
            continue
        parties = _pinned(report.task, loaded)
        verdict = check_report(mine, *both, parties, chains[parties])
        if ask_log:
            _ask_log(mine, both[0], parties, loaded, verdict)
        verdicts.append(
            {
                "verdict": verdict.verdict,
                "release": verdict.release,
                "hosts": verdict.hosts,
                "why": verdict.outside or verdict.suppressed,
                "held": verdict.held,
                "failed": verdict.failed,
                "could_not_be_checked": verdict.open,
            }
        )
    return verdicts


def _pinned(task: Task, loaded: AgentConfig) -> PinnedParties:
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
    group = f"agent-{own.host_id.hex()}-{secrets.token_hex(6)}"
    try:
        with open_transport(loaded.transport.settings, Side.AGENT) as log:
            public = read_chain(log, group, own.series, own.cohort)
    except TransportUnavailable as error:
        verdict.open.append(f"the log's own copy of the chain: {error}")
        return
    check_public(own, leader, public, parties, verdict)


def own_report(report: SentReport) -> OwnReport | None:
    left, task = report.left, report.task
    if left is None or task is None or not task.helper_pk:
        return None
    known = {field.name: getattr(left, field.name) for field in fields(KeptReport)}
    return OwnReport(**known | {"series": report.series}, d=task.d)


def _transcripts(files: Files, wanted: Windows) -> tuple[Transcript, Transcript]:
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


_EPILOG: Final = examples("""
pointillist agent sent   the reports of the last day, a line each
pointillist agent sent --report 3fa1   one in full: what was put in, and the noise it carries
pointillist agent sent --since 7d --series hour --json
pointillist agent sent --check 3fa1 --leader-transcript leader.json \
--helper-transcript helper.json   is it in the release that both parties signed?
A report's id may be cut short where it is still one report's alone.""")

_NS_PER_S: Final = 1_000_000_000
_LIMIT: Final = 20

app = typer.Typer()


@app.command(epilog=_EPILOG)
def sent(
    config: ConfigOption = DEFAULT_CONFIG,
    since: Annotated[str, typer.Option(help="10m, 2h, 7d, ISO 8601 or Unix seconds.")] = "1d",
    series: Annotated[str | None, typer.Option(help="Of one task series alone.")] = None,
    window: Annotated[
        str | None, typer.Option(help="One window in full, by its start: ISO 8601 or Unix seconds.")
    ] = None,
    report: Annotated[str | None, typer.Option(help="One report in full, by its id.")] = None,
    check: Annotated[
        str | None, typer.Option(help="Check this report, by its id, with both transcripts.")
    ] = None,
    leader_transcript: Annotated[
        Path | None, typer.Option(help="The Leader's: its export or state, or the folder of it.")
    ] = None,
    helper_transcript: Annotated[
        Path | None, typer.Option(help="The Helper's: its export or state, or the folder of it.")
    ] = None,
    limit: Annotated[int, typer.Option(help="The newest so many, as a table.", min=1)] = _LIMIT,
    json: JsonFlag = False,
) -> None:
    """Show what left this host: each report, what was put in, its noise, where it went.

    The reports of five weeks are kept, what was put into them as long as the local history lasts;
    noise, masks and keys are kept nowhere. With both parties' transcripts it also says which
    release a report entered, and --check proves it: exit code 0 only where everything holds, and
    the report stands in batch and sum of a release under both signatures.
    """
    loaded = agent_file.load_file(config)
    now_ns = time.time_ns()
    since_s = moment(since, now_ns, "--since") // _NS_PER_S
    window_s = None if window is None else moment(window, now_ns, "--window") // _NS_PER_S
    files = (leader_transcript, helper_transcript)
    if check is not None and None in files:
        raise usage_error(
            "--check needs --leader-transcript and --helper-transcript",
            "each party exports its own: leader transcript export STATE OUT --window T",
        )
    if None in files and any(files):
        raise usage_error("a release needs both transcripts: name the other one too")
    agent_file.become_agent(loaded)  # SQLite may make files beside the ledger: they are the agent's
    with reported(ExitCode.REFUSED, LedgerRefused), reported(ExitCode.USAGE, LedgerNone):
        ledger, left = read_ledger(loaded), read_left(loaded.ledger_file)
    kept = sent_reports(ledger, left)
    found = [r for r in kept if series is None or r.series == series]
    if check is not None:
        _check(loaded, _one(found, check, "--check"), files, json)
    elif report is not None:
        _full([_one(found, report, "--report")], loaded, files, json)
    elif window_s is not None:
        chosen = [r for r in found if r.window_start == window_s]
        if not chosen:
            raise usage_error(f"--window: expected a window that was reported, got {window!r}")
        _full(chosen, loaded, files, json)
    else:
        shown = [r for r in found if r.window_end >= since_s]
        waiting = cohort_faults(ledger, left.tasks, now_ns // _NS_PER_S)
        _table(shown, limit, loaded, files, waiting, json)


def _one(found: list[SentReport], text: str, option: str) -> SentReport:
    wanted = text.lower()
    fit = [r for r in found if r.left is not None and r.report_id.hex().startswith(wanted)]
    if len(fit) == 1 and len(wanted) >= 4:
        return fit[0]
    if not fit:
        hint = "pointillist agent sent --since 35d lists all that are kept"
        raise usage_error(f"{option}: no report of this host begins with {text[:40]!r}", hint)
    raise usage_error(f"{option}: expected a longer id, {text!r} begins {len(fit)} of them")


# One report in full ---------------------------------------------------------------------------


def _full(chosen: list[SentReport], loaded: AgentConfig, files: Files, json: bool) -> None:
    verdicts = verdicts_of(chosen, loaded, files)
    bodies = [
        _body(report, loaded) | {"release": verdict}
        for report, verdict in zip(chosen, verdicts, strict=True)
    ]
    plain = [jsonable(body) for body in bodies]
    emit(plain[0] if len(plain) == 1 else plain, json, "\n\n".join(map(report_text, plain)))


def _body(report: SentReport, loaded: AgentConfig) -> dict[str, Any]:
    body = _brief(report)
    left, task = report.left, report.task
    if left is not None:
        body |= {
            "host_id": left.host_id, "task_id": left.task_id, "epoch_id": left.epoch_id,
            "tag_h": left.tag_h, "cohort": left.cohort, "log": left.log, "topic": REPORTS,
        }  # fmt: skip
    if task is not None:
        put_in = None
        with suppress(HistoryUnavailable), HistoryReader(loaded.history_file) as reader:
            put_in = put_into(lambda kind, name: reader.rows(kind, name=name), report)
        body |= {
            "version": task.version, "scheme": task.scheme.value, "coordinates": task.d,
            "n_min": task.n_min,
            "leader_pk": task.leader_pk,
            "helper": public_fingerprint(task.helper_pk) if task.helper_pk else None,
            "helper_pk": task.helper_pk or None,
            "inputs_kept": put_in is not None,
            "sections": sections_of(task, Catalogue.load(), put_in),
        }  # fmt: skip
    return body


def _brief(report: SentReport) -> dict[str, Any]:
    left, task = report.left, report.task
    return {
        "series": report.series,
        "leader": None if task is None else public_fingerprint(task.leader_pk),
        "window_start": report.window_start,
        "window_end": report.window_end,
        "report_id": None if left is None else left.report_id,
        "report_bytes": None if left is None else left.size_bytes,
        "sealed_s": None if left is None else left.sealed_s,
        "state": "not_kept" if left is None else left.fate,
        "state_s": None if left is None else left.fate_s,
        "budget": report.budget,
    }


# Many -----------------------------------------------------------------------------------------


def _table(
    shown: list[SentReport],
    limit: int,
    loaded: AgentConfig,
    files: Files,
    waiting: Mapping[str, str],
    json: bool,
) -> None:
    newest = shown[-limit:]
    verdicts = verdicts_of(newest, loaded, files)
    bodies = [
        _brief(report) | {"release": verdict}
        for report, verdict in zip(newest, verdicts, strict=True)
    ]
    left_out = len(shown) - len(newest)
    plain = jsonable({"reports": bodies, "earlier_left_out": left_out, "withheld": waiting})
    lines = [f"{series} is not sent: {why}" for series, why in waiting.items()]
    emit(plain, json, "\n".join([*lines, reports_text(plain["reports"], left_out, all(files))]))


def _check(loaded: AgentConfig, report: SentReport, files: Files, json: bool) -> None:
    (verdict,) = verdicts_of([report], loaded, files, ask_log=True)
    if verdict is None:
        raise usage_error(
            f"the report of {report.series} has no Helper, or its task is no longer kept",
            "a report of scheme local is protected by its own noise; no second party can be asked",
        )
    body = _brief(report) | {"release": verdict}
    emit(body, json, check_text(jsonable(body)))
    if verdict["verdict"] is not Verdict.RELEASED:
        raise CommandError(ExitCode.FAILED, f"the report: {verdict['verdict'].value}")
