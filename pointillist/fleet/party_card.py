"""A party's card: the public file that it hands to the others, and what they compare of it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from transport.config_tree import build, limited, read_table
from wire.bounds import NAME

from .party_config_text import quoted

CARD_FORMAT: Final = 1
_MOST_BYTES: Final = 1 << 16
ADDRESS: Final = r"|\[?[A-Za-z0-9_.:-]+\]?:[0-9]{1,5}"


class CardRefused(ValueError):
    """A card that is not taken: another party's, changed on its way, or none at all."""


class FleetParty(StrEnum):
    """Who has a folder of its own."""

    LEADER = "leader"
    HELPER = "helper"
    OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class PartyCard:
    """What the others must know of a party; nothing in it is secret.

    public_key    Ed25519 identity, 32 B
    certificate   PEM, of the channel between Leader and Helper; "" of an operator
    address       where a Helper is reached, host:port
    brokers       where a Leader's fleet has its log, host:port each
    n_min         fewest hosts of a Leader's releases
    """

    public_key: bytes
    party: str = limited(choices=tuple(FleetParty))
    name: str = limited(form=NAME.pattern)
    certificate: str = ""
    address: str = limited("", form=ADDRESS)
    brokers: tuple[str, ...] = limited((), form=ADDRESS)
    broker_tls: bool = False
    n_min: int = limited(0, low=0)

    def __post_init__(self) -> None:
        if len(self.public_key) != 32:
            raise ValueError(f"public_key: expected 32 bytes in hex, got {len(self.public_key)}")

    @property
    def text(self) -> str:
        """The card as TOML."""
        brokers = ", ".join(quoted(broker) for broker in self.brokers)
        return f"""# The card of the {self.party} {self.name}. Nothing in it is secret; compare its
# fingerprint with its owner by another way than it came.
format = {CARD_FORMAT}
party = {quoted(self.party)}
name = {quoted(self.name)}
public_key = "{self.public_key.hex()}"
certificate = {quoted(self.certificate)}
address = {quoted(self.address)}
brokers = [{brokers}]
broker_tls = {str(self.broker_tls).lower()}
n_min = {self.n_min}
"""


def card_fingerprint(content: bytes) -> str:
    """SHA-256 of a whole card, its first 16 bytes in groups that people can compare aloud."""
    digest = hashlib.sha256(content).hexdigest()[:32]
    return ":".join(digest[i : i + 4] for i in range(0, 32, 4))


def read_card(path: Path, fingerprint: str | None = None) -> PartyCard:
    """Read a card; with what its owner said that its fingerprint is, where it comes from outside.

    Raises      CardRefused, OSError
    """
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES)
    if fingerprint is not None:
        found = card_fingerprint(content)
        if fingerprint.strip().lower().replace(":", "") != found.replace(":", ""):
            raise CardRefused(
                f"{path}: expected the card whose fingerprint its owner told you, {fingerprint}, "
                f"got one of {found}: ask again, by another way than the card came"
            )
    table = read_table(path, error=CardRefused)
    return build(PartyCard, table, f"{path}: ", error=CardRefused, file_format=CARD_FORMAT)
