"""A party's card: the public file that it hands to the others, and what they compare of it.

A party's certificate for the channel: its own key signs it, and the other party pins just it.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from aggregator.party.config import NAME_OR_NONE
from pointillist.installation import public_fingerprint
from transport.settings.config import build, host_port, limited, optional_address, parse_table
from wire.fields import MAX_HOSTS, NAME

from .party_config_text import quoted
from .party_files import give_to_role, write_new

VALID_DAYS: Final = 397
"""Over a year, so that it is renewed in the same month; a doctor warns a month before."""


def make_certificate(folder: Path, party: str, names: Sequence[str], user: str | None) -> str:
    """Write `party`.key (0600, its user's own) and `party`.pem; give the certificate as PEM.

    names       host names or addresses by which the other party calls it
    Raises      OSError, ValueError for a name that no certificate can carry
    """
    key = ec.generate_private_key(ec.SECP256R1())
    pem = _certificate(party, names, key).public_bytes(Encoding.PEM).decode()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    write_new(folder / f"{party}.key", secret, 0o600)
    give_to_role(folder / f"{party}.key", user)
    write_new(folder / f"{party}.pem", pem)
    return pem


def one_certificate(text: str) -> str:
    """Give the one certificate of a text, without what stands around it. Raises ValueError."""
    try:
        found = x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        found = []
    if len(found) != 1:
        raise ValueError(f"expected one certificate in PEM, got {len(found) or 'other text'}")
    return found[0].public_bytes(Encoding.PEM).decode()


def _certificate(
    party: str, names: Sequence[str], key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"pointillist {party}")])
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        # It vouches for itself alone: the other party trusts this one, and none that it signed.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([_name(name) for name in names]), critical=False)
        .sign(key, hashes.SHA256())
    )


def _name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        return x509.DNSName(name)


CARD_FORMAT: Final = 1
_MOST_BYTES: Final = 1 << 14
"""A card has 1 to 2 KiB; dotted keys of TOML cost the square of their length."""

_MOST_BROKERS: Final = 32
_FEWEST_N_MIN: Final = 16
"""Of the smallest fleet that `fleet init` makes."""


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
    fleet         the name of a Leader's fleet; "" in cards of before rosters named it
    """

    public_key: bytes
    party: str = limited(choices=tuple(FleetParty))
    name: str = limited(form=NAME.pattern)
    certificate: str = ""
    address: str = limited("", read=optional_address)
    brokers: tuple[str, ...] = limited((), most=_MOST_BROKERS, read=host_port)
    broker_tls: bool = False
    n_min: int = limited(0, low=0, high=MAX_HOSTS)
    fleet: str = limited("", form=NAME_OR_NONE)

    def __post_init__(self) -> None:
        if len(self.public_key) != 32:
            raise ValueError(f"public_key: expected 32 bytes in hex, got {len(self.public_key)}")

    @property
    def text(self) -> str:
        brokers = ", ".join(quoted(broker) for broker in self.brokers)
        # Earlier versions refuse the key: what has no fleet is without it.
        fleet = f"fleet = {quoted(self.fleet)}\n" if self.fleet else ""
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
{fleet}"""


def read_card(path: Path, fingerprint: str | None = None) -> PartyCard:
    """Read a card; with what its owner said that its fingerprint is, where it comes from outside.

    Raises      CardRefused, OSError
    """
    return parse_card(read_content(path), str(path), fingerprint)


def read_content(path: Path) -> bytes:
    """Read the bytes of a card, and a few more of a file that is too long for one."""
    with path.open("rb") as file:
        return file.read(_MOST_BYTES + 1)


def parse_card(content: bytes, where: str, fingerprint: str | None = None) -> PartyCard:
    """Read the bytes of a card as `read_card` does; nobody can change them in between.

    where       what it is called in a message
    Raises      CardRefused
    """
    if len(content) <= _MOST_BYTES and fingerprint is not None:
        found = public_fingerprint(content)
        if fingerprint.strip().lower().replace(":", "") != found.replace(":", ""):
            raise CardRefused(
                f"{where}: expected the card whose fingerprint its owner told you, {fingerprint}, "
                f"got one of {found}: ask again, by another way than the card came"
            )
    table = parse_table(content, where, error=CardRefused, most=_MOST_BYTES)
    card = build(PartyCard, table, f"{where}: ", error=CardRefused, file_format=CARD_FORMAT)
    try:
        return _checked(card)
    except ValueError as error:
        raise CardRefused(f"{where}: {error}") from error


def _checked(card: PartyCard) -> PartyCard:
    """Refuse a card that lacks what its party has, or has more. Raises ValueError."""
    leads, helps = card.party == FleetParty.LEADER, card.party == FleetParty.HELPER
    wanted = {"certificate": leads or helps, "address": helps, "brokers": leads, "n_min": leads}
    for key, wants in wanted.items():
        if bool(getattr(card, key)) != wants:
            expected, got = ("one", "none") if wants else ("none", "one")
            raise ValueError(f"{key}: expected {expected} in the card of a {card.party}, got {got}")
    if leads and card.n_min < _FEWEST_N_MIN:
        raise ValueError(f"n_min: expected at least {_FEWEST_N_MIN}, got {card.n_min}")
    if card.fleet and not leads:
        raise ValueError(f"fleet: expected none in the card of a {card.party}, got one")
    if not card.certificate:
        return card
    try:
        return replace(card, certificate=one_certificate(card.certificate))
    except ValueError as error:
        raise ValueError(f"certificate: {error}") from error
