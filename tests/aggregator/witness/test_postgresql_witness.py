"""The witness in PostgreSQL: rights, tables, TLS, and servers that hang or forget."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from aggregator.party.config import WitnessSettings
from aggregator.party.postgresql_settings import PostgresqlSettings
from aggregator.witness.backends import open_witness
from aggregator.witness.chain import WitnessUnavailable
from aggregator.witness.postgresql import PostgresqlWitness
from tests.aggregator.witness.conftest import make_stand
from tests.aggregator.witness.witness_kit import HELPER_KEYS, PostgresqlStand, extend, patiently
from tests.certificate_kit import Authority
from tests.postgresql_kit import PostgresqlServer
from wire.witness import NO_LINKS

pytestmark = pytest.mark.postgresql
HELPER = HELPER_KEYS[0].public_bytes


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> PostgresqlStand:
    made = make_stand("postgresql", request, tmp_path)
    assert isinstance(made, PostgresqlStand)
    return made


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE pointillist_links SET closed_s = 0",
        "DELETE FROM pointillist_links",
        "TRUNCATE pointillist_links",
        "DROP TABLE pointillist_links",
        "UPDATE pointillist_witness SET version = 2",
        "INSERT INTO pointillist_witness VALUES (2)",
        "INSERT INTO pointillist_links (helper_pk, taken_at) VALUES ('', now())",
    ],
)
def test_role_of_the_helper_can_read_and_append_alone(
    database: PostgresqlStand, statement: str
) -> None:
    witness = database.open()
    extend(witness, 1)
    settings = database.settings
    with (
        psycopg.connect(
            host=settings.host, port=settings.port, dbname=settings.database, user=settings.user
        ) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement)
    witness.close()


def test_database_makes_the_hash_of_a_link_as_the_specification_has_it(
    database: PostgresqlStand,
) -> None:
    witness = database.open()
    head = extend(witness, 3)
    assert witness.head() == head
    stored = database.server.psql(
        "SELECT encode(hash, 'hex') FROM pointillist_links WHERE sequence = 3",
        database=database.database,
    )
    assert stored == head.hash.hex()
    witness.close()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("UPDATE pointillist_witness SET version = 2", "version 1, got 2"),
        ("DELETE FROM pointillist_witness", "got no mark"),
        ("DROP TABLE pointillist_links, pointillist_witness", "pointillist witness schema"),
        ("REVOKE SELECT ON pointillist_links FROM pointillist_helper", "permission denied"),
        ("ALTER DATABASE {} SET synchronous_commit = off", "synchronous_commit"),
        ("ALTER DATABASE {} SET default_transaction_read_only = on", "read-only"),
    ],
)
def test_database_that_cannot_serve_is_refused_and_said(
    database: PostgresqlStand, spoil: str, said: str
) -> None:
    name = database.database
    database.server.psql(spoil.format(name), database=name)
    witness = database.open()
    with pytest.raises(WitnessUnavailable, match=said):
        witness.head()
    witness.close()


def test_columns_that_are_no_head_are_refused(database: PostgresqlStand) -> None:
    """Whoever owns the tables can put anything in their place."""
    database.server.psql(
        "DROP TABLE pointillist_links; CREATE TABLE pointillist_links AS SELECT "
        f"'\\x{HELPER.hex()}'::bytea AS helper_pk, 'many' AS sequence, 'x'::bytea AS hash, "
        "now() AS closed_s; GRANT SELECT ON pointillist_links TO pointillist_helper",
        database=database.database,
    )
    witness = database.open()
    with pytest.raises(WitnessUnavailable, match="other columns"):
        witness.head()
    witness.close()


def test_server_that_hangs_is_not_waited_for(database: PostgresqlStand) -> None:
    witness = PostgresqlWitness(database.settings, HELPER, 0.5)
    head = extend(witness, 1)
    database.server.freeze()
    try:
        with pytest.raises(WitnessUnavailable):
            witness.head()
    finally:
        database.server.thaw()
    assert patiently(witness.head) == head
    witness.close()


def test_server_that_does_not_sync_is_refused(database: PostgresqlStand) -> None:
    database.stop()
    database.server.start(fsync="off")
    witness = database.open()
    with pytest.raises(WitnessUnavailable, match="fsync"):
        witness.head()
    witness.close()
    database.stop()
    database.start()


def test_server_is_reached_over_tls_that_names_it(
    postgresql_server: PostgresqlServer, database: PostgresqlStand, tmp_path: Path
) -> None:
    authority = Authority.make(tmp_path / "ca")
    served = authority.issue("postgres")
    postgresql_server.stop()
    postgresql_server.serve_tls(
        served.cert_file.read_bytes(), served.key_file.read_bytes(), served.ca_file.read_bytes()
    )
    postgresql_server.start()
    postgresql_server.psql("ALTER ROLE pointillist_helper PASSWORD 'of a test'")
    password = tmp_path / "password"
    password.write_text("of a test\n")
    password.chmod(0o600)
    settings = PostgresqlSettings(
        host="127.0.0.1",
        port=postgresql_server.port,
        database=database.database,
        password_file=password,
        ca_file=served.ca_file,
    )
    witness = PostgresqlWitness(settings, HELPER, 5)
    assert extend(witness, 1).sequence == 1
    witness.close()

    other = Authority.make(tmp_path / "other").folder / "ca.pem"
    refused: list[tuple[PostgresqlSettings, str]] = [
        (replace(settings, ca_file=other), "SSL error"),
        (replace(settings, host="localhost"), "does not match host name"),
        (replace(settings, password_file=None), "password"),
    ]
    for wrong, said in refused:
        with pytest.raises(WitnessUnavailable, match=said):
            PostgresqlWitness(wrong, HELPER, 5).head()
    password.chmod(0o644)
    with pytest.raises(WitnessUnavailable, match="0644"):
        PostgresqlWitness(settings, HELPER, 5).head()


def test_server_of_a_leader_is_no_witness(database: PostgresqlStand) -> None:
    database.server.psql("CREATE ROLE pointillist_leader")
    witness = database.open()
    with pytest.raises(WitnessUnavailable, match="expected a server that is not the Leader's"):
        witness.head()
    database.server.psql("DROP ROLE pointillist_leader")
    assert witness.head() == NO_LINKS
    witness.close()


def test_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "aggregator.witness.postgresql", raising=False)
    settings = WitnessSettings(PostgresqlSettings(host="/run/postgresql"), 5.0)
    with pytest.raises(WitnessUnavailable, match=r"pointillist\[witness-postgresql\]"):
        open_witness(settings, HELPER_KEYS[0])


@pytest.mark.parametrize(
    "make",
    [
        lambda: PostgresqlSettings(host="db.example.org"),
        lambda: PostgresqlSettings(host="/run/postgresql", ca_file=Path("/ca.pem")),
        lambda: PostgresqlSettings(host="db", ca_file=Path("ca.pem")),
        lambda: PostgresqlSettings(host="db", ca_file=Path("/ca"), cert_file=Path("/cert")),
        lambda: PostgresqlSettings(host="/run", cert_file=Path("/c"), key_file=Path("/k")),
    ],
)
def test_settings_that_cannot_work_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="expected"):
        make()
