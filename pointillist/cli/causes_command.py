"""`pointillist causes`: the fleet's root-cause table, from released numbers."""

from __future__ import annotations

import textwrap
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Final

import typer

from aggregator.statistics.causes import CauseRow, CauseTable
from aggregator.statistics.correction import Detector, DetectorFileError
from aggregator.statistics.discoveries import FALSE_DISCOVERY_RATE
from pointillist.table import Column, cells_of, table_lines, terminal_columns
from transport.process.printable import first_line, printable_lines

from .output import CommandError, ExitCode, JsonFlag, emit, examples, say, usage_error
from .query import ReleasesFolder, default_folder, say_simulated

SECTIONS: Final = ("incidents", "hardware_faults")

_HELP = """Show hosts by root cause, as their agents diagnosed them, from what was released.

For the newest window released (a week of incidents, eight weeks of hardware faults) each cause with
its hosts, 95 % interval, share of the hosts, part of all causes, and trend against the window
before. A cause that is not significant at a false-discovery rate of 1 % is named below the table
with the hosts that it is less than, and given no number. There is also
said what its numbers and intervals are about, and whether they are corrected for what the agents'
detector misses and mistakes, and how low they may be as hosts with many causes left some out.
"""

_EPILOG = examples("""
pointillist causes
pointillist causes --section hardware_faults
pointillist causes --week 2026-11-12 --json
pointillist causes --rates rates.json --agents-model "causes 3 0123abcd"   corrected anew
docs/root-causes.md says how to read it.""")

app = typer.Typer(help="The fleet's root-cause table.", subcommand_metavar="")


@app.callback(invoke_without_command=True, help=_HELP, epilog=_EPILOG)
def causes(
    folder: ReleasesFolder = None,
    week: Annotated[
        datetime | None,
        typer.Option(
            formats=["%Y-%m-%d"],
            metavar="DATE",
            help="The window that holds this day (UTC); else the newest.",
            show_default=False,
        ),
    ] = None,
    section: Annotated[
        str, typer.Option(help="incidents, hardware_faults or all.", metavar="NAME")
    ] = "all",
    rates: Annotated[
        Path | None,
        typer.Option(
            help="Correct anew by the rates in this file; needs --agents-model.", show_default=False
        ),
    ] = None,
    agents_model: Annotated[
        str | None, typer.Option(help="Model that the agents diagnose with.", show_default=False)
    ] = None,
    json: JsonFlag = False,
) -> None:
    if section not in (*SECTIONS, "all"):
        raise usage_error(f"--section: expected {', '.join(SECTIONS)} or all, got {section!r}")
    if (rates is None) != (agents_model is None):
        raise usage_error("--rates and --agents-model go together")
    wanted = SECTIONS if section == "all" else (section,)
    tables = _tables(folder or default_folder(), rates, agents_model)
    chosen = [table for name in wanted for table in _newest(tables, name, week)]
    if not chosen:
        raise CommandError(
            ExitCode.FAILED,
            "no released window counts causes" + (f" on {week:%Y-%m-%d}" if week else ""),
            "weeks are released a day after they end; `pointillist query` shows what there is",
        )
    emit(chosen, json, _draw)


def _tables(folder: Path, rates: Path | None, agents_model: str | None) -> list[CauseTable]:
    import duckdb

    from aggregator.releases.cause_files import CausesUnreadable, tables_of, tables_read
    from aggregator.releases.releases import read_causes, read_releases

    say_simulated(folder)
    try:
        if rates is not None:
            released = read_releases(folder).to_dict("records")
            return tables_of(released, Detector.load(rates), agents_model)
        return tables_read(read_causes(folder).to_dict("records"))
    except (OSError, DetectorFileError, CausesUnreadable, duckdb.Error) as error:
        raise CommandError(
            ExitCode.USAGE,
            first_line(error),
            "run `pointillist demo` first, or name it with --store",
        ) from error


def _newest(tables: list[CauseTable], section: str, week: datetime | None) -> list[CauseTable]:
    own = [table for table in tables if table.section == section]
    if week is not None:
        day_s = week.replace(tzinfo=UTC).timestamp()
        own = [
            table
            for table in own
            if table.window_start_s <= day_s < table.window_start_s + table.window_s
        ]
    first: dict[tuple[str, int], CauseTable] = {}
    for table in own:
        first.setdefault((table.series, table.cohort), table)
    return list(first.values())


def _draw(tables: list[CauseTable]) -> None:
    width = terminal_columns()
    for table in tables:
        typer.echo(printable_lines("\n".join(drawn(table, width))))
        for line in remarks(table):
            say("\n".join(textwrap.wrap(line, width, subsequent_indent="  ")))
        typer.echo()


def drawn(table: CauseTable, width: int) -> list[str]:
    begin = datetime.fromtimestamp(table.window_start_s, UTC)
    title = (
        f"{table.section.replace('_', ' ').capitalize()} of {table.n:,} hosts, "
        f"from {begin:%Y-%m-%d %H:%M} UTC for {_length(table.window_s)}"
    )
    columns = _COLUMNS if has_trends(table) else _COLUMNS[:-1]
    lines = table_lines(columns, cells_of(columns, table.shown), width) if table.shown else []
    return [*textwrap.wrap(title, width, subsequent_indent="  "), *lines]


def _of_all(row: CauseRow) -> str:
    return "–" if row.part is None else f"{row.part:.0%}".replace("%", " %")


_TRENDS: Final = {"rising": "rising", "falling": "falling", "no change beyond noise": "–"}
_COLUMNS: Final = (
    Column("component", attrgetter("component"), folds=True, leaves=0),
    Column("cause", lambda row: row.cause + ("" if row.as_reported is None else " *"), folds=True),
    Column("hosts", lambda row: f"{row.hosts:,.0f} ± {1.96 * row.standard_error:,.0f}", right=True),
    Column("95 %", lambda row: f"{row.low:,.0f} to {row.high:,.0f}", right=True),
    Column("of hosts", lambda row: f"{100 * row.share:.2f} %", right=True, leaves=2),
    Column("of all", _of_all, right=True, leaves=1),
    Column("trend", lambda row: _TRENDS.get(row.trend.value, "")),
)


def has_trends(table: CauseTable) -> bool:
    """Whether the window before was released, so that there is something to compare with."""
    return any(row.trend.value != "no window before" for row in table.rows)


def remarks(table: CauseTable) -> list[str]:
    lines = [table.correction + _HINTS.get(table.correction, "")]
    lines += [table.scope] if table.scope else []
    lines.append(_low(table.bias_bound))
    others = [f"{row.cause} < {row.most:,.0f}" for row in table.rows if not row.significant]
    if others:
        lines.append(f"not significant, 95 % intervals end at: {', '.join(others)}")
    lines.append(
        f"{len(table.shown)} of {len(table.rows)} causes significant; of such rows at most "
        f"{100 * FALSE_DISCOVERY_RATE:g} % are expected to have struck nobody"
    )
    if not has_trends(table):
        lines.append("no trend: the window before was not released")
    elif any(row.trend.value == "no change beyond noise" for row in table.shown):
        lines.append("trend –: no change beyond noise")
    if table.corrected:
        lines += _of_correction(table)
    return lines


_HINTS: Final = {
    "not corrected: nobody said which model the agents run": (
        ": agents_model in the Leader's [store], or --rates FILE --agents-model NAME"
    ),
    "not corrected: no measured rates of the agents' detector": (
        ": `make bench-diagnosis` measures them, --rates FILE names them"
    ),
}


def _low(bias_bound: float | None) -> str:
    if bias_bound is None:
        return "how low numbers are as hosts left causes out was not released with them"
    return (
        "a host with more causes than it may report leaves some out, drawn at random: each number "
        f"may be low by {bias_bound:,.0f} hosts on average, at most (95 %), beyond its interval"
    )


def _of_correction(table: CauseTable) -> list[str]:
    lines = []
    doubtful = [row for row in table.shown if row.false_high > 2 * row.standard_error]
    if doubtful:
        lines.append(
            f"{len(doubtful)} of the lower ends are as low as they are because too few "
            "fault-free hours were measured to rule false alarms out; trends are not touched "
            "by that"
        )
    reasons: dict[str, list[str]] = {}
    for row in table.rows:
        if row.as_reported is not None:
            reasons.setdefault(row.as_reported, []).append(row.cause)
    if reasons:
        lines.append("* as reported, not corrected:")
        lines += [f"  {', '.join(names)}: {why}" for why, names in reasons.items()]
    return lines


def _length(seconds: int) -> str:
    for unit, size in (("week", 604_800), ("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds % size == 0:
            count = seconds // size
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{seconds} s"
