"""`pointillist query`: SQL over released numbers, in this process, over released Parquet."""

from __future__ import annotations

import json as json_module
import math
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import platformdirs
import typer
from rich.cells import cell_len

from edge_agent.local.words import counted
from pointillist.table import Column, cells_of, table_lines, terminal_columns, value_lines
from transport.process.printable import printable_lines

from .output import (
    CommandError,
    ExitCode,
    JsonFlag,
    emit,
    examples,
    jsonable,
    refused,
    reported,
    say,
    usage_error,
)

if TYPE_CHECKING:
    import pandas as pd

    from aggregator.releases.packs import Listing


_HELP = """Ask SQL of the released numbers.

The views are [bold]releases[/bold], every released cell of every window,
[bold]released[/bold], the same without `q_value`, for one cell over a long time,
[bold]latest[/bold], the newest window of every series, with what is not significant left empty,
[bold]windows[/bold], how every window ended: released, or suppressed and why,
[bold]causes[/bold], the root-cause tables of `pointillist causes`; and what is made of them:
[bold]recent[/bold], the last hour of every series, renewed with each window, [bold]hours[/bold],
[bold]days[/bold], [bold]weeks[/bold], [bold]eight_weeks[/bold], roll-ups with their own errors,
[bold]outcomes[/bold], windows and refused reports by period and reason, [bold]changes[/bold], the
newest whole week against the one before, and
[bold]costs[/bold], causes as hosts, GPU hours lost and money.
[bold]quantiles('weeks', 0.5)[/bold] are those of every histogram of a roll-up.
The query runs in this process over the Leader's released Parquet; it can read that folder and
nothing else, and change nothing. What is no finite number (NaN, an infinity) is missing: – in a
table, empty in CSV, null in JSON.
"""

_EXAMPLES = examples("""
pointillist query "SELECT section, name, share, windows FROM recent WHERE told"
pointillist query "SELECT window_start, share FROM releases WHERE cell = 'gpu_time/gemm'" --csv
pointillist query "SELECT series, count(DISTINCT window_start) FROM releases GROUP BY 1" --json
pointillist query "SELECT outcome, reason, count(*) AS windows FROM windows GROUP BY ALL"
pointillist query "SELECT period_start, section, name, share FROM weeks WHERE told"
pointillist query "FROM quantiles('weeks', 0.99) WHERE section = 'kernel_duration'"
pointillist query "SELECT section, name, before, after, q_value FROM changes WHERE told"
pointillist query --check    windows that have no end, which must not be
pointillist query --schema   every column and what it means
q_value is the smallest false-discovery rate at which a row is significant, among the cells of \
its section in its release. Above 0.01 it is no number to quote: its interval says how much it can \
be. An average over windows is a test of its own (docs/statistics.md).""")

_OWN_TABLE: Final = re.compile(r'\nDid you mean "(?:pg|sqlite|duckdb)_\w*"\?')
_VIEWS: Final = (
    "views: releases, released, latest, windows, causes, recent, hours, days, weeks, eight_weeks, "
    "outcomes, changes, costs, quantiles('weeks', 0.5)"
)
_NO_STORE = "run `pointillist demo` first, or name it with --store"

app = typer.Typer(help="SQL over the released numbers.", subcommand_metavar="")


@app.callback(
    invoke_without_command=True,
    help=_HELP,
    epilog=_EXAMPLES,
    # Options may follow the SQL, as in every other command.
    context_settings={"allow_interspersed_args": True},
)
def query(
    context: typer.Context,
    sql: Annotated[
        str | None,
        typer.Argument(
            metavar="SQL", help="One SELECT over `releases`, `weeks`, `causes` or another view."
        ),
    ] = None,
    folder: ReleasesFolder = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV instead of a table.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the columns and stop.")] = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="List windows that were neither released nor suppressed; exit code 1 if any.",
        ),
    ] = False,
    json: JsonFlag = False,
) -> None:
    if csv and json:
        raise usage_error("--csv and --json exclude each other")
    if schema:
        _print_schema(json)
        return
    if check:
        _check(folder or default_folder(), csv, json)
        return
    if sql is None:
        typer.echo(context.get_help())
        raise typer.Exit(ExitCode.USAGE)
    _print_rows(_run(sql, folder or default_folder()), csv, json)


ReleasesFolder = Annotated[
    Path | None,
    typer.Option(
        "--store",
        "--folder",
        help="Folder of released Parquet; else the newest demo run here, or this user's.",
        envvar="POINTILLIST_RELEASES",
        show_default=False,
    ),
]
"""The type of the parameter that says where releases are read; None: `default_folder`."""


def default_folder() -> Path:
    """The releases of the newest run under ./runs, else this user's data folder."""
    found = [path for path in Path("runs").rglob("releases") if path.is_dir()]
    runs = sorted(found, key=lambda path: path.stat().st_mtime)
    return runs[-1] if runs else Path(platformdirs.user_data_dir("pointillist")) / "releases"


@contextmanager
def _readable() -> Iterator[None]:
    """Say in place of a number that a folder is no store, has a window twice, or is damaged."""
    import duckdb
    import pyarrow as pa

    from aggregator.releases.window_files import NoStore

    with (
        reported(ExitCode.USAGE, OSError, duckdb.Error, pa.ArrowException),
        reported(ExitCode.USAGE, NoStore, hint=_NO_STORE),
    ):
        yield


def say_simulated(folder: Path) -> None:
    """Say so on stderr where a simulation made the numbers of a folder."""
    from aggregator.releases.release_files import MarkUnreadable, read_mark

    with reported(ExitCode.USAGE, MarkUnreadable):
        mark = read_mark(folder)
    if mark is not None:
        say(mark.line)


def _check(folder: Path, csv: bool, json: bool) -> None:
    """Print windows without an end. Raises CommandError when there is one."""
    from aggregator.releases.releases import windows_without_an_end

    say_simulated(folder)
    with _readable():
        missing = windows_without_an_end(folder)
    if missing.empty and not (csv or json):
        say("every window was released or suppressed with a reason")
        return
    _print_rows(missing, csv, json)
    if not missing.empty:
        raise CommandError(ExitCode.FAILED, f"{len(missing)} windows have no end")


def _run(sql: str, folder: Path) -> pd.DataFrame:
    from aggregator.releases.releases import QueryForbidden, QueryRefused
    from analytics import connect
    from analytics.rollup_files import RollupsUnavailable

    say_simulated(folder)
    try:
        with (
            _readable(),
            reported(ExitCode.FAILED, RollupsUnavailable),
            connect(folder) as fleet,
        ):
            return fleet.sql(sql)
    except QueryForbidden as error:
        raise refused(str(error)) from error
    except QueryRefused as error:
        # DuckDB proposes tables of its own, which no query may read.
        said = _OWN_TABLE.sub("", str(error))
        raise usage_error(
            said, f"{_VIEWS}; `pointillist query --schema` lists their columns"
        ) from error


def _print_schema(json: bool) -> None:
    from aggregator.releases.cause_files import CAUSE_MEANINGS
    from aggregator.releases.release_files import DATE, MEANINGS, Q_VALUE
    from aggregator.releases.releases import WINDOW_MEANINGS
    from analytics import QUANTILE_MEANINGS, VIEW_MEANINGS

    views = {
        "releases": MEANINGS | DATE | Q_VALUE,
        "released": MEANINGS | DATE,
        "windows": WINDOW_MEANINGS,
        "causes": CAUSE_MEANINGS | DATE | Q_VALUE,
        **VIEW_MEANINGS,
        "quantiles": QUANTILE_MEANINGS,
    }
    columns = [
        {"view": view, "column": name, "type": str(kind), "meaning": meaning}
        for view, meanings in views.items()
        for name, (kind, meaning) in meanings.items()
    ]
    emit(
        columns,
        json,
        lambda rows: _drawn(
            [list(row.values()) for row in rows], ["view", "column", "type", "meaning"], set()
        ),
    )


def _print_rows(rows: pd.DataFrame, csv: bool, json: bool) -> None:
    from analytics.analyst_views import finite

    rows = finite(rows)
    if csv:
        for at in (at for at, kind in enumerate(rows.dtypes) if kind.kind == "O"):
            rows.isetitem(at, rows.iloc[:, at].map(_flat).array)
        typer.echo(rows.to_csv(index=False), nl=False)
        return
    if json:
        emit(_records(rows), json)
        return
    names = [str(name) for name in rows.columns]
    cells = [[_text(value) for value in row] for row in rows.itertuples(index=False, name=None)]
    width = terminal_columns(_PIPE_COLUMNS)
    if not cells:
        say(textwrap.fill(f"0 rows of {', '.join(names)}", width, break_long_words=False))
        return
    widths = [max(map(cell_len, texts)) for texts in zip(names, *cells, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) > width:  # a line a value: no column is lost
        for number, row in enumerate(cells, 1):
            typer.echo(f"-- row {number} ".ljust(min(width, 40), "-"))
            lines = value_lines(zip(names, row, strict=True), width)
            typer.echo(printable_lines("\n".join(lines)))
        say(f"{counted(len(rows), 'row')}, too wide for {width} columns")
        return
    numbers = {i for i, kind in enumerate(rows.dtypes) if kind.kind in "iuf"}
    typer.echo(printable_lines(_drawn(cells, names, numbers)))
    say(counted(len(rows), "row"))


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON's types; what is missing is null, as JSON has no NaN."""
    names = [str(name) for name in rows.columns]
    return [
        {name: None if _missing(value) else value for name, value in zip(names, row, strict=True)}
        for row in rows.itertuples(index=False, name=None)
    ]


def _missing(value: object) -> bool:
    """None, NaN, NaT and pandas' NA, each of which is not equal to itself or cannot say."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    return type(value).__name__ in {"NaTType", "NAType"}


def _text(value: object) -> str:
    if _missing(value):
        return "–"
    return f"{value:,.6g}" if isinstance(value, float) else str(_flat(value))


def _flat(value: object) -> object:
    """Give a list or struct as JSON, others as they are."""
    return json_module.dumps(jsonable(value)) if isinstance(value, list | dict) else value


def _drawn(rows: list[list[str]], names: list[str], numbers: set[int]) -> str:
    columns = [
        Column(name, right=at in numbers, folds=at not in numbers) for at, name in enumerate(names)
    ]
    return "\n".join(table_lines(columns, rows, terminal_columns(_PIPE_COLUMNS)))


_PIPE_COLUMNS: Final = 80
"""Where there is no terminal: what is wider is given as records."""


_STORE_EXAMPLES = examples("""
pointillist store show /var/lib/pointillist/releases/parquet
pointillist store compact /var/lib/pointillist/releases/parquet
pointillist store compact old/ --keep-days minute=400    and remove minutes of before that""")

store_app = typer.Typer(
    help="A folder of releases: what it holds, and packing its closed days.",
    epilog=_STORE_EXAMPLES,
    no_args_is_help=True,
)
Folder = Annotated[Path, typer.Argument(help="Folder of released Parquet.")]


@store_app.command(epilog="Example: pointillist store compact releases/ --keep-days minute=400")
def compact(
    folder: Folder,
    keep_days: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SERIES=DAYS",
            help="Remove windows of this series that are older; repeat it. Others stay for ever.",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Put the closed days (UTC) of a folder into packs: a few files a week, the same numbers.

    A Leader does it by itself. Readers go on meanwhile, and a run that is cut off goes on.
    """
    from aggregator.releases.compaction import Compaction
    from aggregator.releases.window_files import need_store
    from analytics.rollups import kept_roll_ups

    kept = _days(keep_days or [])
    with _readable():
        need_store(folder)
    with reported(ExitCode.UNAVAILABLE, OSError):
        compaction = Compaction(folder, kept, kept_roll_ups(folder), causes_of=None)
        done = compaction.run(datetime.now(UTC).date())
    body = {"windows_packed": done.windows, "packs": done.packs, "windows_removed": done.removed}
    emit(body, json)


@store_app.command(epilog="Example: pointillist store show releases/ --json")
def show(folder: Folder, json: JsonFlag = False) -> None:
    """Show what a folder holds: windows in packs and in files of their own, bytes, by series."""
    from aggregator.releases.window_files import need_store

    with _readable():
        need_store(folder)
        say_simulated(folder)
        held = _held(folder)
    if not held:
        say(f"{folder}: no window yet")
    emit(held, json, _held_lines)


def _days(options: list[str]) -> dict[str, int]:
    found = {}
    for option in options:
        series, _, days = option.rpartition("=")
        if not series or not days.isdecimal() or int(days) < 1:
            raise usage_error(f"--keep-days: expected SERIES=DAYS, days above 0, got {option!r}")
        found[series] = int(days)
    return found


def _held(folder: Path) -> list[dict[str, Any]]:
    from aggregator.releases.cause_files import FOLDER as CAUSES
    from aggregator.releases.packs import list_folder
    from aggregator.releases.release_files import SUPPRESSED_FOLDER
    from transport.files.own_names import passed_over

    kinds = {
        "released": folder,
        "suppressed": folder / SUPPRESSED_FOLDER,
        "causes": folder / CAUSES,
    }
    held = [
        {"kind": kind, **row}
        for kind, root in kinds.items()
        for row in _by_series(list_folder(root))
    ]
    if others := passed_over(folder):
        held.append({"kind": "passed over", **_row("", others)})
    return held


def _by_series(listing: Listing) -> list[dict[str, Any]]:
    from aggregator.releases.packs import CELLS, MEMBERS, PLAIN, Listing

    rows = []
    known = {single.series for single in listing.singles}
    for series in sorted(known | {pack.series for pack in listing.packs}):
        singles = [single.path for single in listing.singles if single.series == series]
        packs = [pack for pack in listing.packs if pack.series == series]
        own = Listing((), tuple(packs))
        files = [*singles, *(path for name in (CELLS, PLAIN, MEMBERS) for path in own.files(name))]
        windows = sum(len(pack.members) for pack in packs), len(singles)
        rows.append(_row(series, files, *windows))
    return rows


def _row(series: str, files: list[Path], packed: int = 0, single: int = 0) -> dict[str, Any]:
    return {
        "series": series,
        "packed_windows": packed,
        "single_windows": single,
        "files": len(files),
        "bytes": sum(path.lstat().st_size for path in files),
    }


def _held_lines(rows: list[dict[str, Any]]) -> str:
    columns = (
        Column("", itemgetter("kind")),
        Column("series", itemgetter("series"), folds=True),
        Column("windows in packs", lambda row: f"{row['packed_windows']:,}", right=True),
        Column("in own files", lambda row: f"{row['single_windows']:,}", right=True),
        Column("files", lambda row: f"{row['files']:,}", right=True),
        Column("MB", lambda row: f"{row['bytes'] / 1e6:,.1f}", right=True),
    )
    return "\n".join(table_lines(columns, cells_of(columns, rows), terminal_columns()))
