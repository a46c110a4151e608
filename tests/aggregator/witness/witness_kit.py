"""Witnesses that a test can stop, start and roll back, all behind one face."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import grpc

from aggregator.party.channel_address import ChannelAddress
from aggregator.party.postgresql_settings import PostgresqlSettings, schema_sql
from aggregator.witness.backends import ProcessWitness
from aggregator.witness.chain import Witness, WitnessUnavailable
from aggregator.witness.postgresql import PostgresqlWitness
from aggregator.witness.service import WitnessBook, WitnessStore, serve_witness
from privacy.signing import SigningKey
from tests.postgresql_kit import PostgresqlServer
from tests.protocol_kit import Failures, seeded_bytes, signing_key
from wire.witness import NO_LINKS, ChainHead, ChainLink, LinkKind

T = TypeVar("T")
TIMEOUT_S = 2.0
WITNESS_KEY = signing_key("witness")
HELPER_KEYS = (signing_key("helper"), signing_key("another helper"))


class MemoryStand:
    """A witness of the tests: chains in memory."""

    def __init__(self) -> None:
        self.chains: dict[bytes, list[ChainLink]] = {}
        self.up = True

    def open(self, helper: SigningKey = HELPER_KEYS[0]) -> Witness:
        return MemoryWitness(self, helper.public_bytes)

    def stop(self) -> None:
        self.up = False

    def start(self) -> None:
        self.up = True

    def forget(self, above: int) -> None:
        """Lose the links above a sequence, as a backup that is put back does."""
        for chain in self.chains.values():
            del chain[above:]

    def end(self) -> None:
        """Nothing to end."""


class MemoryWitness:
    def __init__(self, stand: MemoryStand, helper_pk: bytes) -> None:
        self._stand, self._helper_pk = stand, helper_pk

    def head(self) -> ChainHead:
        if not self._stand.up:
            raise WitnessUnavailable("witness: expected an answer, got none")
        chain = self._stand.chains.setdefault(self._helper_pk, [])
        return chain[-1].head() if chain else NO_LINKS

    def append(self, link: ChainLink) -> ChainHead:
        head = self.head()
        if (link.sequence, link.prev) == (head.sequence + 1, head.hash):
            self._stand.chains[self._helper_pk].append(link)
        return self.head()

    def close(self) -> None:
        """Nothing is open."""


class ProcessStand:
    """The witness process's parts behind a Unix socket, or over mutual TLS."""

    def __init__(self, folder: Path, address: ChannelAddress | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.failures = folder, Failures()
        self.address = address or ChannelAddress(socket=folder / "w.sock")
        self.address = replace(self.address, call_timeout_s=TIMEOUT_S)
        self._server: grpc.Server | None = None
        self._store: WitnessStore | None = None
        self.start()

    def open(self, helper: SigningKey = HELPER_KEYS[0]) -> Witness:
        return ProcessWitness(self.address, WITNESS_KEY.public_bytes, helper)

    def stop(self) -> None:
        if self._server is not None and self._store is not None:
            self._server.stop(0).wait()
            self._store.close()
            self._server = self._store = None

    def start(self) -> None:
        self._store = WitnessStore(self.folder / "witness.sqlite")
        served = [key.public_bytes for key in HELPER_KEYS]
        book = WitnessBook(WITNESS_KEY, served, self._store)

        def failed(error: BaseException) -> None:
            self.failures(error)

        self._server = serve_witness(book, self.address, failed, threading.Lock())

    def forget(self, above: int) -> None:
        """Put back a copy of the file that was made when the chain had so many links."""
        self.stop()
        shutil.copy(self.folder / f"backup-{above}.sqlite", self.folder / "witness.sqlite")
        self.start()

    def back_up(self, links: int) -> None:
        self.stop()
        shutil.copy(self.folder / "witness.sqlite", self.folder / f"backup-{links}.sqlite")
        self.start()

    def end(self) -> None:
        self.stop()
        assert self.failures.seen == []


class PostgresqlStand:
    """Fresh tables in the one database of a server that several tests share."""

    database = "witness"

    def __init__(self, server: PostgresqlServer) -> None:
        self.server = server
        fresh = "SET default_transaction_read_only = off; DROP TABLE IF EXISTS "
        fresh += "pointillist_links, pointillist_witness; ALTER DATABASE witness RESET ALL;"
        server.psql(fresh + schema_sql("witness"), database=self.database)

    @property
    def settings(self) -> PostgresqlSettings:
        return PostgresqlSettings(
            host=str(self.server.folder), port=self.server.port, database=self.database
        )

    def open(self, helper: SigningKey = HELPER_KEYS[0]) -> Witness:
        return PostgresqlWitness(self.settings, helper.public_bytes, TIMEOUT_S)

    def stop(self) -> None:
        self.server.stop()

    def start(self) -> None:
        self.server.start()

    def forget(self, above: int) -> None:
        self.server.psql(
            f"DELETE FROM pointillist_links WHERE sequence > {above}", database=self.database
        )

    def end(self) -> None:
        """Leave the server running: its fixture ends it."""
        if not self.server.runs:
            self.server.start()


Stand = MemoryStand | ProcessStand | PostgresqlStand


def patiently(ask: Callable[[], T]) -> T:
    """Ask again while the witness is away: a connection is tried anew after a pause."""
    for _ in range(100):
        try:
            return ask()
        except WitnessUnavailable:
            time.sleep(0.1)
    return ask()


def link_after(
    before: ChainHead, name: object, helper: SigningKey = HELPER_KEYS[0], closed_s: int = 0
) -> ChainLink:
    return ChainLink(
        helper.public_bytes,
        before.sequence + 1,
        before.hash,
        max(closed_s, before.closed_s),
        LinkKind.ANSWER,
        seeded_bytes("item", name),
    )


def extend(witness: Witness, links: int, helper: SigningKey = HELPER_KEYS[0]) -> ChainHead:
    """Append so many links; give the head."""
    head = witness.head()
    for number in range(links):
        link = link_after(head, (head.sequence, number), helper)
        head = witness.append(link)
        assert head == link.head()
    return head
