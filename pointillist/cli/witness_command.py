"""`pointillist witness`: run a witness for Helpers, read its status, print a database's tables."""

from __future__ import annotations

from pathlib import Path

import typer

from aggregator.party.postgresql_settings import schema_sql
from aggregator.state.state_file import StateUnusable
from aggregator.witness.service import WitnessConfig, load_witness_config, run_witness
from transport.process.privileges import PrivilegeError

from .output import ConfigOption, ExitCode, JsonFlag, examples, log_to_stderr, reported, say
from .party import read_config, show_status

_EXAMPLES = examples("""
pointillist keys generate witness --folder /var/lib/pointillist/witness/keys   its identity
pointillist witness run --config /etc/pointillist/witness.toml
pointillist witness status --config /etc/pointillist/witness.toml --json | jq .links
pointillist witness schema | psql --dbname pointillist   a witness in PostgreSQL instead""")

app = typer.Typer(
    help="Keeps, outside a Helper's machine, how far it has answered: run it, status, schema.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
)


@app.command(epilog="Example: pointillist witness run --config /etc/pointillist/witness.toml")
def run(config: ConfigOption) -> None:
    """Take the links of Helpers and sign where their chains stand, until a signal.

    Run it on another machine than the Helper's, one whose backups are not put back with the
    Helper's, and nobody on the Leader's side may: a witness that forgets lets a restored Helper
    answer twice. It learns how many answers a Helper gave and when, and hashes; no host and no
    number.
    """
    settings = _load(config)
    log_to_stderr()
    with reported(ExitCode.UNAVAILABLE, StateUnusable, PrivilegeError, OSError):
        run_witness(settings, say=say)


@app.command(epilog="Example: pointillist witness status --config witness.toml --json")
def status(config: ConfigOption, json: JsonFlag = False) -> None:
    """Show whether the witness runs, and how many links it holds of each Helper.

    Exit code 0 when it runs and does its work, 1 when something keeps it from it, 4 when it does
    not run.
    """
    show_status(_load(config).status_file, "witness", json)


@app.command(epilog="Example: pointillist witness schema | psql --dbname pointillist")
def schema() -> None:
    """Print the tables and rights of a witness in PostgreSQL, for the database's owner to run."""
    typer.echo(schema_sql("witness"), nl=False)


def _load(config: Path) -> WitnessConfig:
    return read_config(config, "witness", load_witness_config)
