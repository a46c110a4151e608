"""`pointillist leader`: run the Leader, read its status, verify the transcript, keep the roster."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .moment import moment
from .output import (
    CommandError,
    ExitCode,
    JsonFlag,
    emit,
    log_to_stderr,
    need_file,
    reported,
    say,
    usage_error,
)
from .party import load_identity, public_key, read_config, show_status

if TYPE_CHECKING:
    from aggregator.party_config import LeaderConfig

_EXAMPLES = """Examples:

pointillist leader run --config /etc/pointillist/leader.toml

pointillist leader status --config /etc/pointillist/leader.toml --json | jq .rejected

pointillist leader transcript verify leader.sqlite helper.sqlite --leader 00aa... --helper 11bb...

pointillist leader roster build --plans plans.toml --requests joins/ --out next.roster --key K"""

app = typer.Typer(
    help="The aggregator that receives and releases: run, status, transcript, roster.",
    epilog=_EXAMPLES,
    rich_markup_mode="rich",
    no_args_is_help=True,
)
transcript = typer.Typer(help="What both parties signed about every release.")
roster = typer.Typer(help="Who takes part, from which week on.")
app.add_typer(transcript, name="transcript", no_args_is_help=True)
app.add_typer(roster, name="roster", no_args_is_help=True)

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="leader.toml")]
LeaderKey = Annotated[str, typer.Option("--leader", help="The Leader's identity key, hex.")]
HelperKey = Annotated[str, typer.Option("--helper", help="The Helper's identity key, hex.")]


@app.command(epilog="Example: pointillist leader run --config /etc/pointillist/leader.toml")
def run(config: ConfigOption) -> None:
    """Admit reports, close windows, release what the Helper unmasks, until a signal."""
    from aggregator.incident_detector import DetectorFileError
    from aggregator.party_processes import run_leader
    from aggregator.state_file import StateUnusable
    from transport.port import TransportUnavailable
    from transport.privileges import PrivilegeError

    settings = _load(config)
    log_to_stderr()
    with (
        reported(ExitCode.UNAVAILABLE, StateUnusable, PrivilegeError),
        reported(ExitCode.UNAVAILABLE, TransportUnavailable, OSError),
        reported(ExitCode.USAGE, DetectorFileError),
    ):
        run_leader(settings, say=say)


@app.command(epilog="Example: pointillist leader status --config leader.toml --json")
def status(config: ConfigOption, json: JsonFlag = False) -> None:
    """Show whether the Leader runs, what it waits for, its windows and rejections by reason.

    Exit code 0 when it runs and does its work, 1 when something keeps it from it, 4 when it does
    not run.
    """
    show_status(_load(config).status_file, "leader", json)


def _load(config: Path) -> LeaderConfig:
    from aggregator.party_config import load_leader_config

    return read_config(config, "leader", load_leader_config)


@transcript.command(
    "verify",
    epilog="Example: pointillist leader transcript verify leader.sqlite helper.sqlite "
    "--leader 00aa... --helper 11bb... --report 0123...",
)
def verify(
    leader_file: Annotated[Path, typer.Argument(help="The Leader's state or exported transcript.")],
    helper_file: Annotated[Path, typer.Argument(help="The Helper's state or exported transcript.")],
    leader: LeaderKey,
    helper: HelperKey,
    report: Annotated[
        list[str] | None, typer.Option("--report", help="A report id, hex; repeat it.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Check both chains, every signature, and that the parties agree; find own reports.

    Exit code 1 when something does not hold, or a report is missing from either party.
    """
    from aggregator.directory import PinnedParties
    from aggregator.state_file import StateUnusable
    from aggregator.transcript import find_report, read_transcript, verify_transcripts
    from wire.rejection import ReportRejected

    parties = PinnedParties(public_key(leader), public_key(helper))
    with reported(ExitCode.USAGE, StateUnusable, ReportRejected):
        both = [read_transcript(leader_file), read_transcript(helper_file)]
    verdict = verify_transcripts(both[0], both[1], parties)
    found: dict[str, Any] = {}
    for text in report or []:
        with reported(ExitCode.USAGE, ValueError):
            places = find_report(both, bytes.fromhex(text))
        found[text] = {who: link and link.window for who, link in places.items()}
    whole = all(None not in places.values() for places in found.values())
    body = {
        "sound": verdict.sound,
        "releases": verdict.releases,
        "chains": verdict.chains,
        "not_countersigned_yet": verdict.unsigned,
        "suppressed_shares": verdict.unreleased,
        "problems": verdict.problems,
        "reports": found,
    }
    emit(body, json)
    if not verdict.sound or not whole:
        raise CommandError(ExitCode.FAILED, "the transcripts do not hold, or lack a report")


@transcript.command(
    "export", epilog="Example: pointillist leader transcript export leader.sqlite leader.json"
)
def export(
    state_file: Annotated[Path, typer.Argument(help="A party's state file.")],
    out: Annotated[Path, typer.Argument(help="Where to.")],
    window: Annotated[
        list[str] | None,
        typer.Option(help="Start of a window, with batch and share; repeat it."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Write releases, report ids and the shares of suppressed windows, for the other side.

    With --window (ISO 8601 or Unix seconds) also the batch and the share of these windows: a host
    proves with them that it is in a release. They name every host that took part in the window.
    """
    from aggregator.state_file import StateUnusable
    from aggregator.transcript import export_transcript, read_transcript
    from wire.rejection import ReportRejected

    now_ns = time.time_ns()
    wanted = {moment(text, now_ns, "--window") // 1_000_000_000 for text in window or ()}
    with reported(ExitCode.USAGE, StateUnusable, ReportRejected):
        kept = read_transcript(state_file, evidence_of=lambda *place: place[2] in wanted)
    export_transcript(kept, out)
    body = {"file": str(out), "party": kept.party, "releases": len(kept.links)}
    if wanted:
        body["with_batch_and_share"] = sum(link.evidence is not None for link in kept.links)
    emit(body, json)


@roster.command(
    "build",
    epilog="Example: pointillist leader roster build --plans plans.toml --requests joins/ "
    "--previous fleet.roster --key keys/leader/identity.key --out next.roster",
)
def build(
    plans: Annotated[Path, typer.Option("--plans", help="TOML: plans and one-use tokens.")],
    requests: Annotated[Path, typer.Option("--requests", help="Folder of *.join requests.")],
    key: Annotated[Path, typer.Option("--key", help="The Leader's identity.key.")],
    out: Annotated[Path, typer.Option("--out", help="The roster to be countersigned.")],
    previous: Annotated[
        Path | None, typer.Option("--previous", help="The roster in force; its hosts stay.")
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option("--log", help="Folder of the log: fetch new join requests from it first."),
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="In force at once: a fleet's first roster, or a test's.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Enrol hosts that hold a one-use token.

    The roster is in force from the next week start (Thursday 00:00 UTC), so that no budget of a
    running week changes; --now is for a fleet's first roster, when nothing was reported yet. Sign
    it in time: one that is countersigned after its start is refused, but for the first.

    Writes the roster and, beside each request, its signed answer (*.entry); have both
    countersigned with `pointillist helper countersign`. Used tokens are kept beside the plans
    (*.spent): each enrols one host, once.
    """
    from aggregator.enrolment import EnrolmentError, enrol_folder, write_spent
    from wire.rejection import ReportRejected

    need_file(plans, "plans and tokens", "docs/first-fleet.md shows one")
    if out.exists():
        raise usage_error(f"{out}: exists; a roster is never overwritten", "name a new --out")
    with (
        reported(ExitCode.REFUSED, ReportRejected),
        reported(ExitCode.USAGE, EnrolmentError),
    ):
        fetched = {} if log is None else _fetch(log, plans, requests)
        result = enrol_folder(plans, requests, previous, load_identity(key), at_once=now)
    with out.open("xb") as file:
        file.write(result.roster)
    for path, answer in result.answers.items():
        path.write_bytes(answer)
    write_spent(plans, result.spent)
    emit({"file": str(out), **result.summary} | ({"requests": fetched} if fetched else {}), json)


@roster.command(
    "token",
    epilog="Example: pointillist leader roster token host-1.token --operator acme --plan fleet "
    ">> plans.toml",
)
def token(
    file: Annotated[Path, typer.Argument(help="The token's file; made where there is none.")],
    operator: Annotated[str, typer.Option(help="Who runs the host that gets it.")],
    plan: Annotated[str, typer.Option(help="A [[plan]] of the plans file.")],
    json: JsonFlag = False,
) -> None:
    """Make a one-use token, and print its [[token]] lines for the plans file.

    The file goes to the host (`agent join --token-file`); the plans file knows the hash alone. A
    file that exists is read: 16 to 64 bytes, white space at either end does not count.
    """
    from aggregator.enrolment import EnrolmentError, new_token, operator_name, token_lines

    with reported(ExitCode.USAGE, EnrolmentError):
        operator_name(operator)
    if not file.exists():
        file.touch(mode=0o600, exist_ok=False)  # private before anything is in it
        file.write_bytes(new_token() + b"\n")
    secret = file.read_bytes().strip()
    if not 16 <= len(secret) <= 64:
        raise usage_error(f"{file}: expected a token of 16 to 64 bytes, got {len(secret)}")
    digest = hashlib.sha256(secret).hexdigest()
    body = {"sha256": digest, "operator": operator, "plan": plan}
    emit(body, json, text=token_lines(digest, operator, plan))


def _fetch(log: Path, plans: Path, requests: Path) -> dict[str, int]:
    from aggregator.join_requests import fetch_requests
    from aggregator.party_config import load_kafka_table
    from transport.config_tree import ConfigError
    from transport.opening import EmbeddedSettings, Side, TransportSettings, open_transport
    from transport.port import TransportUnavailable

    settings: TransportSettings | None = EmbeddedSettings(log)
    if log.is_file():  # a configuration that names a cluster
        with reported(ExitCode.USAGE, ConfigError):
            settings = load_kafka_table(log)
    if settings is None:
        raise usage_error(f"{log}: expected a folder, or TOML with a table [transport.kafka]")
    with (
        reported(ExitCode.UNAVAILABLE, TransportUnavailable),
        open_transport(settings, Side.AGGREGATOR) as opened,
    ):
        return dict(fetch_requests(opened, plans, requests))


@roster.command("show", epilog="Example: pointillist leader roster show fleet.roster --json")
def show(
    file: Annotated[Path, typer.Argument(help="A .roster file.")], json: JsonFlag = False
) -> None:
    """Show version, hosts and operators of a roster."""
    from aggregator.task_files import summary
    from wire.rejection import ReportRejected

    need_file(file, "a roster", "`pointillist leader roster build` makes one")
    with reported(ExitCode.USAGE, ReportRejected):
        found = summary(file.read_bytes())
    if found["kind"] != "roster":
        raise usage_error(f"{file}: expected a roster, got a {found['kind']}")
    emit(found, json)
