"""Checks of the ways out: the other party, certificates, and the log."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
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
from aggregator.protocol.helper_port import HelperStatus, HelperUnavailable
from pointillist.broker.rights import READS, WRITES, KafkaRole
from pointillist.broker.topic_settings import differing, visible_topics
from transport.files.keyfiles import KeyFileRefused
from transport.kafka.kafka_settings import KafkaSettings
from transport.log_clock import BEHIND_S, clock_beside_log
from transport.opening import (
    EmbeddedSettings,
    Side,
    TransportSettings,
    TransportTable,
    open_transport,
)
from transport.port import TransportRefused, TransportUnavailable
from transport.process.doctor_findings import Check, Finding
from transport.process.machine_findings import log_finding
from transport.process.printable import printable
from wire.topics import EPOCHS, RELEASES, REPORTS

from .finding_of import FindingOf

_ASK_S: Final = 5.0
_APART_S: Final = 2
_SOON_S: Final = 30 * 86_400
_ADMIN: Final = "an administrator runs `pointillist kafka topics --config FILE`"


def helper_checks(address: ChannelAddress, helper_pk: bytes) -> list[tuple[str, str, Check]]:
    """Ask the Helper who it is and what time it has; give one finding for each."""
    asked: list[HelperStatus | Finding] = []

    def once() -> HelperStatus | Finding:
        if not asked:
            asked.append(_ask(address))
        return asked[0]

    return [
        ("helper", "peer", lambda: _peer(once(), helper_pk)),
        ("helper", "peer clock", lambda: _peer_clock(once())),
    ]


def _place(address: ChannelAddress) -> str:
    return address.host_port or str(address.socket)


def _ask(address: ChannelAddress) -> HelperStatus | Finding:
    told = FindingOf("helper", "peer")
    if reason := _unreachable(address):
        line = f"{_place(address)}: {reason}"
        return told.broken(line, "start the Helper; else look at its address and the way there")
    try:
        helper = ChannelHelper(replace(address, call_timeout_s=_ASK_S))
    except (KeyFileRefused, OSError) as error:
        return told.broken(str(error), "the three files of [helper]: this party's own, key 0600")
    try:
        return helper.status()
    except HelperUnavailable:
        line = f"{_place(address)} is reached, and does not answer as the Helper"
        return told.broken(
            line, "certificates: each side's ca_file, and the name in the Helper's certificate"
        )
    finally:
        helper.close()


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


def _peer(status: HelperStatus | Finding, helper_pk: bytes) -> Finding:
    told = FindingOf("helper", "peer")
    if isinstance(status, Finding):
        return status
    if status.helper_pk != helper_pk:
        got = status.helper_pk.hex()[:16]
        return told.broken(
            f"expected the pinned Helper, got {got}...", "compare helper_pk with its holder"
        )
    return told.ok(f"the pinned Helper answers, version {status.version}")


def _peer_clock(status: HelperStatus | Finding) -> Finding:
    told = FindingOf("helper", "peer clock")
    if isinstance(status, Finding):
        return told.absent("not known: the Helper did not answer", "see peer")
    apart_s = status.clock_s - time.time()
    line = f"{apart_s:+.0f} s from this one's"
    if abs(apart_s) > BEHIND_S:
        return told.broken(line, "set both clocks: windows, epochs and keys go by them")
    if abs(apart_s) > _APART_S:
        return told.absent(line, "start NTP on both machines: windows and keys go by the clock")
    return told.ok(line)


def tls_checks(tls: TlsFiles | None, group: str) -> list[tuple[str, str, Check]]:
    """Check a channel's own certificate (its key, names, end), and those it takes from others."""
    told, peers = FindingOf(group, "certificate"), FindingOf(group, "accepted")
    if tls is None:
        return [(group, told.name, lambda: told.ok("none: a socket of this machine"))]

    def own() -> Finding:
        try:
            return _certificate(told, tls)
        except KeyFileRefused as error:
            found, do = error.parts
            return told.broken(found, do or f"chmod 600 {tls.key_file}, for the user that runs")

    return [(group, told.name, own), (group, peers.name, lambda: _accepted(peers, tls.ca_file))]


def _certificate(told: FindingOf, tls: TlsFiles) -> Finding:
    """Read the files of one end. Raises KeyFileRefused, OSError, ValueError."""
    certificate = _certificates(tls.cert_file)[0]
    key = load_pem_private_key(read_private(tls.key_file), password=None)
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if key.public_key().public_bytes(*form) != certificate.public_key().public_bytes(*form):
        return told.broken(f"{tls.key_file} is not the key of {tls.cert_file}", "name its own")
    ends = certificate.not_valid_after_utc
    line = f"{_names(certificate)}, until {ends:%Y-%m-%d}"
    left_s = ends.timestamp() - time.time()
    if left_s <= 0:
        return told.broken(f"{line}: over", "make a new one, and give it to the other party")
    if left_s < _SOON_S:
        return told.absent(line, "make the next one: less than a month is left")
    return told.ok(line)


def _accepted(told: FindingOf, ca_file: Path) -> Finding:
    """Name, of all certificates that the other party may show, the one that ends first."""
    found = sorted(_certificates(ca_file), key=lambda one: one.not_valid_after_utc)
    first, last = (one.not_valid_after_utc for one in (found[0], found[-1]))
    line = (
        f"{ca_file}: 1 of 1" if len(found) == 1 else f"{ca_file}: the first of {len(found)} to end"
    )
    line = f"{line}, {printable(found[0].subject.rfc4514_string())}, until {first:%Y-%m-%d}"
    now_s = time.time()
    if last.timestamp() <= now_s:
        return told.broken(f"{line}: all are over", "put the other party's new one there")
    if first.timestamp() <= now_s:
        return told.absent(f"{line}: over", "take it out, once the other party shows a newer one")
    if first.timestamp() - now_s < _SOON_S:
        return told.absent(line, "ask the other party for its next one: less than a month is left")
    return told.ok(line)


def _certificates(path: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(path.read_bytes())


def _names(certificate: x509.Certificate) -> str:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return "no name that a caller could check"
    found = [str(name.value) for name in names]
    return ", ".join(found)


def log_checks(settings: TransportSettings, role: KafkaRole) -> list[tuple[str, str, Check]]:
    """Check the log: the folder, or brokers, topics, rights and retention."""
    if isinstance(settings, EmbeddedSettings):
        table = TransportTable(folder=settings.folder, group=settings.group)
        return [
            ("log", "log", lambda: log_finding(table)),
            ("log", "log's clock", lambda: _log_clock(settings, role)),
        ]
    table = TransportTable(kafka=settings)
    return [
        ("log", "broker", lambda: log_finding(table)),
        ("log", "log's clock", lambda: _log_clock(settings, role)),
        ("log", "topics", lambda: _topics(settings, role)),
        ("log", "retention", lambda: _retention(settings, role)),
    ]


def _log_clock(settings: TransportSettings, role: KafkaRole) -> Finding:
    told = FindingOf("log", "log's clock")
    if isinstance(settings, EmbeddedSettings) and not settings.folder.is_dir():
        return told.absent("not known: there is no log", "see log")
    live = sorted({EPOCHS, REPORTS, RELEASES}.intersection(_role_topics(role)))
    try:
        with open_transport(settings, Side.AGGREGATOR) as log:
            return clock_beside_log(told.group, log, live, time.time())
    except TransportUnavailable as error:
        return told.absent(f"not known: {error}", "see broker")


def _role_topics(role: KafkaRole) -> list[str]:
    return sorted({*READS[role], *WRITES[role]})


def _topics(settings: KafkaSettings, role: KafkaRole) -> Finding:
    told = FindingOf("log", "topics")
    try:
        settings.check_files()
        seen = visible_topics(settings)
    except (TransportUnavailable, ValueError) as error:
        return told.broken(str(error), "credentials and addresses of [transport.kafka]")
    wanted = {settings.named(topic) for topic in _role_topics(role)}
    if missing := sorted(wanted - seen):
        line = f"not there, or not this user's to see: {', '.join(missing)}"
        return told.broken(line, f"{_ADMIN} --{role.value} USER")
    return told.ok(f"all {len(wanted)} of this role are there")


def _retention(settings: KafkaSettings, role: KafkaRole) -> Finding:
    told = FindingOf("log", "retention")
    try:
        found = differing(settings, _role_topics(role))
    except TransportRefused:
        return told.absent("this user may not read topics' settings", f"{_ADMIN} --check")
    except TransportUnavailable as error:
        return told.broken(str(error), "see topics")
    if found:
        first = found[0]
        line = f"{first.topic}: {first.setting} is {first.found}, expected {first.wanted}"
        return told.broken(line, _ADMIN)
    return told.ok("as this program sets it: sealed reports go with age")
