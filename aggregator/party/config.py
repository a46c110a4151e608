"""Configuration of the parties: TOML read once, unknown keys refused, secrets are paths."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

from aggregator.enrolment.operators import OperatorKey, OperatorKeys, operator_keys
from transport.factory import TransportSettings, TransportTable
from transport.kafka.kafka_frame import KafkaSettings
from transport.settings.config import ConfigError, build, limited, read_table
from wire.fields import NAME

from .channel_address import (
    DEFAULT_MESSAGE_BYTES,
    DEFAULT_TIMEOUT_S,
    ChannelAddress,
    ChannelTable,
    check_paths,
)
from .postgresql_settings import PostgresqlSettings

RETRIES: Final = 3
"""A host sends the same bytes again after a time-out whose first try arrived: rarely twice."""


def half_of_memory() -> int:
    """Half of the bytes of this machine's memory: the other half is for epochs, sums and others."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


@dataclass(frozen=True, slots=True)
class DeadLetterQuota:
    """How much is written of messages that are refused.

    per_minute          letters
    bytes_per_minute    of letters
    records             whether a letter holds the refused bytes too, where they are short
    """

    per_minute: int = limited(600, low=1, high=60_000)
    bytes_per_minute: int = limited(1 << 20, low=4096, high=1 << 30)
    records: bool = False


@dataclass(frozen=True, slots=True)
class Quotas:
    """The table [quotas] of a Leader's file.

    window_bytes   masked vectors of windows that have not ended, of one process
    retries        reports beyond the first that an operator's hosts may send for one window: so
                   many times the hosts that the roster gives it
    operators      retries of single operators, by name
    dead_letters   None: none are written
    """

    window_bytes: int = field(default_factory=half_of_memory, metadata={"low": 1 << 20})
    retries: int = limited(RETRIES, low=0, high=1000)
    operators: Mapping[str, int] = field(default_factory=dict, metadata={"low": 0, "high": 1000})
    dead_letters: DeadLetterQuota | None = None

    def excess(self, operator: str, hosts: int) -> int:
        return self.operators.get(operator, self.retries) * hosts


BATCH_RECORDS: Final = 20_000

_OURS: Final = ("spark.authenticate", "spark.io.encryption.", "spark.network.crypto.", "spark.ui.")
"""Keys of epochs and passwords of Kafka are in what these settings protect."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How the Leader runs Spark.

    python         of an environment with PySpark; None: .venv-spark, as `make spark` makes it
    jars           folder of Spark's connector to Kafka; None: beside that environment's python
    master         where executors run: local[N] on this machine, or a cluster's address
    batch_records  most records that one batch takes
    options        more settings of Spark, by their own names
    """

    python: Path | None = None
    jars: Path | None = None
    master: str = "local[*]"
    batch_records: int = limited(BATCH_RECORDS, low=1, high=10_000_000)
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what depends on where it is started, or would take protection away."""
        check_paths(self)
        for name in self.options:
            if not name.startswith("spark.") or name.startswith(_OURS):
                raise ValueError(f"options: expected a setting of Spark that is free, got {name!r}")


DEFAULT_LEASE_S: Final = 10.0
"""A database that restarts is back sooner; nobody leads for so long after a machine fell."""


@dataclass(frozen=True, slots=True)
class StandbySettings:
    """The database that says which machine of a Leader leads, and holds the Leader's state.

    lease_s     after so long without a word of who leads another machine does
    """

    postgresql: PostgresqlSettings
    lease_s: float = limited(DEFAULT_LEASE_S, low=1.0, high=300.0)


_KEY_BYTES: Final = 32
NAME_OR_NONE: Final = f"({NAME.pattern})?"
WITNESS_MESSAGE_BYTES: Final = 4096
"""A question and its answer are a few hundred bytes."""
WITNESS_TIMEOUT_S: Final = 5.0
MOST_WITNESS_TIMEOUT_S: Final = 30.0
"""A batch, and the Helper's own loop, may wait for two steps of each; the Leader waits 120 s."""
MOST_WITNESSES: Final = 2


@dataclass(frozen=True, slots=True)
class WitnessProcess:
    address: ChannelAddress
    witness_pk: bytes


@dataclass(frozen=True, slots=True)
class WitnessSettings:
    """A witness of the Helper; timeout_s bounds each step of asking it."""

    witness: WitnessProcess | PostgresqlSettings
    timeout_s: float

    @property
    def keeper(self) -> object:
        """Who keeps the records: a key, or a server and its port."""
        kept = self.witness
        return kept.witness_pk if isinstance(kept, WitnessProcess) else (kept.host, kept.port)


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where /healthz, /readyz and /metrics are served: on loopback where no address is named.

    port    0 takes a free one
    """

    port: int = limited(low=0, high=65_535)
    address: str = ""

    def __post_init__(self) -> None:
        if self.address:
            ip_address(self.address)


@dataclass(frozen=True, kw_only=True)
class PartyFiles:
    """What each party's own table names.

    key_dir     identity.key and the daily *.hpke keys, 0600
    status_file what the party last said; without it in state_dir
    """

    key_dir: Path
    state_dir: Path
    user: str
    status_file: Path = field(default=Path())

    def __post_init__(self) -> None:
        if self.status_file == Path():
            object.__setattr__(self, "status_file", self.state_dir / "status.json")
        check_paths(self)


@dataclass(frozen=True, kw_only=True)
class LeaderFiles(PartyFiles):
    """The table [leader].

    signed_dir  *.task and *.roster under both signatures; read again when one is added
    helper_pk   the pinned Helper's identity, 32 B; empty for scheme `local` alone
    leave_out   share of the hosts of a window up to an hour that chance leaves out of its sum
    """

    user: str = "pointillist-leader"
    signed_dir: Path
    helper_pk: bytes = b""
    leave_out: float = limited(0.0, low=0.0, high=0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.helper_pk:
            check_key("helper_pk", self.helper_pk)


@dataclass(frozen=True, kw_only=True)
class StoreFiles:
    """The table [store].

    incident_rates  measured rates of the agents' detector; None: those that are shipped
    agents_model    model that the fleet's agents diagnose with; None: causes are not corrected
    keep_days       series -> days after which its windows leave the store; others stay for ever
    """

    database: Path
    releases_dir: Path
    catalogue: Path | None = None
    incident_rates: Path | None = None
    agents_model: str | None = None
    keep_days: Mapping[str, int] = field(default_factory=dict, metadata={"low": 1})

    def __post_init__(self) -> None:
        check_paths(self)
        object.__setattr__(self, "agents_model", self.agents_model or None)


@dataclass(frozen=True, kw_only=True)
class LeaderTables:
    """What a Leader's file may have beside.

    spark       None: as `make spark` makes it
    standby     None: one machine leads, and its state is a file in state_dir
    """

    http: HttpAddress | None = None
    spark: SparkSettings | None = None
    quotas: Quotas = field(default_factory=Quotas)
    standby: StandbySettings | None = None


@dataclass(frozen=True, kw_only=True)
class LeaderConfig(LeaderFiles, StoreFiles, LeaderTables):
    transport: TransportSettings
    helper: ChannelAddress | None


@dataclass(frozen=True, kw_only=True)
class HelperFiles(PartyFiles):
    """The table [helper].

    fence_file  counts answered commits; keep it off whatever backs up state_dir
    leader_pk   the pinned Leader's identity, 32 B
    fleet       the name that rosters must have; "": that of the first that names its fleet
    """

    user: str = "pointillist-helper"
    fence_file: Path
    signed_dir: Path
    leader_pk: bytes
    fleet: str = limited("", form=NAME_OR_NONE)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_key("leader_pk", self.leader_pk)


@dataclass(frozen=True, kw_only=True)
class HelperConfig(HelperFiles):
    """The Helper's configuration.

    peer_group  group that may reach the socket: the Leader's own
    operators   whose vouchers for hosts are believed
    witnesses   each keeps the chain of what was answered outside this machine; none: nobody does
    transport   the log whose releases are compared with the state at a start; None: not read
    """

    address: ChannelAddress
    peer_group: str | None
    http: HttpAddress | None = None
    operators: OperatorKeys = field(default_factory=dict)
    witnesses: tuple[WitnessSettings, ...] = ()
    transport: TransportSettings | None = None


# The files as they are written.


@dataclass(frozen=True, slots=True)
class _AddressTable(ChannelTable):
    max_message_bytes: int = limited(DEFAULT_MESSAGE_BYTES, low=1)
    call_timeout_s: float = limited(DEFAULT_TIMEOUT_S, low=0.001)

    @property
    def found(self) -> ChannelAddress:
        return self.bounded(self.max_message_bytes, self.call_timeout_s)


@dataclass(frozen=True, slots=True)
class _ListenTable(_AddressTable):
    peer_group: str | None = None


@dataclass(frozen=True, kw_only=True)
class _LeaderFile(LeaderTables):
    leader: LeaderFiles
    transport: TransportTable
    store: StoreFiles
    helper: _AddressTable | None = None

    def __post_init__(self) -> None:
        _check_transport(self.transport)
        if (self.helper is None) != (self.leader.helper_pk == b""):
            raise ValueError("expected both helper_pk and [helper], or neither")


@dataclass(frozen=True, slots=True)
class _WitnessProcessTable(ChannelTable):
    witness_pk: bytes = b""

    def __post_init__(self) -> None:
        ChannelTable.__post_init__(self)
        check_key("witness_pk", self.witness_pk)


@dataclass(frozen=True, slots=True)
class _AskedTable:
    timeout_s: float = limited(WITNESS_TIMEOUT_S, low=0.1, high=MOST_WITNESS_TIMEOUT_S)
    process: _WitnessProcessTable | None = None
    postgresql: PostgresqlSettings | None = None

    def __post_init__(self) -> None:
        if (self.process is None) == (self.postgresql is None):
            raise ValueError("expected either [witness.process] or [witness.postgresql]")

    @property
    def found(self) -> WitnessSettings:
        if self.process is not None:
            address = self.process.bounded(WITNESS_MESSAGE_BYTES, self.timeout_s)
            return WitnessSettings(WitnessProcess(address, self.process.witness_pk), self.timeout_s)
        if self.postgresql is None:
            raise AssertionError("__post_init__ saw to it")
        return WitnessSettings(self.postgresql, self.timeout_s)


@dataclass(frozen=True, slots=True)
class _HelperFile:
    helper: HelperFiles
    listen: _ListenTable
    witness: tuple[_AskedTable, ...] = limited((), most=MOST_WITNESSES)
    transport: TransportTable | None = None
    http: HttpAddress | None = None
    operators: tuple[OperatorKey, ...] = limited((), key="operator")

    def __post_init__(self) -> None:
        operator_keys(self.operators)
        keepers = [one.found.keeper for one in self.witness]
        if self.helper.leader_pk in keepers:
            raise ValueError(
                "witness_pk: expected a key of somebody else than the Leader, got leader_pk: a "
                "witness that the Leader runs may forget what a restored Helper answered"
            )
        if len(set(keepers)) < len(keepers):
            raise ValueError("witness: expected keys or servers that differ, got one twice")
        if self.transport is not None:
            _check_transport(self.transport)


def _check_transport(table: TransportTable) -> None:
    check_paths(table)
    if table.kafka is not None:
        check_paths(table.kafka)


def check_key(name: str, key: bytes) -> None:
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{name}: expected {_KEY_BYTES} bytes in hex, got {len(key)}")


def load_leader_config(path: Path) -> LeaderConfig:
    """Read leader.toml. Raises ConfigError, OSError."""
    table = read_table(path)
    if "listen" in table and "leader" not in table:
        raise ConfigError(f"{path}: this looks like a Helper's file; expected a Leader's")
    if "workers" in table:
        raise ConfigError(
            f"{path}: workers: expected no such table any more; leave it out: one process reads "
            "the reports of a million GPUs, and beyond that Spark does (leader run --engine spark)"
        )
    file = build(_LeaderFile, table, f"{path}: ")
    return LeaderConfig(
        **vars(file.leader),
        **vars(file.store),
        **{one.name: getattr(file, one.name) for one in fields(LeaderTables)},
        transport=file.transport.settings,
        helper=None if file.helper is None else file.helper.found,
    )


def load_helper_config(path: Path) -> HelperConfig:
    """Read helper.toml. Raises ConfigError, OSError."""
    table = read_table(path)
    if "leader" in table:
        raise ConfigError(f"{path}: this looks like a Leader's file; expected a Helper's")
    if isinstance(table.get("witness"), dict):  # one
        table["witness"] = [table["witness"]]
    file = build(_HelperFile, table, f"{path}: ")
    return HelperConfig(
        **vars(file.helper),
        address=file.listen.found,
        peer_group=file.listen.peer_group or None,
        http=file.http,
        operators=operator_keys(file.operators),
        witnesses=tuple(one.found for one in file.witness),
        transport=None if file.transport is None else file.transport.settings,
    )


def load_kafka_table(path: Path) -> KafkaSettings | None:
    """Read the table [transport.kafka] of any file, None where there is none.

    Raises      ConfigError, OSError
    """
    kafka = _transport_table(path).get("kafka")
    if kafka is None:
        return None
    if not isinstance(kafka, dict):
        raise ConfigError(f"{path}: transport.kafka: expected a table, got {kafka!r}")
    return build(KafkaSettings, kafka, f"{path}: transport.kafka.")


def load_transport(path: Path) -> TransportSettings:
    """Read the table [transport] of any file: an embedded log's folder, or a cluster.

    Raises      ConfigError, OSError
    """
    table = _transport_table(path)
    if not table:
        raise ConfigError(f"{path}: expected a table [transport] or [transport.kafka], found none")
    return build(TransportTable, table, f"{path}: transport.").settings


def _transport_table(path: Path) -> dict[str, Any]:
    table = read_table(path).get("transport")
    return table if isinstance(table, dict) else {}
