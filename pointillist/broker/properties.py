"""What the local broker is told: one KRaft node, listeners, authorizer, throw-away certificates."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from transport.process.listening import LOOPBACKS, at

_LIFE = datetime.timedelta(days=30)


def write_certificates(folder: Path, host: str) -> tuple[Path, Path]:
    """Write ca.pem, and server.pem (key and chain, 0600) for a host address; give both paths."""
    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    name = _name("pointillist test authority")
    root = (
        _builder(name, name, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(host)), x509.DNSName("localhost")]
    )
    leaf = (
        _builder(_name(host), name, server.public_key())
        .add_extension(names, critical=False)
        .sign(authority, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key = server.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    ca_file, server_file = folder / "ca.pem", folder / "server.pem"
    ca_file.write_bytes(root.public_bytes(pem))
    server_file.touch(mode=0o600)
    server_file.write_bytes(key + leaf.public_bytes(pem) + root.public_bytes(pem))
    return ca_file, server_file


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
    )


@dataclass(frozen=True, slots=True)
class Ports:
    """Loopback ports; `secure` (TLS and SASL) is None without that listener.

    host    the address of loopback that they are ports of
    """

    plain: int
    controller: int
    secure: int | None = None
    host: str = LOOPBACKS[0]

    def at(self, port: int) -> str:
        return at(self.host, port)


def server_properties(
    folder: Path, ports: Ports, certificate: Path | None, extra: Mapping[str, str]
) -> str:
    listeners = {"PLAINTEXT": ports.plain, "CONTROLLER": ports.controller}
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
    settings = _node(folder, ports)
    if ports.secure is not None and certificate is not None:
        listeners["SECURE"] = ports.secure
        protocols["SECURE"] = "SASL_SSL"
        settings |= _secure(certificate)
    addresses = ",".join(f"{name}://{ports.at(port)}" for name, port in listeners.items())
    settings |= {
        "listeners": addresses,
        "advertised.listeners": addresses,
        "listener.security.protocol.map": ",".join(f"{n}:{p}" for n, p in protocols.items()),
    }
    settings |= extra
    return "".join(f"{key}={value}\n" for key, value in sorted(settings.items()))


def _node(folder: Path, ports: Ports) -> dict[str, str]:
    internal = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
    replicated = {f"{name}.replication.factor": "1" for name in internal}
    in_sync = {f"{name}.min.isr": "1" for name in internal[1:]}
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.bootstrap.servers": ports.at(ports.controller),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(folder / "data"),
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "4",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "500",
        # A broker that was killed is let in again when its old session ends.
        "broker.session.timeout.ms": "2000",
        "broker.heartbeat.interval.ms": "500",
        "num.network.threads": "2",
        "num.io.threads": "4",
        "log.cleaner.dedupe.buffer.size": str(16 << 20),
        **replicated,
        **in_sync,
    }


def _secure(certificate: Path) -> dict[str, str]:
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    return {
        "sasl.enabled.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": scram,
        "listener.name.secure.scram-sha-256.sasl.jaas.config": scram,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificate),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Whoever reaches the unencrypted loopback port administers; all others need a rule.
        "super.users": "User:ANONYMOUS",
        "allow.everyone.if.no.acl.found": "false",
    }
