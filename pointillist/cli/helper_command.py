"""`pointillist helper`: run the Helper, countersign what the Leader signed, read its status."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .output import CommandError, ExitCode, JsonFlag, emit, log_to_stderr, need_file, reported, say
from .party import load_identity, public_key, read_config, show_status

if TYPE_CHECKING:
    from aggregator.party_config import HelperConfig

_EXAMPLES = """Examples:

pointillist helper run --config /etc/pointillist/helper.toml

pointillist helper countersign fleet.task --key keys/helper/identity.key --leader 00aa...

pointillist helper countersign next.roster --previous fleet.roster --task m.task --key ...

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
        run_helper(settings, after_restore=after_restore, say=say)


@app.command(
    epilog="Example: pointillist helper countersign fleet.task --key identity.key --leader 00aa..."
)
def countersign(
    file: Annotated[Path, typer.Argument(help="A .task or .roster that the Leader signed.")],
    key: Annotated[Path, typer.Option("--key", help="The Helper's identity.key.")],
    leader: Annotated[str, typer.Option("--leader", help="The Leader's identity key, hex.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to; the same file without it.")
    ] = None,
    previous: Annotated[
        list[Path] | None,
        typer.Option(
            "--previous",
            help="The roster before this one, a must from version 2 on; repeat it for older ones.",
        ),
    ] = None,
    task: Annotated[
        list[Path] | None,
        typer.Option("--task", help="A task the roster serves: its n_max and t must cover it."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Check what the Leader signed and put the Helper's signature beside it.

    A task is recomputed: noise below what its own numbers ask for is refused. A roster is compared
    with the one before: it starts with a week to come, and gives no machine weight that was not
    free. The output counts hosts added, removed and changed: compare it with what you know.
    """
    from aggregator.task_files import check_and_countersign
    from privacy.errors import ParameterError
    from wire.rejection import ReportRejected

    signing = load_identity(key)
    for path in (file, *(previous or []), *(task or [])):
        need_file(
            path, "a signed task, roster or entry", "the Leader's operator makes and signs it"
        )
    with reported(ExitCode.REFUSED, ReportRejected, ParameterError):
        signed, summary = check_and_countersign(
            file.read_bytes(),
            public_key(leader),
            signing,
            earlier=[path.read_bytes() for path in previous or []],
            tasks=[path.read_bytes() for path in task or []],
        )
    target = out or file
    target.write_bytes(signed)
    emit({"file": str(target)} | summary, json)


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
