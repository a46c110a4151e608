"""A Leader on several machines over a database of the tests' own."""

from __future__ import annotations

from aggregator.party.postgresql_settings import PostgresqlSettings, schema_sql
from aggregator.standby.leadership import Leadership, leader_database
from aggregator.standby.postgresql_tables import PostgresqlTables
from tests.postgresql_kit import PostgresqlServer

DATABASE = "leader"
ROLE = "pointillist_leader"
LEADER_PK = bytes(range(32))
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
