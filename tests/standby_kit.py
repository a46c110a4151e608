"""A Leader on several machines over a database of the tests' own."""

from __future__ import annotations

from aggregator.postgresql_settings import PostgresqlSettings, schema_sql
from aggregator.standby.leadership import Leadership, leader_database
from aggregator.standby.postgresql_tables import PostgresqlTables
from tests.postgresql_kit import PostgresqlServer

DATABASE = "leader"
ROLE = "pointillist_leader"
LEADER_PK = bytes(range(32))
_TABLES = "pointillist_leader, leadership, windows, kept_epochs, counters, tasks, to_publish"


class LeaderDatabase:
    """Fresh tables of one Leader on a server that several tests share."""

    def __init__(self, server: PostgresqlServer) -> None:
        self.server = server
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
        """Have the lease of whoever leads run out, as time does."""
        self.psql("UPDATE leadership SET renewed = renewed - interval '1 hour'")

    def leadership(self, lease_s: float = 60.0, leader_pk: bytes = LEADER_PK) -> Leadership:
        return Leadership(leader_database(self.settings, 5.0), leader_pk, lease_s)

    def tables(self, held: Leadership) -> PostgresqlTables:
        return PostgresqlTables(leader_database(self.settings, 5.0), held.fence, held.lease_s)
