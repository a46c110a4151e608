"""`pointillist agent rekey` and `retire`: a new key for this host, and the end of one."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from . import agent_file
from .agent_file import DEFAULT_CONFIG, log_hint
from .output import (
    ConfigOption,
    ExitCode,
    JsonFlag,
    YesFlag,
    emit,
    need_file,
    refused,
    reported,
    usage_error,
)

if TYPE_CHECKING:
    from edge_agent.config import AgentConfig

_REKEY_EPILOG: Final = (
    "Example: pointillist agent rekey --config agent.toml --key-file next/host/identity.key --yes"
)
_RETIRE_EPILOG: Final = "Example: pointillist agent retire --config agent.toml --yes"


app = typer.Typer()


@app.command(epilog=_REKEY_EPILOG)
def rekey(
    key_file: Annotated[
        Path, typer.Option(help="The new key, from `keys generate host --folder`; it is moved.")
    ],
    config: ConfigOption = DEFAULT_CONFIG,
    early: Annotated[
        bool,
        typer.Option("--early", help="Although no roster in force has the new key yet."),
    ] = False,
    yes: YesFlag = False,
    json: JsonFlag = False,
) -> None:
    """Go on under a new key, with the same ledger: what this machine has spent stays spent.

    For a key that has to be changed, and for a machine whose GPUs were. First have the new key
    enrolled in place of the old one (`agent join --key-file`); from the week start at which its
    roster is in force the old key reports nothing. Then stop the agent, call this, start it.

    The old key is destroyed, and the new one moved to host.key_file. A ledger that is lost or
    damaged is refused: recover it first. A call that was cut off is ended by the same call again.
    """
    from edge_agent.ledger.ledger_records import LedgerRefused
    from edge_agent.live import load_host, this_machine
    from edge_agent.membership import end_of_earlier
    from edge_agent.membership import rekey as carry_on

    loaded = agent_file.load_file(config)
    place = loaded.host.key_file
    need_file(
        key_file,
        "the new host key",
        f"`pointillist keys generate host --folder NEXT`; `keys show {place}` says whether an "
        "earlier call came to its end",
    )
    agent_file.become_agent(loaded)
    now_s = int(time.time())
    done = end_of_earlier(loaded, key_file, this_machine(loaded))
    if done is None:
        following = agent_file.bind_gpus(agent_file.load_file(config, key_file))
        binding = this_machine(following)
        new = load_host(following, binding)
        if not early:
            _need_enrolled(loaded, new.host_id, now_s)
        _confirm(yes, f"Destroy the key {place}, and go on as {new.host_id.hex()}?")
        with reported(ExitCode.REFUSED, LedgerRefused):
            done = carry_on(loaded, key_file, binding, now_s)
    emit(
        {"host": done.new.hex(), "before": done.old and done.old.hex(), "ledger": done.carried},
        json,
    )


def _need_enrolled(config: AgentConfig, host: bytes, now_s: int) -> None:
    """Refuse while the log has no roster in force with a host."""
    from edge_agent.membership import newest_roster
    from transport.opening import Side, open_transport
    from transport.port import TransportUnavailable
    from wire.fields import HostId

    with (
        reported(ExitCode.UNAVAILABLE, TransportUnavailable, hint=log_hint(config)),
        open_transport(config.transport.settings, Side.AGENT) as log,
    ):
        roster = newest_roster(log, HostId(host), config.trust)
    if roster is None:
        raise refused(
            f"expected a signed roster on the log that has the new host {host.hex()}, found none",
            "pointillist agent join --key-file; or --early, and nothing is reported until then",
        )
    if roster.effective_from > now_s:
        start = time.strftime("%Y-%m-%d %H:%MZ", time.gmtime(roster.effective_from))
        raise refused(
            f"expected a roster in force with the new host, found one that starts {start}",
            "wait until then; or --early, and nothing is reported until then",
        )


@app.command(epilog=_RETIRE_EPILOG)
def retire(
    config: ConfigOption = DEFAULT_CONFIG, yes: YesFlag = False, json: JsonFlag = False
) -> None:
    """End this host: destroy its key, the reports that wait and the raw data that it kept.

    For a host that leaves the fleet. Stop the agent first, and have the Leader's operator take the
    host off the roster. The ledger stays: it has times and costs, no measurement, and a host that
    comes back goes on with it (`agent ledger recover`), so that its budget does not begin anew.
    """
    from edge_agent.ledger.ledger_records import LedgerRefused
    from edge_agent.membership import retire as end

    loaded = agent_file.load_file(config)
    agent_file.become_agent(loaded)
    _confirm(yes, f"Destroy the key {loaded.host.key_file} and this host's raw data for good?")
    with reported(ExitCode.REFUSED, LedgerRefused):
        done = end(loaded)
    emit(
        {
            "host": done.host and done.host.hex(),
            "destroyed": [str(path) for path in done.destroyed],
            "kept": [str(path) for path in done.kept],
        },
        json,
    )


def _confirm(yes: bool, question: str) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise usage_error("this asks first, and there is no terminal to ask at", "add --yes")
    typer.confirm(question, abort=True, err=True)
