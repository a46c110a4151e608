"""`pointillist agent history`: raw data of the last day of this host."""

from __future__ import annotations

import json as json_module
import os
import textwrap
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer

from edge_agent.local.history_read import HistoryReader
from edge_agent.local.history_tables import KINDS, WHEN, HistoryColumn, HistoryUnavailable, Stored
from edge_agent.local.view import MOST_LINES as MOST_OF_VIEW
from edge_agent.local.view import MOST_STEPS, view_of
from edge_agent.local.view_lines import HostView, document
from pointillist.table import Column, cells_of, table_lines, terminal_columns

from . import agent_file
from .agent_file import DEFAULT_CONFIG
from .history_view_text import (
    MOST_LINES,
    gpu_time_lines,
    kernel_lines,
    left_out,
    metric_lines,
    newest,
    process_lines,
    timed_lines,
)
from .output import (
    ConfigOption,
    ExitCode,
    JsonFlag,
    emit,
    examples,
    moment,
    reported,
    say,
    usage_error,
)

_EPILOG: Final = examples("""
pointillist agent history --since 10m   what the last ten minutes hold, by kind
pointillist agent history --since 10m --kind metric   each metric in a line
pointillist agent history --since 2026-05-01T10:00Z --until 2026-05-01T10:05Z --json
pointillist agent history --since 1h --name 'gpu.*' --parquet gpus.parquet
pointillist agent history --since 1h --kind process   GPU calls, copies, memory by process
pointillist agent history --since 1h --kind gpu_time   GPU time by kernel family over time""")

_NS_PER_S: Final = 1_000_000_000
_BATCH: Final = 20_000
_Rows = Callable[[str], Iterator[dict[str, Any]]]

app = typer.Typer()


@app.command(epilog=_EPILOG)
def history(
    config: ConfigOption = DEFAULT_CONFIG,
    since: Annotated[str, typer.Option(help="10m, 2h, ISO 8601 or Unix seconds.")] = "1h",
    until: Annotated[str | None, typer.Option(help="The same; now without it.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            help="metric, activity, event, kernel, process, gpu_time, report; else a count of each."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="A pattern for the name, as host_*.")] = None,
    limit: Annotated[int, typer.Option(help="Rows with --kind and --json.", min=1)] = 100_000,
    every: Annotated[
        bool, typer.Option("--all", help="Every line of a kind, also where there are hundreds.")
    ] = False,
    parquet: Annotated[
        Path | None, typer.Option(help="Write one kind (metric unless named) to this file.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show the raw history that this host keeps for itself: metrics, events, GPU calls and time.

    Every row has its time on the boot clock, the Unix time that this maps to, and the error of
    the mapping. Without --kind it says how much there is of each kind, and from when to when; with
    it each name is summed up in a line: at most 40 lines, or all of them with --all or --name.
    --json gives the view of the host in this time, as agent top does of now; with --kind the rows.
    """
    if kind is not None and kind not in KINDS:
        raise usage_error(f"--kind: expected one of {', '.join(KINDS)}, got {kind!r}")
    now_ns = time.time_ns()
    since_ns = moment(since, now_ns, "--since")
    until_ns = None if until is None else moment(until, now_ns, "--until")
    _check_span(since_ns, until_ns, now_ns)
    if json and parquet is not None:
        raise usage_error("--json prints and --parquet writes a file: name one of them")
    loaded = agent_file.load_file(config)
    # Opened while the folder is still ours; the libraries are loaded while they can be reached.
    target = _ParquetFile(parquet, kind or "metric") if parquet is not None else None
    agent_file.become_agent(loaded)  # SQLite makes files beside the history: the agent's own
    with (
        reported(ExitCode.UNAVAILABLE, HistoryUnavailable),
        HistoryReader(loaded.history_file) as reader,
    ):

        def rows(table: str) -> Iterator[dict[str, Any]]:
            return reader.rows(table, since_ns, until_ns, name)

        def view() -> HostView:
            return view_of(
                loaded.history_file, since_ns, until_ns or now_ns, name=name, steps=MOST_STEPS,
                gpus=len(loaded.host.models), whole=json or kind == "metric",
                most=limit if every else MOST_OF_VIEW, lists=json or kind == "process",
            )  # fmt: skip

        if target is not None:
            written = target.write(rows)
            say(f"{written} rows in {parquet}" if written else f"{parquet}: {_nothing(reader)}")
        elif json and kind is None:
            emit(document(view()), True)
        elif json and kind:
            more = {"over_time": document(view())["steps"]} if kind == "gpu_time" else {}
            _print_json(kind, rows, limit, (since_ns, until_ns), more)
        elif kind == "gpu_time":
            typer.echo(
                "\n".join(gpu_time_lines(view(), len(loaded.host.models))) or _nothing(reader)
            )
        elif kind == "metric":
            most = None if every or name else MOST_LINES
            typer.echo("\n".join(metric_lines(view().levels, most)) or _nothing(reader))
        elif kind in _OF_VIEW:
            typer.echo("\n".join(_OF_VIEW[kind](view())) or _nothing(reader))
        else:
            most = None if every or name else MOST_LINES
            lines = {"event": _event_lines, "report": _report_lines}
            told = "\n".join(lines[kind](rows, most)) if kind else _overview(list(KINDS), rows)
            typer.echo(told or _nothing(reader))


def _check_span(since_ns: int | None, until_ns: int | None, now_ns: int) -> None:
    if since_ns is None:
        return
    if since_ns > now_ns:
        raise usage_error(f"--since: expected a time that has passed, got {_shown(since_ns)}")
    if until_ns is not None and until_ns <= since_ns:
        times = f"{_shown(since_ns)} and {_shown(until_ns)}"
        hint = "a span such as 2h counts back from now: --since 2h --until 1h"
        raise usage_error(f"--until: expected a time after --since, got {times}", hint)


def _nothing(reader: HistoryReader) -> str:
    span = reader.span()
    if span is None:
        return "the history is empty"
    return f"nothing in this span; the history has {_shown(span[0])} to {_shown(span[1])}"


def _shown(unix_ns: int) -> str:
    return f"{datetime.fromtimestamp(unix_ns // _NS_PER_S, UTC):%Y-%m-%d %H:%M:%SZ}"


def _print_json(
    kind: str, rows: _Rows, limit: int, span: tuple[int | None, int | None], more: dict[str, Any]
) -> None:
    """Print one document, row by row: a day of raw data does not fit in memory.

    more   what it has beside the rows
    """
    since, until = (json_module.dumps(end) for end in span)
    typer.echo(f'{{"since_ns": {since}, "until_ns": {until}, "{kind}": [', nl=False)
    cut: list[str] = []
    for number, row in enumerate(rows(kind)):
        if number >= limit:
            cut.append(kind)
            break
        typer.echo(f"{',' if number else ''}\n  {json_module.dumps(row)}", nl=False)
    typer.echo("]", nl=False)
    for name, value in (more | {"cut_short": cut}).items():
        typer.echo(f', "{name}": {json_module.dumps(value)}', nl=False)
    typer.echo("}")


def _overview(kinds: list[str], rows: _Rows) -> str:
    found = []
    for kind in kinds:
        count, names, times = 0, set[str](), list[int]()
        for row in rows(kind):
            count += 1
            names.add(row["name"])
            at_ns = row["unix_ns"]
            times = [min(times[0], at_ns), max(times[1], at_ns)] if times else [at_ns, at_ns]
        first, last = map(_shown, times) if times else ("-", "-")
        found.append((kind, str(count), str(len(names)), first, last))
    if all(row[-1] == "-" for row in found):
        return ""
    width = terminal_columns()
    return "\n".join([*table_lines(_OVERVIEW, found, width), "", *textwrap.wrap(_MORE, width)])


_OVERVIEW: Final = (
    Column("kind"),
    Column("rows", right=True),
    Column("names", right=True),
    Column("first", folds=True),
    Column("last", folds=True),
)
_MORE: Final = (
    "--kind metric, or another of these, sums up each name; with --json it gives the rows"
)
_OF_VIEW: Final = {
    "kernel": kernel_lines, "process": process_lines, "activity": timed_lines,
}  # fmt: skip


def _event_lines(rows: _Rows, most: int | None) -> list[str]:
    found, left = newest(rows("event"), most)
    lines = table_lines(_EVENTS, cells_of(_EVENTS, found), terminal_columns()) if found else []
    return [*lines, *left_out(left, "earlier")]


def _event_time(row: dict[str, Any]) -> str:
    return f"{datetime.fromtimestamp(row['unix_ns'] / 1e9, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + "Z"


_EVENTS: Final = (
    Column("time", _event_time, folds=True),
    Column("source", itemgetter("source")),
    Column("event", lambda row: f"{row['name']} {row['key']}".rstrip(), folds=True),
    Column("detail", itemgetter("detail"), folds=True),
)


def _report_lines(rows: _Rows, most: int | None) -> list[str]:
    found, left = newest(rows("report"), most)
    lines = [
        f"{row['name']}  window {_shown(row['window_start_s'] * _NS_PER_S)}  "
        f"{len(row['cells'])} cells that are not zero"
        for row in found
    ]
    lines += left_out(left, "earlier")
    return [*lines, "", "agent sent --report ID shows them by name"] if lines else []


class _ParquetFile:
    """A file for raw data, 0600 as the history itself."""

    def __init__(self, path: Path, kind: str) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        self._pa, self._parquet, self._kind = pa, parquet, kind
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        os.fchmod(descriptor, 0o600)
        self._file: BinaryIO = os.fdopen(descriptor, "wb")

    def write(self, rows: _Rows) -> int:
        columns, count = (*WHEN, *KINDS[self._kind].fields), 0
        schema = self._pa.schema([(column.name, self._type(column)) for column in columns])
        with self._file, self._parquet.ParquetWriter(self._file, schema) as writer:
            batch: list[dict[str, Any]] = []
            for row in rows(self._kind):
                batch.append(row)
                count += 1
                if len(batch) >= _BATCH:
                    writer.write_table(self._pa.Table.from_pylist(batch, schema=schema))
                    batch.clear()
            writer.write_table(self._pa.Table.from_pylist(batch, schema=schema))
        return count

    def _type(self, column: HistoryColumn) -> Any:
        """Give a column's type; a list without members has (bin, count) pairs."""
        pa = self._pa
        if column.stored is Stored.LIST:
            pair = pa.list_(pa.int64())
            members = [(member.name, self._type(member)) for member in column.members]
            return pa.list_(pa.struct(members) if members else pair)
        plain = {Stored.WHOLE: pa.int64(), Stored.REAL: pa.float64(), Stored.TEXT: pa.string()}
        return plain[column.stored]
