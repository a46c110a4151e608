"""`pointillist report`: released numbers of a week in one file of HTML."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from .output import (
    ExitCode,
    FleetSeries,
    JsonFlag,
    OpenFlag,
    emit,
    examples,
    open_page,
    reported,
    usage_error,
)
from .query import ReleasesFolder, default_folder
from .web_command import cached_rollups, series_owners

_EXAMPLES: Final = examples("""
pointillist report --week --out week.html   of the newest demo run here
pointillist report --week --store releases/parquet --until 2026-11-23 --out week.html
pointillist report --day --out day.html --open""")

app = typer.Typer(
    help="Released numbers of a week in one file to send round.",
    invoke_without_command=True, subcommand_metavar="",
)  # fmt: skip


@app.callback(epilog=_EXAMPLES)
def report(
    out: Annotated[
        Path, typer.Option("--out", help="The file to write; one that is there is replaced.")
    ],
    week: Annotated[bool, typer.Option("--week", help="Of a week; so without another.")] = False,
    day: Annotated[bool, typer.Option("--day", help="Of a day.")] = False,
    eight_weeks: Annotated[bool, typer.Option("--eight-weeks", help="Of eight weeks.")] = False,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="YYYY-MM-DD", help="The day after the last one, UTC; else the newest."
        ),
    ] = None,
    store: ReleasesFolder = None,
    fleet_series: FleetSeries = None,
    open_: OpenFlag = False,
    json: JsonFlag = False,
) -> None:
    """Write the Fleet, Applications, Root causes and Privacy pages into one file of HTML.

    It holds everything that it shows, loads nothing, and prints well. It has what an analyst may
    see: no series that was released to a single operator. Making it costs no privacy budget.
    """
    from web.span_report import ReportRefused, span_report
    from web.store_reading import PageState

    chosen = [
        name
        for name, asked in (("day", day), ("week", week), ("eight_weeks", eight_weeks))
        if asked
    ]
    if len(chosen) > 1:
        raise usage_error("expected one of --day, --week and --eight-weeks")
    try:
        state = PageState.model_validate({"span": (chosen or ["week"])[0], "until": _day(until)})
    except ValueError:
        raise usage_error(
            f"--until: expected a day of the years 1970 to 8999, got {until}"
        ) from None
    folder = (store or default_folder()).resolve()
    owners = series_owners(fleet_series or [], [])
    with reported(ExitCode.UNAVAILABLE, ReportRefused, OSError):
        html = span_report(folder, cached_rollups(folder), state, owners)
        out.write_bytes(html)
    made = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    body = {"file": str(out.resolve()), "bytes": len(html), "span": state.span, "made": made}
    emit(body, json, lambda row: f"{row['file']}, {len(html) / 1000:,.0f} kB")
    if open_:
        open_page(out.resolve().as_uri())


def _day(text: str | None) -> date | None:
    try:
        return None if text is None else date.fromisoformat(text)
    except ValueError:
        raise usage_error(f"--until: expected a day such as 2026-11-23, got {text!r}") from None
