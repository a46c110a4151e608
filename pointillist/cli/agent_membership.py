"""`pointillist agent join`, `rekey`, `disown`, `retire`, `ledger`: a host's place and spending."""

from __future__ import annotations

import time
from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from edge_agent import membership
from edge_agent.config import AUTO, AgentConfig, load_config
from edge_agent.ledger.ledger import Ledger
from edge_agent.ledger.ledger_db import counted_as
from edge_agent.ledger.ledger_records import LedgerFull, LedgerNone, LedgerRefused
from edge_agent.membership import disown as give_up
from edge_agent.membership import rekey as carry_on
from edge_agent.membership import retire as end
from edge_agent.open_agent import load_host, read_ledger, this_machine
from edge_agent.protocol.roster_book import read_signed_past
from privacy.budget import Entry, peak, spent_at
from transport.factory import Side, open_transport
from transport.files.keyfiles import machine_id, mark_ledger
from transport.files.private_files import TokenUnusable, read_token
from transport.interface import TransportUnavailable
from wire.catalogue import Catalogue
from wire.fields import HostId
from wire.task import series_name

from . import agent_file
from .agent_file import DEFAULT_CONFIG, log_hint
from .output import (
    ConfigOption,
    ExitCode,
    JsonFlag,
    YesFlag,
    confirm,
    emit,
    need_file,
    refused,
    reported,
    say,
)

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
        hardware = membership.hardware_names(machine_id(), loaded.host.gpu_uuids)
    request = membership.join_request(
        host, hardware, token, membership.gpu_counts(Catalogue.load(), loaded.host.models)
    )
    with (
        reported(ExitCode.UNAVAILABLE, membership.NoSealingKey, hint="start the Leader first"),
        reported(ExitCode.UNAVAILABLE, TransportUnavailable, hint=log_hint(loaded)),
        ExitStack() as stack,
    ):
        log = stack.enter_context(open_transport(loaded.transport.settings, Side.AGENT))
        membership.send_join(log, request, pins, int(time.time()))
        standing = membership.find_standing(log, request, pins, wait_s)
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


def _in_words(standing: membership.JoinStanding) -> str:
    answer, roster = standing.answer, standing.roster
    if answer is None:
        return _NOT_ANSWERED
    if roster is not None and standing.series:
        start = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(roster.effective_from))
        return (
            f"Enrolled. A running agent reports the windows from {start} on.\n"
            "The token has done its work; remove it."
        )
    promised = f"Answered for roster {answer.roster_version}, and not enrolled yet: "
    if roster is None or roster.version < answer.roster_version:
        return promised + "that roster, under both signatures, is not on the log so far."
    return promised + (
        f"roster {roster.version} is on the log and leaves this host out. Ask the Leader's "
        "operator; a host comes back with a new token."
    )


_REKEY_EPILOG: Final = (
    "Example: pointillist agent rekey --config agent.toml --key-file next/host/identity.key --yes"
)
_RETIRE_EPILOG: Final = "Example: pointillist agent retire --config agent.toml --yes"


@app.command(epilog=_REKEY_EPILOG)
def rekey(
    key_file: Annotated[
        Path, typer.Option(help="The new key, from `keys generate host --folder`; it is moved.")
    ],
    config: ConfigOption = DEFAULT_CONFIG,
    early: Annotated[
        bool, typer.Option("--early", help="Although no roster in force has the new key yet.")
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
    done = membership.end_of_earlier(loaded, key_file, this_machine(loaded))
    if done is None:
        following = agent_file.bind_gpus(agent_file.load_file(config, key_file))
        binding = this_machine(following)
        new = load_host(following, binding)
        if not early:
            _need_enrolled(loaded, new.host_id, now_s)
        confirm(yes, f"Destroy the key {place}, and go on as {new.host_id.hex()}?")
        with reported(ExitCode.REFUSED, LedgerRefused):
            done = carry_on(loaded, key_file, binding, now_s)
    emit(
        {"host": done.new.hex(), "before": done.old and done.old.hex(), "ledger": done.carried},
        json,
    )


def _need_enrolled(config: AgentConfig, host: bytes, now_s: int) -> None:
    with (
        reported(ExitCode.UNAVAILABLE, TransportUnavailable, hint=log_hint(config)),
        open_transport(config.transport.settings, Side.AGENT) as log,
    ):
        roster = membership.newest_roster(log, HostId(host), config.trust)
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


@app.command(epilog="Example: pointillist agent disown --config agent.toml --yes")
def disown(
    config: ConfigOption = DEFAULT_CONFIG, yes: YesFlag = False, json: JsonFlag = False
) -> None:
    """Give a copied machine an identity of its own; the one it was copied from keeps its own.

    For a disk or image that was copied with another host's key. Give the copy a machine id of its
    own first, and stop its agent. The copied key, raw data and waiting reports are destroyed, and
    a new key is bound to this machine and its GPUs. The ledger goes on as recovered: what it says
    is spent stays spent, and for two weeks no new series and no larger weight is taken.

    Then join with a token of its own. Nobody removes the other host from the roster.
    """
    loaded, auto = agent_file.load_file(config), load_config(config).host.gpus == AUTO
    agent_file.become_agent(loaded)
    here = agent_file.gpus_here()
    confirm(yes, f"Destroy the copied key {loaded.host.key_file} and make another?")
    with reported(ExitCode.REFUSED, LedgerRefused), reported(ExitCode.UNAVAILABLE, LedgerFull):
        done = give_up(loaded, machine_id(), here, auto=auto, now_s=int(time.time()))
    emit(
        {
            "host": done.new.hex(),
            "copied_from": done.copied.hex(),
            "ledger": done.ledger,
            "destroyed": [str(path) for path in done.destroyed],
        },
        json,
    )
    say(
        "Next: `pointillist agent join` with a token of its own. The host "
        f"{done.copied.hex()} stays on the roster: no --remove."
    )


@app.command(epilog=_RETIRE_EPILOG)
def retire(
    config: ConfigOption = DEFAULT_CONFIG, yes: YesFlag = False, json: JsonFlag = False
) -> None:
    """End this host: destroy its key, the reports that wait and the raw data that it kept.

    For a host that leaves the fleet; a copied machine calls `disown`. Stop the agent first, and
    have the Leader's operator take the host off the roster. The ledger stays: it has times and
    costs, no measurement, and a host that comes back goes on with it (`agent ledger recover`), so
    that its budget does not begin anew.
    """
    loaded = agent_file.load_file(config)
    agent_file.become_agent(loaded)
    confirm(yes, f"Destroy the key {loaded.host.key_file} and this host's raw data for good?")
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


ledger_app = typer.Typer(
    help="The privacy ledger of this host: show it, recover it.", no_args_is_help=True
)
app.add_typer(ledger_app, name="ledger")


@ledger_app.command(epilog="Example: pointillist agent ledger show --json | jq .peak_of_a_week")
def show(config: ConfigOption = DEFAULT_CONFIG, json: JsonFlag = False) -> None:
    """Show what this host has spent, also while the agent runs."""
    loaded = agent_file.load_file(config)
    agent_file.become_agent(loaded)  # SQLite makes files beside the ledger: the agent's own
    with reported(ExitCode.REFUSED, LedgerRefused), reported(ExitCode.USAGE, LedgerNone):
        view = read_ledger(loaded)
    entries: list[Entry] = [entry for host in view.hosts for entry in host.entries]
    now_s = int(time.time())
    body = {
        "hosts": [host.host_id.hex() for host in view.hosts],
        "epochs_counted_to": max((host.epoch_ctr for host in view.hosts), default=0),
        "spent_in_the_last_week": _part(_millionths(spent_at(entries, now_s - 604_800)), json),
        "peak_of_a_week": _part(_millionths(peak(entries)), json),
        "series": [
            {
                "series": series_name(version.series),
                "leader_pk_begins": version.series.partition("@")[2] or None,
                "version": version.version,
                "weight_millionths": version.weight_millionths,
                "window_s": version.window_s,
                "windows_kept": len(starts),
                "last_window": max(starts, default=0),
            }
            for version in view.series.values()
            for names in [counted_as(version.series)]
            for starts in [[e.start for e in entries if e.series in names]]
        ],
        "frozen_until": view.freeze_until_s if view.freeze_until_s > now_s else None,
    }
    emit(body, json)


def _millionths(cost: Fraction) -> float:
    """Round a cost up, so that what is shown is never below what was spent."""
    return float(-(-cost * 1_000_000 // 1)) / 1_000_000


def _part(spent: float, json: bool) -> float | str:
    """A part of the week's budget: as a number for scripts, in words for people."""
    return spent if json else f"{100 * spent:.4g} % of a week's budget"


@ledger_app.command(epilog="Example: pointillist agent ledger recover --config agent.toml --yes")
def recover(
    config: ConfigOption = DEFAULT_CONFIG, yes: YesFlag = False, json: JsonFlag = False
) -> None:
    """Start a new ledger after the old one was lost, without spending anything twice.

    Series that the signed roster and tasks name resume with the first window that starts after
    now; for two weeks no new series and no larger weight is taken. The old files are kept aside.
    """
    loaded = agent_file.load_file(config)
    agent_file.become_agent(loaded)
    binding = this_machine(loaded)
    host = load_host(loaded, binding)
    question = f"Set the ledger of host {host.host_id.hex()} aside?"
    confirm(
        yes, question, "recovery", "read `pointillist agent ledger recover --help`, then add --yes"
    )
    with open_transport(loaded.transport.settings, Side.AGENT) as log:
        past = read_signed_past(log, host.host_id, loaded.trust)
    if not past.known:
        raise refused(
            "no roster and task signed by the pinned parties name this host",
            "let the Leader publish its roster and tasks, then try again",
        )
    now_s = int(time.time())
    # First: where a crash strikes between the old files and the new ones the key alone tells of a
    # ledger, and without it the agent would begin one with a whole budget.
    mark_ledger(loaded.host.key_file, binding)
    with reported(ExitCode.REFUSED, LedgerRefused), reported(ExitCode.UNAVAILABLE, LedgerFull):
        ledger = Ledger.recover(
            loaded.ledger_file, loaded.fence_file, hosts=[host.host_id], binding=binding,
            now_s=now_s, signed_time_s=past.signed_time_s, known=past.known,
        )  # fmt: skip
    view = ledger.view([host.host_id])
    ledger.close()
    emit(
        {
            "host": host.host_id.hex(),
            "series": [series_name(version.series) for version in past.known],
            "resumes_after": view.resume_after_s,
            "frozen_until": view.freeze_until_s,
            "set_aside": f"{loaded.ledger_file}.lost-{now_s}",
        },
        json,
    )
