"""Packs: many windows of one series in a few files, beside the files of single windows.

A pack holds the closed days of an ISO week, or of a year where windows last a day or longer, in a
folder that appears whole under its final name:

    packed/series=S/period=2026-W07/generation=000003/

It is never changed. What comes later makes the next generation, and readers take the highest one. A
single window's file that the pack names among its members is left over and counts no more, so each
window is seen once at every moment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

FOLDER: Final = "packed"
"""Below the folder of the single windows."""
CELLS: Final = "cells.parquet"
"""What the numbers follow from; packs of releases that came with it."""
PLAIN: Final = "plain.parquet"
"""Rows as the files of single windows have them: suppressed windows, causes, older releases."""
MEMBERS: Final = "members.parquet"
"""One row a window: the name of its file, and how it ended."""

DAY_S: Final = 86_400
MEMBER_SCHEMA: Final = pa.schema(
    [
        ("name", pa.string()),
        ("cohort", pa.int32()),
        ("window_start", pa.timestamp("us")),
        ("window_s", pa.int32()),
        ("n_hosts", pa.int32()),
        ("settled_at", pa.timestamp("us")),
    ]
)


@dataclass(frozen=True)
class Pack:
    """One pack, by where it lies."""

    path: Path
    series: str
    period: str
    generation: int

    @cached_property
    def members(self) -> frozenset[str]:
        """Names of the files that it stands for."""
        return _names(self.path / MEMBERS)

    @property
    def days(self) -> tuple[date, date]:
        """First and last day of the period."""
        return days_of(self.period)

    def covers(self, day: date) -> bool:
        """Whether a day is in the period."""
        first, last = self.days
        return first <= day <= last


@dataclass(frozen=True)
class Single:
    """The file of one window.

    day     of the window's start, UTC
    """

    path: Path
    series: str
    day: date

    @property
    def window_start(self) -> datetime:
        """First moment of the window, UTC."""
        return datetime.strptime(self.path.name.split("-")[0], "%Y%m%dT%H%M%SZ")  # noqa: DTZ007

    @property
    def cohort(self) -> int:
        """Its cohort."""
        return int(self.path.stem.split("-c")[1].split("-")[0])


@dataclass(frozen=True)
class Listing:
    """What readers of a folder read: each window is in one of these."""

    singles: tuple[Single, ...]
    packs: tuple[Pack, ...]

    def files(self, name: str) -> list[Path]:
        """Give the packs' files of one name."""
        return [pack.path / name for pack in self.packs if (pack.path / name).exists()]


def list_folder(root: Path) -> Listing:
    """List a folder of releases, causes or suppressed windows; none has nothing.

    Raises      FileNotFoundError where a compaction went on meanwhile: list it again
    """
    # The singles first: one that is packed after this is in both, and the pack's members say so.
    singles = list(all_singles(root))
    packs = {(pack.series, pack.period): pack for pack in all_packs(root)}
    kept = [
        single
        for single in singles
        if not any(
            single.path.name in packs[single.series, period].members
            for period in periods_of(single.day)
            if (single.series, period) in packs
        )
    ]
    return Listing(tuple(kept), tuple(packs.values()))


def windows_by_hour(root: Path) -> Counter[tuple[str, datetime]]:
    """Count the windows of a folder, in packs or not, by series and the hour that they begin in."""
    listing = list_folder(root)
    counts = Counter(
        (single.series, single.window_start.replace(minute=0, second=0))
        for single in listing.singles
    )
    for pack in listing.packs:
        for hour, windows in _hours(pack.path / MEMBERS).items():
            counts[pack.series, hour] += windows
    return counts


def active_pack(root: Path, series: str, period: str) -> Pack | None:
    """Give the pack that counts, None where there is none."""
    found = list(_generations(_period_folder(root, series, period), series, period))
    return found[-1] if found else None


def is_packed(root: Path, single: Path) -> bool:
    """Whether a pack stands for the file of a window."""
    series, day = series_of(single), day_of(single)
    packs = (active_pack(root, series, period) for period in periods_of(day))
    return any(pack is not None and single.name in pack.members for pack in packs)


def series_of(single: Path) -> str:
    """Series of a window's file, by its folder."""
    return unquote(single.parent.parent.name.removeprefix("series="))


def day_of(single: Path) -> date:
    """Day of a window's file, by its folder."""
    return date.fromisoformat(single.parent.name.removeprefix("date="))


def all_singles(root: Path) -> Iterator[Single]:
    """Give the files of single windows, by series and name."""
    for series, folder in _parts(root, "series"):
        for day, dated in _parts(folder, "date"):
            for path in sorted(dated.iterdir()):
                if path.suffix == ".parquet":
                    yield Single(path, unquote(series), date.fromisoformat(day))


def all_packs(root: Path, *, superseded: bool = False) -> Iterator[Pack]:
    """Give the packs that count, by series and period; or those that a later one stands for."""
    for quoted, folder in _parts(root / FOLDER, "series"):
        for period, generations in _parts(folder, "period"):
            found = list(_generations(generations, unquote(quoted), period))
            yield from found[:-1] if superseded else found[-1:]


def next_path(root: Path, series: str, period: str, generation: int) -> Path:
    """Where a pack will lie."""
    return _period_folder(root, series, period) / f"generation={generation:06d}"


def period_of(day: date, window_s: int | None) -> str:
    """Name the period whose pack takes a window: a week, or a year where it lasts a day."""
    week, year = periods_of(day)
    return year if window_s is not None and window_s >= DAY_S else week


def periods_of(day: date) -> tuple[str, str]:
    """Name the week and the year that a day is in."""
    iso = day.isocalendar()
    return f"{iso.year}-W{iso.week:02d}", f"{day.year}"


def days_of(period: str) -> tuple[date, date]:
    """Give the first and the last day of a period."""
    year, _, week = period.partition("-W")
    if not week:
        return date(int(year), 1, 1), date(int(year), 12, 31)
    monday = date.fromisocalendar(int(year), int(week), 1)
    return monday, monday + timedelta(days=6)


def _period_folder(root: Path, series: str, period: str) -> Path:
    return root / FOLDER / f"series={quote(series, safe='')}" / f"period={period}"


def _generations(folder: Path, series: str, period: str) -> Iterator[Pack]:
    """Give the packs of a period, oldest first."""
    for number, path in _parts(folder, "generation"):
        yield Pack(path, series, period, int(number))


def _parts(folder: Path, key: str) -> list[tuple[str, Path]]:
    """Give (value, path) of the folders `key=value`, in order of their names."""
    if not folder.is_dir():
        return []
    head = f"{key}="
    found = sorted(path for path in folder.iterdir() if path.name.startswith(head))
    return [(path.name.removeprefix(head), path) for path in found]


@lru_cache(maxsize=64)
def _names(path: Path) -> frozenset[str]:
    """Read a pack's members; a pack never changes."""
    return frozenset(pq.read_table(path, columns=["name"])["name"].to_pylist())


@lru_cache(maxsize=1024)
def _hours(path: Path) -> dict[datetime, int]:
    """Count a pack's members by hour; a pack never changes."""
    starts = pq.read_table(path, columns=["window_start"])["window_start"]
    hours = pc.value_counts(pc.floor_temporal(starts, unit="hour"))
    return {row["values"]: row["counts"] for row in hours.to_pylist()}
