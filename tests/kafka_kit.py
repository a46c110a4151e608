"""Users, tokens and settings on the session's broker; an agent's surroundings there."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from pointillist.broker.local import RunningBroker
from tests.agent_live import Surroundings, announce, surroundings
from tests.wait_kit import until
from transport.factory import Side, TransportTable, open_transport
from transport.interface import Record, Transport, TransportUnavailable, create_topics
from transport.kafka.kafka_frame import KafkaSettings
from wire.topics import JOINS, REPORTS

REJOIN_TRIES = 5
REJOIN_PAUSE_S = 2.0


def plain_settings(
    broker: RunningBroker, prefix: str = "", timeout_s: float = 5.0
) -> KafkaSettings:
    """The loopback port: an administrator."""
    return KafkaSettings(
        (broker.bootstrap,), prefix=prefix, idle_read_s=0.1, timeout_s=timeout_s, lease_s=6.0
    )


def wait_until_led(broker: RunningBroker) -> None:
    """Wait for the controller: a broker that stood still may be without one for a while."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def led() -> bool:
        with suppress(KafkaException):
            return bool(admin.list_topics(timeout=5).controller_id >= 0)
        return False

    until(led)


def fresh_prefix() -> str:
    """A corner of the broker that no other test uses."""
    return f"t{os.urandom(4).hex()}."


@dataclass(frozen=True)
class SecurePort:
    """The port with TLS and SASL; users get a password file in `folder`."""

    broker: RunningBroker
    folder: Path
    prefix: str

    def scram(self, user: str, password: str | None = None) -> KafkaSettings:
        path = self._secret(f"{user}.password", password or f"{user}-secret")
        return self._settings(sasl="SCRAM-SHA-512", username=user, password_file=path)

    def bearer(self, user: str, token: str) -> KafkaSettings:
        path = self._secret(f"{user}.token", token)
        return self._settings(sasl="OAUTHBEARER", token_file=path)

    def _secret(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    def _settings(self, **given: Any) -> KafkaSettings:
        assert self.broker.secure_bootstrap is not None
        assert self.broker.ca_file is not None
        return KafkaSettings(
            (self.broker.secure_bootstrap,),
            tls=True,
            ca_file=Path(self.broker.ca_file),
            prefix=self.prefix,
            idle_read_s=0.1,
            lease_s=6.0,
            **given,
        )


def add_users(broker: RunningBroker, *users: str) -> None:
    """Give users a SCRAM password: their name and `-secret`."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted: list[Any] = [
        UserScramCredentialUpsertion(name, how, f"{name}-secret".encode()) for name in users
    ]
    for answer in admin.alter_user_scram_credentials(wanted).values():
        answer.result()


def unsigned_token(user: str, life_s: float) -> str:
    def part(content: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")

    now = time.time()
    return f"{part({'alg': 'none'})}.{part({'sub': user, 'iat': now, 'exp': now + life_s})}."


def kafka_surroundings(folder: Path, settings: KafkaSettings) -> KafkaSurroundings:
    plain = surroundings(folder)
    config = dataclasses.replace(plain.config, transport=TransportTable(kafka=settings))
    made = KafkaSurroundings(folder, plain.world, config, plain.task)
    with open_transport(dataclasses.replace(settings, timeout_s=5.0), Side.AGGREGATOR) as log:
        create_topics(log)
    announce(made, [made.task])
    with suppress(TransportUnavailable):  # the first group of a broker takes seconds to be formed
        assert Surroundings.records(made, REPORTS) == []
    return made


class KafkaSurroundings(Surroundings):
    def log(self) -> Transport:  # type: ignore[override]
        settings = self.config.transport.kafka
        assert settings is not None
        return open_transport(dataclasses.replace(settings, timeout_s=5.0), Side.AGENT)

    def wait_until_served(self) -> None:
        """Wait for a broker that works again; the agent's stepped clock does not."""
        for _ in range(REJOIN_TRIES):
            with self.log() as log, suppress(TransportUnavailable):
                producer = log.producer()
                producer.send(JOINS, b"k", b"served?")
                producer.flush()
                return producer.close()
        raise AssertionError("expected the broker to serve again")

    def records(self, *topics: str) -> list[Record]:
        """Read everything; a broker that has just come back lets a new group in only later."""
        for _ in range(REJOIN_TRIES):
            with suppress(TransportUnavailable):
                if found := Surroundings.records(self, *topics):
                    return found
            time.sleep(REJOIN_PAUSE_S)
        return []
