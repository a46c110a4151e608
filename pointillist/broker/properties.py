"""What the local broker is told: one KRaft node on loopback, listeners, authorizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Ports:
    """Loopback ports; `secure` (TLS and SASL) is None without that listener."""

    plain: int
    controller: int
    secure: int | None = None


def server_properties(
    folder: Path, ports: Ports, certificate: Path | None, extra: Mapping[str, str]
) -> str:
    """Write server.properties."""
    listeners = {"PLAINTEXT": ports.plain, "CONTROLLER": ports.controller}
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
    settings = _node(folder, ports)
    if ports.secure is not None and certificate is not None:
        listeners["SECURE"] = ports.secure
        protocols["SECURE"] = "SASL_SSL"
        settings |= _secure(certificate)
    addresses = ",".join(f"{name}://{HOST}:{port}" for name, port in listeners.items())
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
        "controller.quorum.bootstrap.servers": f"{HOST}:{ports.controller}",
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
