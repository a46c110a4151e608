"""One party of a real fleet: its folder, its card, and the cards of the others that it took in.

A party makes its own keys and nobody else's. What it knows of the others comes in cards; with the
cards that it needs, its configuration is written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aggregator.enrolment.operators import OperatorKey, operator_keys
from aggregator.party.channel_address import ChannelTable
from pointillist.key_folders import AGENT_HOME, HOST_KEYS
from pointillist.plan_file import DEFAULT_PATH, load_plan
from privacy.signing import SigningKey
from transport.files.keyfiles import write_signing_key
from transport.process.privileges import HELPER_USER, LEADER_USER, ensure_users
from transport.settings.config import build, channel_address, host_name, host_port, read_table
from wire.fields import NAME

from .channel_certificate import make_certificate
from .party_card import (
    CardRefused,
    FleetParty,
    PartyCard,
    parse_card,
    read_card,
    read_content,
)
from .party_config_text import (
    AgentTerms,
    LogPlace,
    agent_text,
    helper_text,
    leader_text,
    operator_text,
    plan_entry_text,
)
from .party_files import (
    PRIVATE,
    PUBLIC,
    lock_folder,
    make_folder,
    new_folder,
    replace_text,
    write_identity,
    write_new,
)

PLAN: Final = "fleet"
_USERS: Final = {FleetParty.LEADER: LEADER_USER, FleetParty.HELPER: HELPER_USER}
_MAY_TAKE: Final = {
    FleetParty.LEADER: {FleetParty.HELPER, FleetParty.OPERATOR},
    FleetParty.HELPER: {FleetParty.LEADER, FleetParty.OPERATOR},
    FleetParty.OPERATOR: {FleetParty.LEADER, FleetParty.HELPER},
}


@dataclass(frozen=True, slots=True)
class PartyFolder:
    """The folder of one party on its own machine."""

    base: Path

    @property
    def own_card(self) -> Path:
        """What is handed to the others."""
        return self.base / "card.toml"

    @property
    def cards(self) -> Path:
        """Cards of others that were taken in."""
        return self.base / "cards"

    def home(self, party: str) -> Path:
        """Where a party's keys, configuration and state lie."""
        return self.base / party

    def taken(self, party: FleetParty) -> list[PartyCard]:
        """Give the cards of a kind of party, by name. Raises CardRefused."""
        found = [read_card(path) for path in sorted(self.cards.glob("*.toml"))]
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
    """Make the folder, keys and card of one party.

    Raises      FolderUnusable, CardRefused, PlanFileError, ParameterError, OSError
    """
    _check_wishes(wishes)
    plan = _plan_text(wishes.hosts) if wishes.party is FleetParty.LEADER else ""
    with new_folder(base) as made:
        folder = PartyFolder(made)
        _write_party(folder, wishes, plan)
    return folder


def _write_party(folder: PartyFolder, wishes: PartyWishes, plan: str) -> None:
    ensure_users()
    home = make_folder(folder.home(wishes.party), PUBLIC)
    make_folder(folder.cards, PUBLIC)
    key = SigningKey.generate()
    if wishes.party is FleetParty.OPERATOR:
        home.chmod(PRIVATE)
        write_signing_key(home / f"{wishes.name}.key", key)
        card = PartyCard(key.public_bytes, wishes.party, wishes.name)
    else:
        card = _begin_aggregator(home, wishes, key, plan)
    write_new(folder.own_card, card.text)


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


def _begin_aggregator(home: Path, wishes: PartyWishes, key: SigningKey, plan: str) -> PartyCard:
    user = _USERS[wishes.party]
    write_identity(home / "keys", wishes.party, key, user)
    make_folder(home / "signed", PUBLIC)
    tls = make_folder(home / "tls", PUBLIC)
    certificate = make_certificate(tls, wishes.party, [host_name(wishes.address)], user)
    n_min = 0
    if wishes.party is FleetParty.LEADER:
        make_folder(home / "joins", PUBLIC)
        write_new(home / "plan.toml", plan)
        found = load_plan(home / "plan.toml")
        n_min = found.n_min
        weights = {task.series: task.weight_millionths for task in found.tasks}
        write_new(home / "plans.toml", plan_entry_text(PLAN, weights))
    reached = wishes.address if wishes.party is FleetParty.HELPER else ""
    return PartyCard(
        key.public_bytes, wishes.party, wishes.name, certificate, reached, wishes.brokers,
        wishes.broker_tls, n_min,
    )  # fmt: skip


def _plan_text(hosts: int) -> str:
    """The shipped plan for another number of hosts."""
    text = DEFAULT_PATH.read_text(encoding="utf-8")
    for key, value in (("hosts", hosts), ("n_min", hosts * 4 // 5), ("t", -(-hosts // 10))):
        text = re.sub(rf"^{key} = [0-9_]+", f"{key} = {value:_}", text, flags=re.MULTILINE)
    return text.replace("what a fleet of 12,500 hosts", f"what a fleet of {hosts:,} hosts")


def take_card(folder: PartyFolder, path: Path, fingerprint: str) -> PartyCard:
    """Take another party's card in, and write what can be written with it.

    Raises      CardRefused, OSError
    """
    content = read_content(path)
    own, card = folder.card(), parse_card(content, str(path), fingerprint)
    if card.party not in _MAY_TAKE[FleetParty(own.party)]:
        wanted = " or ".join(sorted(_MAY_TAKE[FleetParty(own.party)]))
        raise CardRefused(f"{path}: expected the card of a {wanted}, got that of a {card.party}")
    with lock_folder(
        folder.base, wait=True
    ):  # two at once would each write what it read before the other
        _take(folder, own, card, (path, content))
    return card


def _take(folder: PartyFolder, own: PartyCard, card: PartyCard, source: tuple[Path, bytes]) -> None:
    path, content = source
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
    write_new(kept, content.decode())
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
    replace_text(file, text + operator_text(card.name, card.public_key))


def _operators(file: Path) -> list[OperatorKey]:
    """Read whom a file pins. Raises CardRefused."""
    rows = read_table(file, error=CardRefused).get("operator", [])
    if not isinstance(rows, list):
        raise CardRefused(f"{file}: operator: expected an array of tables, got something else")
    return [build(OperatorKey, row, f"{file}: operator.", error=CardRefused) for row in rows]


def _configure(folder: PartyFolder, own: PartyCard) -> bool:
    """Write the configuration once every card that it needs is there; say whether it did."""
    leaders, helpers = folder.taken(FleetParty.LEADER), folder.taken(FleetParty.HELPER)
    home = folder.home(own.party)
    if own.party == FleetParty.LEADER and helpers:
        return _write_leader(home, own, helpers[0])
    if own.party == FleetParty.HELPER and leaders:
        return _write_helper(home, own, leaders[0])
    if own.party == FleetParty.OPERATOR and leaders and helpers:
        return _write_agent(home, leaders[0], helpers[0])
    return False


def _channel(home: Path, own: FleetParty, peer: PartyCard, address: str) -> ChannelTable:
    tls, theirs = home / "tls", home / "tls" / f"{peer.party}.pem"
    if not theirs.exists():
        write_new(theirs, peer.certificate)
    return ChannelTable(
        address=address, ca_file=theirs, cert_file=tls / f"{own}.pem", key_file=tls / f"{own}.key"
    )


def _write_leader(home: Path, own: PartyCard, helper: PartyCard) -> bool:
    if (home / "leader.toml").exists():
        return False
    channel = _channel(home, FleetParty.LEADER, helper, helper.address)
    write_new(home / "leader.toml", leader_text(home, helper.public_key, _log(own), channel))
    return True


def _write_helper(home: Path, own: PartyCard, leader: PartyCard) -> bool:
    if (home / "helper.toml").exists():
        return False
    port = own.address.rpartition(":")[2]
    channel = _channel(home, FleetParty.HELPER, leader, f"0.0.0.0:{port}")
    write_new(home / "helper.toml", helper_text(home, leader.public_key, channel, None))
    return True


def _write_agent(home: Path, leader: PartyCard, helper: PartyCard) -> bool:
    """Write what every host of the operator runs by; each makes its own key, on the host."""
    if (home / "agent.toml").exists():
        return False
    terms = AgentTerms(leader.public_key, helper.public_key, leader.n_min, trial=False)
    write_new(home / "agent.toml", agent_text(AGENT_HOME, terms, _log(leader), keys=HOST_KEYS))
    return True


def _log(leader: PartyCard) -> LogPlace:
    return LogPlace(brokers=leader.brokers, tls=leader.broker_tls)
