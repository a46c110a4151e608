"""A Leader on several machines over a database of the tests' own."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

from aggregator.leader.leader_runtime import LeaderRuntime
from aggregator.party.config import StandbySettings
from aggregator.party.postgresql_settings import PostgresqlSettings, schema_sql
from aggregator.standby.leadership import Leadership, PostgresqlTables, Turn, leader_database
from tests.postgresql_kit import PostgresqlServer
from tests.process_kit import (
    SPAWN,
    FileClock,
    FileStore,
    KillHere,
    ProcessFleet,
    RecordingChannel,
    leader_config,
)
from tests.protocol_kit import World
from tests.wait_kit import until
from transport.factory import Side, open_transport
from transport.process.supervision import Notifier

DATABASE = "leader"
ROLE = "pointillist_leader"
LEADER_PK = bytes(range(32))
LEASE_S = 2.0
MACHINES = ("leader-a", "leader-b")
_TABLES = "pointillist_leader, leadership, lease, windows, kept_epochs, counters, tasks, to_publish"


class LeaderDatabase:
    """Fresh tables of one Leader on a server that several tests share."""

    def __init__(self, server: PostgresqlServer) -> None:
        self.server, self.now_s = server, 0.0
        if server.psql(f"SELECT 1 FROM pg_roles WHERE rolname = '{ROLE}'") != "1":
            server.psql(f"CREATE ROLE {ROLE} LOGIN")
            server.psql(f"CREATE DATABASE {DATABASE}")
        self.psql(f"DROP TABLE IF EXISTS {_TABLES};" + schema_sql("standby"))

    @property
    def settings(self) -> PostgresqlSettings:
        folder, port = str(self.server.folder), self.server.port
        return PostgresqlSettings(host=folder, port=port, database=DATABASE, user=ROLE)

    def psql(self, sql: str) -> str:
        return self.server.psql(sql, database=DATABASE)

    def pass_lease(self) -> None:
        """Have an hour pass on the clocks of the machines."""
        self.now_s += 3600.0

    def leadership(
        self, lease_s: float = 60.0, leader_pk: bytes = LEADER_PK, timeout_s: float = 5.0
    ) -> Leadership:
        database = leader_database(self.settings, timeout_s)
        return Leadership(database, leader_pk, lease_s, clock=lambda: self.now_s)

    def tables(self, held: Leadership) -> PostgresqlTables:
        database = leader_database(self.settings, 5.0)
        return PostgresqlTables(database, held.own_term(), held.lease_s)


def standby_process(
    folder: Path, name: str, helper_pk: bytes, database: PostgresqlSettings
) -> None:
    config = replace(
        leader_config(folder, helper_pk),
        state_dir=folder / name,
        status_file=folder / f"{name}-status.json",
        standby=StandbySettings(database, LEASE_S),
    )
    assert config.helper is not None
    turn = Turn(config, Notifier())
    signal.signal(signal.SIGTERM, lambda *_: turn.stop())
    turn.wait()
    if not turn.leads:
        return
    with turn.leading(), open_transport(config.transport, Side.AGGREGATOR) as transport:
        shell = LeaderRuntime(
            config,
            transport,
            FileStore(folder),
            helper=RecordingChannel(config.helper, folder),
            state=turn.state(),
            clock=FileClock(folder),
            checkpoint=KillHere(folder, "leader"),
        )
        turn.on_loss(shell.stop)
        signal.signal(signal.SIGTERM, lambda *_: shell.stop())
        shell.run()


class StandbyProcessFleet(ProcessFleet):
    def __init__(self, world: World, folder: Path, database: LeaderDatabase) -> None:
        self.database, self.fence = database, 0
        super().__init__(world, folder)
        for party in ("helper", *MACHINES):
            self.start(party)

    def start(self, party: str) -> None:
        if party == "helper":
            super().start(party)
            return
        folder, fell = self.folder, party in self.processes
        said = folder / f"{party}-status.json"
        until((folder / "run" / "h.sock").exists)
        if fell:  # it comes back when the other leads
            self.follow()
            said.unlink(missing_ok=True)
        told = folder, party, self.world.parties.helper_pk, self.database.settings
        process = SPAWN.Process(target=standby_process, args=told)
        process.start()
        self.processes[party] = process
        if fell:
            until(said.exists)  # nothing else waits for who stands by: it may be stopped at once

    def follow(self) -> None:
        """Wait until the lead has changed hands since the last time."""
        until(lambda: int(self.database.psql("SELECT max(fence) FROM leadership")) > self.fence)
        self.fence = int(self.database.psql("SELECT fence FROM leadership"))
