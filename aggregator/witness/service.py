"""A witness that is a process of its own: it answers signed questions with signed heads."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
import structlog

from aggregator.party import config as party_config
from aggregator.party import health, party_start
from aggregator.party.channel import start_server
from aggregator.party.channel_address import ChannelAddress, ChannelTable
from aggregator.party.config import HttpAddress, PartyFiles
from aggregator.party.health import Health, Trouble, Troubles
from aggregator.party.party_start import silent
from aggregator.state.state_file import SCHEMA_VERSION, StorageUnavailable, open_state, transaction
from privacy.signing import SigningKey, verify
from transport.files.keyfiles import load_signing_key
from transport.process.supervision import Notifier
from transport.rpc.pointillist_pb2_grpc import WitnessServicer, add_WitnessServicer_to_server
from transport.settings.config import ConfigError, build, limited, read_table
from wire.proto import pointillist_pb2 as pb
from wire.rejection import Reason, ReportRejected
from wire.witness import NO_LINKS, ChainHead, ChainLink, WitnessAsk, WitnessHead

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS heads (helper_pk BLOB, sequence INTEGER, hash BLOB NOT NULL,
    closed_s INTEGER NOT NULL, link BLOB NOT NULL, PRIMARY KEY (helper_pk, sequence)) WITHOUT ROWID
"""


class WitnessStore:
    """Chains by Helper; used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open or make the file; raises StateUnusable, OSError."""
        self._connection = open_state(path, _SCHEMA)

    def head(self, helper_pk: bytes) -> ChainHead:
        row = self._connection.execute(
            "SELECT sequence, hash, closed_s FROM heads WHERE helper_pk = ? "
            "ORDER BY sequence DESC LIMIT 1",
            (helper_pk,),
        ).fetchone()
        return NO_LINKS if row is None else ChainHead(*row)

    def append(self, link: ChainLink) -> ChainHead:
        """Take a link if it continues its chain, durably; say where the chain stands then.

        Raises      StorageUnavailable
        """
        with transaction(self._connection) as connection:
            head = self.head(link.helper_pk)
            if (head.sequence + 1, head.hash) != (link.sequence, link.prev):
                return head
            connection.execute(
                "INSERT INTO heads VALUES (?,?,?,?,?)",
                (link.helper_pk, link.sequence, link.hash(), link.closed_s, link.encode()),
            )
        return link.head()

    def check_writable(self) -> None:
        """Make sure that the disk takes a commit; raises StorageUnavailable."""
        with transaction(self._connection) as connection:
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def lengths(self) -> dict[str, int]:
        rows = self._connection.execute("SELECT helper_pk, max(sequence) FROM heads GROUP BY 1")
        return {bytes(helper_pk).hex(): sequence for helper_pk, sequence in rows}

    def close(self) -> None:
        self._connection.close()


class WitnessBook:
    def __init__(
        self, identity: SigningKey, helpers: Collection[bytes], store: WitnessStore
    ) -> None:
        self._identity, self._helpers, self._store = identity, frozenset(helpers), store
        self.refused: Counter[str] = Counter()
        self.asked = 0

    def answer(self, raw: bytes) -> bytes:
        """Give the signed head; raises ReportRejected, which is counted, StorageUnavailable."""
        try:
            ask = WitnessAsk.decode(raw)
            if ask.witness_pk != self._identity.public_bytes or ask.helper_pk not in self._helpers:
                expected = "this witness and a Helper that it serves"
                raise ReportRejected(Reason.WITNESS_SIGNATURE, expected, "others")
            if not verify(ask.helper_pk, ask.unsigned(), ask.signature):
                raise ReportRejected(Reason.WITNESS_SIGNATURE, "the Helper's signature", "another")
        except ReportRejected as refusal:
            self.refused[refusal.reason.value] += 1
            raise
        self.asked += 1
        store = self._store
        head = store.head(ask.helper_pk) if ask.link is None else store.append(ask.link)
        draft = WitnessHead(self._identity.public_bytes, ask.helper_pk, ask.nonce, head)
        return draft.unsigned() + self._identity.sign(draft.unsigned())


class _Asked(WitnessServicer):
    def __init__(
        self,
        book: WitnessBook,
        failed: Callable[[BaseException], None],
        lock: AbstractContextManager[object],
    ) -> None:
        self._book, self._failed, self._lock = book, failed, lock

    def Ask(self, request: pb.AskRequest, context: grpc.ServicerContext) -> pb.AskResponse:
        try:
            with self._lock:
                return pb.AskResponse(head=self._book.answer(request.ask))
        except ReportRejected as refusal:
            return pb.AskResponse(refusal=refusal.reason.value)
        except Exception as error:  # a full disk, a bug: fail closed, say nothing of it
            self._failed(error)
            context.abort(grpc.StatusCode.UNAVAILABLE, "the witness cannot answer now")
            raise


def serve_witness(
    book: WitnessBook,
    address: ChannelAddress,
    failed: Callable[[BaseException], None],
    lock: AbstractContextManager[object],
) -> grpc.Server:
    """Start serving; the caller stops it.

    failed      called with what ended a call, but a refusal
    lock        held while a question is answered
    Raises      KeyFileRefused, OSError
    """
    service = _Asked(book, failed, lock)
    choose = "address of [listen] in witness.toml, and then of [witness.process] in helper.toml"
    return start_server(
        address, lambda server: add_WitnessServicer_to_server(service, server), choose
    )


@dataclass(frozen=True, kw_only=True)
class WitnessFiles(PartyFiles):
    """The table [witness].

    helper_pks  identities of the Helpers whose chains it keeps, 32 B each
    """

    user: str = "pointillist-witness"
    helper_pks: tuple[bytes, ...] = limited(fewest=1, most=64)

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in self.helper_pks:
            party_config.check_key("helper_pks", key)


@dataclass(frozen=True, kw_only=True)
class WitnessConfig(WitnessFiles):
    """What a witness process is told.

    peer_group  group that may reach the socket: the Helper's own
    """

    address: ChannelAddress
    peer_group: str | None
    http: HttpAddress | None = None


@dataclass(frozen=True, slots=True)
class _WitnessListenTable(ChannelTable):
    peer_group: str | None = None


@dataclass(frozen=True, slots=True)
class _WitnessFile:
    witness: WitnessFiles
    listen: _WitnessListenTable
    http: HttpAddress | None = None


def load_witness_config(path: Path) -> WitnessConfig:
    """Read witness.toml; raises ConfigError, OSError."""
    table = read_table(path)
    if "helper" in table or "leader" in table:
        raise ConfigError(f"{path}: this looks like an aggregator's file; expected a witness's")
    file = build(_WitnessFile, table, f"{path}: ")
    return WitnessConfig(
        **vars(file.witness),
        address=file.listen.bounded(
            party_config.WITNESS_MESSAGE_BYTES, party_config.WITNESS_TIMEOUT_S
        ),
        peer_group=file.listen.peer_group or None,
        http=file.http,
    )


_GRACE_S: Final = 5.0

_MEASURES: Final = (
    health.trouble_measure(Trouble.STORAGE),
    health.HealthMetric("ready", "ready", "1 while nothing keeps it from its work"),
    health.HealthMetric("asked", "asked", "questions carried out since the start", counter=True),
    health.HealthMetric("refused", "refused", "questions refused", "reason", counter=True),
)


class WitnessShell:
    """Serves until `stop`; every question is carried out under one lock."""

    def __init__(
        self,
        config: WitnessConfig,
        *,
        clock: Callable[[], float] = time.time,
        notifier: Notifier | None = None,
    ) -> None:
        """Open key and chains, unprivileged; raises KeyFileRefused, StateUnusable, OSError."""
        self._config, self._clock = config, clock
        self._log = structlog.get_logger("witness")
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self.error: BaseException | None = None
        self._store = WitnessStore(config.state_dir / "witness.sqlite")
        identity = load_signing_key(config.key_dir / "identity.key")
        self._book = WitnessBook(identity, config.helper_pks, self._store)
        self._notifier = notifier or Notifier()
        self._troubles = Troubles(self._log)
        self.health = Health("witness", _MEASURES)
        self._presence = health.Presence(config.status_file)
        self._started_s = clock()

    def stop(self) -> None:
        """End `run` soon; safe from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Serve until stopped, or until an error that is not the disk's, which it raises."""
        server = serve_witness(self._book, self._config.address, self._failed, self._lock)
        self._log.info("serving", helpers=len(self._config.helper_pks))
        self._notifier.ready("serving")
        try:
            self._say()
            while not self._stop.wait(health.STATUS_EVERY_S):
                self._say()
        finally:
            self._notifier.stopping()
            server.stop(_GRACE_S).wait()
            with self._lock:
                self._say()
                self._store.close()
            self._presence.close()
            self._log.info("stopped")
        if self.error is not None:
            raise self.error

    def _failed(self, error: BaseException) -> None:
        """Take what ended a call; a disk that takes nothing is waited out."""
        if isinstance(error, StorageUnavailable):
            self._troubles.begin(Trouble.STORAGE, self._clock(), str(error))
            return
        self.error = error
        self._log.error("stops", error=type(error).__name__)
        self._stop.set()

    def _say(self) -> None:
        with self._lock:
            if Trouble.STORAGE in self._troubles.standing:
                with suppress(StorageUnavailable):
                    self._store.check_writable()
                    self._troubles.end(Trouble.STORAGE, self._clock())
            self.health.turned()
            self._notifier.alive()
            self.health.document = self._status()
            with suppress(StorageUnavailable):
                health.write_status(self._config.status_file, self.health.document)

    def _status(self) -> dict[str, object]:
        troubles = self._troubles.document()
        lengths = self._store.lengths()
        served = {key.hex(): lengths.get(key.hex(), 0) for key in self._config.helper_pks}
        return {
            **health.process_document(self._started_s, self._clock()),
            "ready": int(not troubles),
            "troubles": troubles,
            "asked": self._book.asked,
            "refused": dict(self._book.refused),
            "links": served,
        }


def run_witness(config: WitnessConfig, *, say: Callable[[str], None] = silent) -> None:
    """Run a witness until SIGTERM or SIGINT; raises what `WitnessShell` raises; PrivilegeError."""
    party_start.prepare_socket(config.user, config.address, config.peer_group)
    party_start.prepare_folders(config.user, 0o700, config.state_dir)
    say(party_start.become(config.user, config.state_dir, umask=0o077).line)
    shell = WitnessShell(config, notifier=Notifier.from_environment())
    party_start.on_signals(shell.stop)
    with party_start.health_served(shell.health, config.http):
        shell.run()
