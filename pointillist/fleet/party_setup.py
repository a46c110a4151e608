"""One party of a real fleet: its folder, its card, and the cards of the others that it took in.

A party makes its own keys and nobody else's. What it knows of the others comes in cards; with the
cards that it needs, its configuration is written.

What a party does next, in order: what it runs, what it hands to whom, what it must check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aggregator.enrolment.operators import OperatorKey, operator_keys
from aggregator.party.channel_address import ChannelTable
from pointillist.installation import AGENT_HOME, HOST_KEYS, public_fingerprint
from pointillist.plan_file import DEFAULT_PATH, load_plan
from privacy.signing import SigningKey
from transport.files.keyfiles import write_signing_key
from transport.files.own_names import files_ending
from transport.process.privileges import HELPER_USER, LEADER_USER, ensure_users
from transport.settings.config import build, channel_address, host_name, host_port, read_table
from wire.fields import NAME

from . import party_config_text, party_files
from .party_card import (
    CardRefused,
    FleetParty,
    PartyCard,
    make_certificate,
    parse_card,
    read_card,
    read_content,
)

PLAN: Final = "fleet"
_USERS: Final = {FleetParty.LEADER: LEADER_USER, FleetParty.HELPER: HELPER_USER}
_MAY_TAKE: Final = {
    FleetParty.LEADER: {FleetParty.HELPER, FleetParty.OPERATOR},
    FleetParty.HELPER: {FleetParty.LEADER, FleetParty.OPERATOR},
    FleetParty.OPERATOR: {FleetParty.LEADER, FleetParty.HELPER},
}


class PartyFolder:
    """The folder of one party on its own machine.

    own_card    what is handed to the others
    cards       of others that were taken in
    """

    def __init__(self, base: Path) -> None:
        self.base, self.own_card, self.cards = base, base / "card.toml", base / "cards"

    def home(self, party: str) -> Path:
        return self.base / party

    def taken(self, party: FleetParty) -> list[PartyCard]:
        """Give the cards of a kind of party, by name. Raises CardRefused."""
        found = [read_card(path) for path in files_ending(self.cards, ".toml")]
        return [card for card in found if card.party == party]

    def card(self) -> PartyCard:
        """Give the own card. Raises CardRefused."""
        if not self.own_card.is_file():
            raise CardRefused(
                f"{self.base}: expected a folder that `fleet init --party` made; "
                "a trial is run by `fleet up`"
            )
        return read_card(self.own_card)


@dataclass(frozen=True, slots=True)
class PartyWishes:
    """What a party says of itself when it begins.

    address     where a Helper is reached, host:port; of a Leader, its own name, for the certificate
    hosts       that a Leader's fleet will have at most
    """

    party: FleetParty
    name: str
    address: str = ""
    brokers: tuple[str, ...] = ()
    broker_tls: bool = False
    hosts: int = 0


def begin_party(base: Path, wishes: PartyWishes) -> PartyFolder:
    """Raises FolderUnusable, CardRefused, PlanFileError, ParameterError, OSError."""
    _check_wishes(wishes)
    with party_files.new_folder(base) as made:
        folder = PartyFolder(made)
        ensure_users()
        home = party_files.make_folder(folder.home(wishes.party), party_files.PUBLIC)
        party_files.make_folder(folder.cards, party_files.PUBLIC)
        key = SigningKey.generate()
        if wishes.party is FleetParty.OPERATOR:
            home.chmod(party_files.PRIVATE)
            write_signing_key(home / f"{wishes.name}.key", key)
            card = PartyCard(key.public_bytes, wishes.party, wishes.name)
        else:
            card = _begin_aggregator(home, wishes, key)
        party_files.write_new(folder.own_card, card.text)
    return folder


def _check_wishes(wishes: PartyWishes) -> None:
    """Refuse what no card could carry, before anything is written. Raises CardRefused."""
    if NAME.fullmatch(wishes.name) is None:
        raise CardRefused(f"name: expected one like {NAME.pattern}, got {wishes.name!r}")
    try:
        for broker in wishes.brokers:
            host_port(broker)
        if wishes.party is FleetParty.HELPER:
            channel_address(wishes.address)
        elif wishes.party is FleetParty.LEADER:
            host_name(wishes.address)
    except ValueError as error:
        raise CardRefused(f"address: {error}") from error


def _begin_aggregator(home: Path, wishes: PartyWishes, key: SigningKey) -> PartyCard:
    user = _USERS[wishes.party]
    party_files.write_identity(home / "keys", wishes.party, key, user)
    party_files.make_folder(home / "signed", party_files.PUBLIC)
    tls = party_files.make_folder(home / "tls", party_files.PUBLIC)
    certificate = make_certificate(tls, wishes.party, [host_name(wishes.address)], user)
    n_min, fleet = 0, ""
    if wishes.party is FleetParty.LEADER:
        party_files.make_folder(home / "joins", party_files.PUBLIC)
        party_files.write_new(home / "plan.toml", _plan_text(wishes.hosts))
        found = load_plan(home / "plan.toml")
        n_min, fleet = found.n_min, party_config_text.new_fleet_name(wishes.name)
        weights = {task.series: task.weight_millionths for task in found.tasks}
        party_files.write_new(home / "plans.toml", party_config_text.plan_entry_text(PLAN, weights))
    reached = wishes.address if wishes.party is FleetParty.HELPER else ""
    return PartyCard(
        key.public_bytes, wishes.party, wishes.name, certificate, reached, wishes.brokers,
        wishes.broker_tls, n_min, fleet,
    )  # fmt: skip


def _plan_text(hosts: int) -> str:
    text = DEFAULT_PATH.read_text(encoding="utf-8")
    for key, value in (("hosts", hosts), ("n_min", hosts * 4 // 5), ("t", -(-hosts // 10))):
        text = re.sub(rf"^{key} = [0-9_]+", f"{key} = {value:_}", text, flags=re.MULTILINE)
    return text.replace("what a fleet of 12,500 hosts", f"what a fleet of {hosts:,} hosts")


def take_card(folder: PartyFolder, path: Path, fingerprint: str) -> PartyCard:
    """Take it in, and write what it allows to be written. Raises CardRefused, OSError."""
    content = read_content(path)
    own, card = folder.card(), parse_card(content, str(path), fingerprint)
    if card.party not in _MAY_TAKE[FleetParty(own.party)]:
        wanted = " or ".join(sorted(_MAY_TAKE[FleetParty(own.party)]))
        raise CardRefused(f"{path}: expected the card of a {wanted}, got that of a {card.party}")
    # Two at once would each write what it read before the other.
    with party_files.lock_folder(folder.base, wait=True):
        _take(folder, own, card, path, content)
    return card


def _take(folder: PartyFolder, own: PartyCard, card: PartyCard, path: Path, content: bytes) -> None:
    _check_own_keys(folder, own, card, path)
    kept = folder.cards / f"{card.party}-{card.name}.toml"
    if kept.exists() and kept.read_bytes() == content and _configure(folder, own):
        return  # went on where an earlier one was stopped
    others = [] if card.party == FleetParty.OPERATOR else folder.taken(FleetParty(card.party))
    if kept.exists() or others:
        there = kept.name if kept.exists() else f"{others[0].party}-{others[0].name}.toml"
        raise CardRefused(
            f"{path}: expected the first card of this party, found {there} in {folder.cards}; "
            "docs/life-cycle.md says how a key is changed"
        )
    if card.party == FleetParty.OPERATOR:
        _pin_operator(folder, own, card)
    party_files.write_new(kept, content.decode())
    _configure(folder, own)


def _check_own_keys(folder: PartyFolder, own: PartyCard, card: PartyCard, path: Path) -> None:
    """Refuse a key or certificate of another kind of party: who has two roles checks nobody.

    Raises      CardRefused
    """
    if card.public_key == own.public_key:
        raise CardRefused(f"{path}: expected another party's key, got this party's own")
    for other in (own, *(found for party in FleetParty for found in folder.taken(party))):
        if other.party == card.party:
            continue
        for name in ("public_key", "certificate"):
            if getattr(card, name) and getattr(card, name) == getattr(other, name):
                raise CardRefused(
                    f"{path}: expected a {name} of its own, got that of the {other.party} "
                    f"{other.name}"
                )


def _pin_operator(folder: PartyFolder, own: PartyCard, card: PartyCard) -> None:
    """Append the operator to the Leader's plans file, or to helper.toml once that is there."""
    home = folder.home(own.party)
    file = home / ("plans.toml" if own.party == FleetParty.LEADER else "helper.toml")
    if not file.is_file():
        raise CardRefused(f"expected {file}, which the Leader's card makes: take that one in first")
    pinned, row = _operators(file), OperatorKey(card.public_key, card.name)
    if row in pinned:
        return
    try:
        operator_keys([*pinned, row])
    except ValueError as error:
        raise CardRefused(f"{file}: {error}") from error
    text = file.read_text(encoding="utf-8")
    party_files.replace_text(
        file, text + party_config_text.operator_text(card.name, card.public_key)
    )


def _operators(file: Path) -> list[OperatorKey]:
    """Read whom a file pins. Raises CardRefused."""
    rows = read_table(file, error=CardRefused).get("operator", [])
    if not isinstance(rows, list):
        raise CardRefused(f"{file}: operator: expected an array of tables, got something else")
    return [build(OperatorKey, row, f"{file}: operator.", error=CardRefused) for row in rows]


def _configure(folder: PartyFolder, own: PartyCard) -> bool:
    """Write the configuration once every card that it needs is there; say whether it did."""
    home, party = folder.home(own.party), FleetParty(own.party)
    program = "agent" if party is FleetParty.OPERATOR else party
    cards = {other: folder.taken(other) for other in (FleetParty.LEADER, FleetParty.HELPER)}
    cards[party] = [own]
    if not all(cards.values()) or (home / f"{program}.toml").exists():
        return False
    leader, helper = (cards[other][0] for other in (FleetParty.LEADER, FleetParty.HELPER))
    log = party_config_text.LogPlace(brokers=leader.brokers, tls=leader.broker_tls)
    if party is FleetParty.LEADER:
        channel = _channel(home, party, helper, helper.address)
        text = party_config_text.leader_text(home, helper.public_key, log, channel)
        plans = (home / "plans.toml").read_text(encoding="utf-8")
        if own.fleet and "\n[fleet]\n" not in plans:  # an earlier call may have been stopped
            named = party_config_text.fleet_text(own.fleet, helper.public_key)
            party_files.replace_text(home / "plans.toml", plans + named)
    elif party is FleetParty.HELPER:
        channel = _channel(home, party, leader, f"0.0.0.0:{own.address.rpartition(':')[2]}")
        text = party_config_text.helper_text(home, leader.public_key, leader.fleet, channel, None)
    else:  # what every host of the operator runs by; each makes its own key, on the host
        terms = party_config_text.AgentTerms(
            leader.public_key, helper.public_key, leader.fleet, leader.n_min, trial=False
        )
        text = party_config_text.agent_text(AGENT_HOME, terms, log, keys=HOST_KEYS)
    party_files.write_new(home / f"{program}.toml", text)
    return True


def _channel(home: Path, own: FleetParty, peer: PartyCard, address: str) -> ChannelTable:
    tls, theirs = home / "tls", home / "tls" / f"{peer.party}.pem"
    if not theirs.exists():
        party_files.write_new(theirs, peer.certificate)
    return ChannelTable(
        address=address, ca_file=theirs, cert_file=tls / f"{own}.pem", key_file=tls / f"{own}.key"
    )


@dataclass(frozen=True, slots=True)
class NextStep:
    """One thing to do: a command, or something that people do; and what it needs of a person.

    check   what nobody but a person can make sure of; "" where there is nothing
    """

    do: str
    check: str = ""


def next_steps(folder: PartyFolder) -> list[NextStep]:
    """Give what a party does next. Raises CardRefused."""
    own = folder.card()
    missing = list(_cards_missing(folder, own))
    if missing:
        return [_hand_over(folder, own), *missing]
    steps = {
        FleetParty.LEADER: _leader_steps,
        FleetParty.HELPER: _helper_steps,
        FleetParty.OPERATOR: _operator_steps,
    }
    return list(steps[FleetParty(own.party)](folder))


def _hand_over(folder: PartyFolder, own: PartyCard) -> NextStep:
    content = folder.own_card.read_bytes()
    to = {
        FleetParty.LEADER: "the Helper's company and every operator",
        FleetParty.HELPER: "the Leader's company and every operator",
        FleetParty.OPERATOR: "the Leader's company and, not through it, the Helper's",
    }[FleetParty(own.party)]
    return NextStep(
        f"send {folder.own_card} to {to}",
        f"tell them its fingerprint by another way: {public_fingerprint(content)}",
    )


def _cards_missing(folder: PartyFolder, own: PartyCard) -> Iterator[NextStep]:
    wanted = [p for p in (FleetParty.LEADER, FleetParty.HELPER) if p != own.party]
    if own.party != FleetParty.OPERATOR:
        wanted.append(FleetParty.OPERATOR)
    for party in wanted:
        if not folder.taken(party):
            pair = _command("fleet", "pair", str(folder.base), f"{party.upper()}-CARD")
            # A Leader in between could make hosts up.
            between = own.party == FleetParty.HELPER and party is FleetParty.OPERATOR
            yield NextStep(
                f"{pair} --fingerprint ...",
                f"its fingerprint comes from the {party}'s own people, by another way than the card"
                + (", and not through the Leader" if between else ""),
            )


def _command(*words: str) -> str:
    return party_config_text.shell_line(("pointillist", *words))


def _leader_steps(folder: PartyFolder) -> Iterator[NextStep]:
    home, own = folder.home("leader"), folder.card()
    helper = folder.taken(FleetParty.HELPER)[0]
    plan, key = str(home / "plan.toml"), str(home / "keys" / "leader" / "identity.key")
    config = str(home / "leader.toml")
    yield NextStep(
        _command("plan", "--plan", plan),
        "hosts, n_min, t above the largest operator, and the errors",
    )
    for task in load_plan(home / "plan.toml").tasks:
        file = str(home / f"{task.series}.task")
        yield NextStep(
            _command(
                "task", "build", "--plan", plan, "--series", task.series, "--leader",
                own.public_key.hex(), "--helper", helper.public_key.hex(), "--out", file,
            )
        )  # fmt: skip
    yield NextStep(_command("task", "sign", f"{home}/*.task", "--key", key))
    yield NextStep(
        f"send {home}/*.task to {helper.name}; put what comes back into {home / 'signed'}",
        "it comes back with both signatures: `pointillist task verify`",
    )
    yield NextStep(
        _command("kafka", "topics", "--config", config),
        "the broker's administrator does this, with users and rights: docs/kafka.md",
    )
    yield NextStep(_command("leader", "doctor", "--config", config))
    yield NextStep(_command("leader", "run", "--config", config), "after the Helper runs")
    build = _command(
        "leader", "roster", "build", "--plans", str(home / "plans.toml"), "--requests",
        str(home / "joins"), "--log", config, "--key", key, "--now", "--out", f"{home}/1.roster",
    )  # fmt: skip
    yield NextStep(build, "once hosts have asked; --now is for the first roster alone")
    yield NextStep(
        f"send {home}/1.roster, 1.vouchers and joins/*.entry to {helper.name}; put what comes back "
        f"into {home / 'signed'}",
        "tell it how many hosts of whom are new: it signs that they exist",
    )


def _helper_steps(folder: PartyFolder) -> Iterator[NextStep]:
    home = folder.home("helper")
    config, signed = str(home / "helper.toml"), str(home / "signed")
    yield NextStep(_command("helper", "doctor", "--config", config))
    yield NextStep(
        _command("helper", "run", "--config", config), "its port open to the Leader alone"
    )
    yield NextStep(
        _command("task", "show", "RECEIVED.task"),
        "epsilon, windows, n_min, t and both parties' keys are what was agreed",
    )
    yield NextStep(
        _command("helper", "countersign", "RECEIVED.task", "--config", config),
        f"copy it into {signed}, and send it back",
    )
    yield NextStep(
        _command("helper", "countersign", "1.roster", "--first", "--config", config),
        "the counts of hosts are what the operators told you, not the Leader; --first once only",
    )
    yield NextStep(
        _command("helper", "countersign", "RECEIVED/", "--config", config),
        f"answers to hosts (*.entry); copy the roster into {signed}, and send all of it back",
    )


def _operator_steps(folder: PartyFolder) -> Iterator[NextStep]:
    home, own = folder.home("operator"), folder.card()
    leader = folder.taken(FleetParty.LEADER)[0]
    yield NextStep(
        _command(
            "operator", "vouch", "--hosts", "NAMES.txt", "--folder", str(home / "tokens"),
            "--key", str(home / f"{own.name}.key"), "--name", own.name, "--plan", PLAN,
            "--leader", leader.public_key.hex(),
        ),
        "each token goes to its host alone; tell the Helper how many you vouched for",
    )  # fmt: skip
    yield NextStep(
        f"copy {home / 'agent.toml'} to /etc/pointillist/agent.toml of each host",
        f"n_min_at_least = {leader.n_min:,} and the epsilon of [bounds] are what you agree to",
    )
    yield NextStep("on each host: " + _command("keys", "generate", "host", "--folder", "KEYS"))
    yield NextStep("on each host: " + _command("agent", "doctor"))
    yield NextStep("on each host: " + _command("agent", "join", "--token-file", "HOST.token"))
    yield NextStep("on each host: " + _command("agent", "run"), "`enrolled  yes` of `agent join`")
