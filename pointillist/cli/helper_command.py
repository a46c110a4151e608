"""`pointillist helper`: run the Helper, countersign what the Leader signed, read its status."""

from __future__ import annotations

from typing import Annotated

import typer

from aggregator.helper.helper_state import FencedOut
from aggregator.helper_process import run_helper
from aggregator.protocol.directory import OneKeyTwice
from aggregator.state.state_file import StateUnusable
from aggregator.witness.chain import NO_WITNESS, RollbackSeen, WitnessUnavailable
from transport.interface import TransportUnavailable
from transport.process.privileges import PrivilegeError

from .countersign_command import EPILOG as COUNTERSIGN_EPILOG
from .countersign_command import countersign
from .output import (
    CommandError,
    ConfigOption,
    ExitCode,
    JsonFlag,
    examples,
    log_to_stderr,
    reported,
    say,
)
from .party import HELPER_EPILOG, helper_doctor, load_helper, show_status

_EXAMPLES = examples("""
pointillist helper run --config /etc/pointillist/helper.toml
pointillist helper countersign fleet.task --key keys/helper/identity.key --leader 00aa...
pointillist helper countersign next.roster joins/ --config helper.toml
pointillist helper status --config /etc/pointillist/helper.toml --json | jq .batches_answered""")

app = typer.Typer(
    help="The aggregator that holds the masks: run, status, doctor, countersign tasks and rosters.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
)

app.command(epilog=COUNTERSIGN_EPILOG)(countersign)
app.command("doctor", epilog=HELPER_EPILOG)(helper_doctor)


@app.command(epilog="Example: pointillist helper run --config /etc/pointillist/helper.toml")
def run(
    config: ConfigOption,
    after_restore: Annotated[
        bool,
        typer.Option(
            "--after-restore",
            help="State or machine came back from a backup: refuse every window that is over by "
            "now or by a witness's word. Needs every witness, and no other copy may run.",
        ),
    ] = False,
) -> None:
    """Answer the Leader's batches until a signal.

    Of the shared log it reads the releases, once, where the configuration names the log. A state
    that a witness, or such a release, shows to be rolled back answers nothing: exit code 3.
    """
    settings = load_helper(config)
    if after_restore and not settings.witnesses:
        raise CommandError(ExitCode.REFUSED, *NO_WITNESS)
    log_to_stderr()
    unavailable = (StateUnusable, PrivilegeError, OSError, WitnessUnavailable, TransportUnavailable)
    with (
        reported(ExitCode.REFUSED, FencedOut, hint="another Helper runs on this state"),
        reported(ExitCode.REFUSED, RollbackSeen),
        reported(ExitCode.USAGE, OneKeyTwice),
        reported(ExitCode.UNAVAILABLE, *unavailable),
    ):
        run_helper(settings, after_restore=after_restore, say=say)


@app.command(epilog="Example: pointillist helper status --config helper.toml --json")
def status(config: ConfigOption, json: JsonFlag = False) -> None:
    """Show whether the Helper runs, what it waits for, and what it counted.

    Exit code 0 when it runs and does its work, 1 when something keeps it from it, 4 when it does
    not run.
    """
    show_status(load_helper(config).status_file, "helper", json)
