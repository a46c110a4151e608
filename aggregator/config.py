"""Configuration of both aggregators: TOML read once, unknown keys refused, secrets are paths."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, TypeVar, get_type_hints

from transport.kafka_settings import KafkaSettings
from transport.opening import TransportSettings, choose

MAX_BYTES: Final = 1 << 20
DEFAULT_MESSAGE_BYTES: Final = 64 << 20
DEFAULT_TIMEOUT_S: Final = 120.0


class ConfigError(ValueError):
    """A configuration file does not say what it must say; the message names the key."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Mutual TLS: the CA that signed the other side, and the own certificate with its key."""

    ca_file: Path
    cert_file: Path
    key_file: Path


@dataclass(frozen=True, slots=True)
class HelperAddress:
    """Where the Helper listens: a Unix socket, or host:port with TLS files.

    max_message_bytes   of one message; a batch has 72 B a host, a share 4 B a word
    """

    socket: Path | None = None
    host_port: str = ""
    tls: TlsFiles | None = None
    max_message_bytes: int = DEFAULT_MESSAGE_BYTES
    call_timeout_s: float = DEFAULT_TIMEOUT_S


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """Where /healthz, /readyz and /metrics are served; port 0 takes a free one."""

    port: int
    address: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class LeaderConfig:
    """The Leader's configuration.

    key_dir     identity.key and the daily *.hpke keys, 0600
    signed_dir  *.task and *.roster under both signatures; read again when one is added
    helper_pk   the pinned Helper's identity, 32 B; empty for scheme `local` alone
    incident_rates  measured rates of the agents' detector; None: those that are shipped
    agents_model    model that the fleet's agents diagnose with; None: causes are not corrected
    """

    key_dir: Path
    state_dir: Path
    signed_dir: Path
    helper_pk: bytes
    user: str
    log_dir: Path | None
    log_group: str | None
    helper: HelperAddress | None
    database: Path
    releases_dir: Path
    catalogue: Path | None
    status_file: Path
    kafka: KafkaSettings | None = None
    incident_rates: Path | None = None
    agents_model: str | None = None
    http: HttpAddress | None = None

    @property
    def transport(self) -> TransportSettings:
        """What `open_transport` takes."""
        return choose(self.log_dir, self.log_group, self.kafka)


@dataclass(frozen=True, slots=True)
class HelperConfig:
    """The Helper's configuration.

    fence_file  counts answered commits; keep it off whatever backs up state_dir
    leader_pk   the pinned Leader's identity, 32 B
    peer_group  group that may reach the socket: the Leader's own
    """

    key_dir: Path
    state_dir: Path
    fence_file: Path
    signed_dir: Path
    leader_pk: bytes
    user: str
    address: HelperAddress
    peer_group: str | None
    status_file: Path
    http: HttpAddress | None = None


def load_leader_config(path: Path) -> LeaderConfig:
    """Read leader.toml.

    Raises      ConfigError, OSError
    """
    top = _Table(_read(path), str(path))
    if top.has("listen") and not top.has("leader"):
        raise ConfigError(f"{path}: this looks like a Helper's file; expected a Leader's")
    leader, log, store = top.table("leader"), top.table("transport"), top.table("store")
    state_dir = leader.path("state_dir")
    config = LeaderConfig(
        key_dir=leader.path("key_dir"),
        state_dir=state_dir,
        signed_dir=leader.path("signed_dir"),
        helper_pk=leader.key("helper_pk", optional=True),
        user=leader.text("user", "pointillist-leader"),
        log_dir=log.path("folder") if log.has("folder") else None,
        log_group=log.text("group", "") or None,
        helper=_address(top.table("helper")) if top.has("helper") else None,
        database=store.path("database"),
        releases_dir=store.path("releases_dir"),
        catalogue=store.path("catalogue") if store.has("catalogue") else None,
        status_file=leader.path("status_file", state_dir / "status.json"),
        kafka=_kafka(log.table("kafka")) if log.has("kafka") else None,
        incident_rates=store.path("incident_rates") if store.has("incident_rates") else None,
        agents_model=store.text("agents_model", "") or None,
        http=_http(top),
    )
    top.done(leader, log, store)
    _checked(f"{path} [transport]", lambda: config.transport)
    if (config.helper is None) != (config.helper_pk == b""):
        raise ConfigError(f"{path}: expected both helper_pk and [helper], or neither")
    return config


def load_helper_config(path: Path) -> HelperConfig:
    """Read helper.toml.

    Raises      ConfigError, OSError
    """
    top = _Table(_read(path), str(path))
    if top.has("leader"):
        raise ConfigError(f"{path}: this looks like a Leader's file; expected a Helper's")
    helper, listen = top.table("helper"), top.table("listen")
    state_dir = helper.path("state_dir")
    peer_group = listen.text("peer_group", "") or None
    config = HelperConfig(
        key_dir=helper.path("key_dir"),
        state_dir=state_dir,
        fence_file=helper.path("fence_file"),
        signed_dir=helper.path("signed_dir"),
        leader_pk=helper.key("leader_pk"),
        user=helper.text("user", "pointillist-helper"),
        address=_address(listen),
        peer_group=peer_group,
        status_file=helper.path("status_file", state_dir / "status.json"),
        http=_http(top),
    )
    top.done(helper)
    return config


def load_kafka_table(path: Path) -> KafkaSettings | None:
    """Read the table [transport.kafka] of any file, None where there is none.

    Raises      ConfigError, OSError
    """
    top = _Table(_read(path), str(path))
    log = top.table("transport") if top.has("transport") else None
    return _kafka(log.table("kafka")) if log is not None and log.has("kafka") else None


def _kafka(table: _Table) -> KafkaSettings:
    kinds = get_type_hints(KafkaSettings)
    given = {
        field.name: table.of_kind(field.name, kinds[field.name])
        for field in fields(KafkaSettings)
        if table.has(field.name)
    }
    table.done(known=[field.name for field in fields(KafkaSettings)])
    return _checked(table.where, lambda: KafkaSettings(**{"bootstrap": (), **given}))


_T = TypeVar("_T")


def _checked(where: str, make: Callable[[], _T]) -> _T:
    try:
        return make()
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from error


def _address(table: _Table) -> HelperAddress:
    socket = table.path("socket") if table.has("socket") else None
    host_port = table.text("address", "")
    tls = None
    if host_port:
        tls = TlsFiles(*(table.path(name) for name in ("ca_file", "cert_file", "key_file")))
    if (socket is None) == (not host_port):
        raise ConfigError(f"{table.where}: expected either socket, or address with TLS files")
    address = HelperAddress(
        socket,
        host_port,
        tls,
        table.number("max_message_bytes", DEFAULT_MESSAGE_BYTES, int),
        table.number("call_timeout_s", DEFAULT_TIMEOUT_S, float),
    )
    table.done()
    return address


def _http(top: _Table) -> HttpAddress | None:
    if not top.has("http"):
        return None
    table = top.table("http")
    port = table.number("port", 0, int)
    if port > 65_535:
        raise ConfigError(f"{table.where}: expected a port up to 65535, got {port}")
    found = HttpAddress(port, table.text("address", HttpAddress(0).address))
    _checked(f"{table.where} address", lambda: ip_address(found.address))
    table.done()
    return found


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        text = file.read(MAX_BYTES + 1)
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{path}: expected at most {MAX_BYTES} bytes, got more")
    try:
        return tomllib.loads(text.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: expected TOML, got {error}") from error


_Number = TypeVar("_Number", int, float)


class _Table:
    """One TOML table that remembers which keys were asked for."""

    def __init__(self, content: Mapping[str, Any], where: str) -> None:
        self._content, self.where = content, where
        self._used: set[str] = set()

    def has(self, key: str) -> bool:
        return key in self._content

    def table(self, key: str) -> _Table:
        value = self._take(key)
        if not isinstance(value, dict):
            raise ConfigError(f"{self.where}: expected a table [{key}], got {value!r}")
        return _Table(value, f"{self.where} [{key}]")

    def text(self, key: str, default: str | None = None) -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            raise ConfigError(f"{self.where}: expected text for {key}, got {value!r}")
        return value

    def path(self, key: str, default: Path | None = None) -> Path:
        path = Path(self.text(key, None if default is None else str(default)))
        if not path.is_absolute():
            raise ConfigError(f"{self.where}: expected an absolute path for {key}, got {path}")
        return path

    def key(self, key: str, *, optional: bool = False) -> bytes:
        text = self.text(key, "" if optional else None)
        try:
            value = bytes.fromhex(text)
        except ValueError:
            value = b"?"
        if len(value) != 32 and not (optional and not value):
            raise ConfigError(f"{self.where}: expected 32 bytes in hex for {key}, got {text!r}")
        return value

    def number(self, key: str, default: _Number, kind: type[_Number]) -> _Number:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ConfigError(f"{self.where}: expected a positive number for {key}, got {value!r}")
        return kind(value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._take(key)
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise ConfigError(f"{self.where}: expected an array of text for {key}, got {value!r}")
        return tuple(value)

    def flag(self, key: str) -> bool:
        value = self._take(key)
        if not isinstance(value, bool):
            raise ConfigError(f"{self.where}: expected true or false for {key}, got {value!r}")
        return value

    def of_kind(self, key: str, kind: Any) -> Any:
        """Read a key as the annotation of a dataclass's field says."""
        readers: dict[Any, Callable[[], Any]] = {
            tuple[str, ...]: lambda: self.texts(key),
            bool: lambda: self.flag(key),
            int: lambda: self.number(key, 0, int),
            float: lambda: self.number(key, 0.0, float),
            Path | None: lambda: self.path(key),
        }
        return readers.get(kind, lambda: self.text(key))()

    def _take(self, key: str, default: object = None) -> object:
        self._used.add(key)
        value = self._content.get(key, default)
        if value is None:
            raise ConfigError(f"{self.where}: expected {key}, got nothing")
        return value

    def done(self, *tables: _Table, known: Iterable[str] = ()) -> None:
        """Refuse keys that nobody asked for, here and in `tables`; `known` are told beside them."""
        unknown = sorted(set(self._content) - self._used)
        if unknown:
            known = ", ".join(sorted({*self._used, *known}))
            raise ConfigError(f"{self.where}: unknown key {unknown[0]!r}; known are {known}")
        for table in tables:
            table.done()
