"""`pointillist store`: what a folder of releases holds, and packing its closed days."""

from __future__ import annotations

from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pointillist.table import Column, cells_of, table_lines, terminal_columns

from .output import ExitCode, JsonFlag, emit, examples, reported, say, usage_error
from .query import say_simulated

if TYPE_CHECKING:
    from aggregator.releases.packs import Listing

_EXAMPLES = examples("""
pointillist store show /var/lib/pointillist/releases/parquet
pointillist store compact /var/lib/pointillist/releases/parquet
pointillist store compact old/ --keep-days minute=400    and remove minutes of before that""")

app = typer.Typer(
    help="A folder of releases: what it holds, and packing its closed days.",
    epilog=_EXAMPLES,
    no_args_is_help=True,
)
Folder = Annotated[Path, typer.Argument(help="Folder of released Parquet.")]


@app.command(epilog="Example: pointillist store compact releases/ --keep-days minute=400")
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
    from analytics.rollups import kept_roll_ups

    kept = _days(keep_days or [])
    _need_folder(folder)
    with reported(ExitCode.UNAVAILABLE, OSError):
        done = Compaction(folder, kept, kept_roll_ups(folder)).run(datetime.now(UTC).date())
    body = {"windows_packed": done.windows, "packs": done.packs, "windows_removed": done.removed}
    emit(body, json)


@app.command(epilog="Example: pointillist store show releases/ --json")
def show(folder: Folder, json: JsonFlag = False) -> None:
    """Show what a folder holds: windows in packs and in files of their own, bytes, by series."""
    _need_folder(folder)
    say_simulated(folder)
    held = _held(folder)
    if not held:
        say(f"{folder}: no window yet; expected releases_dir of leader.toml")
    emit(held, json, _drawn)


def _days(options: list[str]) -> dict[str, int]:
    found = {}
    for option in options:
        series, _, days = option.rpartition("=")
        if not series or not days.isdecimal() or int(days) < 1:
            raise usage_error(f"--keep-days: expected SERIES=DAYS, days above 0, got {option!r}")
        found[series] = int(days)
    return found


def _need_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise usage_error(f"{folder}: expected a folder of releases, found none")


def _held(folder: Path) -> list[dict[str, Any]]:
    from aggregator.releases.cause_files import FOLDER as CAUSES
    from aggregator.releases.packs import list_folder
    from aggregator.releases.release_files import SUPPRESSED_FOLDER

    kinds = {
        "released": folder,
        "suppressed": folder / SUPPRESSED_FOLDER,
        "causes": folder / CAUSES,
    }
    return [
        {"kind": kind, **row}
        for kind, root in kinds.items()
        for row in _by_series(list_folder(root))
    ]


def _by_series(listing: Listing) -> list[dict[str, Any]]:
    rows = []
    known = {single.series for single in listing.singles}
    for series in sorted(known | {pack.series for pack in listing.packs}):
        singles = [single.path for single in listing.singles if single.series == series]
        packs = [pack for pack in listing.packs if pack.series == series]
        files = [*singles, *(path for pack in packs for path in pack.path.iterdir())]
        rows.append(
            {
                "series": series,
                "packed_windows": sum(len(pack.members) for pack in packs),
                "single_windows": len(singles),
                "files": len(files),
                "bytes": sum(path.stat().st_size for path in files),
            }
        )
    return rows


def _drawn(rows: list[dict[str, Any]]) -> str:
    columns = (
        Column("", itemgetter("kind")),
        Column("series", itemgetter("series"), folds=True),
        Column("windows in packs", lambda row: f"{row['packed_windows']:,}", right=True),
        Column("in own files", lambda row: f"{row['single_windows']:,}", right=True),
        Column("files", lambda row: f"{row['files']:,}", right=True),
        Column("MB", lambda row: f"{row['bytes'] / 1e6:,.1f}", right=True),
    )
    return "\n".join(table_lines(columns, cells_of(columns, rows), terminal_columns()))
