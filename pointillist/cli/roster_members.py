"""`pointillist leader roster hosts` and `remove`: who is on a roster, and who leaves it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from .output import ExitCode, JsonFlag, emit, need_file, reported, usage_error
from .party import load_identity

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
    from wire import labels
    from wire.envelope import Signed
    from wire.rejection import ReportRejected
    from wire.roster import Roster

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
    from aggregator.enrolment.roster_draft import EnrolmentError, Leaving, without
    from aggregator.state.state_file import StorageUnavailable, write_all_durably
    from wire.rejection import ReportRejected

    named = [host_id(text) for text in [*(hosts or []), *_listed(hosts_file)]]
    if everybody and (named or operator):
        raise usage_error("--all: expected no host and no operator beside it, got some")
    need_file(previous, "the roster before", _MAKES_ONE)
    if out.exists():
        raise usage_error(f"{out}: exists; a roster is never overwritten", "name a new --out")
    leaving = Leaving(named, operator or (), everybody)
    with (
        reported(ExitCode.REFUSED, ReportRejected),
        reported(ExitCode.USAGE, EnrolmentError),
    ):
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
