"""Each witness in turn; the one in PostgreSQL has a server for the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.aggregator.witness.witness_kit import MemoryStand, PostgresqlStand, ProcessStand, Stand
from tests.postgresql_kit import PostgresqlServer

KINDS = (
    "memory",
    "process",
    pytest.param("postgresql", marks=pytest.mark.postgresql),
)


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    server = PostgresqlServer()
    server.start()
    server.psql("CREATE ROLE pointillist_helper LOGIN")
    server.psql("CREATE DATABASE witness")
    yield server
    server.remove()


@pytest.fixture(params=KINDS)
def stand(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stand]:
    made = make_stand(request.param, request, tmp_path)
    yield made
    made.end()


def make_stand(kind: str, request: pytest.FixtureRequest, folder: Path) -> Stand:
    if kind == "memory":
        return MemoryStand()
    if kind == "process":
        return ProcessStand(folder / "witness")
    return PostgresqlStand(request.getfixturevalue("postgresql_server"))
