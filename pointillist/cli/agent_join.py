"""`pointillist agent join`: ask for a place on the roster, and see whether this host has one."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from . import agent_file
from .agent_file import DEFAULT_CONFIG, log_hint
from .output import ConfigOption, ExitCode, JsonFlag, emit, need_file, refused, reported, say

if TYPE_CHECKING:
    from edge_agent.membership import JoinStanding
    from edge_agent.protocol.roster_book import RosterView
    from wire.roster import EntryAnswer


_EPILOG: Final = "Example: pointillist agent join --config agent.toml --token-file token"

_NOT_ANSWERED = """Not answered yet. The request waits on the log; enrolment takes people:
  1. the Leader's operator: pointillist leader roster build ... --log FOLDER
  2. the Helper's operator: pointillist helper countersign, for roster and *.entry
  3. the Leader's operator puts both into signed_dir; the Leader publishes them
Asking again with the same token is harmless, and prints the answer once it is
there. Ask again where nobody fetched the request within a day: it is sealed to
a key that is destroyed then."""

app = typer.Typer()


@app.command(epilog=_EPILOG)
def join(
    token_file: Annotated[Path, typer.Option(help="The one-use token from the operator.")],
    config: ConfigOption = DEFAULT_CONFIG,
    key_file: Annotated[
        Path | None,
        typer.Option(help="A host key that is to follow host.key_file: see `agent rekey`."),
    ] = None,
    wait_s: Annotated[float, typer.Option(help="How long to wait for the answer.", min=0.0)] = 10.0,
    json: JsonFlag = False,
) -> None:
    """Ask to be enrolled; enrolment takes effect at the next week start.

    With gpus = "auto" the host's key is bound to the GPUs that its drivers list now, once. The
    request carries the host's public key, its GPU models, and hashes of its machine id and of each
    GPU's UUID. It is sealed to the Leader that the token names; the token itself stays here.
    `enrolled` says whether the newest roster on the log, signed by both parties, has this host.
    """
    from edge_agent.live import load_host, this_machine
    from edge_agent.membership import (
        NoSealingKey,
        find_standing,
        gpu_counts,
        hardware_names,
        join_request,
        send_join,
    )
    from transport.files.keyfiles import machine_id
    from transport.files.private_files import TokenUnusable, read_token
    from transport.opening import Side, open_transport
    from transport.port import TransportUnavailable
    from wire.catalogue import Catalogue

    loaded = agent_file.load_file(config, key_file)
    key = loaded.host.key_file
    need_file(key, "this host's key", "`pointillist keys generate host`")
    need_file(
        token_file, "a one-use token from this host's operator", "`pointillist operator vouch`"
    )
    with reported(ExitCode.USAGE, TokenUnusable):
        token = read_token(token_file)
    pins = loaded.trust
    if token.voucher.leader_pk not in pins.leaders:
        raise refused(
            f"{token_file}: expected a token for a Leader of trust.leaders, got another",
            "token and agent.toml are of two fleets: ask whoever gave them which is right",
        )
    agent_file.become_agent(loaded)
    loaded = agent_file.bind_gpus(loaded)
    host = load_host(loaded, this_machine(loaded))
    with reported(ExitCode.USAGE, ValueError):
        hardware = hardware_names(machine_id(), loaded.host.gpu_uuids)
    request = join_request(host, hardware, token, gpu_counts(Catalogue.load(), loaded.host.models))
    with (
        reported(ExitCode.UNAVAILABLE, NoSealingKey, hint="start the Leader first"),
        reported(ExitCode.UNAVAILABLE, TransportUnavailable, hint=log_hint(loaded)),
        ExitStack() as stack,
    ):
        log = stack.enter_context(open_transport(loaded.transport.settings, Side.AGENT))
        send_join(log, request, pins, int(time.time()))
        standing = find_standing(log, request, pins, wait_s)
    roster = standing.roster
    body: dict[str, Any] = {
        "host": host.host_id.hex(),
        "request": request.hash().hex(),
        "answered": standing.answer is not None,
        "enrolled": bool(standing.series),
    }
    if roster is not None:
        body["newest_roster"] = roster.version
        if standing.series:
            body |= {"effective_from": roster.effective_from, "series": standing.series}
    emit(body, json)
    if not json:
        say(_in_words(standing))


def _in_words(standing: JoinStanding) -> str:
    if standing.answer is None:
        return _NOT_ANSWERED
    if standing.roster is None or not standing.series:
        return _not_on_a_roster(standing.answer, standing.roster)
    start = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(standing.roster.effective_from))
    return (
        f"Enrolled. A running agent reports the windows from {start} on.\n"
        "The token has done its work; remove it."
    )


def _not_on_a_roster(answer: EntryAnswer, roster: RosterView | None) -> str:
    promised = f"Answered for roster {answer.roster_version}, and not enrolled yet: "
    if roster is None or roster.version < answer.roster_version:
        return promised + "that roster, under both signatures, is not on the log so far."
    return promised + (
        f"roster {roster.version} is on the log and leaves this host out. Ask the Leader's "
        "operator; a host comes back with a new token."
    )
