"""`pointillist sample`: the sample files that come with an installation."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from pointillist.installation import samples
from pointillist.table import Column, table_lines, terminal_columns

from .output import JsonFlag, emit, examples, usage_error

_EXAMPLES: Final = examples("""
pointillist sample list   configurations, units of systemd, rules, dashboards
pointillist sample show agent.toml > agent.toml   a configuration to edit, with every key
pointillist sample show pointillist-leader.service   the unit as it was tested""")

app = typer.Typer(
    help="Sample configurations, units, rules and dashboards.", epilog=_EXAMPLES,
    no_args_is_help=True,
)  # fmt: skip


@app.command("list", epilog="Example: pointillist sample list --json")
def list_(json: JsonFlag = False) -> None:
    """List the samples of this installation."""
    rows = [{"name": sample.name, "what": sample.what} for sample in samples()]
    columns = [Column("sample"), Column("what", folds=True)]
    cells = [list(row.values()) for row in rows]
    emit(rows, json, lambda _: "\n".join(table_lines(columns, cells, terminal_columns())))


@app.command(epilog="Example: pointillist sample show leader.toml > leader.toml")
def show(name: Annotated[str, typer.Argument(help="Its name, as `list` prints it.")]) -> None:
    """Print a sample, byte for byte, for a file of your own."""
    found = {sample.name: sample for sample in samples()}
    if name not in found:
        raise usage_error(
            f"expected the name of a sample, got {name!r}", f"one of: {', '.join(found)}"
        )
    typer.echo(found[name].path.read_bytes(), nl=False)
