"""`pointillist fleet`: the first hour of a fleet, as folders and as commands to run."""

from __future__ import annotations

import os
import textwrap
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from pointillist.fleet import party_setup
from pointillist.fleet.party_card import CardRefused, FleetParty
from pointillist.fleet.party_config_text import shell_line
from pointillist.fleet.party_files import FolderUnusable
from pointillist.installation import public_fingerprint
from pointillist.plan_file import PlanFileError
from pointillist.play.processes import Family
from pointillist.table import terminal_columns
from privacy.errors import ParameterError

from .output import (
    NO_TERMINAL,
    ExitCode,
    JsonFlag,
    emit,
    examples,
    need_file,
    reported,
    say,
    say_prose,
    usage_error,
)
from .simulate import interrupt_on_signals

_EXAMPLES = examples("""
pointillist fleet init /srv/trial   a trial on this machine: all parties, 500 hosts
pointillist fleet init /srv/trial --host-by-hand   the same, this host's part left to you
pointillist fleet up /srv/trial   run it to a released number, and on until Ctrl-C""")

_INIT_EXAMPLES = """Examples:

pointillist fleet init /srv/trial

pointillist fleet init /srv/fleet --party leader --name vendor --address vendor.example.org \\
--broker kafka.example.org:9093 --hosts 2000

pointillist fleet init /srv/fleet --party helper --name notary --address notary.example.org:7443

pointillist fleet init /srv/fleet --party operator --name acme"""


class FleetRole(StrEnum):
    LEADER = "leader"
    HELPER = "helper"
    OPERATOR = "operator"


app = typer.Typer(
    help="The first hour of a fleet: folders, keys, configurations, and what to run.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
)


@app.command(epilog=_INIT_EXAMPLES)
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    party: Annotated[
        FleetRole | None,
        typer.Option(help="Which party of a real fleet this is; a trial of all without it."),
    ] = None,
    name: Annotated[str, typer.Option(help="With --party: the company, as others name it.")] = "",
    address: Annotated[
        str,
        typer.Option(
            help="With --party leader: its host name; helper: host:port it is reached at."
        ),
    ] = "",
    broker: Annotated[
        list[str] | None,
        typer.Option(help="With --party leader: host:port of a Kafka broker; repeat it."),
    ] = None,
    broker_tls: Annotated[
        bool, typer.Option("--broker-tls/--broker-plain", help="How the brokers are spoken to.")
    ] = True,
    hosts: Annotated[
        int,
        typer.Option(
            min=20,
            max=200_000,
            help="Most hosts: of a trial (one is real), or of the Leader's plan.",
        ),
    ] = 500,
    windows: Annotated[
        int, typer.Option(min=1, max=10_000, help="Of a trial's series; fewer have less noise.")
    ] = 20,
    window_s: Annotated[
        int, typer.Option(min=5, max=3600, help="Length of a trial's window.")
    ] = 30,
    host_by_hand: Annotated[
        bool,
        typer.Option(
            "--host-by-hand",
            help="Of a trial: this machine's key and enrolment are yours to do; `fleet up` waits.",
        ),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Write a party's folder: its keys, its configuration, and what it does next.

    Without --party it is a trial on this machine: all parties, one real host, and simulated hosts
    beside it so that windows reach n_min. One person has the keys of both parties then, so nothing
    in it is private: its tasks are of the domain demo, which agents of a fleet refuse.

    With --party it is one party of a real fleet, which makes its own keys and nobody else's. The
    parties exchange cards (card.toml) and take them in by `fleet pair`.
    """
    if party is None:
        stray = {"--name": name, "--address": address, "--broker": broker}
        if given := [option for option, value in stray.items() if value]:
            raise usage_error(f"{', '.join(given)}: expected --party beside it, or none of them")
        _trial(folder, (hosts, windows, window_s), host_by_hand, json)
    elif host_by_hand:
        raise usage_error("--host-by-hand: expected no --party beside it, as it is of a trial")
    else:
        _party(folder, party, name, (address, broker or [], broker_tls, hosts), json)


def _trial(folder: Path, wanted: tuple[int, int, int], by_hand: bool, json: bool) -> None:
    from pointillist.fleet.trial import MOST_HOSTS, TrialSettings, make_trial

    hosts, windows, window_s = wanted
    if hosts > MOST_HOSTS:
        raise usage_error(f"--hosts: expected at most {MOST_HOSTS:,} of a trial, got {hosts:,}")
    if by_hand and os.geteuid() != 0:
        raise usage_error(
            "--host-by-hand: expected root, as the host's files lie in /etc and /var/lib"
        )
    settings = TrialSettings(hosts=hosts, windows=windows, window_s=window_s, by_hand=by_hand)
    with reported(ExitCode.USAGE, FolderUnusable):
        made = make_trial(folder, settings)
    following = ["pointillist", "fleet", "up", str(made.base)]
    body: dict[str, Any] = {
        "folder": str(made.base),
        "trial": True,
        "hosts": settings.hosts,
        "simulated_hosts": settings.hosts - 1,
        "n_min": settings.n_min,
        "leader": str(made.leader),
        "helper": str(made.helper),
        "operator": str(made.operator),
        "host": str(made.host(settings.host)),
        "next": shell_line(following),
    }
    emit(body, json)
    say_prose(f"\n{settings.said}")


def _party(
    folder: Path, party: FleetRole, name: str, places: tuple[str, list[str], bool, int], json: bool
) -> None:
    address, brokers, tls, hosts = places
    _need(party, {"--name": name, "--address": address, "--broker": brokers})
    wishes = party_setup.PartyWishes(FleetParty(party), name, address, tuple(brokers), tls, hosts)
    with (
        reported(ExitCode.USAGE, FolderUnusable, CardRefused, PlanFileError, ValueError),
        reported(ExitCode.REFUSED, ParameterError),
    ):
        made = party_setup.begin_party(folder, wishes)
    _show_next(made, json)


def _need(party: FleetRole, given: dict[str, Any]) -> None:
    wanted = {
        FleetRole.LEADER: ("--name", "--address", "--broker"),
        FleetRole.HELPER: ("--name", "--address"),
        FleetRole.OPERATOR: ("--name",),
    }[party]
    if missing := [option for option in wanted if not given[option]]:
        raise usage_error(f"--party {party}: expected {', '.join(missing)} beside it, got none")


@app.command(
    epilog="Example: pointillist fleet pair /srv/fleet vendor-card.toml "
    "--fingerprint 0a1b:2c3d:4e5f:6071:8293:a4b5:c6d7:e8f9"
)
def pair(
    folder: Annotated[Path, typer.Argument(help="What `fleet init --party` wrote.")],
    card: Annotated[Path, typer.Argument(help="Another party's card.toml.")],
    fingerprint: Annotated[
        str,
        typer.Option(help="Its fingerprint, as its owner told you by another way than it came."),
    ],
    json: JsonFlag = False,
) -> None:
    """Take another party's card in: pin its keys, and write what can be configured with them.

    The fingerprint is of the whole card. Read it out over a telephone that you called yourself:
    whoever could change the card on its way could change a fingerprint beside it.
    """
    need_file(card, "another party's card", "`pointillist fleet init --party` makes card.toml")
    place = party_setup.PartyFolder(folder.resolve())
    with reported(ExitCode.REFUSED, CardRefused):
        party_setup.take_card(place, card, fingerprint)
    _show_next(place, json)


@app.command("next", epilog="Example: pointillist fleet next /srv/fleet --json")
def next_(
    folder: Annotated[Path, typer.Argument(help="What `fleet init --party` wrote.")],
    json: JsonFlag = False,
) -> None:
    """Say what this party does next: what it runs, hands over, and must check itself."""
    _show_next(party_setup.PartyFolder(folder.resolve()), json)


def _show_next(folder: party_setup.PartyFolder, json: bool) -> None:
    with reported(ExitCode.USAGE, CardRefused, PlanFileError):
        card, steps = folder.card(), party_setup.next_steps(folder)
    body = {
        "folder": str(folder.base),
        "party": card.party,
        "name": card.name,
        "card": str(folder.own_card),
        "fingerprint": public_fingerprint(folder.own_card.read_bytes()),
        "next": steps,
    }
    emit(body, json, lambda _: _told(body, steps))


def _told(body: dict[str, Any], steps: list[party_setup.NextStep]) -> str:
    """Write each step, and what a person checks, below it; commands stay whole, to be copied."""
    width = terminal_columns(NO_TERMINAL)
    lines = [f"{body['party']} {body['name']}"]
    lines += [f"  {name:<11}  {body[name]}" for name in ("card", "fingerprint")]
    lines += ["", "Next:"]
    for number, step in enumerate(steps, 1):
        head = f"{number:3}."
        whole = "pointillist " in step.do
        lines += [f"{head} {step.do}"] if whole else _hanging(head, step.do, width)
        lines += _hanging("     check:", step.check, width) if step.check else []
    return "\n".join(lines)


def _hanging(head: str, text: str, width: int) -> list[str]:
    return textwrap.wrap(
        f"{head} {text}", width, subsequent_indent=" " * (len(head) + 1),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


@app.command(epilog="Example: pointillist fleet up /srv/trial --until-release")
def up(
    folder: Annotated[Path, typer.Argument(help="What `fleet init` wrote.")],
    until_release: Annotated[
        bool, typer.Option("--until-release", help="End once a window is released, not at Ctrl-C.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Run a trial: sign, enrol, report, until a number is released; then on until Ctrl-C.

    Each command is printed before it is run: they are those of a real fleet, each of the party that
    would type it there. Run again, it goes on where it was stopped, until its series ends.
    """
    from pointillist.fleet.trial_run import TrialBusy, TrialFailed, TrialOver, TrialRun

    interrupt_on_signals()
    over = "its windows are over; `pointillist fleet init` begins another in a new folder"
    with (
        reported(ExitCode.USAGE, FolderUnusable, hint="pointillist fleet init FOLDER writes one"),
        reported(ExitCode.UNAVAILABLE, TrialBusy),
        reported(ExitCode.FAILED, TrialFailed),
        reported(ExitCode.FAILED, TrialOver, hint=over),
        Family(folder.resolve() / "logs") as family,
    ):
        trial = TrialRun(folder, family, say)
        trial.bring_up()
        body = {
            "released": True,
            "trial": True,
            **trial.first_release(),
            "simulated_hosts": trial.settings.hosts - 1,
            "store": str(trial.folders.releases),
        }
        head = f"Released after {body['seconds']} s, of {body['hosts']} hosts:"
        emit(body, json, lambda _: f"\n{head}\n\n{trial.look()}")
        say_prose(f"\n{trial.settings.said}")
        if not until_release:
            say("\nIt goes on until Ctrl-C. In a browser: "
                f"pointillist web --store {trial.folders.releases}")  # fmt: skip
            trial.stay()
