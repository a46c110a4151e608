"""What both Kafka clients share: settings, topics, the producer's buffer, how failures read.

A flush hands everything to the client at once, so that the records of one partition leave as one
batch, which a broker appends whole or not at all.
"""

from __future__ import annotations

import os
import re
import stat
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Final, Generic, TypeVar

from transport import interface
from transport.process.supervision import Closing
from transport.settings.config import host_port
from wire.topics import EXPIRING, TOPICS

MECHANISMS: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
RECORD_OVERHEAD_BYTES: Final = 4096
"""Key (at most 1 KiB), headers, varints and the head of the record batch."""
SMALL_TOPIC_BYTES: Final = 1 << 20
"""Kafka's own default: a batch of many small records may be as long as that."""

_LOOPBACK: Final = ("127.", "localhost:", "[::1]:")
_SECRET_BYTES: Final = 64 << 10
_PREFIX: Final = re.compile(r"[A-Za-z0-9._-]{0,100}")


class KafkaSettingsError(ValueError):
    """Settings of Kafka that cannot work; says which, what was expected and what came."""


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """How to reach a cluster: the table [transport.kafka]. Secrets are paths.

    bootstrap      `host:port` of some brokers
    tls            encrypt, and check the broker's certificate and its name
    ca_file        PEM of who signed the brokers' certificates; the system's own where None
    cert_file      PEM of this client's certificate, where brokers ask for one; with key_file
    sasl           one of MECHANISMS; over TLS only, except on loopback
    username       of SCRAM, with password_file
    token_file     of OAUTHBEARER: a bearer token (JWT), read again whenever one is needed
    prefix         topics and groups begin with it: several fleets in one cluster
    replication    copies of each topic that this program creates
    retention_s    age at which reports, epochs and dead letters go; more than the tasks' longest
                   retention
    timeout_s      how long one step may wait for a broker
    lease_s        how long a member of a group may go without polling
    idle_read_s    how long a broker may hold a read that finds nothing
    """

    bootstrap: tuple[str, ...]
    tls: bool = False
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    sasl: str | None = None
    username: str | None = None
    password_file: Path | None = None
    token_file: Path | None = None
    prefix: str = ""
    replication: int = 1
    retention_s: int = interface.RETENTION_S
    timeout_s: float = 5.0
    lease_s: float = 30.0
    idle_read_s: float = 5.0
    max_value_bytes: int = interface.MAX_VALUE_BYTES

    @property
    def place(self) -> str:
        """Where the log is, for people."""
        return f"Kafka at {', '.join(self.bootstrap)}"

    def __post_init__(self) -> None:
        """Refuse what cannot work. Raises KafkaSettingsError."""
        self._check_addresses()
        self._check_tls()
        self._check_sasl()
        if not _PREFIX.fullmatch(self.prefix):
            raise KafkaSettingsError(
                f"prefix: expected letters, digits, '.', '_', '-', got {self.prefix!r}"
            )
        for name, least in (("timeout_s", 0.1), ("lease_s", 1.0), ("idle_read_s", 0.05)):
            if not least <= getattr(self, name) <= 3600:
                raise KafkaSettingsError(
                    f"{name}: expected {least}..3600, got {getattr(self, name)}"
                )
        if not 1 <= self.replication <= 9 or self.retention_s < 60:
            raise KafkaSettingsError(
                "expected replication 1..9 and retention_s of at least 60, "
                f"got {self.replication} and {self.retention_s}"
            )

    def _check_addresses(self) -> None:
        if not self.bootstrap:
            raise KafkaSettingsError("bootstrap: expected at least one host:port, got none")
        for address in self.bootstrap:
            try:
                host_port(address)
            except ValueError:
                raise KafkaSettingsError(
                    f"bootstrap: expected host:port, got {address!r}"
                ) from None

    def _check_tls(self) -> None:
        for name in ("ca_file", "cert_file", "key_file"):
            if getattr(self, name) is not None and not self.tls:
                raise KafkaSettingsError(f"{name}: expected tls = true beside it")
        if (self.cert_file is None) != (self.key_file is None):
            raise KafkaSettingsError("expected both cert_file and key_file, or neither")

    def _check_sasl(self) -> None:
        if self.sasl is not None and self.sasl not in MECHANISMS:
            raise KafkaSettingsError(f"sasl: expected one of {MECHANISMS}, got {self.sasl!r}")
        wants: tuple[str, ...] = ()
        if self.sasl is not None:
            wants = ("token_file",) if self.sasl == "OAUTHBEARER" else ("username", "password_file")
        for name in ("username", "password_file", "token_file"):
            given = getattr(self, name) is not None
            if given and name not in wants:
                raise KafkaSettingsError(f"{name}: not used with sasl = {self.sasl!r}")
            if not given and name in wants:
                raise KafkaSettingsError(f"{name}: expected with sasl = {self.sasl!r}, got none")
        if self.sasl is not None and not self.tls and not self.on_loopback:
            raise KafkaSettingsError(
                "sasl: expected tls = true beside it; without it others could use what is sent"
            )

    @property
    def on_loopback(self) -> bool:
        return all(address.startswith(_LOOPBACK) for address in self.bootstrap)

    @property
    def protocol(self) -> str:
        """Kafka's own name for how to talk."""
        if self.sasl is not None:
            return "SASL_SSL" if self.tls else "SASL_PLAINTEXT"
        return "SSL" if self.tls else "PLAINTEXT"

    @property
    def heartbeat_lease_s(self) -> float:
        """How soon a member whose process died is replaced."""
        return min(self.lease_s, 10.0)

    @property
    def join_wait_s(self) -> float:
        """How long one poll may wait to be let in: another member may wait for us to poll too."""
        return min(self.timeout_s, self.lease_s / 3)

    @property
    def join_limit_s(self) -> float:
        """After that long outside its group a member says so."""
        return max(self.timeout_s, self.lease_s)

    def named(self, topic: str) -> str:
        """The topic's or group's name in the cluster."""
        return self.prefix + topic

    def value_limit(self, topic: str) -> int:
        known = (listed.max_bytes for listed in TOPICS if listed.name == topic)
        return min(next(known, self.max_value_bytes), self.max_value_bytes)

    def topic_config(self, topic: str) -> Mapping[str, str]:
        """Retention, longest batch, clean-up; uniformly random vectors do not compress."""
        compacted = any(listed.compacted for listed in TOPICS if listed.name == topic)
        longest = self.value_limit(topic) + RECORD_OVERHEAD_BYTES
        common = {
            "compression.type": "uncompressed",
            "max.message.bytes": str(max(longest, SMALL_TOPIC_BYTES)),
            "message.timestamp.type": "LogAppendTime",
            # One copy may be away; a flush is never acknowledged by a single one of three.
            "min.insync.replicas": str(max(1, self.replication - 1)),
        }
        if compacted:
            return common | {"cleanup.policy": "compact"}
        return common | {
            "cleanup.policy": "delete",
            "retention.ms": str(self.retention_s * 1000) if topic in EXPIRING else "-1",
        }

    def tls_files(self, *names: str) -> dict[str, str]:
        """Give ca_file, cert_file and key_file, as far as they are set, as a client names them."""
        paths = (self.ca_file, self.cert_file, self.key_file)
        return {name: str(path) for name, path in zip(names, paths, strict=True) if path}

    def password(self) -> str:
        """Read the password. Raises KafkaSettingsError."""
        return _secret("password_file", self.password_file)

    def token(self) -> str:
        """Read the bearer token. Raises KafkaSettingsError."""
        return _secret("token_file", self.token_file)

    def check_files(self) -> None:
        """Read every file once, before a broker is asked. Raises KafkaSettingsError."""
        for name in ("ca_file", "cert_file", "key_file"):
            path: Path | None = getattr(self, name)
            try:
                if path is not None:
                    path.open("rb").close()
            except OSError as error:
                found = f"{name}: expected a readable file, got {path}"
                raise KafkaSettingsError(found) from error
        if self.password_file is not None:
            self.password()
        if self.token_file is not None:
            self.token()


def _secret(name: str, path: Path | None) -> str:
    if path is None:
        raise KafkaSettingsError(f"{name}: expected a path, got none")
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & stat.S_IRWXO:
                raise KafkaSettingsError(f"{name}: expected {path} closed to others: chmod o= it")
            content = file.read(_SECRET_BYTES + 1)
        text = content.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no text"
        found = f"{name}: expected a readable text file, got {path}: {why}"
        raise KafkaSettingsError(found) from error
    if not text or len(content) > _SECRET_BYTES:
        raise KafkaSettingsError(f"{name}: expected 1..{_SECRET_BYTES} bytes in {path}")
    return text


BATCH_BYTES = SMALL_TOPIC_BYTES - 64 * 1024  # every topic takes a batch of that length

A = TypeVar("A")  # a client's own administrator

STEP_S: Final = 0.05
LOOK_S: Final = 5.0
"""How soon a Leader sees that a topic was made anew, or got partitions."""
_NO_ID: Final = "A" * 22  # of brokers before 2.8


def known(identity: str) -> str:
    return "" if identity == _NO_ID else identity


class Refusal(Enum):
    """Why a broker will not have us; the value names the settings to look at.

    A broker that wants another certificate of ours and one whose certificate we do not trust
    differ in nothing that both clients tell.
    """

    LOGIN = "login"
    MECHANISM = "sasl"
    CERTIFICATE = "ca_file, cert_file and key_file, and the name in bootstrap"
    RIGHTS = "this user's rights (pointillist kafka topics)"


def refused(settings: KafkaSettings, refusal: Refusal, why: str) -> interface.TransportRefused:
    """Say who was refused, why, and which setting to look at."""
    look_at = refusal.value
    if refusal is Refusal.LOGIN:
        look_at = "token_file" if settings.token_file is not None else "username and password_file"
    return interface.TransportRefused(
        f"Kafka at {', '.join(settings.bootstrap)} refuses us (protocol {settings.protocol}, sasl "
        f"{settings.sasl or 'none'}, user {settings.username or 'none'}): {why}; check {look_at}"
    )


def require_secrets(settings: KafkaSettings) -> None:
    """Look at the files again: somebody may be replacing one. Raises TransportRefused."""
    try:
        settings.check_files()
    except KafkaSettingsError as error:
        raise refused(settings, Refusal.LOGIN, str(error)) from error


def away(settings: KafkaSettings, why: str) -> interface.TransportUnavailable:
    """Say that nobody answers as expected: away, or spoken to in the wrong way."""
    return interface.TransportUnavailable(
        f"Kafka at {', '.join(settings.bootstrap)} does not serve (protocol {settings.protocol}): "
        f"{why}; check bootstrap and tls if it should"
    )


def may_not_create(topic: str) -> interface.TransportUnavailable:
    return interface.TransportUnavailable(
        f"topic {topic} does not exist and this user may not create it: "
        "an administrator does (pointillist kafka topics)"
    )


@dataclass(frozen=True, slots=True)
class FoundTopic:
    """A topic on a cluster; `identity` is Kafka's own id of it."""

    partitions: int
    identity: str


class KafkaFrame(Closing, Generic[A]):
    """One side's access to a cluster; see `transport.interface.Transport`."""

    report_partitions = 32
    """As many tasks as Spark can have work for; this program never changes those of a topic."""

    def __init__(self, settings: KafkaSettings) -> None:
        settings.check_files()
        self.settings = settings
        self._partitions: dict[str, int] = {}

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic where it is missing; one that we may not see is the operator's."""
        with suppress(interface.TransportRefused), self._admin() as admin:
            if self._look_up(admin, name) is None:
                self._create(admin, name, partitions)

    def consumer(self, group: str, topics: Sequence[str]) -> interface.Consumer:
        for topic in topics:
            self.partitions(topic)
        return self._consumer(group, topics)

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has. Raises UnknownTopic, TransportUnavailable."""
        if topic not in self._partitions:
            with self._admin() as admin:
                found = self._look_up(admin, topic)
            if found is None:
                raise interface.UnknownTopic(
                    f"topic {self.settings.named(topic)} does not exist: an administrator makes it "
                    "(pointillist kafka topics)"
                )
            self._partitions[topic] = found.partitions
        return self._partitions[topic]

    def identity(self, topic: str) -> str:
        """Which log of that name it is: Kafka's own id; `partitions` tells those of now."""
        with self._admin() as admin:
            found = self._look_up(admin, topic)
        if found is None:
            return ""
        self._partitions[topic] = found.partitions
        return known(found.identity)

    def operations(self, topics: Sequence[str]) -> dict[str, frozenset[str] | None]:
        """What this user may do with each topic that is there, in Kafka's words.

        None where its broker does not say (before 2.3). Raises TransportUnavailable
        """
        with self._admin() as admin:
            told = self._operations(admin, [self.settings.named(topic) for topic in topics])
        named = {self.settings.named(topic): topic for topic in topics}
        return {named[name]: operations for name, operations in told.items()}

    def group_operations(self, groups: Sequence[str]) -> dict[str, frozenset[str] | None]:
        """The same of groups, as far as this client can ask. Raises TransportUnavailable."""
        del groups
        return {}

    def longest(self, topic: str) -> int:
        """By the configuration; a client that sends single records asks the topic."""
        return self.settings.value_limit(topic)

    def forget_partitions(self) -> None:
        """Ask for them again: a send failed, and a topic may have been made anew."""
        self._partitions.clear()

    def newest_s(self, topics: Sequence[str]) -> float | None:
        """When the newest record was appended, by the broker's clock: topics are stamped by it."""
        slots = []
        for topic in topics:
            with suppress(interface.UnknownTopic):
                slots += [(self.settings.named(topic), p) for p in range(self.partitions(topic))]
        if not slots:
            return None
        with self._admin() as admin:
            newest_ms = max(self._newest_ms(admin, slots))
        return None if newest_ms < 0 else newest_ms / 1000

    def close(self) -> None:
        """Let go of everything that this object opened."""

    @abstractmethod
    def _newest_ms(self, admin: A, slots: Sequence[tuple[str, int]]) -> Iterable[int]:
        """The newest time stamp of each (topic, partition), -1 of one without records."""

    @abstractmethod
    def _admin(self) -> AbstractContextManager[A]:
        """An administrator; inside, the client's errors are the port's."""

    @abstractmethod
    def _look_up(self, admin: A, topic: str) -> FoundTopic | None:
        """A topic as it stands now, None where there is none."""

    @abstractmethod
    def _operations(self, admin: A, names: Sequence[str]) -> dict[str, frozenset[str] | None]:
        """As `operations`, by names in the cluster."""

    @abstractmethod
    def _create(self, admin: A, topic: str, partitions: int) -> None:
        """Create a topic and wait until it is seen."""

    @abstractmethod
    def _consumer(self, group: str, topics: Sequence[str]) -> interface.Consumer:
        """Join a group; the topics exist."""


class BufferedProducer(interface.BatchingProducer):
    """After a failure the client is dropped: what it holds is ours, a fresh one sends it.

    One that lives knows no partitions that were added meanwhile.
    """

    batch_bytes = BATCH_BYTES

    def __init__(self, kafka: KafkaFrame[A]) -> None:
        self._known, self._forget = cache(kafka.partitions), kafka.forget_partitions
        super().__init__(self._known, kafka.settings.value_limit)
        self._settings, self._places_again = kafka.settings, False

    def _asks_again(self) -> None:
        self._known.cache_clear()
        self._forget()
        self._places_again = True

    def _send_pending(self) -> None:
        if self._places_again:  # a topic that was made anew may have fewer partitions
            self._pending = [
                replace(one, partition=interface.partition_of(one.key, self._partitions(one.topic)))
                for one in self._pending
            ]
            self._places_again = False
        super()._send_pending()
