"""`pointillist leader roster`: fetch join requests; build and show rosters, take hosts off."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from aggregator.enrolment.enrolment import (
    NothingEnrolled,
    enrol_folder,
    fetch_requests,
    sealing_pairs,
    write_spent,
)
from aggregator.enrolment.roster_draft import EnrolmentError, Leaving, RefusedRequest, without
from aggregator.enrolment.tasks import summary
from aggregator.party.config import load_transport
from aggregator.state.state_file import StorageUnavailable, write_all_durably
from transport.factory import EmbeddedSettings, Side, TransportSettings, open_transport
from transport.interface import TransportUnavailable
from transport.process.printable import printable
from transport.settings.config import ConfigError
from wire import labels
from wire.envelope import Signed
from wire.rejection import ReportRejected
from wire.roster import Roster

from .output import ExitCode, JsonFlag, emit, need_file, refused, reported, say, usage_error
from .party import key_owner, load_identity

HOSTS_EPILOG: Final = "Example: pointillist leader roster hosts fleet.roster --operator acme"
REMOVE_EPILOG: Final = (
    "Example: pointillist leader roster remove 5f3c... --previous fleet.roster "
    "--key keys/leader/identity.key --out next.roster"
)
_MAKES_ONE: Final = "`pointillist leader roster build` makes one"

OperatorOption = Annotated[
    list[str] | None, typer.Option("--operator", help="All hosts of this operator; repeat it.")
]


def list_hosts(
    file: Annotated[Path, typer.Argument(help="A .roster file.")],
    operator: OperatorOption = None,
    json: JsonFlag = False,
) -> None:
    """List the hosts of a roster: id, operator, GPUs and series."""
    need_file(file, "a roster", _MAKES_ONE)
    with reported(ExitCode.USAGE, ReportRejected):
        roster = Roster.decode_body(Signed.decode(file.read_bytes(), labels.ROSTER).body)
    rows: list[dict[str, Any]] = [
        {
            "host": entry.host_id.hex(),
            "operator": entry.operator,
            "gpus": entry.gpus,
            "series": [membership.series for membership in roster.plans[entry.plan]],
        }
        for entry in roster.entries
        if not operator or entry.operator in operator
    ]
    emit({"hosts": rows} if not json else rows, json)


def remove_hosts(
    previous: Annotated[
        Path, typer.Option("--previous", help="The newest roster, under both signatures.")
    ],
    key: Annotated[Path, typer.Option("--key", help="The Leader's identity.key.")],
    out: Annotated[Path, typer.Option("--out", help="The roster to be countersigned.")],
    hosts: Annotated[
        list[str] | None,
        typer.Argument(help="Ids of hosts that leave, hex: `roster hosts` lists them."),
    ] = None,
    hosts_file: Annotated[
        Path | None, typer.Option("--hosts", help="Or a file of such ids, one a line.")
    ] = None,
    operator: OperatorOption = None,
    everybody: Annotated[
        bool, typer.Option("--all", help="Every host: the fleet ends with the week.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Make the next roster without some hosts; it is in force from the next week start.

    Until then what they report counts: stop a host whose key is in other hands. Have the roster
    countersigned in time (`pointillist helper countersign`), and compare what is left with n_min,
    t and the number of operators that your tasks ask for: below them nothing is released.

    A host that comes back needs a new token. With --all the roster is empty, and agents send
    nothing once it is in force.
    """
    named = [host_id(text) for text in [*(hosts or []), *_listed(hosts_file)]]
    if everybody and (named or operator):
        raise usage_error("--all: expected no host and no operator beside it, got some")
    need_file(previous, "the roster before", _MAKES_ONE)
    if out.exists():
        raise usage_error(f"{out}: exists; a roster is never overwritten", "name a new --out")
    leaving = Leaving(named, operator or (), everybody)
    with reported(ExitCode.REFUSED, ReportRejected), reported(ExitCode.USAGE, EnrolmentError):
        roster, summary = without(previous, leaving, load_identity(key))
    with reported(ExitCode.UNAVAILABLE, StorageUnavailable):
        write_all_durably({out: roster})
    emit({"file": str(out), **summary}, json)


def _listed(file: Path | None) -> list[str]:
    if file is None:
        return []
    need_file(file, "ids of hosts, one a line", "`roster hosts --json` has them")
    return file.read_text(encoding="ascii", errors="replace").split()


def host_id(text: str, option: str = "HOST") -> bytes:
    """Read a host's id as people give it: 16 bytes in hex."""
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != 16:
        raise usage_error(f"{option}: expected a host's id, 16 bytes in hex, got {text!r}")
    return value


app = typer.Typer(help="Who takes part, from which week on.", no_args_is_help=True)

_LOG_HELP: Final = "Folder of the log, or leader.toml, which names the log or the cluster."
PlansOption = Annotated[
    Path, typer.Option("--plans", help="TOML: plans, and the operators whose vouchers are taken.")
]
RequestsOption = Annotated[Path, typer.Option("--requests", help="Folder of *.join requests.")]
LeaderKeyFile = Annotated[
    Path, typer.Option("--key", help="The Leader's identity.key; its daily keys lie beside it.")
]


@app.command(
    "fetch",
    epilog="Example: pointillist leader roster fetch --plans plans.toml --requests joins/ "
    "--log /var/lib/pointillist/log --key keys/leader/identity.key",
)
def fetch(
    plans: PlansOption,
    requests: RequestsOption,
    key: LeaderKeyFile,
    log: Annotated[Path, typer.Option("--log", help=_LOG_HELP)],
    json: JsonFlag = False,
) -> None:
    """Open join requests of the log into the folder that `roster build` reads.

    Requests are sealed to a day's key and open until that is destroyed, a little over a day after
    its day: run this daily. A host whose request was missed asks again with the same token.
    """
    need_file(plans, "plans and operators", "docs/first-fleet.md shows one")
    with reported(ExitCode.USAGE, EnrolmentError):
        emit(_fetch(log, plans, requests, key), json)


@app.command(
    "build",
    epilog="Example: pointillist leader roster build --plans plans.toml --requests joins/ "
    "--previous fleet.roster --key keys/leader/identity.key --out next.roster",
)
def build(
    plans: PlansOption,
    requests: RequestsOption,
    key: LeaderKeyFile,
    out: Annotated[Path, typer.Option("--out", help="The roster to be countersigned.")],
    previous: Annotated[
        Path | None, typer.Option("--previous", help="The roster in force; its hosts stay.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", help=f"Fetch new join requests first. {_LOG_HELP}")
    ] = None,
    remove: Annotated[
        list[str] | None,
        typer.Option(
            "--remove", help="Id of a host that leaves, or comes back under a new key; repeat it."
        ),
    ] = None,
    now: Annotated[
        bool, typer.Option("--now", help="In force at once: a fleet's first roster, or a test's.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Enrol hosts that an operator vouches for.

    The roster is in force from the next week start (Thursday 00:00 UTC), so that no budget of a
    running week changes; --now is for a fleet's first roster, when nothing was reported yet. Sign
    it in time: one that is countersigned after its start is refused, but for the first.

    Writes the roster, the vouchers of its new hosts (*.vouchers) and, beside each request, its
    signed answer (*.entry); have roster and answers countersigned with `pointillist helper
    countersign`. Used vouchers are kept beside the plans (*.spent): each enrols one host, once.

    A request that may not join is left out and named on stderr with its host and the reason; the
    others are enrolled. Two requests for the same token or hardware are both left out. A machine of
    which any part is enrolled under another key is refused; one that was installed anew comes back
    with --remove OLD_HOST_ID, a copied disk after `agent disown` and without it. Exit code 3 when
    every request was refused: no roster is written.
    """
    need_file(plans, "plans and operators", "docs/first-fleet.md shows one")
    if out.exists():
        raise usage_error(f"{out}: exists; a roster is never overwritten", "name a new --out")
    leaving = [host_id(text, "--remove") for text in remove or []]
    with reported(ExitCode.REFUSED, ReportRejected), reported(ExitCode.USAGE, EnrolmentError):
        fetched = {} if log is None else _fetch(log, plans, requests, key)
        try:
            result = enrol_folder(
                plans, requests, previous, load_identity(key), at_once=now, remove=leaving
            )
        except NothingEnrolled as error:
            _say_refused(error.refused)
            raise refused(str(error)) from error
    _say_refused(result.refused)
    with reported(ExitCode.UNAVAILABLE, StorageUnavailable):
        # Answers last: a request that has one is not asked for again.
        write_all_durably({out.with_suffix(".vouchers"): result.vouchers, out: result.roster})
        write_all_durably(result.answers)
        write_spent(plans, result.spent)
    left_out = result.refused if json else len(result.refused)
    body = {"file": str(out), **result.summary, "refused": left_out}
    emit(body | ({"requests": fetched} if fetched else {}), json)


def _say_refused(found: Sequence[RefusedRequest]) -> None:
    for request in found:
        say(f"left out: {printable(str(request))}")


def _fetch(log: Path, plans: Path, requests: Path, key: Path) -> dict[str, int]:
    settings = _log_settings(log)
    leader_pk = load_identity(key).public_bytes
    pairs = sealing_pairs(key.parent, owner=key_owner(key))
    with (
        reported(ExitCode.UNAVAILABLE, TransportUnavailable),
        open_transport(settings, Side.AGGREGATOR) as opened,
    ):
        return dict(fetch_requests(opened, plans, requests, leader_pk, pairs, time.time()))


def _log_settings(log: Path) -> TransportSettings:
    """Which log is meant; one that is not there is never made."""
    if log.is_dir():
        return EmbeddedSettings(log)
    if log.is_file():
        with reported(ExitCode.USAGE, ConfigError):
            return load_transport(log)
    raise usage_error(
        f"{log}: expected the folder of a log, or leader.toml, found neither",
        "the Leader makes the folder when it starts; of a cluster, name leader.toml",
    )


@app.command("show", epilog="Example: pointillist leader roster show fleet.roster --json")
def show(
    file: Annotated[Path, typer.Argument(help="A .roster file.")], json: JsonFlag = False
) -> None:
    """Show version, hosts and operators of a roster."""
    need_file(file, "a roster", "`pointillist leader roster build` makes one")
    with reported(ExitCode.USAGE, ReportRejected):
        found = summary(file.read_bytes())
    if found["kind"] != "roster":
        raise usage_error(f"{file}: expected a roster, got a {found['kind']}")
    emit(found, json)


app.command("hosts", epilog=HOSTS_EPILOG)(list_hosts)
app.command("remove", epilog=REMOVE_EPILOG)(remove_hosts)
