"""`pointillist helper`: run the Helper, countersign what the Leader signed, read its status."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

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
    from aggregator.party_config import HelperConfig
    from aggregator.roster_review import RosterEvidence

_MAX_VOUCHERS_BYTES: Final = 1 << 28

_EXAMPLES = """Examples:

pointillist helper run --config /etc/pointillist/helper.toml

pointillist helper countersign fleet.task --key keys/helper/identity.key --leader 00aa...

pointillist helper countersign next.roster --config helper.toml --previous fleet.roster

pointillist helper status --config /etc/pointillist/helper.toml --json | jq .batches_answered"""

app = typer.Typer(
    help="The aggregator that holds the masks: run it, countersign tasks and rosters, status.",
    epilog=_EXAMPLES,
    rich_markup_mode="rich",
    no_args_is_help=True,
)

ConfigOption = Annotated[Path, typer.Option("--config", "-c", help="helper.toml")]


@app.command(epilog="Example: pointillist helper run --config /etc/pointillist/helper.toml")
def run(
    config: ConfigOption,
    after_restore: Annotated[
        bool,
        typer.Option(
            "--after-restore",
            help="State or machine came back from a backup: refuse every window that is over by "
            "now or by the witness's word. Needs the witness, and no other copy may run.",
        ),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=256,
            help="Processes that open epochs and make masks, each for its part of the hosts; the "
            "answers are the same. Without it this process does so itself.",
        ),
    ] = None,
) -> None:
    """Answer the Leader's batches until a signal.

    Of the shared log it reads the releases, once, where the configuration names the log. A state
    that its witness, or such a release, shows to be rolled back answers nothing: exit code 3.
    """
    from aggregator.helper_state import FencedOut
    from aggregator.party_processes import run_helper
    from aggregator.state_file import StateUnusable
    from aggregator.witness.chain import NO_WITNESS
    from aggregator.witness.port import RollbackSeen, WitnessUnavailable
    from transport.port import TransportUnavailable
    from transport.privileges import PrivilegeError

    settings = _load(config)
    if after_restore and settings.witness is None:
        raise CommandError(ExitCode.REFUSED, *NO_WITNESS)
    log_to_stderr()
    unavailable = (StateUnusable, PrivilegeError, OSError, WitnessUnavailable, TransportUnavailable)
    with (
        reported(ExitCode.REFUSED, FencedOut, hint="another Helper runs on this state"),
        reported(ExitCode.REFUSED, RollbackSeen),
        reported(ExitCode.UNAVAILABLE, *unavailable),
    ):
        run_helper(settings, after_restore=after_restore, workers=workers, say=say)


@app.command(
    epilog="Example: pointillist helper countersign next.roster --config helper.toml "
    "--previous fleet.roster --task m.task"
)
def countersign(
    file: Annotated[Path, typer.Argument(help="What the Leader signed: .task, .roster, .entry.")],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", "-c", help="helper.toml: pinned operators, for a roster a must; both keys."
        ),
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="The Helper's identity.key; else key_dir's.")
    ] = None,
    leader: Annotated[
        str | None, typer.Option("--leader", help="The Leader's identity key, hex; else leader_pk.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to; the same file without it.")
    ] = None,
    previous: Annotated[
        list[Path] | None,
        typer.Option(
            "--previous",
            help="A roster before this one that is not in signed_dir; repeat it.",
        ),
    ] = None,
    first: Annotated[
        bool, typer.Option("--first", help="It is the fleet's first roster: none was before it.")
    ] = False,
    task: Annotated[
        list[Path] | None,
        typer.Option("--task", help="A task that it serves and that is not in signed_dir yet."),
    ] = None,
    vouchers: Annotated[
        Path | None,
        typer.Option(help="Of the roster's new hosts; the file beside it without this."),
    ] = None,
    accept_change: Annotated[
        str | None,
        typer.Option(help="How much a week may change, where it is above 10 %: 90%, or 40 hosts."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Check what the Leader signed and put the Helper's signature beside it.

    A task is recomputed: noise below what its own numbers ask for is refused. A roster is compared
    with those in signed_dir: it starts with a week to come, gives no machine weight that was not
    free, has a voucher of a pinned operator for every new host, and changes at most a tenth of its
    hosts in a week unless you say how many. The counts of hosts added, removed and changed come
    first: compare them with what you know.
    """
    from aggregator.directory import PinnedParties
    from aggregator.roster_review import NO_EVIDENCE, signed_before, signed_tasks
    from aggregator.task_files import check_and_countersign, label_of
    from privacy.errors import ParameterError
    from wire import labels
    from wire.rejection import ReportRejected

    settings = None if config is None else _load(config)
    for path in (file, *(previous or []), *(task or [])):
        need_file(
            path, "a signed task, roster or entry", "the Leader's operator makes and signs it"
        )
    content, leader_pk = file.read_bytes(), _leader_pk(leader, settings)
    signing = load_identity(_identity_file(key, settings))
    parties = PinnedParties(leader_pk, signing.public_bytes)
    with reported(ExitCode.REFUSED, ReportRejected, ParameterError):
        evidence = NO_EVIDENCE
        if label_of(content) == labels.ROSTER:
            pinned = _need(settings, file)
            evidence = _evidence(file, pinned, vouchers, accept_change)
            before = signed_before(pinned.signed_dir, content, parties)
            before += [path.read_bytes() for path in previous or []]
            served = signed_tasks(pinned.signed_dir, parties, time.time())
            served += [path.read_bytes() for path in task or []]
            evidence = replace(evidence, earlier=before, tasks=served, first=first)
        signed, summary = check_and_countersign(
            content,
            leader_pk,
            signing,
            evidence=evidence,
            tell=_say_counts,
        )
    target = out or file
    target.write_bytes(signed)
    emit({"file": str(target)} | summary, json)


def _say_counts(counts: Mapping[str, float]) -> None:
    """Tell first, and also of a roster that is refused, what it changes; folded between counts."""
    from pointillist.table import terminal_columns

    lines = [""]
    for name, n in counts.items():
        one = f"{name} {n}"
        if lines[-1] and len(f"{lines[-1]}, {one},") > terminal_columns():
            lines[-1] += ","
            lines.append(one)
        else:
            lines[-1] += f"{', ' if lines[-1] else ''}{one}"
    say("\n".join(lines))


def _need(settings: HelperConfig | None, file: Path) -> HelperConfig:
    if settings is None:
        raise usage_error(
            f"{file}: a roster is held against the operators that helper.toml pins",
            "name it: --config helper.toml",
        )
    return settings


def _evidence(
    file: Path, settings: HelperConfig, vouchers: Path | None, accept_change: str | None
) -> RosterEvidence:
    """Read who vouches for a roster's hosts, and what its reader was told of it."""
    from aggregator.roster_change import accepted_hosts
    from aggregator.roster_review import RosterEvidence

    if accept_change is not None:
        with reported(ExitCode.USAGE, ValueError):
            accepted_hosts(accept_change, 0)
    beside = vouchers or file.with_suffix(".vouchers")
    if vouchers is not None:
        need_file(vouchers, "vouchers of new hosts", "`leader roster build` writes them")
    return RosterEvidence(
        vouchers=_bounded(beside) if beside.exists() else b"",
        operators=settings.operators,
        accepted_change=accept_change,
    )


def _bounded(path: Path) -> bytes:
    if path.stat().st_size > _MAX_VOUCHERS_BYTES:
        raise usage_error(f"{path}: expected at most {_MAX_VOUCHERS_BYTES:,} bytes of vouchers")
    return path.read_bytes()


def _leader_pk(leader: str | None, settings: HelperConfig | None) -> bytes:
    if leader is not None:
        return public_key(leader)
    if settings is None:
        raise usage_error("whose signature to expect", "--leader HEX, or --config helper.toml")
    return settings.leader_pk


def _identity_file(key: Path | None, settings: HelperConfig | None) -> Path:
    if key is not None:
        return key
    if settings is None:
        raise usage_error("which key to sign with", "--key identity.key, or --config helper.toml")
    return settings.key_dir / "identity.key"


@app.command(epilog="Example: pointillist helper status --config helper.toml --json")
def status(config: ConfigOption, json: JsonFlag = False) -> None:
    """Show whether the Helper runs, what it waits for, and what it counted.

    Exit code 0 when it runs and does its work, 1 when something keeps it from it, 4 when it does
    not run.
    """
    show_status(_load(config).status_file, "helper", json)


def _load(config: Path) -> HelperConfig:
    from aggregator.party_config import load_helper_config

    return read_config(config, "helper", load_helper_config)
