"""`pointillist leader`: run the Leader, read its status, verify the transcript, keep the roster."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from aggregator.party.config import LeaderConfig, load_leader_config
from aggregator.party.postgresql_settings import schema_sql
from aggregator.protocol.directory import OneKeyTwice
from aggregator.spark.driver_process import SparkMissing, SparkRefused
from aggregator.state.state_file import (
    LeadershipLost,
    OtherLeader,
    StateUnusable,
    StorageUnavailable,
)
from aggregator.statistics.correction import DetectorFileError
from aggregator.transcripts.transcript import (
    Windows,
    export_transcript,
    read_leader_tables,
    read_transcript,
)
from aggregator.transcripts.transcript_check import (
    HELPER,
    LEADER,
    Transcript,
    find_report,
    verify_transcripts,
)
from transport.interface import TransportUnavailable
from transport.process.privileges import PrivilegeError
from wire.rejection import ReportRejected

from .output import (
    CommandError,
    ConfigOption,
    ExitCode,
    HelperKey,
    JsonFlag,
    LeaderKey,
    emit,
    examples,
    log_to_stderr,
    moment,
    need_file,
    reported,
    say,
    usage_error,
)
from .party import (
    LEADER_EPILOG,
    leader_doctor,
    pinned_parties,
    public_key,
    read_config,
    show_status,
)
from .roster_command import app as roster_app

_EXAMPLES = examples("""
pointillist leader run --config /etc/pointillist/leader.toml
pointillist leader status --config /etc/pointillist/leader.toml --json | jq .rejected
pointillist leader transcript verify leader.sqlite helper.sqlite --leader 00aa... --helper 11bb...
pointillist leader roster build --plans plans.toml --requests joins/ --out next.roster --key K""")

app = typer.Typer(
    help="The aggregator that receives and releases: run, status, doctor, transcript, roster.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
)
transcript = typer.Typer(help="What both parties signed about every release.")
app.add_typer(transcript, name="transcript", no_args_is_help=True)
app.add_typer(roster_app, name="roster", no_args_is_help=True)
app.command("doctor", epilog=LEADER_EPILOG)(leader_doctor)


class Engine(StrEnum):
    OWN = "own"
    SPARK = "spark"


@app.command(epilog="Example: pointillist leader run --config /etc/pointillist/leader.toml")
def run(
    config: ConfigOption,
    engine: Annotated[
        Engine, typer.Option(help="Who reads the reports: this process, or Spark, from Kafka.")
    ] = Engine.OWN,
) -> None:
    """Admit reports, close windows, release what the Helper unmasks, until a signal.

    One process carries a million GPUs. Spark, which adds the reports up on many cores or machines,
    needs an environment of its own, which make spark sets up; the table `spark` says more of it.

    With a table `standby` the same command runs on several machines: one leads, the others wait,
    and one of them goes on when it falls.
    """
    from aggregator.leader_process import run_leader
    from analytics.rollups import kept_roll_ups

    settings = _load(config)
    log_to_stderr()
    with (
        reported(ExitCode.UNAVAILABLE, StateUnusable, PrivilegeError, LeadershipLost),
        reported(ExitCode.USAGE, OtherLeader, OneKeyTwice),
        reported(ExitCode.UNAVAILABLE, TransportUnavailable, OSError),
        reported(ExitCode.USAGE, DetectorFileError, SparkMissing, SparkRefused),
    ):
        roll_ups = kept_roll_ups(settings.releases_dir)
        run_leader(settings, spark=engine is Engine.SPARK, say=say, roll_ups=roll_ups)


@app.command(epilog="Example: pointillist leader schema | psql --dbname pointillist")
def schema() -> None:
    """Print the tables and rights of a Leader's state in PostgreSQL, for the database's owner.

    A Leader whose configuration has a table `standby` keeps its state there: docs/aggregators.md.
    """
    typer.echo(schema_sql("standby"), nl=False)


@app.command(epilog="Example: pointillist leader status --config leader.toml --json")
def status(config: ConfigOption, json: JsonFlag = False) -> None:
    """Show whether the Leader runs, what it waits for, its windows and rejections by reason.

    Exit code 0 when it runs and does its work, 1 when something keeps it from it, 4 when it does
    not run.
    """
    show_status(_load(config).status_file, "leader", json)


def _load(config: Path) -> LeaderConfig:
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
    parties = pinned_parties(public_key(leader), public_key(helper))
    with reported(ExitCode.USAGE, StateUnusable, ReportRejected):
        both = [read_transcript(leader_file), read_transcript(helper_file)]
    for file, party, kept in zip((leader_file, helper_file), (LEADER, HELPER), both, strict=True):
        if not_of := kept.not_of(party):
            raise usage_error(f"{file}: {not_of}")
    verdict = verify_transcripts(both[0], both[1], parties)
    found: dict[str, Any] = {}
    for text in report or []:
        with reported(ExitCode.USAGE, ValueError):
            report_id = bytes.fromhex(text)
        for file, kept in zip((leader_file, helper_file), both, strict=True):
            if kept.is_silent_on(report_id):
                raise usage_error(
                    f"{file}: expected it to tell of report {text}, but it was not asked",
                    f"export it with --report {text}",
                )
        places = find_report(both, report_id)
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
    state_file: Annotated[
        Path,
        typer.Argument(
            help="A party's state file; leader.toml of a Leader whose state is in a database."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="Where to.")],
    window: Annotated[
        list[str] | None, typer.Option(help="Start of a window, with batch and share; repeat it.")
    ] = None,
    report: Annotated[
        list[str] | None,
        typer.Option("--report", help="A report id, hex, whose host asks; repeat it."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Write releases and the shares of suppressed windows, for whoever checks them.

    With --report also whether this report is in its release, for the host that asks. With --window
    (ISO 8601 or Unix seconds) also the batch and the share of these windows, for the other party:
    they name every host that took part. Such a file is its owner's alone (mode 600).
    """
    need_file(
        state_file, "a party's state file", "leader.sqlite or helper.sqlite, in its state_dir"
    )
    now_ns = time.time_ns()
    wanted = {moment(text, now_ns, "--window") // 1_000_000_000 for text in window or ()}
    read = _read_database if state_file.suffix == ".toml" else read_transcript
    with (
        reported(ExitCode.USAGE, StateUnusable, ReportRejected),
        reported(ExitCode.UNAVAILABLE, StorageUnavailable),
    ):
        kept = read(state_file, evidence_of=lambda *place: place[2] in wanted)
    with reported(ExitCode.USAGE, ValueError):
        export_transcript(kept, out, [bytes.fromhex(text) for text in report or ()])
    body = {"file": str(out), "party": kept.party, "releases": len(kept.links)}
    if wanted:
        body["with_batch_and_share"] = sum(link.evidence is not None for link in kept.links)
    emit(body, json)


def _read_database(config: Path, *, evidence_of: Windows) -> Transcript:
    settings = _load(config)
    if settings.standby is None:
        raise usage_error(
            f"{config}: expected a table of a standby, found none",
            f"{settings.state_dir / 'leader.sqlite'} has the state",
        )
    from aggregator.standby.leadership import tables_to_read

    tables = tables_to_read(settings.standby)
    try:
        return read_leader_tables(tables, evidence_of)
    finally:
        tables.close()
