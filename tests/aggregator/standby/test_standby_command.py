"""`pointillist leader run` on two machines, as processes: one leads, the other follows it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aggregator.party.config import load_leader_config
from aggregator.party.postgresql_settings import schema_sql
from pointillist.cli.leader_command import app
from pointillist.cli.output import ExitCode
from tests.closed_kit import closed
from tests.leader_command_kit import configuration, place, status
from tests.postgresql_kit import PostgresqlServer
from tests.standby_kit import DATABASE, ROLE, LeaderDatabase
from tests.wait_kit import until
from transport.settings.config import ConfigError

__all__ = ["place"]
SAMPLE = Path(__file__).parents[3] / "deploy" / "config" / "leader.toml"


def machine(folder: Path, name: str, server: PostgresqlServer) -> Path:
    """A machine's file: what is its own, and what both share."""
    text = (folder / "leader.toml").read_text()
    path = folder / f"{name}.toml"
    path.write_text(
        text.replace(f'"{folder}/state"', f'"{folder}/{name}"')
        + f"""
[standby]
lease_s = 2.0

[standby.postgresql]
host = "{server.folder}"
port = {server.port}
database = "{DATABASE}"
user = "{ROLE}"
"""
    )
    return path


@pytest.fixture
def machines(
    place: Path, postgresql_server: PostgresqlServer
) -> Iterator[dict[str, subprocess.Popen[str]]]:
    LeaderDatabase(postgresql_server)
    postgresql_server.folder.chmod(0o711)  # its socket is for the Leader's user too
    configuration(place)
    started: dict[str, subprocess.Popen[str]] = {}
    for name in ("a", "b"):
        config = machine(place, name, postgresql_server)
        command = [sys.executable, "-m", "pointillist", "leader", "run"]
        started[name] = subprocess.Popen(
            closed([*command, "--config", str(config)]), stderr=subprocess.PIPE, text=True
        )
        until(lambda name=name: bool(status(place, name)))  # type: ignore[misc]
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.release
@pytest.mark.postgresql
@pytest.mark.timeout(300)
def test_machine_that_stands_by_leads_when_the_other_is_killed(
    place: Path, machines: dict[str, subprocess.Popen[str]]
) -> None:
    until(lambda: status(place, "a").get("log_lag") == 0)
    assert (status(place, "b")["standby"], status(place, "b")["ready"]) == (1, 0)
    machines["a"].kill()
    until(lambda: status(place, "b").get("log_lag") == 0)
    assert status(place, "b")["standby"] == 0
    machines["b"].terminate()
    assert machines["b"].wait(60) == ExitCode.OK


@pytest.mark.release
@pytest.mark.postgresql
@pytest.mark.timeout(300)
def test_machine_without_its_database_ends_and_says_so(
    place: Path, machines: dict[str, subprocess.Popen[str]], postgresql_server: PostgresqlServer
) -> None:
    until(lambda: status(place, "a").get("log_lag") == 0)
    postgresql_server.stop()
    try:
        assert machines["a"].wait(60) == ExitCode.UNAVAILABLE
        until(lambda: "storage" in status(place, "b").get("troubles", {}))
        assert machines["b"].poll() is None
    finally:
        postgresql_server.start()
    until(lambda: status(place, "b").get("log_lag") == 0)
    machines["b"].terminate()
    assert machines["b"].wait(60) == ExitCode.OK


def test_schema_is_printed_for_the_databases_owner() -> None:
    assert CliRunner().invoke(app, ["schema"]).output == schema_sql("standby")


@pytest.mark.parametrize(
    ("table", "named"),
    [
        ("[standby]\nlease_s = 2.0", "postgresql"),
        ('[standby]\nlease_s = 0.1\n[standby.postgresql]\nhost = "/run"', "lease_s"),
    ],
)
def test_tables_of_a_standby_name_what_is_wrong(table: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "leader.toml"
    path.write_text(f"{SAMPLE.read_text()}\n{table}\n")
    with pytest.raises(ConfigError, match=named):
        load_leader_config(path)
