"""All that a doctor looks at of a Leader or a Helper, and its ways out: peer, certificates, log."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)

from aggregator.party.channel import ChannelHelper, read_private
from aggregator.party.channel_address import ChannelAddress, TlsFiles
from aggregator.party.config import HelperConfig, LeaderConfig
from aggregator.protocol.directory import PinnedParties
from aggregator.protocol.interfaces import HelperStatus, HelperUnavailable
from aggregator.witness.backends import kinds_of_witnesses, open_witness
from aggregator.witness.chain import WitnessUnavailable
from pointillist.broker.rights import MISSING, differing
from transport.clock_check import BEHIND_S, clock_beside_log
from transport.factory import (
    EmbeddedSettings,
    Side,
    TransportSettings,
    TransportTable,
    open_transport,
)
from transport.files.keyfiles import KeyFileRefused, load_signing_key
from transport.interface import TransportRefused, TransportUnavailable
from transport.kafka.kafka_aggregator import AggregatorKafka
from transport.kafka.kafka_frame import KafkaSettings
from transport.kafka.kafka_roles import READS, WRITES, KafkaRole, rights_told
from transport.process.doctor_checks import (
    CLOCK,
    Check,
    Finding,
    Result,
    absent,
    broken,
    check,
    examine,
    ok,
    way_out,
)
from transport.process.printable import printable
from wire.catalogue import Catalogue
from wire.topics import EPOCHS, RELEASES, REPORTS

from .place_checks import SignedFiles, copies, fence, folder, party_keys, running

_ASK_S: Final = 5.0
_APART_S: Final = 2
_SOON_S: Final = 30 * 86_400
_ADMIN: Final = "an administrator runs `pointillist kafka topics --config FILE`"


_WITNESS: Final = "[witness] in helper.toml; docs/aggregators.md says why"


def leader_findings(config: LeaderConfig, *, started_by_root: bool) -> Iterator[Finding]:
    folders = {
        "state": config.state_dir,
        "store": config.database.parent,
        "releases": config.releases_dir,
    }
    yield from examine(
        Check("leader", "process", partial(running, "leader", config.status_file)),
        CLOCK,
        Check("keys", "keys", partial(party_keys, "leader", config.key_dir, config.helper_pk)),
        *(Check("folders", n, partial(folder, at, started_by_root)) for n, at in folders.items()),
        Check("folders", "copies", partial(copies, config.state_dir)),
        *log_checks(config.transport, KafkaRole.LEADER),
    )
    if config.helper is not None:
        peer = HelperPeer(config.helper, config.helper_pk)
        yield from examine(*tls_checks("helper", config.helper.tls), peer)
    own_pk = _own_pk(config.key_dir, config.helper_pk)
    if own_pk is not None:
        parties = PinnedParties(own_pk, config.helper_pk)
        catalogue = Catalogue.load(config.catalogue).hash
        yield from examine(SignedFiles(config.signed_dir, parties, catalogue))


def helper_findings(config: HelperConfig, *, started_by_root: bool) -> Iterator[Finding]:
    folders = {"state": config.state_dir, "fence folder": config.fence_file.parent}
    yield from examine(
        Check("helper", "process", partial(running, "helper", config.status_file)),
        CLOCK,
        Check("keys", "keys", partial(party_keys, "helper", config.key_dir, config.leader_pk)),
        *(Check("folders", n, partial(folder, at, started_by_root)) for n, at in folders.items()),
        Check("folders", "copies", partial(copies, config.state_dir)),
        Check("folders", "fence", partial(fence, config.state_dir, config.fence_file)),
        *tls_checks("channel", config.address.tls),
        Check("channel", "witness", partial(_witness, config)),
    )
    if config.transport is not None:
        yield from examine(*log_checks(config.transport, KafkaRole.HELPER))
    own_pk = _own_pk(config.key_dir, config.leader_pk)
    if own_pk is not None:
        parties = PinnedParties(config.leader_pk, own_pk, config.fleet)
        catalogue = Catalogue.load().hash
        yield from examine(SignedFiles(config.signed_dir, parties, catalogue, config.operators))


def _own_pk(key_dir: Path, peer_pk: bytes) -> bytes | None:
    """This party's identity; None where its key is not to be used, which `keys` says."""
    try:
        own_pk = load_signing_key(key_dir / "identity.key").public_bytes
    except KeyFileRefused:
        return None
    return None if own_pk == peer_pk else own_pk


def _witness(config: HelperConfig) -> Result:
    """Ask each for the head of this Helper's chain. Raises OSError."""
    if not config.witnesses:
        return absent("none: a Helper put back from a backup is not noticed", _WITNESS)
    held = []
    try:
        identity = load_signing_key(config.key_dir / "identity.key")
        for settings in config.witnesses:
            with closing(open_witness(settings, identity)) as witness:
                held.append(str(witness.head().sequence))
    except (KeyFileRefused, WitnessUnavailable) as error:
        return broken(str(error), "each has to answer: compare the keys, look at the way there")
    line = f"{kinds_of_witnesses(config.witnesses)}: {', '.join(held)} links"
    if len(held) == 1 and config.transport is None:
        return absent(f"{line}; no second, no log: nobody sees it forget", _WITNESS)
    return ok(line)


@dataclass
class HelperPeer:
    """The Helper, asked once who it is and what time it has."""

    address: ChannelAddress
    helper_pk: bytes

    @cached_property
    def _asked(self) -> HelperStatus | Result:
        place = self.address.host_port or str(self.address.socket)
        if reason := _unreachable(self.address):
            do = "start the Helper; else look at its address and the way there"
            return broken(f"{place}: {reason}", do)
        try:
            helper = ChannelHelper(replace(self.address, call_timeout_s=_ASK_S))
        except (KeyFileRefused, OSError) as error:
            return broken(str(error), "the three files of [helper]: this party's own, key 0600")
        try:
            return helper.status()
        except HelperUnavailable:
            return broken(
                f"{place} is reached, and does not answer as the Helper",
                "certificates: each side's ca_file, and the name in the Helper's certificate",
            )
        finally:
            helper.close()

    @check("helper", "peer")
    def _peer(self) -> Result:
        status = self._asked
        if isinstance(status, Result):
            return status
        if status.helper_pk != self.helper_pk:
            line = f"expected the pinned Helper, got {status.helper_pk.hex()[:16]}..."
            return broken(line, "compare helper_pk with its holder")
        return ok(f"the pinned Helper answers, version {status.version}")

    @check("helper", "peer clock")
    def _clock(self) -> Result:
        status = self._asked
        if isinstance(status, Result):
            return absent("not known: the Helper did not answer", "see peer")
        apart_s = status.clock_s - time.time()
        line = f"{apart_s:+.0f} s from this one's"
        if abs(apart_s) > BEHIND_S:
            return broken(line, "set both clocks: windows, epochs and keys go by them")
        if abs(apart_s) > _APART_S:
            return absent(line, "start NTP on both machines: windows and keys go by the clock")
        return ok(line)


def _unreachable(address: ChannelAddress) -> str:
    """Try to connect, so that a firewall is told from a certificate; "" where it works."""
    try:
        if address.socket is not None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(_ASK_S)
                probe.connect(str(address.socket))
        else:
            host, _, port = address.host_port.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), timeout=_ASK_S).close()
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def tls_checks(group: str, tls: TlsFiles | None) -> list[Check]:
    if tls is None:
        return [Check(group, "certificate", lambda: ok("none: a socket of this machine"))]
    return [
        Check(group, "certificate", partial(_own_certificate, tls)),
        Check(group, "accepted", partial(_accepted, tls.ca_file)),
    ]


def _own_certificate(tls: TlsFiles) -> Result:
    """Check its key, its names and its end. Raises OSError, ValueError."""
    certificate = _certificates(tls.cert_file)[0]
    try:
        key = load_pem_private_key(read_private(tls.key_file), password=None)
    except KeyFileRefused as error:
        found, do = error.parts
        return broken(found, do or f"chmod 600 {tls.key_file}, for the user that runs")
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        return broken(f"{tls.key_file} is not the key of {tls.cert_file}", "name its own")
    ends = certificate.not_valid_after_utc
    line = f"{_names(certificate)}, until {ends:%Y-%m-%d}"
    left_s = ends.timestamp() - time.time()
    if left_s <= 0:
        return broken(f"{line}: over", "make a new one, and give it to the other party")
    if left_s < _SOON_S:
        return absent(line, "make the next one: less than a month is left")
    return ok(line)


def _accepted(ca_file: Path) -> Result:
    """Name, of all certificates that the other party may show, the one that ends first."""
    found = sorted(_certificates(ca_file), key=lambda one: one.not_valid_after_utc)
    first, last = (one.not_valid_after_utc for one in (found[0], found[-1]))
    which = "1 of 1" if len(found) == 1 else f"the first of {len(found)} to end"
    subject = printable(found[0].subject.rfc4514_string())
    line = f"{ca_file}: {which}, {subject}, until {first:%Y-%m-%d}"
    now_s = time.time()
    if last.timestamp() <= now_s:
        return broken(f"{line}: all are over", "put the other party's new one there")
    if first.timestamp() <= now_s:
        return absent(f"{line}: over", "take it out, once the other party shows a newer one")
    if first.timestamp() - now_s < _SOON_S:
        do = "ask the other party for its next one: less than a month is left"
        return absent(line, do)
    return ok(line)


def _certificates(path: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(path.read_bytes())


def _names(certificate: x509.Certificate) -> str:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "no name that a caller could check"
    found = [str(name.value) for name in names]
    return ", ".join(found)


def log_checks(settings: TransportSettings, role: KafkaRole) -> list[Check]:
    clock = Check("log", "log's clock", partial(_log_clock, settings, role))
    if isinstance(settings, EmbeddedSettings):
        return [way_out(TransportTable(folder=settings.folder, group=settings.group)), clock]
    return [
        way_out(TransportTable(kafka=settings)),
        clock,
        Check("log", "rights", partial(rights_told, AggregatorKafka, settings, role)),
        Check("log", "retention", partial(_retention, settings, role)),
    ]


def _log_clock(settings: TransportSettings, role: KafkaRole) -> Result:
    if isinstance(settings, EmbeddedSettings) and not settings.folder.is_dir():
        return absent("not known: there is no log", "see log")
    live = sorted({EPOCHS, REPORTS, RELEASES}.intersection(_role_topics(role)))
    try:
        with open_transport(settings, Side.AGGREGATOR) as log:
            return clock_beside_log(log, live, time.time())
    except TransportUnavailable as error:
        return absent(f"not known: {error}", "see broker")


def _retention(settings: KafkaSettings, role: KafkaRole) -> Result:
    try:
        found = differing(settings, dict.fromkeys(_role_topics(role)))
    except TransportRefused:
        return absent("this user may not read topics' settings", f"{_ADMIN} --check")
    except TransportUnavailable as error:
        return broken(str(error), "see rights")
    if found:
        first = found[0]
        if first.setting == MISSING:
            return absent("not known of topics that are not there", "see rights")
        line = f"{first.topic}: {first.setting} is {first.found}, expected {first.wanted}"
        return broken(line, _ADMIN)
    return ok("as this program sets it: sealed reports go with age")


def _role_topics(role: KafkaRole) -> list[str]:
    return sorted({*READS[role], *WRITES[role]})
